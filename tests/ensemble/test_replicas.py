"""What a user gives stays as it is: frozen parameters, masks, eval mode, the model itself."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from prunewald.ensemble import SGD, draws, train_many
from prunewald.uncertainty import PseudoBootstrap

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.parametrize("how", ["vmap", "loop"])]

STATISTICS = ("1.running_mean", "1.running_var", "1.num_batches_tracked")


def data() -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    return torch.randn(40, 5, generator=g, dtype=torch.float64), torch.randint(0, 3, (40,), generator=g)


def pretrained(**norm) -> nn.Sequential:
    """A backbone with running statistics, and a head."""
    torch.manual_seed(9)
    model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4, **norm), nn.ReLU(), nn.Dropout(0.5), nn.Linear(4, 3))
    model.double()(3 * data()[0] + 1)
    return model


def frozen(**norm) -> nn.Sequential:
    model = pretrained(**norm)
    for param in model[:4].parameters():
        param.requires_grad_(False)
    return model


def many(make, how, **options):
    common = {"seeds": [4, 8], "epochs": 2, "batch_size": 10, "optimizer": SGD(lr=0.1), "progress": False}
    return train_many(make, *data(), how=how, **common | options)


def changed(result, model) -> set[str]:
    """What differs from the model in every replica; else it is the same in all."""
    state = model.state_dict()
    names = {name for name, t in result.state.items() if not torch.equal(t, state[name].expand_as(t))}
    assert all(not torch.equal(result.state[name][r], state[name]) for name in names for r in range(len(result)))
    return names


def test_frozen_parameters_keep_their_values(how):
    model = frozen()
    result = many(model, how, collect=PseudoBootstrap(last=4))
    assert changed(result, model) == {*STATISTICS, "4.weight", "4.bias"}
    assert not torch.equal(result.params["4.weight"][0], result.params["4.weight"][1])
    assert result.sigma.keys() == {"4.weight", "4.bias"}


def test_one_parameter_of_a_layer_may_be_frozen(how):
    model = pretrained()
    model[0].weight.requires_grad_(False)
    assert "0.weight" not in changed(many(model, how), model)
    assert {"0.bias", "4.weight"} < changed(many(model, how), model)


class Resetting(nn.Module):
    """Resets its parts, and has a frozen parameter that nothing resets."""

    def __init__(self) -> None:
        super().__init__()
        self.body = frozen()
        half = torch.full((), 0.5, dtype=torch.float64)
        self.scale = nn.ParameterList([nn.Parameter(half, requires_grad=False)])

    def reset_parameters(self) -> None:
        for part in self.body:
            getattr(part, "reset_parameters", int)()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.scale[0] * self.body(x)
        return out


def test_frozen_parameters_outlive_a_reset_by_the_parent(how):
    model = Resetting()
    heads = {"body.4.weight", "body.4.bias"}
    assert changed(many(model, how), model) == heads | {f"body.{name}" for name in STATISTICS}


def test_a_model_without_reset_parameters_may_be_trained_on(how):
    model = Resetting()
    model.scale.requires_grad_(True)
    assert "scale.0" in changed(many(model, how, start="same"), model)
    with pytest.raises(ValueError, match="scale .ParameterList.*reset_parameters"):
        many(model, how)


def test_statistics_of_a_frozen_part_go_on_from_where_they_were(how):
    kept, reset = frozen(), pretrained()
    kept[1].momentum = reset[1].momentum = 1e-9  # they move, but hardly
    wanted = kept[1].running_var.expand(2, 4)
    torch.testing.assert_close(many(kept, how).buffers["1.running_var"], wanted)
    torch.testing.assert_close(many(reset, how).buffers["1.running_var"], torch.ones_like(wanted))


def test_nothing_to_train(how):
    with pytest.raises(ValueError, match="requires_grad=True"):
        many(pretrained().requires_grad_(False), how)


@pytest.mark.parametrize("start", ["independent", "same"])
def test_masks_of_frozen_parameters_hold(how, start):
    model = frozen()
    given = copy.deepcopy(model.state_dict())
    masks = {name: torch.rand(2, *model[int(name[0])].weight.shape) > 0.5 for name in ("0.weight", "4.weight")}
    result = many(model, how, masks=masks, start=start)
    assert torch.equal(result.params["0.weight"], model[0].weight * masks["0.weight"])
    assert (result.params["4.weight"][~masks["4.weight"]] == 0).all()
    assert all(torch.equal(tensor, given[name]) for name, tensor in model.state_dict().items())


def by_hand(model, seed):
    """A plain loop, without touching the mode of the model."""
    model = copy.deepcopy(model)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    x, y = data()
    for epoch in range(2):
        for rows in draws.order([seed], 40, epoch)[0].tensor_split(4):
            optimizer.zero_grad()
            F.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
    return model


@pytest.mark.parametrize("affine", [True, False])
def test_parts_in_eval_mode_stay_so(how, affine):
    model = pretrained(affine=affine)
    model[1:4].eval()
    result = many(lambda: copy.deepcopy(model), how)
    for r, seed in enumerate(result.seeds):
        for name, tensor in by_hand(model, seed).state_dict().items():
            torch.testing.assert_close(result.state[name][r], tensor)
    assert changed(many(model, how), model).isdisjoint(STATISTICS)  # a new initialisation leaves them too
    assert [part.training for part in result.module(0)] == [True, False, False, False, True]


def test_a_model_that_was_evaluated_is_trained_in_train_mode(how):
    model = pretrained()
    trained, evaluated = many(model, how), many(model.eval(), how)
    assert not any(part.training for part in model.modules())
    for name, tensor in trained.state.items():
        assert torch.equal(tensor, evaluated.state[name])
    assert (evaluated.buffers["1.num_batches_tracked"] == 8).all()


class KeepsNorm(nn.Sequential):
    """A common way to freeze statistics."""

    def train(self, mode: bool = True) -> "KeepsNorm":
        super().train(mode)
        self[1].eval()
        return self


def test_a_train_of_the_model_itself_is_heard(how):
    model = pretrained()
    result = many(lambda: KeepsNorm(*copy.deepcopy(model)), how)
    assert changed(result, model).isdisjoint(STATISTICS)


def test_a_function_may_give_the_same_model_each_time(how):
    model = pretrained().eval()
    before = copy.deepcopy(model.state_dict())
    result = many(lambda: model, how)
    other = many(copy.deepcopy(model), how, start="same")
    for name, tensor in result.state.items():
        assert torch.equal(tensor, other.state[name])
        assert torch.equal(model.state_dict()[name], before[name])
    assert not model.training
    assert result.module(0) is not model


def test_a_function_may_build_on_a_common_part(how):
    body = pretrained()[:3]
    before = copy.deepcopy(body.state_dict())
    result = many(lambda: nn.Sequential(body, nn.Linear(4, 3).double()), how)
    assert all(torch.equal(tensor, before[name]) for name, tensor in body.state_dict().items())
    alone = many(lambda: nn.Sequential(body, nn.Linear(4, 3).double()), how, seeds=[8])
    for name, tensor in alone.state.items():
        torch.testing.assert_close(result.state[name][1], tensor[0])
