import pytest
from matplotlib.colors import to_rgba

from prunewald.lab.methods import SIGMAS, parse
from prunewald.lab.palette import look, looks
from prunewald.util.colours import METHODS

PLAIN = ["abs", "random", "dense", *(f"{sigma}:1" for sigma in SIGMAS)]
RAW = [f"{sigma}:1:formula" for sigma in SIGMAS if sigma not in ("moment", "fisher")]


def test_every_method_has_a_colour_of_its_own() -> None:
    colors = [to_rgba(look(row)[0]) for row in [*PLAIN, *RAW]]
    assert len(set(colors)) == len(colors)
    assert look("moment:1")[0] != look("pseudo:1")[0]


def test_a_method_has_one_colour_whatever_its_lambda_and_allocation() -> None:
    rows = ["moment:1", "moment:0.1", "moment:30@lamp", "moment:1@erk", "moment:1:permuted"]
    assert {look(row)[0] for row in rows} == {METHODS["moment"]}
    assert len({look(f"abs{scope}")[1] for scope in ("", "@lamp", "@erk", "@global", "@lamp-score")}) == 5


def test_rows_of_one_figure_are_told_apart() -> None:
    rows = ["abs", "moment:1", "moment:0.1", "moment:10", "moment:1@lamp", "moment:10@lamp", "pseudo:0", "pseudo:1"]
    assert len(set(looks(rows).values())) == len(rows)
    assert looks(rows)["moment:1"] == (*look("moment:1"), "full")


@pytest.mark.parametrize("row", [*PLAIN, *RAW, "moment:1@lamp"])
def test_it_does_not_depend_on_the_other_rows(row: str) -> None:
    assert looks([row])[row][:2] == looks(["abs@erk", *PLAIN, row])[row][:2] == look(parse(row).text)
