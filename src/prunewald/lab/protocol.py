"""The protocol: train, prune by every method to every level, retrain, measure; networks together, piece by piece."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from prunewald.ensemble import Result
from prunewald.ensemble.result import joined
from prunewald.lab.cache import Cache
from prunewald.lab.choosing import Chosen, Task, choose_all
from prunewald.lab.methods import (
    CONTROL,
    MEASURED,
    PASSED,
    SIGMAS,
    WATCHED,
    Method,
    methods_of,
    parse,
    prepared,
    tried,
)
from prunewald.lab.networks import Networks, Table, collected
from prunewald.lab.pieces import Pieces
from prunewald.lab.records import ROUNDING, Key, Record, RecordFolder, ResultsError
from prunewald.lab.standing import Cells

Place = tuple[Key, int | None]  # what is chosen, without the learning rate; of a network on its way, its row


class Group(NamedTuple):
    """Networks that are pruned, retrained and measured together, one for each key."""

    keys: Sequence[Key]
    source: Result  # the trained networks
    at: Sequence[int]  # the row of the source that each key starts from
    alive: Sequence[Table | None]  # the masks of the level before, in an iterative run
    epoch: int  # how many epochs they were trained for until now


class Chain(NamedTuple):
    """A network that one method prunes further and further."""

    seed: int
    row: str

    def at(self, level: float) -> str:
        """The name in the cache of the network at a level."""
        return f"chain-{self.row}-{level:g}"


class Reached(NamedTuple):
    """How far a chain has come: the place of the next level, the network, and what is left of it."""

    place: int
    network: Result
    masks: Table | None


@dataclass(frozen=True)
class Protocol:
    """One experiment, on its networks, with its records and its cache of trained networks."""

    networks: Networks
    results: RecordFolder
    cache: Cache
    seeds: Sequence[int]
    pieces: Pieces
    environment: dict[str, Any]
    say: Callable[[str], None]
    known: dict[int, float] = field(default_factory=dict)  # dense accuracies
    tables: dict[tuple[int, str], Table] = field(default_factory=dict)  # what passes measured of dense networks
    masks: dict[Place, Chosen] = field(default_factory=dict)  # of dense networks, for further tries of the same masks

    def run(self) -> None:
        """Do all that is not finished yet."""
        if self.networks.settings.iterative:
            self._chains()
        else:
            self._one_shot()

    # ---- networks to prune ---------------------------------------------------------------------------------------

    def _dense(self, seeds: Sequence[int]) -> None:
        for some, folder in self.pieces.of("dense", seeds, lambda seed: self.cache.has("dense", seed)):
            self.say(f"training {len(some)} networks")
            self.cache.save("dense", self.networks.dense(some, folder))
        for first in range(0, len(seeds), self.pieces.most):
            self._dense_accuracy(seeds[first : first + self.pieces.most])

    def _bootstrap(self, start: str, seeds: Sequence[int]) -> None:
        name, count = f"bootstrap-{start}", self.networks.settings.replicas
        for some, folder in self.pieces.of(name, seeds, lambda seed: self.cache.has(name, seed), each=count):
            self.say(f"training {len(some)} x {count} bootstrap replicas, {start} start")
            trained = self.cache.load("dense", some)
            found = self.networks.replicas(trained, start, count, folder)
            sigma = {n: p.reshape(-1, count, *p.shape[1:]).std(1) for n, p in found.params.items()}
            self.cache.save(name, replace(trained, params=sigma, optimizer_state={}, estimates=()))

    def _dense_accuracy(self, seeds: Sequence[int]) -> dict[int, float]:
        new = [seed for seed in seeds if seed not in self.known]
        if new:
            self.known.update(zip(new, self.networks.test(self.cache.load("dense", new).state), strict=True))
        for seed in new:
            self._check_same(seed)
        return self.known

    def _check_same(self, seed: int) -> None:
        """Rows are compared on the same network: what was trained here must be what the records began with."""
        there, here = self.results.dense(seed), self.known[seed]
        if there is not None and abs(there - here) > ROUNDING / len(self.networks.test_y):
            raise ResultsError(
                f"seed {seed}: the network trained here has a test accuracy of {here:.2%}, that of the records in "
                f"{self.results.folder} {there:.2%}: rows on different networks cannot be compared; bring the folder "
                "networks/ of those records along, or give another --out"
            )

    # ---- one shot ------------------------------------------------------------------------------------------------

    def _one_shot(self) -> None:
        """Every method prunes every trained network to every level."""
        methods = tried(self.networks.settings)
        missing = [key for key in self._keys(methods) if not self.results.has(key)]
        self._dense(_seeds(missing))
        for method in methods:
            if method.bootstraps:
                self._bootstrap(method.start, _seeds(key for key in missing if key.row == method.text))
        self._cells(missing)
        chosen = [Key(seed, row, level) for row, level in self._chosen() for seed in self.seeds]
        missing = [key for key in chosen if not self.results.has(key)]
        self._dense(_seeds(missing))
        self._cells(sorted(missing, key=_rate))

    def _cells(self, missing: Sequence[Key]) -> None:
        epochs = self.networks.settings.epochs
        for rate, alike in groupby(missing, _rate):
            for some, folder in self.pieces.of("cells", list(alike), self.results.has):
                seeds = _seeds(some)
                at = [seeds.index(key.seed) for key in some]
                group = Group(some, self.cache.load("dense", seeds), at, [None] * len(some), epochs)
                self._measure(group, folder, collect=False, rate=rate)

    def _keys(self, methods: Sequence[Method]) -> Iterator[Key]:
        """What is to be measured: method by method, since a run may be stopped before the last."""
        settings = self.networks.settings
        bootstrapped = settings.seeds[: settings.bootstrap_repetitions]
        for method in methods:
            for level in (0.0,) if method.sigma == CONTROL else settings.levels:
                yield from (
                    Key(seed, method.text, level)
                    for seed in self._tried_on(method)
                    if not method.bootstraps or seed in bootstrapped
                )

    def _tried_on(self, method: Method) -> list[int]:
        """The seeds that a try is made on: the first of a row on all, further ones on those that choose."""
        settings = self.networks.settings
        first = {one.text for one in methods_of(settings)}
        choosing = settings.seeds[: settings.tuning or None]
        return [seed for seed in self.seeds if method.text in first or seed in choosing]

    def _chosen(self) -> list[tuple[str, float]]:
        """The rows and levels of the tries that the first networks chose, for all others to be measured too."""
        settings = self.networks.settings
        if not settings.tuning or settings.tries == 1:
            return []
        cells = Cells.of(self.results.read(), settings.tuning)
        places = [(one.text, level) for one in methods_of(settings)[1:] for level in settings.levels]
        tried = {place: cells.complete(*place) for place in places if place in cells.by_place}
        whole = [place for place, count in tried.items() if count == settings.tries]
        return list(dict.fromkeys((cells.chosen(row, level, settings.tries), level) for row, level in whole))

    # ---- iterative -----------------------------------------------------------------------------------------------

    def _chains(self) -> None:
        """Each network and method goes through the levels one after the other; as many as fit go together."""
        self._go_on(
            Chain(seed, method.text) for method in tried(self.networks.settings) for seed in self._tried_on(method)
        )
        rows = dict.fromkeys(row for row, _ in self._chosen())
        self._go_on(Chain(seed, row) for row in sorted(rows, key=lambda row: parse(row).rate) for seed in self.seeds)

    def _go_on(self, every: Iterable[Chain]) -> None:
        settings = self.networks.settings
        chains = [chain for chain in every if self._missing(chain)]
        self._dense(_seeds(chains))
        savings = len(settings.levels)
        for _, alike in groupby(chains, _rate):
            for some, folder in self.pieces.of("chains", list(alike), self._finished, savings=savings):
                reached = {chain: self._reached(chain) for chain in some}
                for place in range(len(settings.levels)):
                    here = {chain: own for chain, own in reached.items() if own.place == place}
                    if here:
                        self.pieces.check_time()
                        reached |= self._next_level(here, place, folder)

    def _finished(self, chain: Chain) -> bool:
        return not self._missing(chain)

    def _next_level(self, here: dict[Chain, Reached], place: int, folder: Path) -> dict[Chain, Reached]:
        """Take chains that are all before the same level to it, and keep what they are then."""
        settings = self.networks.settings
        keys = [Key(chain.seed, chain.row, settings.levels[place]) for chain in here]
        source, alive = joined([own.network for own in here.values()]), [own.masks for own in here.values()]
        group = Group(keys, source, range(len(here)), alive, settings.epochs + place * settings.retrain_epochs)
        done, masks = self._measure(group, folder, collect=True, rate=_rate(keys[0]))
        reached = {}
        for r, chain in enumerate(here):
            reached[chain] = Reached(place + 1, done.rows([r]), _row(masks, r))
            self._keep(chain, reached[chain])
        for file in folder.glob("*.pt"):  # this level is kept; the next is a training of its own
            file.unlink(missing_ok=True)
        return reached

    def _missing(self, chain: Chain) -> list[int]:
        """The places of the levels that have no record."""
        levels = self.networks.settings.levels
        return [place for place, level in enumerate(levels) if not self.results.has(Key(*chain, level))]

    def _reached(self, chain: Chain) -> Reached:
        """Where a chain goes on: after the last level before its first missing record, or from the beginning."""
        levels, missing = self.networks.settings.levels, self._missing(chain)
        for place in range(missing[0] if missing else 0, 0, -1):
            # Another run may be at work on it, and be ahead.
            with suppress(FileNotFoundError):
                name = chain.at(levels[place - 1])
                return Reached(place, self.cache.load(name, [chain.seed]), self.cache.masks(name, chain.seed))
        return Reached(0, self.cache.load("dense", [chain.seed]), None)

    def _keep(self, chain: Chain, reached: Reached) -> None:
        """Keep the last network of a chain and drop the one before it; of a finished chain keep none."""
        levels = self.networks.settings.levels
        if reached.place < len(levels):
            masks = {name: mask[None] for name, mask in (reached.masks or {}).items()}
            self.cache.save(chain.at(levels[reached.place - 1]), reached.network, masks)
        if reached.place > 1:
            self.cache.drop(chain.at(levels[reached.place - 2]), chain.seed)

    # ---- pruning, retraining, measuring --------------------------------------------------------------------------

    def _measure(self, group: Group, folder: Path, *, collect: bool, rate: float) -> tuple[Result, Table]:
        """Prune, retrain and measure the networks of a group, and write a record of each."""
        began = time.perf_counter()
        chosen = self._all_chosen(group)
        masks = {name: torch.stack([own.masks[name] for own in chosen]) for name in chosen[0].masks}
        start = replace(group.source, estimates=(), second_moment={}).rows(group.at)
        pruned = {n: t * masks[n] if n in masks else t for n, t in start.state.items()}
        at_once, recalibrated = self.networks.test(pruned), self.networks.recalibrated(pruned, start.seeds)
        self.say(f"retraining {len(group.keys)} networks: {', '.join(dict.fromkeys(key.row for key in group.keys))}")
        done = self.networks.retrained(start, masks, group.epoch, folder, collect=collect, rate=rate)
        accuracies = {
            "pruned": at_once,
            **({} if recalibrated is None else {"recalibrated": recalibrated}),
            "retrained": self.networks.test(done.state),
            "validation": self.networks.validation(done.state, done.seeds),
        }
        seconds = round((time.perf_counter() - began) / len(group.keys), 2)
        self._write(group, chosen, accuracies, {"seconds": seconds, "how": done.how})
        return done, masks

    def _write(
        self, group: Group, chosen: Sequence[Chosen], accuracies: dict[str, list[float]], environment: dict[str, Any]
    ) -> None:
        dense = self._dense_accuracy(_seeds(group.keys))
        for r, (key, own) in enumerate(zip(group.keys, chosen, strict=True)):
            self.results.write(
                Record(
                    seed=key.seed,
                    row=key.row,
                    level=key.level,
                    dense=dense[key.seed],
                    **{name: values[r] for name, values in accuracies.items()},
                    sparsity=1 - _kept(own.masks) / sum(mask.numel() for mask in own.masks.values()),
                    **self._costs(group.source, own.masks),
                    overlap=own.overlap,
                    frozen=_dead_share(group.source, group.at[r], own.masks),
                    environment=self.environment | environment,
                )
            )

    def _all_chosen(self, group: Group) -> list[Chosen]:
        """What is kept of each network of a group; tries of one row that differ in retraining only share it."""
        each = list(zip(group.keys, group.at, group.alive, strict=True))
        own = [(_without_rate(key), None if alive is None else r) for key, r, alive in each]
        new = {
            place: self.task(*one, group.source)
            for place, one in zip(own, each, strict=True)
            if place not in self.masks
        }
        networks = self.networks
        small = networks.chooses_on.type == "cpu" != networks.x.device.type  # a CPU that has nothing else to do
        found = dict(zip(new, choose_all(list(new.values()), networks.chooses_on, small), strict=True))
        if networks.settings.tries > 1:
            self.masks.update({place: chosen for place, chosen in found.items() if place[1] is None})
        return [found[place] if place in found else self.masks[place] for place in own]

    def task(self, key: Key, r: int, alive: Table | None, source: Result) -> Task:
        """What is to be chosen for the network in row `r` of the source; `alive` are the masks of an earlier round."""
        method, settings = parse(key.row), self.networks.settings
        table = self._measured(method.sigma, source, r, alive)
        table = self._table(method, key.seed, source, r, self.networks.weights) if table is None else table
        state, weights = _row(source.state, r), self.networks.weights
        return Task(self.networks.make, state, weights, method, key.level, key.seed, table, alive, settings.prune)

    def _measured(self, what: str, source: Result, r: int, alive: Table | None) -> Table | None:
        """What a pass over images measures of a network; None where the method needs none."""
        if what not in (*PASSED, "fisher"):
            return None
        if alive is not None:
            return self.networks.measured(what, source, r, alive)
        place = source.seeds[r], what
        if place not in self.tables:
            self.tables[place] = self.networks.measured(what, source, r, None)
        return self.tables[place]

    def _table(self, method: Method, seed: int, source: Result, r: int, names: Sequence[str]) -> Table:
        """The sigmas of a method, or its scores, by parameter name."""
        if method.sigma not in (*SIGMAS, *MEASURED):
            return {}
        if method.bootstraps:
            sigma = self.cache.load(f"bootstrap-{method.start}", [seed]).params
            dead = source.estimates[0]
            return {n: prepared(method, sigma[n][0], _flags(dead[n].dead, r)) for n in names}
        own = source.estimates[collected(self.networks.settings).index(method.sigma)]
        if method.sigma in WATCHED:
            return {n: own[n].sigma[r] for n in names}
        return {n: prepared(method, own[n].sigma[r], _flags(own[n].dead, r)) for n in names}

    def _costs(self, source: Result, masks: Table) -> dict[str, float]:
        total = sum(param[0].numel() for param in source.params.values())
        gone = sum(mask.numel() for mask in masks.values()) - _kept(masks)
        share = {name: float(mask.float().mean()) for name, mask in masks.items()}
        left = sum(cost * share.get(name, 1.0) for name, cost in self._multiplications.items())
        return {"compression": total / (total - gone), "speedup": sum(self._multiplications.values()) / left}

    @cached_property
    def _multiplications(self) -> dict[str, int]:
        return self.networks.costs()


def _seeds(items: Iterable[Key | Chain]) -> list[int]:
    return sorted({item.seed for item in items})


def _rate(item: Key | Chain) -> float:
    """The factor of the learning rate that it is retrained with."""
    return parse(item.row).rate


def _without_rate(key: Key) -> Key:
    return replace(key, row=replace(parse(key.row), rate=1.0).text)


def _row(table: Table, r: int) -> Table:
    return {name: tensor[r] for name, tensor in table.items()}


def _flags(dead: Tensor | None, r: int) -> Tensor | None:
    return None if dead is None else dead[r]


def _kept(masks: Table) -> int:
    return sum(int(torch.count_nonzero(mask)) for mask in masks.values())


def _dead_share(source: Result, r: int, masks: Table) -> float | None:
    """Among the weights kept, those that no gradient reached in the last steps before the pruning."""
    flags = {name: _flags(estimate.dead, r) for name, estimate in source.estimates[0].items() if name in masks}
    dead = [int(torch.count_nonzero(flag & masks[name])) for name, flag in flags.items() if flag is not None]
    return sum(dead) / max(_kept(masks), 1) if dead else None
