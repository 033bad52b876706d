import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from prunewald.storage.masks import pack, unpack


@given(st.lists(st.booleans(), max_size=70))
def test_unpack_undoes_pack(bits: list[bool]) -> None:
    mask = torch.tensor(bits, dtype=torch.bool)
    packed = pack(mask)
    assert packed.dtype == torch.uint8
    assert len(packed) == (len(bits) + 7) // 8
    assert torch.equal(unpack(packed, len(bits)), mask)


@given(st.lists(st.booleans(), max_size=70))
def test_element_i_is_bit_i_of_the_bytes_as_one_number(bits: list[bool]) -> None:
    number = int.from_bytes(bytes(pack(torch.tensor(bits, dtype=torch.bool)).tolist()), "little")
    assert number == sum(bit << i for i, bit in enumerate(bits))


def test_row_major_whatever_the_strides() -> None:
    mask = torch.tensor([[True, False, False], [True, True, False]])
    assert pack(mask).tolist() == [0b011001]
    assert pack(mask.T.contiguous().T).tolist() == [0b011001]


@pytest.mark.parametrize(
    ("packed", "count", "reason"),
    [
        (torch.tensor([8], dtype=torch.uint8), 3, "padding bits"),
        (torch.tensor([1, 0], dtype=torch.uint8), 8, "takes 1 bytes"),
        (torch.tensor([], dtype=torch.uint8), 2**60, "takes 144115188075855872 bytes"),
        (torch.tensor([1], dtype=torch.int8), 8, "int8"),
        (torch.tensor([[1]], dtype=torch.uint8), 8, "takes 1 bytes"),
    ],
)
def test_what_is_no_mask_is_refused(packed: torch.Tensor, count: int, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        unpack(packed, count)
