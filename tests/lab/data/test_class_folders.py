import sys
from pathlib import Path

import pytest
import torch

from prunewald.lab.data import DataError, load
from prunewald.lab.data.class_folders import IMAGENET100, choose

Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")


def save(
    path: Path, color: tuple[int, int, int] = (0, 0, 0), size: tuple[int, int] = (64, 64), mode: str = "RGB"
) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, color).convert(mode).save(path, "PNG" if path.suffix == ".png" else "JPEG")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Three classes, red, green and blue: 4 training and 2 validation images each."""
    root = tmp_path / "imagenet100"
    for label, name in enumerate(("n01", "n02", "n03")):
        color = (255 * (label == 0), 255 * (label == 1), 255 * (label == 2))
        for i in range(4):
            save(root / "train" / name / f"{name}_{i}.JPEG", color)
        for i in range(2):
            save(root / "val" / name / f"val_{i}.JPEG", color)
    return root


def colors(x: torch.Tensor) -> list[int]:
    return x.float().mean((2, 3)).argmax(1).tolist()


def test_folder_per_class(tree: Path) -> None:
    (tree / "train" / "n01" / ".hidden.JPEG").write_bytes(b"")
    (tree / "train" / "n01" / "boxes.txt").write_bytes(b"")
    (tree / "train" / "notes.txt").write_bytes(b"")
    raw = load("imagenet100", tree.parent)
    assert raw.classes == ("n01", "n02", "n03")
    assert raw.source == "Tiny-ImageNet-3 standing in for ImageNet-100 (12 + 6 images of 64x64)"
    assert (raw.train.x.shape, raw.test.x.shape) == ((12, 3, 64, 64), (6, 3, 64, 64))
    assert raw.train.x.dtype == torch.uint8
    assert colors(raw.train.x) == raw.train.y.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert colors(raw.test.x) == raw.test.y.tolist() == [0, 0, 1, 1, 2, 2]


def test_tiny_imagenets_own_layout(tree: Path) -> None:
    for folder in (tree / "train").iterdir():
        folder.rename(folder.with_name("moved"))
        folder.mkdir()
        folder.with_name("moved").rename(folder / "images")
    lines = []
    for path in sorted(tree.glob("val/*/*.JPEG")):
        (tree / "val" / "images").mkdir(exist_ok=True)
        name = f"{path.parent.name}_{path.name}"
        lines.append(f"{name}\t{path.parent.name}\t0\t0\t62\t62\n")
        path.rename(tree / "val" / "images" / name)
    annotations = tree / "val" / "val_annotations.txt"
    annotations.write_text("".join(reversed(lines)) + "other.JPEG\tn99\t0\t0\t1\t1\n")
    raw = load("imagenet100", tree)
    assert colors(raw.train.x) == raw.train.y.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert colors(raw.test.x) == raw.test.y.tolist() == [0, 0, 1, 1, 2, 2]
    annotations.write_text("".join(lines[:2]))
    with pytest.raises(DataError, match="names no image of class n02"):
        load("imagenet100", tree)
    annotations.write_text("nonsense\n")
    with pytest.raises(DataError, match=r"val_annotations\.txt is damaged \(no class in 'nonsense'\)"):
        load("imagenet100", tree)
    annotations.write_text("".join(lines) + "gone.JPEG\tn01\n")
    with pytest.raises(DataError, match=r"gone\.JPEG is missing or damaged"):
        load("imagenet100", tree)


def test_other_sizes_are_resized_and_cut_in_the_middle(tree: Path) -> None:
    wide = Image.new("RGB", (300, 100), (255, 0, 0))
    wide.paste((0, 255, 0), (100, 0, 200, 100))
    wide.save(tree / "train" / "n02" / "n02_0.JPEG", quality=95)
    save(tree / "train" / "n02" / "n02_1.png", (0, 255, 0), (20, 300))
    save(tree / "train" / "n03" / "n03_1.JPEG", (9, 9, 200), mode="CMYK")
    save(tree / "train" / "n03" / "n03_2.JPEG", (9, 9, 200), mode="L")
    raw = load("imagenet100", tree, side=32)
    assert raw.train.x.shape == (13, 3, 32, 32)
    assert raw.source == "ImageNet-3 standing in for ImageNet-100 (13 + 6 images of 32x32)"
    assert (raw.train.x[4, 1] > 200).all()  # the middle third only
    assert colors(raw.train.x[:9]) == [0] * 4 + [1] * 5
    with pytest.raises(ValueError, match="side 0: give"):
        load("imagenet100", tree, side=0)


def test_a_hundred_classes_at_most_and_always_the_same(tmp_path: Path) -> None:
    assert len(set(IMAGENET100)) == 100
    assert list(IMAGENET100) == sorted(IMAGENET100)
    others = [f"n{i:08}" for i in range(150)]
    assert choose(sorted([*IMAGENET100, *others]), tmp_path) == IMAGENET100
    assert choose(others, tmp_path) == tuple(others[:100])
    with pytest.raises(DataError, match="has 1 class folders, at least 2"):
        choose(["n01"], tmp_path)


@pytest.mark.parametrize("content", [b"", b"not an image", None])
def test_a_damaged_image_is_named(tree: Path, content: bytes | None) -> None:
    path = tree / "val" / "n02" / "val_1.JPEG"
    path.write_bytes(path.read_bytes()[:400] if content is None else content)
    with pytest.raises(DataError, match=r"n02/val_1\.JPEG is missing or damaged.*fetch it again.*image-net\.org"):
        load("imagenet100", tree)


def test_missing_folders_are_named(tree: Path) -> None:
    for path in (tree / "train" / "n03").iterdir():
        path.unlink()
    with pytest.raises(DataError, match=r"train/n03' has no images"):
        load("imagenet100", tree)
    (tree / "train" / "n03").rmdir()
    (tree / "val" / "n01").rename(tree / "val" / "n09")
    with pytest.raises(DataError, match=r"val' has no folder n01"):
        load("imagenet100", tree)
    (tree / "val").rename(tree / "test")
    with pytest.raises(DataError, match=r"has no folder"):
        load("imagenet100", tree)


def test_pillow_is_asked_for_only_here(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    assert load("fashion-mnist", None).train.x.shape[0] > 0
    with pytest.raises(ImportError, match="reading image files needs Pillow: pip install 'prunewald.demo.'"):
        load("imagenet100", tree)
