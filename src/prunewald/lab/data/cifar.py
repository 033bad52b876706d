"""The binary version of CIFAR-10: records of a label byte and 3,072 pixel bytes."""

import hashlib
from pathlib import Path

import torch

from prunewald.lab.data.images import DataError, Images

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
FIRST = "data_batch_*.bin"  # what tells such a folder
TEST = "test_batch.bin"
RECORD = 1 + 3 * 32 * 32

# SHA-256 of the files in cifar-10-binary.tar.gz, whose published MD5 is c32a1d4ab5d03f1284b67883e8d87530.
SUMS = {
    "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    TEST: "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
}


def read_cifar(root: Path, verify: bool) -> tuple[Images, Images]:
    """The training and test part."""
    batches = {name: _read(root / name, expected if verify else None) for name, expected in SUMS.items()}
    test = batches.pop(TEST)
    return Images(*(torch.cat(tensors) for tensors in zip(*batches.values(), strict=True))), test


def _read(path: Path, expected: str | None) -> Images:
    if not path.is_file():
        raise DataError(f"data folder {str(path.parent)!r} has no {path.name}: fetch all six .bin files")
    raw = path.read_bytes()
    if not raw or len(raw) % RECORD:
        raise DataError(
            f"{path} is damaged ({len(raw):,} bytes, not a multiple of {RECORD:,}; cut short?): fetch it again"
        )
    records = torch.frombuffer(bytearray(raw), dtype=torch.uint8).view(-1, RECORD)
    largest = int(records[:, 0].max())
    if largest >= len(CLASSES):
        raise DataError(f"{path} is damaged (label {largest}, the largest is {len(CLASSES) - 1}): fetch it again")
    if expected is not None and hashlib.sha256(raw).hexdigest() != expected:
        raise DataError(
            f"{path} does not match the checksum of the published file: fetch it again "
            "(verify=False takes other data of this form)"
        )
    return Images(records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0].long())
