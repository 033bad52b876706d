import pytest
import torch

from prunewald.lab.data import NAMES, RULES, DataError, Images, Raw, Rule, scaled, split


def raw(name: str, labels: torch.Tensor, classes: int = 10) -> Raw:
    part = Images(torch.arange(len(labels), dtype=torch.uint8).view(-1, 1, 1, 1), labels)
    return Raw(name, name, tuple(map(str, range(classes))), part, part)


@pytest.mark.parametrize(
    ("name", "images", "train", "val"),
    [
        ("fashion-mnist", 60_000, 5_400, 600),
        ("mnist", 60_000, 55_000, 5_000),
        ("cifar10", 50_000, 45_000, 5_000),
        ("imagenet100", 30_000, 27_000, 3_000),
    ],
)
def test_the_papers_sizes_without_overlap_redrawn_per_seed(name: str, images: int, train: int, val: int) -> None:
    data = raw(name, torch.arange(images) % 10)
    one, same, other = split(data, 1), split(data, 1), split(data, 2)
    assert (len(one.train), len(one.val)) == (train, val)
    assert torch.cat(one).unique().numel() == train + val
    assert one.train.dtype == torch.int64
    assert all(torch.equal(a, b) for a, b in zip(one, same, strict=True))
    assert not torch.equal(one.val, other.val)
    assert set(RULES) == set(NAMES)


def test_balanced() -> None:
    data = raw("fashion-mnist", torch.randint(10, (20_000,), generator=torch.Generator().manual_seed(0)))
    rows = split(data, 0)
    assert data.train.y[rows.train].bincount().tolist() == [540] * 10
    assert data.train.y[rows.val].bincount().tolist() == [60] * 10
    rows = split(data, 0, Rule(val=0.25, per_class=40))
    assert data.train.y[rows.val].bincount().tolist() == [10] * 10


def test_a_rule_of_ones_own() -> None:
    data = raw("mnist", torch.zeros(20, dtype=torch.long), classes=2)
    assert [len(rows) for rows in split(data, 0, Rule(val=5))] == [15, 5]
    assert [len(rows) for rows in split(data, 0, Rule(val=0.1))] == [18, 2]


def test_bad_rules() -> None:
    for val in (0, -1, 0.0, 1.0, float("nan")):
        with pytest.raises(ValueError, match="give a number of images, or a fraction"):
            Rule(val=val)
    with pytest.raises(ValueError, match="per_class 0: give 1 or more"):
        Rule(val=1, per_class=0)
    data = raw("fashion-mnist", torch.arange(100) % 10)
    for rule in (Rule(val=7, per_class=5), Rule(val=50, per_class=5)):
        with pytest.raises(ValueError, match="give a multiple of the 10 classes, below all 50 images"):
            split(data, 0, rule)


def test_too_few_images() -> None:
    with pytest.raises(DataError, match="mnist cannot give 5,000 images for validation: there are 100"):
        split(raw("mnist", torch.arange(100) % 10), 0)
    with pytest.raises(DataError, match="class 0 has 10 training images, 600 are needed"):
        split(raw("fashion-mnist", torch.arange(100) % 10), 0)


def test_scaled() -> None:
    part = Images(torch.tensor([0, 51, 255], dtype=torch.uint8).view(3, 1, 1, 1), torch.tensor([4, 5, 6]))
    assert scaled(part).x.flatten().tolist() == pytest.approx([0, 0.2, 1])
    some = scaled(part, torch.tensor([2, 0]))
    assert (some.x.flatten().tolist(), some.y.tolist()) == ([1, 0], [6, 4])
