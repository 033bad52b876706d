"""The packed file: what survives of a tensor and where, near its entropy, in one safetensors file (docs/format.md)."""

from prunewald.storage.container import PackedFileError
from prunewald.storage.inspection import Inspection, inspect
from prunewald.storage.packed import load, save

__all__ = ["Inspection", "PackedFileError", "inspect", "load", "save"]
