"""The packed file: surviving values and bit-packed masks in one safetensors file. See docs/format.md."""

from prunewald.storage.container import PackedFileError
from prunewald.storage.model import load, save

__all__ = ["PackedFileError", "load", "save"]
