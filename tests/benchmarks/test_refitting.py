"""The experiment "accuracy without retraining": its comparisons are right, and its tables are of its records."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from benchmarks.published import sparsegpt
from benchmarks.refitting.comparing import Compared, bar
from benchmarks.refitting.corpus import plain_text, sequences
from benchmarks.refitting.layerwise import as_matrix, as_weight, grams, inputs, prune_in_order, reconstruction, together
from benchmarks.refitting.pages import texts
from benchmarks.refitting.records import PACKED, Record, Records, key, line, pack, unpack
from benchmarks.refitting.tables import bar_text, choosing_text, counts_text, examples_text, published_text
from torch import nn

PLACE = Path(__file__).parents[2] / "results/refit"


def record(way: str, level: str, accuracy: float, seed: int = 0, network: str = "mlp") -> Record:
    return Record(network, seed, way, level, accuracy, bits=1.0, kept=0.05, seconds=2.0)


def cell(level: str, **lost: float) -> list[Record]:
    """Three networks of 90, 91 and 92 %; what each way loses, a little more or less on each."""
    names = {
        "ours": "moment+refit",
        "gpt": "published sparsegpt",
        "wanda": "published wanda",
        "mask": "sparsegpt+refit",
    }
    names |= {"own": "sparsegpt", "same": "moment+refit, head dense", "plain": "moment", "few": "moment+refit@128"}
    found = []
    for seed in range(3):
        dense = 90.0 + seed
        found.append(record("dense", "0", dense, seed))
        found += [record(names[way], level, dense - drop + 0.01 * (seed - 1), seed) for way, drop in lost.items()]
    return found


# ---- comparing -----------------------------------------------------------------------------------------------------


def test_a_change_is_over_the_networks_that_have_it():
    found = Compared([*cell("0.95", ours=2.0), record("dense", "0", 50.0, seed=3)])
    change = found.change("mlp", "moment+refit", "0.95")
    assert change.difference.n == 3
    assert change.difference.mean == pytest.approx(-2.0)
    assert (change.median, change.worst) == (pytest.approx(-2.0), pytest.approx(-2.01))


def test_ours_must_lose_at_most_half_where_the_better_of_the_two_loses_over_a_point():
    def half(**lost: float) -> list[bool]:
        return [one.holds for one in bar(Compared(cell("0.95", **lost)))]

    assert half(ours=1.0, gpt=2.2, wanda=9.0) == [True]
    assert half(ours=1.2, gpt=2.2, wanda=9.0) == [False]
    assert half(ours=1.2, gpt=9.0, wanda=2.2) == [False]
    assert half(ours=5.0, gpt=0.9, wanda=9.0) == []


def test_at_two_of_four_the_same_layers_are_compared():
    lost = {"gpt": 1.0, "wanda": 2.0, "own": 2.0}
    worse, level = (Compared(cell("2:4", **lost, ours=9.0, same=same)) for same in (3.0, 0.5))
    assert [one.holds for one in bar(worse)] == [False, False]
    assert [one.holds for one in bar(level)] == [True, False]


def test_a_difference_that_its_interval_does_not_tell_from_none_is_not_worse():
    records = cell("0.5", ours=1.0, mask=1.0, gpt=0.1, wanda=0.1)
    noisy = [replace(r, accuracy=r.accuracy - 3 * (r.seed == 1)) if r.way == "moment+refit" else r for r in records]
    (verdict,) = bar(Compared(noisy))
    assert verdict.difference.mean == pytest.approx(-1.0)
    assert verdict.holds


# ---- tables --------------------------------------------------------------------------------------------------------


def test_what_does_not_hold_is_said_first():
    text = bar_text(Compared(cell("0.95", ours=1.2, gpt=2.2, wanda=9.0, mask=1.5)))
    assert text.startswith("What does not hold")
    assert "1.20      2.20" in text
    assert "loses: 0 of 1" in text
    assert "refitted: 1 of 1" in text
    assert "  nothing" in bar_text(Compared(cell("0.95", ours=1.0, gpt=2.2, wanda=9.0)))


def test_tables_have_a_line_for_each_way_that_is_known():
    found = Compared(cell("0.95", ours=1.0, gpt=2.0, wanda=9.0, plain=4.0, own=3.0, mask=1.5, few=1.1))
    published, counts, examples = published_text(found), counts_text(found), examples_text(found)
    assert "Wanda as published" in published
    assert "+1.00 [+1.00, +1.00] *" in published  # without spread between networks: a difference for certain
    assert "-4.00" in counts
    assert "second moment (default)" in counts
    assert "128" in examples
    assert choosing_text(found).splitlines()[2].split()[:4] == ["SparseGPT", "1", "0", "1"]


# ---- records -------------------------------------------------------------------------------------------------------


def test_records_come_back_and_go_on(tmp_path):
    first = Records(tmp_path, "mlp", 0)
    own = record("moment", "0.95", 90.123456)
    first.write({key("moment", "0.95"): line(own), key("reconstruction", "0.8"): {"layers": {}, "network": "mlp"}})
    again = Records(tmp_path, "mlp", 0)
    assert again.has("moment 0.95")
    assert not again.has("moment 0.95", "moment 0.5")
    pack(tmp_path, {"data": {}})
    (found,), (block,), about = unpack(tmp_path / PACKED)
    assert found == replace(own, accuracy=90.1235)
    assert (block["network"], about) == ("mlp", {"data": {}})


def test_the_same_records_are_the_same_bytes(tmp_path):
    for folder, order in (("a", (0, 1)), ("b", (1, 0))):
        for seed in order:
            Records(tmp_path / folder, "mlp", seed).write({"moment 0.5": line(record("moment", "0.5", 90, seed))})
        pack(tmp_path / folder, {})
    assert (tmp_path / "a" / PACKED).read_bytes() == (tmp_path / "b" / PACKED).read_bytes()


@pytest.mark.skipif(not PLACE.exists(), reason="results/ is not part of a source distribution")
def test_committed_tables_are_of_the_committed_records():
    for name, text in texts(PLACE).items():
        assert (PLACE / name).read_text(encoding="utf-8") == text, name
    docs = (PLACE.parents[1] / "docs/refit.md").read_text(encoding="utf-8")
    assert (PLACE / "excerpt.md").read_text(encoding="utf-8") in docs


# ---- whole networks ------------------------------------------------------------------------------------------------


def test_a_convolution_is_a_matrix_over_its_unfolded_inputs():
    layer = nn.Conv2d(4, 6, (3, 2), stride=2, padding=1)
    x = torch.randn(2, 4, 9, 8)
    found = inputs(layer, x) @ as_matrix(layer, layer.weight).T + layer.bias
    torch.testing.assert_close(found, layer(x).permute(0, 2, 3, 1).flatten(0, 2))
    assert torch.equal(as_weight(layer, as_matrix(layer, layer.weight)), layer.weight)
    rows = as_matrix(layer, torch.arange(4.0).view(1, 4, 1, 1).expand(6, 4, 3, 2))
    assert torch.equal(rows[0, :4], torch.arange(4.0))  # four channels of one position side by side


def test_each_layer_is_pruned_on_what_those_before_it_leave():
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))
    x = torch.randn(64, 8)
    batches = [(part, None) for part in x.split(16)]
    seen = {}

    def prune(name, weight, gram):
        seen[name] = gram
        return sparsegpt(weight, gram, (2, 4))

    prune_in_order(model, ["0", "2"], (), batches, prune)
    hidden = F.relu(model[0](x))
    torch.testing.assert_close(seen["2"], hidden.T @ hidden)
    assert torch.equal((model[2].weight.unflatten(1, (-1, 4)) != 0).sum(-1), torch.full((4, 2), 2))


def test_the_layers_of_a_block_are_pruned_together():
    names = ["embed", "blocks.0.a", "blocks.0.b", "blocks.1.a", "fc"]
    assert together(names, ("blocks.0", "blocks.1")) == [
        ["embed"],
        ["blocks.0.a", "blocks.0.b"],
        ["blocks.1.a"],
        ["fc"],
    ]


def test_reconstruction_is_the_share_of_the_outputs_that_is_missed():
    dense = nn.Sequential(nn.Linear(5, 3), nn.Tanh(), nn.Linear(3, 2))
    other = nn.Sequential(nn.Linear(5, 3), nn.Tanh(), nn.Linear(3, 2))
    x = torch.randn(40, 5)
    found = reconstruction(dense, other, ["0", "2"], [(x, None)])
    with torch.no_grad():
        missed = (other[0](x) - dense[0](x)).square().sum() / dense[0](x).square().sum()
    assert found["0"] == pytest.approx(float(missed), rel=1e-4)
    assert reconstruction(dense, dense, ["0"], [(x, None)]) == {"0": 0.0}


def test_passes_end_where_nothing_more_is_asked_for():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    called = []
    model[1].register_forward_hook(lambda *_: called.append(1))
    assert list(grams(model, ["0"], [(torch.randn(8, 4), None)])) == ["0"]
    assert not called


# ---- text ----------------------------------------------------------------------------------------------------------


def test_text_is_what_stands_between_tags():
    assert plain_text("<head>no</head><nav>no</nav><p>A <b>word</b>,\n and</p><script>no</script>") == "A word , and"


def test_every_twentieth_page_is_held_out(tmp_path):
    (tmp_path / "tutorial").mkdir()
    for i in range(21):
        (tmp_path / "tutorial" / f"{i:02}.html").write_text(f"<p>{chr(97 + i) * 128}</p>")
    train, held, source = sequences(tmp_path) or pytest.fail("there are pages")
    assert set(held.flatten().tolist()) == {97, 97 + 20, 10}
    assert len(train) == 19
    assert source.startswith("21 pages")
    assert sequences(tmp_path / "none") is None
