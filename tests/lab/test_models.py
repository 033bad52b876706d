import torch
from torch import nn

from prunewald.lab.models import PaperCnn


def test_parameters_are_the_papers() -> None:
    model = PaperCnn()
    assert sum(p.numel() for p in model.parameters()) == 9660
    linear = [module for module in model.modules() if isinstance(module, nn.Linear)]
    assert sum(module.weight.numel() for module in linear) == 8928
    assert model(torch.zeros(3, 1, 28, 28)).shape == (3, 10)


def test_dropout_is_an_argument() -> None:
    assert PaperCnn(0.25).dropout.p == 0.25
    x = torch.rand(4, 1, 28, 28)
    model = PaperCnn(0.0)
    assert torch.equal(model(x), model(x))
