"""The protocol: train, prune by every row to every level, retrain, measure; all networks together, piece by piece."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from prunewald.ensemble import Result
from prunewald.ensemble.result import joined
from prunewald.lab.cache import Cache
from prunewald.lab.methods import CONTROL, SIGMAS, Method, choose, methods_of, parse, prepared
from prunewald.lab.networks import COLLECTED, Networks, Table
from prunewald.lab.records import Key, Record, RecordFolder, ResultsError

T = TypeVar("T")
_PIECE = 120.0  # seconds of a piece
_ROUNDING = 2.5  # images that may be seen in another way when the same network is measured on another machine


class Over(Exception):
    """The time that was given is over: what is finished is kept."""


@dataclass(frozen=True)
class Protocol:
    """One experiment, on its networks, with its results and its cache of trained networks."""

    networks: Networks
    results: RecordFolder
    cache: Cache
    seeds: Sequence[int]
    piece: int  # networks trained between two savings; 0: what takes some minutes, at most `most`
    most: int
    deadline: float
    environment: dict[str, Any]
    say: Callable[[str], None]
    known: dict[int, float] = field(default_factory=dict)  # dense accuracies

    def run(self) -> None:
        """All that is not finished yet."""
        if self.networks.settings.iterative:
            self._chains()
        else:
            self._one_shot()

    # ---- networks to prune ---------------------------------------------------------------------------------------

    def _dense(self, seeds: Sequence[int]) -> None:
        for some, folder in self._pieces("dense", seeds, lambda seed: self.cache.has("dense", seed)):
            self.say(f"training {len(some)} networks")
            self.cache.save("dense", self.networks.dense(some, folder))
        for first in range(0, len(seeds), self.most):
            self._dense_accuracy(seeds[first : first + self.most])

    def _bootstrap(self, start: str, seeds: Sequence[int]) -> None:
        name, count = f"bootstrap-{start}", self.networks.settings.replicas
        for some, folder in self._pieces(name, seeds, lambda seed: self.cache.has(name, seed), each=count):
            self.say(f"training {len(some)} x {count} bootstrap replicas, {start} start")
            trained = self.cache.load("dense", some)
            found = self.networks.replicas(trained, start, count, folder)
            sigma = {n: p.reshape(-1, count, *p.shape[1:]).std(1) for n, p in found.params.items()}
            self.cache.save(name, replace(trained, params=sigma, optimizer_state={}, estimates=()))

    # ---- cells ---------------------------------------------------------------------------------------------------

    def _one_shot(self) -> None:
        settings = self.networks.settings
        rows = methods_of(settings)
        keys = [
            Key(seed, row.text, level)
            for seed in self.seeds
            for row in rows
            for level in ((0.0,) if row.sigma == CONTROL else settings.levels)
            if not row.bootstraps or seed in settings.seeds[: settings.bootstrap_repetitions]
        ]
        missing = [key for key in keys if not self.results.has(key)]
        self._dense(_seeds(missing))
        for row in rows:
            if row.bootstraps:
                self._bootstrap(row.start, _seeds(key for key in missing if key.row == row.text))
        for some, folder in self._pieces("cells", missing, self.results.has):
            seeds = _seeds(some)
            at = [seeds.index(key.seed) for key in some]
            self._cell(some, self.cache.load("dense", seeds), at, None, settings.epochs, folder, collect=False)

    def _chains(self) -> None:
        """Iterative: each network and row goes through the levels; as many as fit go together."""
        settings = self.networks.settings
        levels = settings.levels
        chains = [
            Chain(seed, row.text)
            for seed in self.seeds
            for row in methods_of(settings)
            if self._missing(Chain(seed, row.text))
        ]
        self._dense(_seeds(chains))
        pieces = self._pieces("chains", chains, lambda chain: not self._missing(chain), savings=len(levels))
        for some, folder in pieces:
            states = {chain: self._state(chain) for chain in some}
            for place, level in enumerate(levels):
                todo = [chain for chain in some if states[chain].place == place]
                if not todo:
                    continue
                self._check_time()
                keys = [Key(chain.seed, chain.row, level) for chain in todo]
                before = [states[chain] for chain in todo]
                start, alive = joined([state.network for state in before]), [state.masks for state in before]
                epoch = settings.epochs + place * settings.retrain_epochs
                done, masks = self._cell(keys, start, range(len(todo)), alive, epoch, folder, collect=True)
                for r, chain in enumerate(todo):
                    own = {name: mask[r] for name, mask in masks.items()}
                    states[chain] = Reached(place + 1, done.rows([r]), own)
                    self._keep(chain, states[chain])
                for file in folder.glob("*.pt"):  # this level is kept; the next is a training of its own
                    file.unlink(missing_ok=True)

    def _missing(self, chain: "Chain") -> list[int]:
        """The places of the levels that have no record."""
        levels = self.networks.settings.levels
        return [place for place, level in enumerate(levels) if not self.results.has(Key(*chain, level))]

    def _state(self, chain: "Chain") -> "Reached":
        """Where a chain goes on: after the last level before its first missing record, or from the beginning."""
        levels, missing = self.networks.settings.levels, self._missing(chain)
        for place in range(missing[0] if missing else 0, 0, -1):
            # Another run may be at work on it, and be ahead.
            with suppress(FileNotFoundError):
                name = chain.at(levels[place - 1])
                return Reached(place, self.cache.load(name, [chain.seed]), self.cache.masks(name, chain.seed))
        return Reached(0, self.cache.load("dense", [chain.seed]), None)

    def _keep(self, chain: "Chain", state: "Reached") -> None:
        """The last state is enough, and none of a chain that is finished."""
        levels = self.networks.settings.levels
        if state.place < len(levels):
            masks = {name: mask[None] for name, mask in (state.masks or {}).items()}
            self.cache.save(chain.at(levels[state.place - 1]), state.network, masks)
        if state.place > 1:
            self.cache.drop(chain.at(levels[state.place - 2]), chain.seed)

    def _cell(
        self,
        keys: Sequence[Key],
        source: Result,
        at: Sequence[int],
        alive: Sequence[Table | None] | None,
        epoch: int,
        folder: Path,
        *,
        collect: bool,
    ) -> tuple[Result, Table]:
        """Prune, retrain and measure networks together, `at` these rows of the source, and keep a record of each."""
        began = time.perf_counter()
        chosen = [self.masks(key, source, at[r], alive[r] if alive else None) for r, key in enumerate(keys)]
        masks = {name: torch.stack([masks[name] for masks, _ in chosen]) for name in chosen[0][0]}
        start = replace(source, estimates=(), second_moment={}).rows(at)
        at_once = self.networks.test({n: t * masks[n] if n in masks else t for n, t in start.state.items()})
        self.say(f"retraining {len(keys)} networks: {', '.join(dict.fromkeys(key.row for key in keys))}")
        done = self.networks.retrained(start, masks, epoch, folder, collect=collect)
        retrained, validation = self.networks.test(done.state), self.networks.validation(done.state, done.seeds)
        dense = self._dense_accuracy(_seeds(keys))
        seconds = round((time.perf_counter() - began) / len(keys), 2)
        for r, key in enumerate(keys):
            own = {name: mask[r] for name, mask in masks.items()}
            self.results.write(
                Record(
                    seed=key.seed,
                    row=key.row,
                    level=key.level,
                    dense=dense[key.seed],
                    pruned=at_once[r],
                    retrained=retrained[r],
                    validation=validation[r],
                    sparsity=1 - _kept(own) / sum(mask.numel() for mask in own.values()),
                    **self._costs(start, own),
                    overlap=chosen[r][1],
                    frozen=_dead_share(source, at[r], own),
                    environment=self.environment | {"seconds": seconds, "how": done.how},
                )
            )
        return done, masks

    def masks(self, key: Key, start: Result, r: int, alive: Table | None) -> tuple[Table, float]:
        """The masks of one network, and their overlap with magnitude's."""
        row, model = parse(key.row), start.module(r)
        weights = _dense_weights(model)
        if row.sigma == CONTROL:
            return {name: torch.ones_like(weight, dtype=torch.bool) for name, weight in weights.items()}, 1.0
        sigma = self._sigma(row, key.seed, start, r, list(weights)) if row.sigma in SIGMAS else {}
        masks, report = choose(row, model, key.level, key.seed, sigma, alive)
        return masks, sum(one.overlap * one.kept for one in report.rows) / report.kept

    def _sigma(self, row: Method, seed: int, start: Result, r: int, names: Sequence[str]) -> Table:
        if row.bootstraps:
            sigma = self.cache.load(f"bootstrap-{row.start}", [seed]).params
            dead = start.estimates[0]
            return {n: prepared(row, sigma[n][0], _row(dead[n].dead, r)) for n in names}
        collected = start.estimates[COLLECTED.index(row.sigma)]
        return {n: prepared(row, collected[n].sigma[r], _row(collected[n].dead, r)) for n in names}

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
        if there is not None and abs(there - here) > _ROUNDING / len(self.networks.test_y):
            raise ResultsError(
                f"seed {seed}: the network trained here has a test accuracy of {here:.2%}, that of the records in "
                f"{self.results.folder} {there:.2%}: rows on different networks cannot be compared; bring the folder "
                "networks/ of those records along, or give another --out"
            )

    def _costs(self, start: Result, masks: Table) -> dict[str, float]:
        total = sum(param[0].numel() for param in start.params.values())
        gone = sum(mask.numel() for mask in masks.values()) - _kept(masks)
        costs = self.networks_costs
        share = {name: float(mask.float().mean()) for name, mask in masks.items()}
        left = sum(cost * share.get(name, 1.0) for name, cost in costs.items())
        return {"compression": total / (total - gone), "speedup": sum(costs.values()) / left}

    @property
    def first(self) -> int:
        """The least networks of a piece: a GPU trains some in the time of one, a cluster wants work for all of it."""
        if "executor" in self.networks.how:
            return 64
        return 1 if self.networks.x.device.type == "cpu" else 16

    @cached_property
    def networks_costs(self) -> dict[str, int]:
        """Multiplications by layer, counted once."""
        return self.networks.costs()

    def _pieces(
        self, what: str, items: Sequence[T], finished: Callable[[T], bool], *, each: int = 1, savings: int = 1
    ) -> Iterator[tuple[list[T], Path]]:
        """What is not finished, piece by piece, while there is time, with a folder for what is on its way.

        First the pieces that were killed, as they were. Then the others; another run may finish some of them meanwhile.
        An item is of `each` networks, and a piece is saved so often. If no size is given, they grow to some minutes.
        """
        items = [item for item in items if not finished(item)]
        for some in self.cache.stopped(what, items):
            if not any(map(finished, some)):
                yield from self._piece(what, some)
        most = max(1, (self.piece or self.most) // each)
        least = min(most, max(1, self.first // each))
        size = most if self.piece else least
        at = 0
        while at < len(items):
            some = [item for item in items[at : at + size] if not finished(item)]
            at += size
            if some:
                began = time.monotonic()
                yield from self._piece(what, some)
                rate = (time.monotonic() - began) / savings / len(some)
                if not self.piece:
                    size = max(least, min(most, 4 * size, int(_PIECE / max(rate, 1e-9))))

    def _piece(self, what: str, some: list[T]) -> Iterator[tuple[list[T], Path]]:
        self._check_time()
        with self.cache.running(what, some) as folder:
            yield some, folder

    def _check_time(self) -> None:
        if time.monotonic() > self.deadline:
            raise Over


class Chain(NamedTuple):
    """A network that one row prunes further and further."""

    seed: int
    row: str

    def at(self, level: float) -> str:
        """Its name in the cache at a level."""
        return f"chain-{self.row}-{level:g}"


class Reached(NamedTuple):
    """How far a chain has come: the place of the next level, the network, and what is left of it."""

    place: int
    network: Result
    masks: Table | None


def _seeds(items: Iterable[Key | Chain]) -> list[int]:
    return sorted({item.seed for item in items})


def _dense_weights(model: nn.Module) -> Table:
    linear = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    return {f"{name}.weight": module.weight.detach() for name, module in linear.items()}


def _row(dead: Tensor | None, r: int) -> Tensor | None:
    return None if dead is None else dead[r]


def _kept(masks: Table) -> int:
    return sum(int(torch.count_nonzero(mask)) for mask in masks.values())


def _dead_share(start: Result, r: int, masks: Table) -> float | None:
    """Among the weights kept, those that no gradient reached in the last steps before the pruning."""
    flags = {name: _row(estimate.dead, r) for name, estimate in start.estimates[0].items() if name in masks}
    dead = [int(torch.count_nonzero(flag & masks[name])) for name, flag in flags.items() if flag is not None]
    return sum(dead) / max(_kept(masks), 1) if dead else None
