"""The table of layers: what is kept, how large that is, and what it multiplies, dense against pruned."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from prunewald.pruning.report import Report, TensorReport
from prunewald.storage import positions
from prunewald.web.encoding import short

NO_INPUTS = "multiplications need an example of what the model is called with: page(..., inputs=x)"


def of_report(
    report: Report, tensors: Mapping[str, Tensor], uses: Mapping[str, float] | None, stored: Mapping[str, int]
) -> dict[str, Any]:
    """The table of a report: `tensors` tell how many bytes a weight has, `stored` what a file takes for it."""
    rows = [_row(row, tensors.get(row.name), uses, stored) for row in report.rows]
    notes = [*report.notes, *([report.unfinished] if report.unfinished else [])]
    unknown = [row["name"] for row in rows if row["macs"] is None]
    why = NO_INPUTS if uses is None else f"not known of {', '.join(unknown)}" if unknown else ""
    size = "bytes in the file" if stored else "at least: kept values, and log2 C(n, k) bits for their places"
    return {
        "rows": rows,
        "size": size,
        "macs": why,
        "dry_run": report.dry_run,
        "criterion": report.criterion,
        "uncertainty": report.uncertainty,
        "scope": report.scope,
        "pattern": report.pattern,
        "notes": notes,
    }


def _row(
    row: TensorReport, tensor: Tensor | None, uses: Mapping[str, float] | None, stored: Mapping[str, int]
) -> dict[str, Any]:
    width = 4 if tensor is None else tensor.element_size()
    least = row.kept * width + positions.bound(row.weights, row.kept) / 8
    times = None if uses is None else uses.get(row.name)
    return {
        "name": row.name,
        "shape": list(row.shape),
        "weights": row.weights,
        "kept": row.kept,
        "threshold": short(row.threshold),
        "dead": short(row.dead),
        "correlation": short(row.correlation),
        "overlap": short(row.overlap),
        "bytes": row.weights * width,
        "small": stored.get(row.name, round(least)),
        "macs": None if times is None else [round(times * row.weights), round(times * row.kept)],
    }
