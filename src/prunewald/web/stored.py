"""Where the bytes of a packed file are."""

from typing import Any

from prunewald.storage import Inspection


def section(found: Inspection) -> dict[str, Any]:
    """The bytes of each tensor by what they are for."""
    rows = [
        {
            "name": row.name,
            "shape": list(row.shape),
            "stored": row.stored,
            "weights": row.weights,
            "kept": row.kept,
            "positions": row.positions,
            "values": row.values,
            "codebook": row.codebook,
            "overhead": row.overhead,
            "bound": round(row.bound, 1),
        }
        for row in found.tensors
    ]
    return {"path": found.path, "format": found.version, "size": found.size, "header": found.header, "tensors": rows}
