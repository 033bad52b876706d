"""`prunewald compare`: the contest, network by network, from data to records, tables and figures."""

import time
from collections.abc import Sequence
from pathlib import Path

from prunewald.lab.contest_pages import contest_pages
from prunewald.lab.machine import Machine
from prunewald.lab.pages import needs
from prunewald.lab.records import read_records
from prunewald.lab.reproduce import finish
from prunewald.lab.settings import Settings
from prunewald.lab.showing import page


def compare(each: Sequence[Settings], out: Path, machine: Machine) -> str:
    """Run what is missing of some networks of the contest; returns what is known of all in the folder."""
    began, rest = time.monotonic(), ""
    for settings in each:
        rest = rest or finish(settings, out, machine, began)
    count = sum(len(read_records(out / one.name)) for one in each if (out / one.name / "settings.json").exists())
    if not count:
        return f"nothing is finished yet in {out}{rest}"
    try:
        return f"{contest_pages(out)}\n\npage: {page(out)}{rest}"
    except ImportError as error:
        return f"{count} records in {out}; {needs(error)}, then prunewald compare again{rest}"
