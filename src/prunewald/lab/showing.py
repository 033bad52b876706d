"""`prunewald.page`: a page to look at, of a Pruner, a packed file or a folder of results.

It is here since only the lab reads results; what is drawn of a Pruner or a file is made in `prunewald.web`.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch

from prunewald import PackedFileError, Pruner, web
from prunewald.lab import page_sections
from prunewald.lab.machine import environment
from prunewald.lab.page_sections import network, network_of, read_network, settings_groups
from prunewald.lab.records import Record, ResultsError
from prunewald.lab.settings import Settings, SettingsError
from prunewald.util.files import FilePath
from prunewald.web.accuracies import Given
from prunewald.web.drafting import page_data, why

Data = dict[str, Any]

_SOURCES = "give a Pruner, a packed file (model.pw), or a folder of results"
_NO_WEIGHTS = "records are numbers of many networks, and hold no weights: page(pruner) and prunewald demo show them"
_NOTHING_PRUNED = "no pruned network is finished yet: the same command goes on"
_NO_FILE = "records hold no file; page('model.pw') shows one"
_NO_HISTORY = "records hold the results of prunings, not their course; page(pruner) shows it, where there is a schedule"
_ONLY_A_PRUNER = "{}={} is for the page of a Pruner, and {!r} is none: leave it out"


def page(
    source: Pruner | FilePath,
    path: FilePath | None = None,
    *,
    accuracies: Given | None = None,
    inputs: Any = None,
    before: Data | None = None,
    file: FilePath | None = None,
    settings: Mapping[str, Any] | None = None,
    title: str | None = None,
) -> Path:
    """Write a page that shows what is known of a pruning: one HTML file, to be opened anywhere. Returns its path.

    `source` is a Pruner, a packed file, or a folder of results, of one network or of several; without a `path` the page
    of a file is beside it, that of a folder in it. With a Pruner can be given:

    - `accuracies`, by label and sparsity: `{"M&U": {0.0: 0.85, 0.9: [0.83, 0.84]}}`, a list for several networks;
    - `inputs`, an example of what the model is called with, to count multiplications;
    - `before`, what `prunewald.web.look(pruner)` gave before `prune()`, while no weight was zero;
    - `file`, what `prunewald.save` wrote, to show where its bytes are;
    - `settings` of the run, such as its seed, by name.
    """
    given = {"accuracies": accuracies, "inputs": inputs, "before": before, "file": file, "settings": settings}
    if isinstance(source, Pruner):
        if path is None:
            raise ValueError("page(pruner) writes a file: say which, as in page(pruner, 'run.html')")
        data = web.of_pruner(source, title=title, **given)
        data["settings"]["groups"] += page_sections.environments([_environment()])
        return Path(web.write(data, path))
    if not isinstance(source, (str, os.PathLike)):
        raise TypeError(f"page({repr(source)[:200]}): {_SOURCES}")
    for name, value in given.items():
        if value is not None:
            raise ValueError(_ONLY_A_PRUNER.format(name, repr(value)[:80], os.fspath(source)))
    where = Path(source)
    if not where.exists():
        raise FileNotFoundError(f"there is no {os.fspath(source)!r}: {_SOURCES}")
    if not where.is_dir():
        out = where.with_suffix(".html") if path is None else path
        try:
            return Path(web.write(web.of_file(where, title=title), out))
        except PackedFileError as error:
            raise PackedFileError(f"{error}; {_SOURCES}") from error
    return Path(web.write(of_folder(where, title), where / "page.html" if path is None else path))


def of_folder(folder: Path, title: str | None = None) -> Data:
    """The data of the page of a folder: of a run, of several beside each other, or of a demo."""
    if (folder / "settings.json").is_file():
        found = [folder]
    elif (folder / "results.json").is_file():
        return _of_demo_folder(folder, title)
    else:
        found = sorted(file.parent for file in folder.glob("*/settings.json"))
    if not found:
        raise ResultsError(
            f"{str(folder)!r} is no folder of results: it has no settings.json, none in a folder of it, and no "
            f"results.json: {_SOURCES}"
        )
    known = [(one, *read_network(one)) for one in found]
    full = [entry for entry in known if entry[3]]
    if not full:
        raise ResultsError(f"nothing is finished yet in {str(folder)!r}: it has no records; run it to the end of one")
    groups = []
    for one, settings, data, records in full:
        groups += settings_groups(settings, data, records, one.name if len(full) > 1 else "")
    networks = [network_of(one) for one, *_ in full]
    name = title or (networks[0]["name"] if len(networks) == 1 else folder.resolve().name)
    return of_records(name, networks, groups)


def of_records(title: str, networks: Sequence[Data], groups: Sequence[Data]) -> Data:
    """The data of a page that has records alone."""
    some = [one for one in networks if one["methods"]]
    sections = {
        "accuracy": {"networks": some} if some else why(_NOTHING_PRUNED),
        "layers": why(_NO_WEIGHTS),
        "planes": why(_NO_WEIGHTS),
        "file": why(_NO_FILE),
        "history": why(_NO_HISTORY),
        "settings": {"groups": list(groups)},
    }
    return page_data(title, sections)


def of_demo(settings: Settings, data: str, records: Sequence[Record], used: Data, kept: Data | None) -> Data:
    """The data of a demo's page: its records, and the network it `kept`, as a page of its Pruner has it."""
    bare = [replace(record, environment={}) for record in records]  # all are of the machine that was `used`
    groups = [*settings_groups(settings, data, bare), *page_sections.environments([used])]
    found = of_records("prunewald demo", [network("fashion-mnist", settings, data, records)], groups)
    if kept is None:
        return found
    groups += [group for group in kept["settings"]["groups"] if group["name"] == "Pruner"]
    return kept | {"title": "prunewald demo", "accuracy": found["accuracy"], "settings": {"groups": groups}}


def _of_demo_folder(folder: Path, title: str | None) -> Data:
    """What a demo left, when only its numbers and its file are there."""
    file = folder / "results.json"
    try:
        stored = json.loads(file.read_bytes())
        given: Data = {k: tuple(v) if isinstance(v, list) else v for k, v in stored["settings"].items()}
        settings = Settings(**given)
        names = {field.name for field in fields(Record)} - {"environment"}
        records = [Record(**{k: v for k, v in one.items() if k in names}, environment={}) for one in stored["records"]]
        used, data = dict(stored["environment"]), str(stored["data"])
        found = of_demo(settings, data, records, used, None)
    except (ValueError, TypeError, KeyError, AttributeError, SettingsError) as error:
        raise ResultsError(f"{str(file)!r} is no results.json of a demo ({error}): {_SOURCES}") from error
    if (folder / "model.pw").is_file():
        own = web.of_file(folder / "model.pw")
        found |= {"layers": own["layers"], "file": own["file"]}
    return found | ({} if title is None else {"title": title})


def _environment() -> dict[str, str]:
    return environment(torch.device("cpu"))
