"""Images in one folder a class: ImageNet's layout, and that of Tiny-ImageNet."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from prunewald.lab.data.images import DataError, Images
from prunewald.lab.pool import cpus
from prunewald.util.progress import Bar, progress_bar

FIRST = "train"  # what tells such a folder
SUFFIXES = {".jpeg", ".jpg", ".png"}
AT_MOST = 100

# The first hundred classes of Tiny-ImageNet's wnids.txt, sorted.
IMAGENET100 = tuple(
    """
    n01443537 n01629819 n01641577 n01774750 n01855672 n01882714 n01910747 n01944390 n01984695 n02056570 n02058221
    n02099601 n02099712 n02106662 n02123045 n02124075 n02132136 n02165456 n02206856 n02233338 n02236044 n02279972
    n02281406 n02321529 n02364673 n02423022 n02437312 n02481823 n02486410 n02509815 n02666196 n02669723 n02769748
    n02795169 n02802426 n02814860 n02823428 n02843684 n02917067 n02927161 n02948072 n02950826 n02963159 n02988304
    n03085013 n03160309 n03179701 n03201208 n03393912 n03400231 n03404251 n03424325 n03544143 n03584254 n03637318
    n03733131 n03770439 n03796401 n03804744 n03814639 n03838899 n03854065 n03891332 n03902125 n03937543 n03970156
    n03977966 n03983396 n03992509 n04008634 n04023962 n04067472 n04074963 n04099969 n04133789 n04146614 n04254777
    n04259630 n04265275 n04275548 n04398044 n04456115 n04465501 n04486054 n04507155 n04540053 n04596742 n07583066
    n07614500 n07695742 n07749582 n07753592 n07873807 n07875152 n07920052 n09193705 n09246464 n09256479 n09332890
    n09428293
    """.split()  # noqa: SIM905
)


def read_class_folders(root: Path, side: int) -> tuple[tuple[str, ...], Images, Images, int]:
    """The class names, the training part, the test part (folder val), and the longest side of any image before."""
    _need_pillow()
    if side < 1:
        raise ValueError(f"side {side}: give the height and width of the images in pixels, such as 64")
    classes = choose(sorted(path.name for path in _listed(root / "train") if path.is_dir()), root)
    train = [_images(root / "train" / name) for name in classes]
    test = _validation(root / "val", classes)
    with progress_bar(sum(map(len, train + test)), unit="image") as bar:
        (train_part, largest), (test_part, other) = (_decoded(paths, side, bar) for paths in (train, test))
    return classes, train_part, test_part, max(largest, other)


def choose(names: Sequence[str], root: Path) -> tuple[str, ...]:
    """At most a hundred classes: the list above where all of it is there, else the first by name."""
    if len(names) < 2:
        raise DataError(f"data folder {str(root / 'train')!r} has {len(names)} class folders, at least 2 are needed")
    return IMAGENET100 if set(IMAGENET100) <= set(names) else tuple(names[:AT_MOST])


def _validation(folder: Path, classes: Sequence[str]) -> list[list[Path]]:
    """The images of each class, by folder, or by Tiny-ImageNet's list of file names."""
    annotations = folder / "val_annotations.txt"
    if not annotations.is_file():
        return [_images(folder / name) for name in classes]
    found: dict[str, list[Path]] = {name: [] for name in classes}
    for line in annotations.read_text(errors="replace").splitlines():
        name, _, rest = line.partition("\t")
        wnid = rest.partition("\t")[0]
        if not wnid:
            raise DataError(f"{annotations} is damaged (no class in {line!r}): fetch it again")
        if wnid in found:
            found[wnid].append(folder / "images" / name)
    for wnid, paths in found.items():
        if not paths:
            raise DataError(f"{annotations} names no image of class {wnid}: fetch it again")
    return list(found.values())


def _images(folder: Path) -> list[Path]:
    inside = folder / "images"
    paths = sorted(p for p in _listed(inside if inside.is_dir() else folder) if p.suffix.lower() in SUFFIXES)
    if not paths:
        raise DataError(f"data folder {str(folder)!r} has no images (.JPEG, .jpg, .png): fetch the data again")
    return paths


def _listed(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise DataError(f"data folder {str(folder.parent)!r} has no folder {folder.name}: fetch the data again")
    return [path for path in folder.iterdir() if not path.name.startswith(".")]


def _decoded(classes: list[list[Path]], side: int, bar: Bar) -> tuple[Images, int]:
    """All images, and the longest side of any before."""
    counts = torch.tensor([len(paths) for paths in classes])
    x = torch.empty(int(counts.sum()), 3, side, side, dtype=torch.uint8)
    largest = 0

    # A whole class a task: single images are so quick that threads would only wait for each other.
    def one(paths: list[Path], out: Tensor) -> int:
        return max(_decode(path, row.numpy()) for path, row in zip(paths, out, strict=True))

    with ThreadPoolExecutor(min(cpus(), 8)) as pool:
        for paths, longest in zip(classes, pool.map(one, classes, x.split(counts.tolist())), strict=True):
            largest = max(largest, longest)
            bar.update(len(paths))
    return Images(x, torch.arange(len(classes)).repeat_interleave(counts)), largest


def _decode(path: Path, out: Any) -> int:
    """Write one image to `out`, return its longest side: the shorter goes to 8/7 of out's, then the middle is cut out.

    That is the usual 256 to 224; images that have the size already stay as they are.
    """
    from PIL import Image

    side = out.shape[-1]
    try:
        with Image.open(path) as opened:
            image = opened.convert("RGB")
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise DataError(f"{path} is missing or damaged ({error}): fetch it again") from error
    wide, high = image.size
    if (wide, high) != (side, side):
        scale = round(side * 8 / 7) / min(wide, high)
        size = max(side, round(wide * scale)), max(side, round(high * scale))
        left, top = ((length - side) // 2 for length in size)
        image = image.resize(size, Image.Resampling.BILINEAR).crop((left, top, left + side, top + side))
    out[:] = np.asarray(image).transpose(2, 0, 1)
    return max(wide, high)


def _need_pillow() -> None:
    try:
        import PIL.Image  # noqa: F401
    except ImportError as error:
        raise ImportError("reading image files needs Pillow: pip install 'prunewald[demo]'") from error
