"""Methods are known by their labels, and every colour can be seen on both grounds."""

import pytest

from prunewald.lab.methods import parse
from prunewald.util import colours

ROWS = ["abs", "abs@lamp", "random", "dense", "moment:1@lamp", "pseudo:0.01", "bootstrap:1", "fisher:1", "wanda", "obd"]


@pytest.mark.parametrize("row", [*ROWS, "movement", "taylor", "snip", "platon"])
def test_a_label_tells_its_method(row: str) -> None:
    method = parse(row)
    assert colours.method_of(method.label) == method.sigma


@pytest.mark.parametrize("said", ["SecondMoment()", "PseudoBootstrap(last=20)", "MagnitudeUncertainty(lam=1)"])
def test_a_part_tells_its_method(said: str) -> None:
    assert colours.method_of(said) == ("pseudo" if "Pseudo" in said else "moment")


def test_labels_of_one_figure_have_colours_of_their_own() -> None:
    found = colours.of_labels(["ABS", "M&U", "mine", "yours", "theirs"])
    assert (found["ABS"], found["M&U"]) == (colours.METHODS["abs"], colours.METHODS["moment"])
    assert len(set(found.values())) == 5


@pytest.mark.parametrize("ground", [colours.LIGHT, colours.DARK])
@pytest.mark.parametrize("colour", [*colours.METHODS.values(), colours.BAR])
def test_every_colour_stands_out(colour: str, ground: str) -> None:
    def luminance(text: str) -> float:
        parts = [int(text[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        red, green, blue = (part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    low, high = sorted(map(luminance, (colours.seen_on(colour, ground), ground)))
    assert (high + 0.05) / (low + 0.05) >= 2.98  # a colour is rounded to 256 steps
