"""The pure core, tensors in and tensors out: criteria, allocations, patterns, schedules, and the order of weights."""

from prunewald.core import allocation, criteria, patterns, schedules

__all__ = ["allocation", "criteria", "patterns", "schedules"]  # imported, so that their short names are known
