"""The options of a file: which of them each tensor gets, and which are refused."""

from typing import Any

import numpy as np
import pytest

from prunewald.storage.options import FileOptions, TensorOptions

NAMES = ("fc.weight", "fc.bias", "out.weight")


def chosen(*tied: str, **given: Any) -> TensorOptions:
    options = {"values": None, "size": 32, "codec": "auto", "positions": "auto"} | given
    return FileOptions(**options).chooser(NAMES, {"fc.weight"})(tied)


def test_one_word_is_for_the_targets() -> None:
    assert chosen("fc.weight", values="int8").values == "int8"
    assert chosen("out.weight", values="int8").values is None
    assert chosen("out.weight", "fc.weight", values="int8").values == "int8"  # tied to a target


def test_by_name_the_first_that_matches() -> None:
    given = {"values": {"out.*": None, "*.weight": "codebook"}, "size": {"fc.weight": 4, "*.weight": 8}}
    assert (chosen("fc.weight", **given).values, chosen("fc.weight", **given).size) == ("codebook", 4)
    assert (chosen("out.weight", **given).values, chosen("out.weight", **given).size) == (None, 8)
    assert (chosen("fc.bias", **given).values, chosen("fc.bias", **given).size) == (None, 32)


def test_numpys_numbers() -> None:
    assert type(chosen("fc.weight", size=np.int64(7)).size) is int


def test_codecs() -> None:
    found = chosen("fc.weight", codec="huffman", positions="bits")
    assert found.codecs == {"raw", "huffman"}
    assert (found.places.bits, found.places.gaps) == (frozenset({"raw"}), frozenset())


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"values": "int3"}, "values='int3'.*None.*'int8'"),
        ({"values": {"*": "int3"}}, "values='int3'.*None.*'int8'"),
        ({"values": {"nope*": "int8"}}, r"values has 'nope\*'.*fc\.weight"),
        ({"size": {"nope": 8}}, r"size has 'nope'.*fc\.weight"),
        ({"size": 1}, "size=1.*2 to 256"),
        ({"size": 257}, "size=257.*2 to 256"),
        ({"size": 4.0}, "size=4.0.*2 to 256"),
        ({"size": True}, "size=True.*2 to 256"),
        ({"size": {"*": 1}}, "size=1.*2 to 256"),
        ({"codec": "zip"}, "codec='zip'.*'huffman', 'ans'"),
        ({"positions": "zip"}, "positions='zip'.*'gaps', 'ans'"),
    ],
)
def test_what_cannot_be(given: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        chosen("fc.weight", **given)
