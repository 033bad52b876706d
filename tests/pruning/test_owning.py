"""Two Pruners on the same parameters: the second takes over, or is refused while the first is at work."""

import gc

import pytest
import torch

import prunewald as pw
from tests.training import net, train

pytestmark = pytest.mark.usefixtures("one_thread")


def trained():
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    train(model, optimizer, 3)
    return model, optimizer


def test_a_notebook_cell_run_twice():
    model, optimizer = trained()
    dense = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    pw.Pruner(model, optimizer).prune(0.95)
    with pytest.warns(UserWarning, match="earlier Pruner.*detached"):
        second = pw.Pruner(model, optimizer)
    model.load_state_dict(dense)
    second.prune(0.5)
    train(model, optimizer, 2)
    assert second.sparsity == pytest.approx(0.5, abs=0.01)
    zeros = sum(int((p == 0).sum()) for p in (model[0].weight, model[2].weight))
    assert zeros == pytest.approx(0.5 * 80, abs=2)


def test_masks_are_handed_on():
    model, optimizer = trained()
    first = pw.Pruner(model, optimizer)
    first.prune(0.8)
    masks = first.masks
    with pytest.warns(UserWarning, match="set_masks"):
        second = pw.Pruner(model, torch.optim.SGD(model.parameters(), lr=0.1), criterion="magnitude")
    second.set_masks(masks)
    assert second.sparsity == pytest.approx(0.8, abs=0.01)


@pytest.mark.parametrize(
    "make",
    [
        lambda m, o: pw.Pruner(m, o, schedule=pw.Cubic(0.9, begin=1, end=100, every=1)),
        lambda m, o: pw.Surgery(m, o, sparsity=0.5),
    ],
    ids=["schedule", "surgery"],
)
def test_one_at_work_is_not_disturbed(make):
    model, optimizer = trained()
    first = make(model, optimizer)
    train(model, optimizer, 3)
    with pytest.raises(ValueError, match=r"'0.weight' belongs to.*detach\(\)"):
        pw.Pruner(model, optimizer)
    first.detach()
    pw.Pruner(model, optimizer).prune(0.95)


def test_pruners_that_only_watch_share_a_model():
    model, optimizer = trained()
    watching = [pw.Pruner(model, optimizer, uncertainty=name) for name in ("second-moment", "pseudo-bootstrap")]
    train(model, optimizer, 4)
    assert all(one.sigma()["0.weight"].shape == (8, 6) for one in watching[:1])


def test_a_context_detaches_at_the_end():
    model, optimizer = trained()
    with pw.Pruner(model, optimizer) as pruner:
        pruner.prune(0.5)
        train(model, optimizer, 1)
        assert pruner.sparsity == pytest.approx(0.5, abs=0.01)
    train(model, optimizer, 2)
    assert (model[0].weight != 0).all(), "nothing holds the zeros any more"
    pw.Pruner(model, optimizer).prune(0.5)


def test_a_pruner_that_is_gone_is_no_owner():
    model, _ = trained()
    pw.Pruner(model, criterion="magnitude").prune(0.5)
    gc.collect()
    pw.Pruner(model, criterion="magnitude").prune(0.6)
