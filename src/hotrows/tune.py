"""Tuning: the configuration that trains fastest here, chosen by short measured runs.

    tuned = tune(data, TrainConfig(model="dlrm", fast_memory=64 << 20), seconds=120)
    Trainer(data, tuned.config, run="runs/a").fit()

One setting after the other is tried (`knobs_of` says which, in which order, with which values): the
best configuration so far and a neighbour of it train in windows that alternate (`hotrows.trials`).
The neighbour takes its place where it is faster beyond what windows vary by (`Comparison.wins`), and
is so again when both have been opened anew. In the end the defaults and the chosen configuration are
compared once more, in more windows; where the chosen one does not win again, the defaults are the answer.

Settings that change no bit of the result, or its rounding alone, are tried always. Those that change
what is learned (precision, the size of a batch, ...) are tried where they are asked for.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from hotrows.config import TrainConfig, settle
from hotrows.data import EncodedData
from hotrows.environment import environment
from hotrows.nn.statistics import OverRanks
from hotrows.planning.budget import SPLITS, format_bytes
from hotrows.planning.sharding import uniform
from hotrows.ranks import OneRank, Ranks
from hotrows.train import Trainer
from hotrows.trials import WIN, Comparison, Trial, Trials

NO_BIT, ROUNDING, RESULTS = "no bit", "rounding", "results"
MAY_CHANGE = ("precision", "table_dtype", "wire_dtype", "batch_size", "micro_batches")
PAIRS, FINAL_PAIRS = 7, 11
_LEAST_WINDOW, _LONGEST_WINDOW = 0.05, 3.0  # seconds
_SMALL_TABLES = 256 << 20  # bytes that every rank may hold whole
_OPENING = 0.5  # of the time of a comparison, to open what is compared


@dataclass(frozen=True)
class Knob:
    """A setting and the values that are tried.

    values: in order, the one that holds among them; neighbours of it are tried, first upwards, and
    on in that direction while they win. Where not `ordered`, all of them are.
    changes: `no bit`, `rounding`, or `results`.
    """

    name: str
    values: tuple[Any, ...]
    changes: str
    ordered: bool = True


@dataclass(frozen=True)
class Decision:
    """A value that was tried in place of another one, and what came of it.

    comparison: what speaks for it; again: where it won, once more, both opened anew: tables that happen
        to lie better in memory do so for as long as they are open.
    refused: why it could not be opened; there is no comparison then.
    """

    knob: Knob
    before: Any
    after: Any
    comparison: Comparison | None
    again: Comparison | None = None
    refused: str | None = None

    @property
    def taken(self) -> bool:
        return self.again is not None and self.again.wins

    def to_json(self) -> dict[str, Any]:
        return {
            "knob": self.knob.name, "changes": self.knob.changes, "before": self.before,
            "after": self.after, "taken": self.taken, "refused": self.refused,
            "comparison": self.comparison and self.comparison.to_json(),
            "again": self.again and self.again.to_json(),
        }  # fmt: skip


@dataclass(frozen=True)
class Tuned:
    """What tuning came to.

    config: the fastest; defaults: where it began, which `config` equals where nothing was faster.
    final: the two compared afresh at the end; None where there was nothing to compare.
    skipped: the knobs for which time did not suffice. seconds: spent in all.
    """

    config: TrainConfig
    defaults: TrainConfig
    decisions: tuple[Decision, ...]
    final: Comparison | None
    skipped: tuple[str, ...]
    seconds: float

    @property
    def changes(self) -> dict[str, Any]:
        """The settings in which the chosen configuration differs from the defaults."""
        return _differences(self.defaults, self.config)

    def to_json(self) -> dict[str, Any]:
        return {
            "changes": self.changes,
            "decisions": [decision.to_json() for decision in self.decisions],
            "final": self.final and self.final.to_json(),
            "skipped": list(self.skipped),
            "seconds": self.seconds,
            "environment": environment(),
        }


class Machine(Protocol):
    """What measures: `Trials`, or a fake for tests."""

    def compare(
        self, before: TrainConfig, after: TrainConfig, num_pairs: int, after_first: bool = False
    ) -> Comparison:
        """Samples a second of both, opened anew; ValueError where `after` is refused."""


def tune(
    data: EncodedData,
    config: TrainConfig,
    *,
    seconds: float = 120.0,
    may_change: Collection[str] = (),
    fixed: Collection[str] = (),
    ranks: Ranks | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> Tuned:
    """The fastest configuration found in about `seconds`, from `config` as it stands.

    may_change: settings that change results, and may: any of `MAY_CHANGE`. fixed: settings that stay
    as they are. ranks: those that train together; all call this, and all get the same answer.
    progress: called with what is measured, its number, and how many there may be.
    """
    check_may_change(may_change)
    if not seconds > 0:
        raise ValueError(f"seconds must be above 0, not {seconds}")
    num_samples = data.parts["train"].rows
    begin, ranks = time.perf_counter(), ranks or OneRank()
    with Trials(data, ranks, warm_up_seconds=0.0) as trials:
        # Settings that fit this size of batch may not fit another.
        settled = settle(config, num_samples)
        config = dataclasses.replace(
            config, batch_size=settled.batch_size, pack_parts=settled.pack_parts
        )
        knobs = knobs_of(config, trials.opened(config), may_change)
        knobs = [knob for knob in knobs if knob.name not in fixed]
        most = sum(2 if knob.ordered else len(knob.values) - 1 for knob in knobs)
        share = seconds / (most + 2)  # of each comparison; the last one has two
        trials.window_seconds = min(
            max((1 - _OPENING) * share / (2 * PAIRS), _LEAST_WINDOW), _LONGEST_WINDOW
        )
        trials.warm_up_seconds = _OPENING * share / 2
        trials.close_all()

        def is_late() -> bool:
            spent = time.perf_counter() - begin
            return ranks.gather_objects(spent > seconds - 2 * share)[0]

        tell = progress or (lambda what, number, of: None)
        chosen, decisions, skipped = descend(trials, config, knobs, is_late, tell, most)
        final = None
        if chosen != config:
            tell("before and after", most, most)
            chosen, final = confirm(trials, config, chosen)
    spent = time.perf_counter() - begin
    return Tuned(chosen, config, decisions, final, skipped, round(spent, 1))


def descend(
    machine: Machine,
    config: TrainConfig,
    knobs: Sequence[Knob],
    is_late: Callable[[], bool] = lambda: False,
    progress: Callable[[str, int, int], None] = lambda what, number, of: None,
    most: int = 0,
) -> tuple[TrainConfig, tuple[Decision, ...], tuple[str, ...]]:
    """Turns one knob after the other: the best configuration, all decisions, and the knobs that were
    not turned to the end because it was late."""
    search = _Search(machine, config, is_late, progress, most)
    for knob in knobs:
        search.turn(knob)
    return search.config, tuple(search.decisions), tuple(dict.fromkeys(search.skipped))


def confirm(
    machine: Machine, defaults: TrainConfig, chosen: TrainConfig
) -> tuple[TrainConfig, Comparison]:
    """The chosen configuration where it is faster once more, else the defaults; and the proof."""
    final = machine.compare(defaults, chosen, FINAL_PAIRS)
    return (chosen if final.wins else defaults), final


def knobs_of(config: TrainConfig, trial: Trial, may_change: Collection[str] = ()) -> list[Knob]:
    """What can be tuned of a configuration that is open as `trial`, in the order in which it is.

    First what decides the work of a step, then how steps overlap, then the cache.
    """
    trainer, asked = trial.trainer, set(may_change)
    embedding, several = trainer.embedding, trainer.ranks.num_ranks > 1
    knobs = []

    def add(name: str, values: Sequence[Any], changes: str, ordered: bool = True) -> None:
        if changes == RESULTS and name not in asked:
            return
        own = getattr(config, name)
        tried = tuple(dict.fromkeys([own, *values]))  # in the same order on every rank
        if len(tried) > 1:
            knobs.append(Knob(name, tuple(sorted(tried)) if ordered else tried, changes, ordered))

    if config.linear_paths != "plain" and trial.measures_paths:
        add("linear_paths", ("plain",), ROUNDING, ordered=False)
    add("precision", ("float32", "bfloat16"), RESULTS, ordered=False)
    add("table_dtype", ("float32", "bfloat16"), RESULTS, ordered=False)
    size = config.batch_size or 1
    add("batch_size", [max(size * n // 4, 1) for n in (1, 2, 4, 8, 16)], RESULTS)
    slices = RESULTS if _has_statistics(trainer.model) else ROUNDING
    add("micro_batches", [n for n in (1, 2, 4, 8) if n <= size], slices)
    parts = [n for n in (1, 0, 2, 4) if n <= len(embedding.tables)]
    add("pack_parts", parts, NO_BIT, ordered=False)
    if several:
        small = sum(trainer.ranks.gather_objects(embedding.num_bytes)) <= _SMALL_TABLES
        kinds = ("rows", "tables", "columns", *(["replicated"] if small else []))
        add("sharding", [of for of in kinds if not _places(trainer, of)], ROUNDING, ordered=False)
        add("wire_dtype", ("float32", "bfloat16", "float16"), RESULTS, ordered=False)
    add("plan_depth", (0, 1, 2, 4, 8), NO_BIT)
    caching = trainer.config.caching()
    if caching is not None:
        add("in_flight", (1, 2, 4, 8, 16), NO_BIT)
        if config.policy == "lookahead":
            add("policy", ("lookahead", "lru", "frequency"), NO_BIT, ordered=False)
            window = caching.lookahead_bytes
            add("lookahead_memory", (window // 16, window // 4, window * 4), NO_BIT, ordered=False)
        if len(embedding.groups) > 1:
            add("memory_split", SPLITS, NO_BIT, ordered=False)
    return knobs


def check_may_change(names: Collection[str]) -> None:
    for name in names:
        if name not in MAY_CHANGE:
            raise ValueError(
                f"what tuning may change of the results is any of {', '.join(MAY_CHANGE)}, not "
                f"{name!r}; all other settings are tried anyway, or fixed"
            )


def shown(knob: Knob, value: Any) -> str:
    """A value of a knob, for people."""
    if isinstance(value, int):
        return format_bytes(value) if knob.name.endswith("memory") else f"{value:,}"
    return "auto" if value is None else str(value)


def verdict(decision: Decision) -> str:
    """What became of a value, in words."""
    if decision.comparison is None:
        return f"refused: {decision.refused}"
    if decision.taken:
        return "taken"
    if decision.again is not None:
        return "won, but not once more"
    ratio, (low, high) = decision.comparison.ratio, decision.comparison.quartiles
    if high < 1:
        return "slower"
    return "too small a gain" if low > 1 and ratio <= WIN else "no difference beyond noise"


@dataclass
class _Search:
    """The best configuration so far, and how it came about."""

    machine: Machine
    config: TrainConfig
    is_late: Callable[[], bool]
    progress: Callable[[str, int, int], None]
    most: int
    decisions: list[Decision] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)

    def turn(self, knob: Knob) -> None:
        value = getattr(self.config, knob.name)
        at = knob.values.index(value)
        below, above = knob.values[:at][::-1], knob.values[at + 1 :]
        if not knob.ordered:
            for other in (*below, *above):
                self._try(knob, other)
        elif not self._climb(knob, above):
            self._climb(knob, below)

    def _climb(self, knob: Knob, values: Sequence[Any]) -> bool:
        """Goes on as long as it wins; whether it has won at all."""
        for number, value in enumerate(values):
            if not self._try(knob, value):
                return number > 0
        return bool(values)

    def _try(self, knob: Knob, value: Any) -> bool:
        if self.is_late():
            self.skipped.append(knob.name)
            return False
        self.progress(f"{knob.name} {shown(knob, value)}", len(self.decisions), self.most)
        decision = _decide(self.machine, self.config, knob, value)
        self.decisions.append(decision)
        if decision.taken:
            self.config = dataclasses.replace(self.config, **{knob.name: value})
        return decision.taken


def _decide(machine: Machine, config: TrainConfig, knob: Knob, value: Any) -> Decision:
    before = getattr(config, knob.name)
    try:
        changed = dataclasses.replace(config, **{knob.name: value})
        found = machine.compare(config, changed, PAIRS)
        again = machine.compare(config, changed, PAIRS, after_first=True) if found.wins else None
        return Decision(knob, before, value, found, again)
    except ValueError as error:
        return Decision(knob, before, value, None, refused=str(error))


def _differences(before: TrainConfig, after: TrainConfig) -> dict[str, Any]:
    names = [field.name for field in dataclasses.fields(after)]
    return {n: getattr(after, n) for n in names if getattr(after, n) != getattr(before, n)}


def _places(trainer: Trainer, kind: str) -> bool:
    """Whether the tables are dealt in this way already, by whatever name."""
    own = uniform(kind, trainer.embedding.tables, trainer.ranks.num_ranks)
    return dict(trainer.placing.sharding) == dict(own)


def _has_statistics(model: Any) -> bool:
    """Whether layers learn from statistics of the batch at hand, which a part of it changes."""
    return any(isinstance(layer, OverRanks) for layer in model.modules())
