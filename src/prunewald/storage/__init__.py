"""The packed file: survivors and their places, near their entropy, in one safetensors file. See docs/format.md."""

from prunewald.storage.container import PackedFileError
from prunewald.storage.inspection import Inspection, inspect
from prunewald.storage.packed import load, save

__all__ = ["Inspection", "PackedFileError", "inspect", "load", "save"]
