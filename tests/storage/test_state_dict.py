"""A state dict: which of its tensors are one and the same, which no file can hold, which do not fit their masks."""

import pytest
import torch
from torch import Tensor, nn

from prunewald.storage.options import FileOptions
from prunewald.storage.state_dict import check_keys, pack, same_bits, tied, unfit, unpack

from .helpers import identical, net, noise, pruned


def packed(state: dict[str, Tensor], masks: dict[str, Tensor]) -> dict[str, Tensor]:
    entries, stored = pack(state, masks, FileOptions(None, 32, "auto", "auto").chooser(state, ()))
    return unpack(entries, stored)


def test_what_is_packed_comes_back_in_order() -> None:
    source = pruned()
    found = packed(source.model.state_dict(), source.masks)
    assert identical(found, source.model.state_dict())
    assert list(found) == list(source.model.state_dict())


def test_tied_tensors_are_those_with_the_same_view_of_the_same_memory() -> None:
    base, z = torch.randn(4, 4), torch.randn(3, dtype=torch.complex64)
    state = {"a": base, "b": base[:2], "c": base.view(4, 4), "d": base.T, "e": base.view(torch.int32)}
    assert tied(state) == [["a", "c"], ["b"], ["d"], ["e"]]
    assert tied({"z": z, "conjugate": z.conj()}) == [["z"], ["conjugate"]]
    assert tied({"a": torch.ones(0), "b": torch.ones(0)}) == [["a"], ["b"]]  # no memory at all


def test_same_bits() -> None:
    weight = noise(torch.float32, 50)
    assert same_bits(weight, weight.clone())
    assert not same_bits(torch.tensor([0.0]), torch.tensor([-0.0]))
    assert same_bits(torch.tensor([float("nan")]), torch.tensor([float("nan")]))


def test_what_fits() -> None:
    assert unfit(nn.Parameter(torch.ones(2))) is None
    assert unfit(torch.tensor(3)) is None
    assert unfit([1.0]) == "a list, not a tensor"


def test_the_keys_must_be_those_of_the_index() -> None:
    check_keys({"a"}, {"a": torch.ones(1)})
    with pytest.raises(ValueError, match="disagree about 'b'"):
        check_keys({"a"}, {"a": torch.ones(1), "b": torch.ones(1)})
    with pytest.raises(ValueError, match="disagree about 'a'"):
        check_keys({"a"}, {})


def test_a_mask_goes_for_all_the_names_of_a_tensor() -> None:
    weight = torch.tensor([1.0, 0.0, 0.0, 2.0])
    masks = {"b": torch.tensor([True, True, False, True])}
    entries, _ = pack({"a": weight, "b": weight}, masks, FileOptions(None, 32, "raw", "bits").chooser("ab", ()))
    assert [entry.names for entry in entries] == [("a", "b")]
    assert entries[0].packed is not None
    assert entries[0].packed.kept == 3


@pytest.mark.parametrize("value", [1e-30, -0.0, float("nan")])
def test_weights_that_disagree_with_the_mask(value: float) -> None:
    source = pruned()
    mask = source.masks["3.weight"]
    source.model[3].weight.data[~mask] = value
    with pytest.raises(ValueError, match=rf"'3.weight' is not \+0.0 at {(~mask).sum()} pruned .*apply_\(\)"):
        packed(source.model.state_dict(), source.masks)


@pytest.mark.parametrize(
    ("masks", "reason"),
    [
        ({"nope": torch.ones(2, dtype=torch.bool)}, r"mask for 'nope'.*save\(pruner\.model"),
        ({"0.bias": torch.ones(2, dtype=torch.bool)}, r"'0.bias' has shape \(2,\).*\(30,\)"),
        ({"0.bias": torch.ones(30)}, "'0.bias' is torch.float32.*bool"),
    ],
)
def test_masks_that_do_not_fit(masks: dict[str, Tensor], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        packed(net().state_dict(), masks)
