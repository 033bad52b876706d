from dataclasses import dataclass

import pytest

from prunewald.util import registry
from prunewald.util.registry import brief, kind, known, make, name_of, names, register, wraps


class Shape:
    """A kind of part that only this test knows."""


@pytest.fixture(autouse=True)
def _shapes(monkeypatch):
    monkeypatch.setattr(registry, "_kinds", {})
    kind("shape", Shape, "Disc()")
    register("shape", "disc")(Disc)


@dataclass(frozen=True)
class Disc(Shape):
    radius: float = 1.0
    colour: str = "red"


def test_a_part_by_name_by_class_and_as_it_is():
    assert make("shape", "disc") == make("shape", Disc) == Disc()
    mine = Disc(2.0)
    assert make("shape", mine) is mine


def test_a_class_that_is_not_registered_is_a_part_too():
    class Square(Shape):
        pass

    assert isinstance(make("shape", Square), Square)
    assert name_of("shape", Square()) == "Square"
    assert name_of("shape", Disc(3.0)) == "disc"


def test_an_unknown_name_is_repeated_with_the_known_ones():
    with pytest.raises(ValueError, match="shape 'dsic'.*disc"):
        make("shape", "dsic")


@pytest.mark.parametrize("choice", [3, None, int, [Disc()]])
def test_what_is_no_part_is_repeated_with_an_example(choice):
    with pytest.raises(TypeError, match=r"shape=.*Disc\(\).*'disc'") as caught:
        make("shape", choice)
    assert str(caught.value).startswith(f"shape={choice!r}: ")


def test_a_kind_may_take_other_things_for_a_part():
    wraps("shape", lambda given: Disc(given) if isinstance(given, float) else None)
    assert make("shape", 2.5) == Disc(2.5)
    with pytest.raises(TypeError, match="shape=3"):
        make("shape", 3)


def test_a_name_is_given_once_and_the_table_is_a_copy():
    with pytest.raises(ValueError, match="shape 'disc'.*Disc"):
        register("shape", "disc")(Shape)
    known("shape").clear()
    assert known("shape") == {"disc": Disc}


def test_a_part_has_other_names_however_they_are_written():
    register("shape", "square", "box")(type("Square", (Shape,), {}))
    square = known("shape")["square"]
    assert type(make("shape", "box")) is type(make("shape", "BOX")) is square
    assert name_of("shape", square()) == "square"
    assert set(known("shape")) == {"disc", "square"}
    assert names("shape", "Box") == names("shape", "square") == ["square", "box"]
    assert names("shape", "disc") == ["disc"]
    with pytest.raises(ValueError, match="shape 'bx'.*box, disc, square"):
        make("shape", "bx")
    for taken in ("disc", "box"):
        with pytest.raises(ValueError, match=f"shape {taken!r} is registered"):
            register("shape", "new", taken)(Shape)
    assert "new" not in known("shape")


def test_brief_leaves_out_what_has_its_default():
    assert brief(Disc()) == "Disc()"
    assert brief(Disc(2.0)) == "Disc(radius=2.0)"
    assert brief(Disc(colour="blue")) == "Disc(colour='blue')"
    assert brief(len) == "len"
    assert brief(3) == "3"
