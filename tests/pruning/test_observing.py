"""A pass over data that settles what is dead, and changes nothing else."""

import copy

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import prunewald as pw
from tests.training import sgd

pytestmark = pytest.mark.usefixtures("one_thread")


class Restless(nn.Module):
    """Draws random numbers and writes to a buffer in every pass, whatever the mode."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 4)
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("passes", torch.zeros(()))

    def forward(self, x):
        self.passes += 1
        return self.norm(self.fc(x)) + 1e-3 * torch.randn(4)


def loader():
    torch.manual_seed(3)
    x = torch.randn(40, 6)
    x[:, 4] = 0
    return DataLoader(TensorDataset(x, torch.randint(4, (40,))), batch_size=8, shuffle=True)


@pytest.mark.parametrize("loss", ["cross_entropy", nn.CrossEntropyLoss(), nn.CrossEntropyLoss(reduction="none")])
def test_it_tells_how_many_are_dead_and_leaves_all_else_bit_for_bit(loss):
    torch.manual_seed(0)
    model, data = Restless(), loader()
    model.norm.eval()
    optimizer = sgd(model)
    pruner = pw.Pruner(model, optimizer, uncertainty="pseudo-bootstrap")
    for x, y in data:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    before = copy.deepcopy([model.state_dict(), optimizer.state_dict(), pruner.state_dict()["states"]])
    grads = {name: p.grad.clone() for name, p in model.named_parameters()}
    modes, numbers = [m.training for m in model.modules()], torch.get_rng_state()
    assert pruner.observe(data, loss) == {"fc.weight": 4}
    torch.testing.assert_close(
        [model.state_dict(), optimizer.state_dict(), pruner.state_dict()["states"]], before, rtol=0, atol=0
    )
    assert all(torch.equal(p.grad, grads[name]) for name, p in model.named_parameters())
    assert modes == [m.training for m in model.modules()]
    assert torch.equal(numbers, torch.get_rng_state())


def test_pruned_weights_are_not_counted_and_magnitude_may_ask_too():
    model = Restless()
    pruner = pw.Pruner(model, sgd(model), criterion="magnitude")
    hooks = len(model.fc.weight._backward_hooks or ())
    masks = {"fc.weight": torch.ones(4, 6, dtype=torch.bool)}
    masks["fc.weight"][0] = False
    pruner.set_masks(masks)
    assert pruner.observe(loader(), "cross_entropy") == {"fc.weight": 3}
    assert len(model.fc.weight._backward_hooks or ()) == hooks


def test_it_holds_until_so_many_steps_tell_by_themselves():
    model = nn.Linear(3, 2, bias=False)
    optimizer = torch.optim.Adam(model.parameters(), weight_decay=1e-3)
    pruner = pw.Pruner(model, optimizer)
    only = torch.tensor([[1.0, 0, 0]]), torch.zeros(1, 2)
    assert pruner.observe([only], nn.functional.mse_loss) == {"weight": 4}
    for step in range(100):
        dead = pruner.dead()["weight"].any(0).tolist()
        assert dead == [False, step == 0, True]
        optimizer.zero_grad()
        model(torch.tensor([0, 1.0, 0])).square().sum().backward()
        optimizer.step()
    assert pruner.dead()["weight"].any(0).tolist() == [True, False, True]
    pruner.prune(0.3)
    assert pruner.dead() == {}


def test_a_limit_is_of_batches_and_a_penalty_in_the_loss_is_no_data():
    model = nn.Linear(3, 2, bias=False)
    pruner = pw.Pruner(model, torch.optim.Adam(model.parameters(), weight_decay=1e-3))
    batches = [(row[None], torch.ones(1, 2)) for row in torch.eye(3)]

    def loss(output, target):
        return (output - target).square().sum() + 0.1 * pw.companions.l2(pruner.targets())

    assert pruner.observe(iter(batches), loss, limit=2) == {"weight": 2}
    assert pruner.observe(batches, loss) == {"weight": 0}


def test_no_data_and_a_failing_loss_tell_nothing():
    model = nn.Linear(3, 2, bias=False)
    pruner = pw.Pruner(model, torch.optim.Adam(model.parameters()))
    with pytest.raises(ValueError, match="gave no sample"):
        pruner.observe([], "cross_entropy")
    with pytest.raises(RuntimeError):
        pruner.observe([(torch.randn(1, 3), torch.zeros(5))], _fails)
    assert "nothing was watched" in pruner._reach.why_not("weight")
    assert pruner._reach.dead("weight") is None


def _fails(output, target):
    raise RuntimeError("no loss")


def test_recurrent_layers():
    model = nn.GRU(4, 3, batch_first=True)
    pruner = pw.Pruner(model, torch.optim.Adam(model.parameters(), weight_decay=1e-3))
    x = torch.randn(2, 5, 4)
    x[..., 1] = 0
    found = pruner.observe([(x, torch.zeros(2, 5, 3))], lambda output, y: (output[0] - y).square().mean())
    assert found == {"weight_ih_l0": 9, "weight_hh_l0": 0}
