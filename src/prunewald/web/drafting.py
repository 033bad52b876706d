"""What a page says of its source: every section as plain data, or why there is none."""

from collections.abc import Mapping
from typing import Any

from prunewald.core.criteria import MagnitudeUncertainty
from prunewald.model.uses import uses
from prunewald.pruner import Pruner
from prunewald.pruning.describing import untouched_row
from prunewald.pruning.report import Report
from prunewald.storage import Inspection, inspect
from prunewald.util.files import FilePath
from prunewald.util.registry import brief, name_of
from prunewald.web import accuracies as accuracy
from prunewald.web import layer_table, planes, stored

FORMAT = "prunewald page 1"
SECTIONS = ("accuracy", "layers", "planes", "file", "history", "settings")
Data = dict[str, Any]

_DETACHED = "this Pruner was detached, so nothing can be told of its model: make the page before detach()"
NO_ACCURACIES = "a Pruner knows no accuracies: page(..., accuracies={'M&U': {0.0: 0.85, 0.9: 0.83}})"
_NO_FILE = "no file was given: page(..., file='model.pw'), after pw.save(pruner, 'model.pw')"
_NO_SCHEDULE = "this Pruner has no schedule: it prunes when it is told to, and keeps no history"
_FILE_HAS = "a packed file holds weights and a report, {}"
_NO_SIGMA = _FILE_HAS.format("no sigma: the plane needs the Pruner, before or after it prunes")
_NO_MODEL = _FILE_HAS.format("no model to count multiplications with")
_ELSEWHERE = "drawn for {}; the Pruner itself scores by {}"
_SURVIVORS = (
    "what is pruned is zero by now, so the plane is of what is left: pw.web.look(pruner) before prune(), and "
    "page(..., before=...), shows what the choice was made from"
)


def why(reason: object) -> Data:
    """A section that cannot be had, and the reason, which stands in its place."""
    return {"why": str(reason)}


def page_data(title: str, sections: Mapping[str, Data]) -> Data:
    """All sections under the name of the format."""
    assert set(sections) == set(SECTIONS)
    return {"format": FORMAT, "title": title, **{name: sections[name] for name in SECTIONS}}


def look(pruner: Pruner) -> Data:
    """The planes of a Pruner at this moment, for a page that is made later: before `prune()`, while no weight is zero.

    They are plain data: nothing of the model is held.
    """
    _check(pruner)
    own = pruner.criterion
    try:
        with pruner.sight() as sight:
            rule = planes.Rule.of(sight.plan.criterion)
            if rule is not None:
                return _with_survivors(planes.drawn(sight, rule))
            chosen = brief(sight.plan.criterion) if own is None else brief(own)
        plain = MagnitudeUncertainty()
        with pruner.sight(plain) as sight:
            said = _ELSEWHERE.format(brief(plain), chosen)
            rule = planes.Rule.of(plain)
            assert rule is not None
            return _with_survivors(planes.drawn(sight, rule, (said,)))
    except ValueError as reason:
        return why(f"no sigma can be told: {reason}")


def of_pruner(
    pruner: Pruner,
    *,
    accuracies: accuracy.Given | None = None,
    inputs: Any = None,
    before: Data | None = None,
    file: FilePath | None = None,
    title: str | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Data:
    """Every section that a Pruner, and what is given beside it, can have."""
    _check(pruner)
    found = None if file is None else _of_these(pruner, file)
    used = None if inputs is None else uses(pruner.model, inputs)
    sections = {
        "accuracy": why(NO_ACCURACIES) if accuracies is None else accuracy.given(accuracies),
        "layers": _layers(pruner, used, found),
        "planes": look(pruner) if before is None else _of_before(pruner, before),
        "file": why(_NO_FILE) if found is None else stored.section(found),
        "history": _history(pruner),
        "settings": {"groups": [*_settings(settings), _choices(pruner)]},
    }
    return page_data(title or type(pruner.model).__name__, sections)


def of_file(path: FilePath, *, title: str | None = None) -> Data:
    """Every section that a packed file can have."""
    found = inspect(path)
    sections = {
        "accuracy": why(_FILE_HAS.format("no accuracies")),
        "layers": why(_FILE_HAS.format("but this one has no report")),
        "planes": why(_NO_SIGMA),
        "file": stored.section(found),
        "history": why(_FILE_HAS.format("no history")),
        "settings": {"groups": [{"name": "file", "rows": [["format", found.version]]}]},
    }
    if found.report is not None:
        sections["layers"] = layer_table.of_report(found.report, {}, None, _sizes(found)) | {"macs": _NO_MODEL}
    return page_data(title or found.path, sections)


def _check(pruner: Pruner) -> None:
    if not pruner.zeros.attached:
        raise ValueError(_DETACHED)
    pruner.sparsity  # noqa: B018  # an error where its parameters have no values, or are no more


def _of_these(pruner: Pruner, file: FilePath) -> Inspection:
    """A file that holds targets of this Pruner."""
    found = inspect(file)
    if not _sizes(found).keys() & {part.param for part in pruner.slices}:
        raise ValueError(
            f"file={str(file)!r} holds none of this Pruner's targets: give what pw.save(pruner, ...) wrote"
        )
    return found


def _of_before(pruner: Pruner, before: Data) -> Data:
    """What `look` gave of this Pruner earlier."""
    if isinstance(before, dict) and "why" in before:
        return before
    names = [plane["name"] for plane in before["planes"]] if isinstance(before, dict) and "planes" in before else None
    if names != [part.name for part in pruner.slices]:
        raise ValueError(
            f"before={repr(before)[:80]}... is not of this Pruner's targets: give what pw.web.look(pruner) returned"
        )
    return before


def _with_survivors(found: Data) -> Data:
    gone = any(plane["pruned"] for plane in found["planes"])
    return found | {"notes": [_SURVIVORS, *found["notes"]]} if gone else found


def _layers(pruner: Pruner, uses: Mapping[str, float] | None, found: Inspection | None) -> Data:
    names = {part.name: part.param for part in pruner.slices}
    tensors = pruner.targets()
    known = None if uses is None else {name: uses[param] for name, param in names.items() if param in uses}
    try:
        report = pruner.report or _made_elsewhere(pruner) or _would_be(pruner)
    except ValueError as reason:
        return why(reason)
    return layer_table.of_report(report, tensors, known, {} if found is None else _sizes(found))


def _would_be(pruner: Pruner) -> Report:
    """Before the first pruning: what one to 90 % would do, or to what the pattern fixes."""
    return pruner.prune(None if pruner.pattern.sparsity is not None else 0.9, dry_run=True)


def _made_elsewhere(pruner: Pruner) -> Report | None:
    """Where masks were set that no pruning chose."""
    if not pruner.sparsity:
        return None
    masks = pruner.masks
    rows = [untouched_row(part.name, part.take(masks[part.param])) for part in pruner.slices]
    return Report(rows, "masks that were set", "", "", ["these masks were set, not chosen by this Pruner"])


def _sizes(found: Inspection) -> dict[str, int]:
    """The bytes of each tensor of a file by all its names."""
    return {name: row.payload for row in found.tensors for name in row.name.split(" = ")}


def _history(pruner: Pruner) -> Data:
    if pruner.schedule is None:
        return why(_NO_SCHEDULE)
    if not pruner.history:
        return why(f"{brief(pruner.schedule)} has not pruned yet, at step {pruner.steps:,}")
    return {"schedule": brief(pruner.schedule), "prunings": [list(one) for one in pruner.history]}


def _settings(given: Mapping[str, Any] | None) -> list[Data]:
    """What the caller wants to be told of the run."""
    return [] if given is None else [{"name": "run", "rows": [[str(k), str(v)] for k, v in given.items()]}]


def _choices(pruner: Pruner) -> Data:
    def said(part: Any) -> str:
        return "by default" if part is None else brief(part)

    scope = "by default" if pruner.scope is None else name_of("scope", pruner.scope)
    rows = [
        ["model", type(pruner.model).__name__],
        ["optimizers", ", ".join(type(one).__name__ for one in pruner.optimizers) or "none"],
        ["criterion", said(pruner.criterion)],
        ["uncertainty", said(pruner.uncertainty)],
        ["scope", scope],
        ["pattern", brief(pruner.pattern)],
        ["schedule", "none" if pruner.schedule is None else brief(pruner.schedule)],
        ["targets", ", ".join(part.name for part in pruner.slices)],
        ["steps since attaching", f"{pruner.steps:,}"],
        ["sparsity now", f"{pruner.sparsity:.2%}"],
    ]
    return {"name": "Pruner", "rows": rows}
