"""The index: what is written is read again. What is refused is in test_container_hostile.py."""

import json

import pytest

from prunewald.storage.index import DTYPES, Packing, TensorEntry, dump, is_count, parse, unique

DENSE = TensorEntry(("b",), "BF16", (3,))
PACKED = TensorEntry(("w", "tied"), "F32", (4, 5), Packing(7, "codebook", (3, 8, 5)))


def test_what_is_dumped_is_parsed() -> None:
    assert parse(dump([DENSE, PACKED])) == ([DENSE, PACKED], None)
    assert parse(dump([], {"any": "thing"})) == ([], {"any": "thing"})


def test_as_the_page_has_it() -> None:
    assert json.loads(dump([DENSE, PACKED])) == {
        "tensors": [
            {"names": ["b"], "dtype": "BF16", "shape": [3]},
            {
                "names": ["w", "tied"],
                "dtype": "F32",
                "shape": [4, 5],
                "kept": 7,
                "values": "codebook",
                "bytes": [3, 8, 5],
            },
        ]
    }
    assert " " not in dump([DENSE, PACKED])


def test_what_an_entry_knows() -> None:
    assert (DENSE.key, DENSE.count, DENSE.nbytes) == ("dense/b", 3, 6)
    assert (PACKED.key, PACKED.count, PACKED.nbytes) == ("packed/w", 20, 80)
    assert TensorEntry(("n",), "I64", ()).nbytes == 8
    assert all(TensorEntry(("x",), name, (2,)).nbytes == 2 * dtype.itemsize for name, dtype in DTYPES.items())


def test_a_name_twice() -> None:
    assert unique([("a", 1), ("b", 2)]) == {"a": 1, "b": 2}
    with pytest.raises(ValueError, match="'a' comes twice"):
        unique([("a", 1), ("a", 1)])


@pytest.mark.parametrize(("value", "is_one"), [(0, True), (2**63 - 1, True), (2**63, False), (-1, False)])
def test_counts(value: int, is_one: bool) -> None:
    assert is_count(value) == is_one


@pytest.mark.parametrize("value", [True, 1.0, "1", None])
def test_what_is_no_count(value: object) -> None:
    assert not is_count(value)
