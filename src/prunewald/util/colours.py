"""One colour a method, in every figure and on every page; and what a colour becomes on a dark ground."""

from collections.abc import Iterable

INK, PALE_INK = "#000000", "#e9eaec"  # black is the ink: on a dark ground it is what is written there
# By where sigma comes from; the first three as the paper draws them.
METHODS = {
    "abs": INK,
    "pseudo:formula": "#ff7f0e",
    "bootstrap:formula": "#1f77b4",
    "dense": "#808080",
    "random": "#999999",
    "moment": "#d62728",
    "pseudo": "#2ca02c",
    "every": "#9467bd",
    "every:formula": "#4b0082",
    "bootstrap": "#17becf",
    "bootstrap-same": "#4682b4",
    "bootstrap-same:formula": "#000080",
    "bootstrap-warm": "#8c564b",
    "bootstrap-warm:formula": "#cd853f",
    "fisher": "#8b0000",
    "wanda": "#e377c2",
    "obd": "#bcbd22",
    "movement": "#bdb76b",
    "taylor": "#008080",
    "snip": "#dda0dd",
    "platon": "#daa520",
}
UNKNOWN = "#4d4d4d"
# What becomes of weights, where no method is meant, on a light ground.
BAR, BOTH, FAINT, MUTED, GRID = "#2f5d8f", "#8a96a8", "#b9bec6", "#5a6069", "#e8eaee"
LIGHT, DARK = "#ffffff", "#15171b"  # the grounds of a page
_SPOKEN = {  # the words that a label knows a method by; the first that fits counts, so the sources of sigma come first
    "pseudo": ("pseudo",),
    "bootstrap": ("bootstrap",),
    "fisher": ("fisher",),
    "wanda": ("wanda",),
    "obd": ("obd",),
    "movement": ("movement",),
    "taylor": ("taylor",),
    "snip": ("snip",),
    "platon": ("platon",),
    "moment": ("moment", "m&u", "uncertainty"),
    "random": ("random",),
    "dense": ("dense", "not pruned"),
    "abs": ("abs", "magnitude"),
}
_SPARE = ("every", "bootstrap-same", "bootstrap-warm", "taylor", "platon", "fisher", "every:formula", "snip")
_ENOUGH = 3.0  # the contrast that WCAG asks of what is drawn


def method_of(label: str) -> str | None:
    """The method that a label speaks of, by the words in it; None for one that is not known.

    >>> method_of("M&U pseudo bootstrap"), method_of("ABS @lamp"), method_of("mine")
    ('pseudo', 'abs', None)
    """
    words = label.lower()
    return next((key for key, spoken in _SPOKEN.items() if any(word in words for word in spoken)), None)


def of_labels(labels: Iterable[str]) -> dict[str, str]:
    """A colour for each label: that of the method it speaks of; others in turn get colours that are not used there."""
    listed = list(labels)
    known = {label: method for label in listed if (method := method_of(label)) is not None}
    spare = iter([key for key in _SPARE if key not in known.values()] * len(listed))
    return {label: METHODS[known[label] if label in known else next(spare)] for label in listed}


def seen_on(colour: str, ground: str) -> str:
    """The colour, moved towards black or white until it stands out from a ground by 3 to 1.

    >>> seen_on("#000000", "#15171b"), seen_on("#000000", "#ffffff"), seen_on("#000080", "#15171b")
    ('#e9eaec', '#000000', '#5c5cae')
    """
    if colour == INK and ground == DARK:
        return PALE_INK
    towards = 255.0 if _luminance(_rgb(ground)) < 0.5 else 0.0
    own = _rgb(colour)
    for step in range(51):
        mixed = [part + (towards - part) * step / 50 for part in own]
        if _contrast(mixed, _rgb(ground)) >= _ENOUGH:
            return "#" + "".join(f"{round(part):02x}" for part in mixed)
    raise AssertionError("black or white stands out from any ground")


def _rgb(colour: str) -> list[float]:
    return [int(colour[at : at + 2], 16) for at in (1, 3, 5)]


def _luminance(rgb: Iterable[float]) -> float:
    """Relative luminance by WCAG 2."""
    linear = [c / 12.92 if (c := part / 255) <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for part in rgb]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _contrast(a: Iterable[float], b: Iterable[float]) -> float:
    low, high = sorted((_luminance(a), _luminance(b)))
    return (high + 0.05) / (low + 0.05)
