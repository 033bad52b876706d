"""Numbers as text: what does not hold first, then every cell."""

from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.speed.ways import AGAIN

# Ways that are chosen by measurement, or smaller in every dimension: slower than dense they must not be.
PROMISED = ("shrunk", "run_sparse", "int8", "run_sparse, int8", "shrunk, int8")
Row = Mapping[str, Any]


def slower(found: Mapping[str, Any]) -> Iterator[tuple[str, str, str, Row]]:
    """Where a promise is not kept: three quarters of the turns were slower, and more so than dense beside itself."""
    for name, network in found.items():
        for title, rows in network["cells"].items():
            noise = abs(1 - rows[AGAIN]["faster"])
            for way in PROMISED:
                row = rows.get(way, {})
                if "high" in row and row["high"] < 1 - noise:
                    yield name, title, way, row


def table(found: Mapping[str, Any]) -> str:
    """The whole page."""
    text = ["Slower than dense, in three quarters of the turns and beyond what two equal rows differ by:", ""]
    text += [f"  {name} {title}: {way} {row['faster']:.2f}" for name, title, way, row in slower(found)] or ["  none"]
    for name, network in found.items():
        for title, rows in network["cells"].items():
            text += ["", f"{network['title']}, {title} ({name})", _HEAD, *(_line(*item) for item in rows.items())]
    return "\n".join(text) + "\n"


_HEAD = (
    f"  {'':28}{'ms':>9}{'times as fast':>24}{'a second':>11}{'peak MB':>9}{'file MB':>9}"
    f"{'parameters':>12}{'M MACs':>8}{'outputs off':>13}"
)


def _line(way: str, row: Row) -> str:
    if "left out" in row:
        return f"  {way:28}  left out: {row['left out']}"
    fast = f"{row['faster']:.2f} ({row['low']:.2f} to {row['high']:.2f})"
    peak, file = (f"{row[key] / 1e6:.1f}" if key in row else "" for key in ("peak", "file"))
    return (
        f"  {way:28}{1e3 * row['seconds']:9.3f}{fast:>24}{row['batch'] / row['seconds']:11,.0f}{peak:>9}{file:>9}"
        f"{row['parameters']:12,}{row['macs'] / 1e6:8.2f}{row['difference']:13.1g}"
    )
