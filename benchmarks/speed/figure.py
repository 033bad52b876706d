"""The figure: accuracy against latency, a panel a network."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Of torch and of onnxruntime; what prunes to gain time is in full colours.
_LOOKS = {
    "mlp": {
        "dense": ("torch, dense kernels", "0.55", "s"),
        "int8": ("torch, int8 (run_int8)", "tab:olive", "v"),
        "onnxruntime": ("onnxruntime", "tab:purple", "D"),
        "onnxruntime, int8": ("onnxruntime, int8 (quantisation.to_onnx)", "tab:orange", "^"),
        "run_sparse": ("torch, run_sparse", "tab:blue", "o"),
    },
    "resnet": {
        "dense": ("torch, dense", "0.55", "s"),
        "refitted": ("torch, shrunk, refitted, no training", "tab:cyan", "v"),
        "trained": ("torch, shrunk, two epochs of training", "tab:blue", "o"),
        "dense, onnxruntime": ("onnxruntime, dense", "tab:purple", "D"),
        "trained, onnxruntime": ("onnxruntime, shrunk, two epochs of training", "tab:orange", "^"),
    },
}
_TITLES = {
    "mlp": "MLP 784-512-1024-512-10, MNIST\nweights pruned (%), refitted, no training",
    "resnet": "ResNet-8, Fashion-MNIST\nwhole channels pruned (% of multiply-adds gone)",
}
_NAMED = {"mlp": "run_sparse", "resnet": "trained"}  # whose marks have their levels


def draw(points: Sequence[Sequence[Any]]) -> Any:
    """Points of (network, way, level, accuracy, seconds)."""
    from matplotlib.figure import Figure

    names = [name for name in _LOOKS if any(point[0] == name for point in points)]
    figure = Figure(figsize=(1.2 + 4.6 * len(names), 5.0), layout="constrained")
    for axes, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
        _panel(axes, name, [point for point in points if point[0] == name], _LOOKS[name])
    figure.suptitle("Test accuracy against the time for one image, one thread", fontsize="medium")
    return figure


def _panel(axes: "Axes", name: str, points: Sequence[Sequence[Any]], looks: Mapping[str, tuple[str, str, str]]) -> None:
    for way, (label, color, mark) in looks.items():
        own = [(1e6 * seconds, accuracy, level) for _, kind, level, accuracy, seconds in points if kind == way]
        x, y, levels = zip(*own, strict=True)
        axes.plot(x, y, marker=mark, color=color, label=label, markersize=5, linewidth=1.3)
        if way == _NAMED[name]:
            for place, level in zip(zip(x, y, strict=True), levels, strict=True):
                axes.annotate(
                    f"{100 * level:.0f}", place, (0, 6), textcoords="offset points", ha="center", size="x-small"
                )
    axes.set_xscale("log")
    axes.margins(y=0.08)
    ticks = [t for t in (5, 10, 20, 30, 50, 100, 200, 300, 400, 500, 600, 1000, 2000) if _between(t, points)]
    axes.set_xticks(ticks, [str(t) for t in ticks])
    axes.minorticks_off()
    axes.set_xlabel("microseconds", fontsize="small")
    axes.set_ylabel("accuracy, %", fontsize="small")
    axes.set_title(_TITLES[name], fontsize="small")
    axes.grid(color="0.92", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.legend(frameon=False, fontsize="x-small", loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2)


def _between(tick: float, points: Sequence[Sequence[Any]]) -> bool:
    every = [1e6 * float(point[4]) for point in points]
    return 0.8 * min(every) <= tick <= 1.25 * max(every)
