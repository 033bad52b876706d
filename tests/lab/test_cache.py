from dataclasses import replace
from pathlib import Path

import pytest
import torch

from prunewald.ensemble import Result
from prunewald.lab.cache import Cache
from prunewald.lab.records import ResultsError
from tests.lab.helpers import little, protocol

pytestmark = pytest.mark.usefixtures("rules", "one_thread")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, rules: None, one_thread: None) -> Result:
    """Two networks with all that is collected of them."""
    return protocol(tmp_path_factory.mktemp("any"), little(epochs=1, batch_size=60)).networks.dense([0, 1])


def cache(folder: Path, trained: Result) -> Cache:
    return Cache(folder, trained.make)


def test_what_is_kept_comes_back(tmp_path: Path, trained: Result) -> None:
    masks = {"fc1.weight": trained.params["fc1.weight"] > 0}
    cache(tmp_path, trained).save("chain-moment:1-0.5", trained, masks)
    one = cache(tmp_path, trained)
    assert one.has("chain-moment:1-0.5", 1)
    assert not one.has("chain-moment:1-0.5", 2)
    again = one.load("chain-moment:1-0.5", [1, 0])
    assert again.seeds == (1, 0)
    for name, param in trained.params.items():
        assert torch.equal(again.params[name], param.flip(0))
        for mine, theirs in zip(again.estimates, trained.estimates, strict=True):
            assert torch.equal(mine[name].sigma, theirs[name].sigma.flip(0))
    assert torch.equal(one.masks("chain-moment:1-0.5", 1)["fc1.weight"], masks["fc1.weight"][1])
    one.drop("chain-moment:1-0.5", 0)
    assert not one.has("chain-moment:1-0.5", 0)


def test_a_damaged_network_is_named(tmp_path: Path, trained: Result) -> None:
    one = cache(tmp_path, trained)
    one.save("dense", trained)
    path = tmp_path / "dense" / "00000.pt"
    for content in (path.read_bytes()[:1000], b"junk", b""):
        path.write_bytes(content)
        with pytest.raises(ResultsError, match="00000.pt' is no trained network .*: delete it"):
            one.load("dense", [0])
    wrong: list[object] = [{"params": {}}, [1, 2], torch.zeros(2)]
    for other in wrong:
        torch.save(other, path)
        with pytest.raises(ResultsError, match=r"00000.pt' is no trained network \(it has no estimates\): delete it"):
            one.load("dense", [0])
    path.unlink()
    with pytest.raises(FileNotFoundError):
        one.load("dense", [0])


def test_the_first_of_two_runs_that_train_a_network_keeps_it(tmp_path: Path, trained: Result) -> None:
    one, first, second = cache(tmp_path, trained), trained.rows([0]), trained.rows([1])
    one.save("dense", first)
    one.save("dense", replace(second, seeds=(0,)))
    assert torch.equal(one.load("dense", [0]).params["fc1.weight"], first.params["fc1.weight"])
