import pytest
import torch

from prunewald.ensemble import AdamW
from tests.ensemble.helpers import dropping, many

pytestmark = pytest.mark.usefixtures("one_thread")


def test_rows():
    collected = {"collect": "second-moment", "resample": "bootstrap", "keep_optimizer": True}
    result = many(AdamW(), epochs=2, **collected)
    some = result.rows(torch.tensor([2, 0, 2]))
    assert some.seeds == (4, 3, 4)
    assert len(some) == 3
    assert torch.equal(some.losses, result.losses[[2, 0, 2]])
    for name, tensor in result.state.items():
        assert torch.equal(some.state[name], tensor[[2, 0, 2]])
    assert torch.equal(some.second_moment["fc.weight"][1], result.second_moment["fc.weight"][0])
    assert torch.equal(some.sigma["fc.weight"][1], result.sigma["fc.weight"][0])
    assert torch.equal(some.dead["fc.weight"][1], result.dead["fc.weight"][0])
    assert some.optimizer_state["fc.weight"]["step"].tolist() == [10, 10, 10]
    some.params["fc.weight"].zero_()
    assert result.params["fc.weight"].any()
    assert torch.equal(some.module(1).out.weight, result.params["out.weight"][0])
    assert result.rows([1, 1], seeds=[7, 8]).seeds == (7, 8)
    with pytest.raises(ValueError, match="seeds: 1 for 2 replicas"):
        result.rows([1, 1], seeds=[7])
    with pytest.raises(IndexError, match="row 3: there are 3 replicas"):
        result.rows([3])


def test_nothing_collected():
    with pytest.raises(ValueError, match="nothing was collected.*collect="):
        _ = dropping(epochs=1).sigma
