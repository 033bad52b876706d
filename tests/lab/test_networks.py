from pathlib import Path

import pytest

from tests.lab.helpers import little, protocol

pytestmark = pytest.mark.usefixtures("rules", "one_thread")


def test_fewer_images_are_of_all_classes(tmp_path: Path) -> None:
    networks = protocol(tmp_path, little(images=40)).networks
    rows = networks.train_rows([0, 1])
    assert rows.shape == (2, 40)
    for own in rows:
        assert networks.y[own].bincount(minlength=10).tolist() == [4] * 10


def test_multiplications_by_layer(tmp_path: Path) -> None:
    costs = protocol(tmp_path, little()).networks.costs()
    assert costs["conv1.weight"] == 6 * 9 * 26 * 26
    assert costs["conv2.weight"] == 6 * 6 * 16 * 12 * 12
    assert [costs[f"fc{i}.weight"] for i in (1, 2, 3)] == [216 * 32, 32 * 48, 48 * 10]
