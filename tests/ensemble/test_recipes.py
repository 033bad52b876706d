import pytest
import torch

from prunewald.ensemble import SGD, Adam, AdamW, RMSprop


@pytest.mark.parametrize("kind", [SGD, RMSprop, Adam, AdamW])
def test_a_recipe_builds_the_optimizer_of_its_name(kind):
    recipe = kind(lr=0.3, weight_decay=0.2)
    optimizer = recipe.build([torch.zeros(2, requires_grad=True)])
    assert type(optimizer) is getattr(torch.optim, kind.__name__)
    assert vars(recipe).items() <= optimizer.defaults.items()
    assert vars(kind()).items() <= kind().build([torch.zeros(2, requires_grad=True)]).defaults.items()


@pytest.mark.parametrize("kind", [SGD, RMSprop, Adam, AdamW])
def test_its_defaults_are_those_of_torch(kind):
    wanted = getattr(torch.optim, kind.__name__)([torch.zeros(2, requires_grad=True)]).defaults
    assert vars(kind()).items() <= wanted.items()
