"""Tuning: the configuration that trains fastest here, chosen by short measured runs.

    tuned = tune(data, TrainConfig(model="dlrm", fast_memory=64 << 20), seconds=120)
    Trainer(data, tuned.config, run="runs/a").fit()

One setting after the other is tried (`settings_to_tune` says which, in which order, with which
values): the best configuration so far and a neighbour of it train in windows that alternate
(`hotrows.tools.tuning.benchmark`). The neighbour takes its place where it is faster beyond what windows
vary by (`Comparison.wins`), and is so again when both have been opened anew. In the end the defaults
and the chosen configuration are compared once more, in more windows; where the chosen one does not win
again, the defaults are the answer.

Settings that change no bit of the result, or its rounding alone, are tried always. Those that change
what is learned (precision, the size of a batch, ...) are tried where they are asked for.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from hotrows.data import EncodedData
from hotrows.engine.distributed.comm import OneRank, Ranks
from hotrows.engine.planning.sharding import uniform
from hotrows.models.nn.statistics import OverRanks
from hotrows.runtime.machine import environment
from hotrows.runtime.units import format_bytes
from hotrows.tools.tuning.benchmark import WIN, Comparison, PairedBenchmark, TimedTraining
from hotrows.train.config import MAY_CHANGE, SETTINGS, TrainConfig
from hotrows.train.loop.step_trainer import StepTrainer
from hotrows.train.start.defaults import settle

PAIRS, FINAL_PAIRS = 7, 11
_LEAST_WINDOW, _LONGEST_WINDOW = 0.05, 3.0  # seconds
_SMALL_TABLES = 256 << 20  # bytes that every rank may hold whole
_OPENING = 0.5  # of the time of a comparison, to open what is compared


@dataclass(frozen=True)
class TunedSetting:
    """A setting and the values of it that are tried.

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

    setting: TunedSetting
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
            "knob": self.setting.name,
            "changes": self.setting.changes,
            "before": self.before,
            "after": self.after,
            "taken": self.taken,
            "refused": self.refused,
            "comparison": self.comparison and self.comparison.to_json(),
            "again": self.again and self.again.to_json(),
        }


@dataclass(frozen=True)
class Tuned:
    """The result of a tuning.

    config: the fastest; defaults: where it began, which `config` equals where nothing was faster.
    final: the two compared afresh at the end; None where there was nothing to compare.
    skipped: names of settings for which time did not suffice. seconds: spent in all.
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
        names = [field.name for field in dataclasses.fields(self.config)]
        values = {name: getattr(self.config, name) for name in names}
        return {name: value for name, value in values.items() if value != getattr(self.defaults, name)}

    def to_json(self) -> dict[str, Any]:
        return {
            "changes": self.changes,
            "decisions": [decision.to_json() for decision in self.decisions],
            "final": self.final and self.final.to_json(),
            "skipped": list(self.skipped),
            "seconds": self.seconds,
            "environment": environment(),
        }


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

    seconds: the time for all measurements, about.
    may_change: settings that change results, and may: any of `MAY_CHANGE`.
    fixed: settings that stay as they are.
    ranks: those that train together; all call this, and all get the same answer.
    progress: called with what is measured, its number, and how many there may be.
    """
    check_may_change(may_change)
    if not seconds > 0:
        raise ValueError(f"seconds must be above 0, not {seconds}")
    begin, ranks = time.perf_counter(), ranks or OneRank()
    with PairedBenchmark(data, ranks, warm_up_seconds=0.0) as benchmark:
        # Settings that fit this size of batch may not fit another.
        settled = settle(config, data)
        left_open = ("batch_size", "pack_parts", "precision")
        config = dataclasses.replace(config, **{name: getattr(settled, name) for name in left_open})
        training = benchmark.opened(config)
        settings = settings_to_tune(config, training, may_change)
        settings = [setting for setting in settings if setting.name not in fixed]
        # Divide the time over as many comparisons as there may be.
        most = sum(2 if setting.ordered else len(setting.values) - 1 for setting in settings)
        share = seconds / (most + 2)  # of each comparison; the last one has two
        window = (1 - _OPENING) * share / (2 * PAIRS)
        benchmark.window_seconds = min(max(window, _LEAST_WINDOW), _LONGEST_WINDOW)
        benchmark.warm_up_seconds = _OPENING * share / 2
        benchmark.close_all()

        # Change one setting after the other while each change is faster.
        def is_late() -> bool:
            spent = time.perf_counter() - begin
            return ranks.gather_objects(spent > seconds - 2 * share)[0]

        show = progress or (lambda what, number, total: None)
        chosen, decisions, skipped = coordinate_descent(benchmark, config, settings, is_late, show, most)
        final = None
        if chosen != config:
            show("before and after", most, most)
            chosen, final = confirm(benchmark, config, chosen)
    spent = time.perf_counter() - begin
    return Tuned(chosen, config, decisions, final, skipped, round(spent, 1))


def coordinate_descent(
    benchmark: PairedBenchmark,
    config: TrainConfig,
    settings: Sequence[TunedSetting],
    is_late: Callable[[], bool] = lambda: False,
    progress: Callable[[str, int, int], None] = lambda what, number, total: None,
    most: int = 0,
) -> tuple[TrainConfig, tuple[Decision, ...], tuple[str, ...]]:
    """Tries one setting after the other; returns the best configuration, all decisions, and the names
    of the settings that were not tried to the end because it was late."""
    search = _Search(benchmark, config, is_late, progress, most)
    for setting in settings:
        search.tune(setting)
    return search.config, tuple(search.decisions), tuple(dict.fromkeys(search.skipped))


def confirm(
    benchmark: PairedBenchmark, defaults: TrainConfig, chosen: TrainConfig
) -> tuple[TrainConfig, Comparison]:
    """The chosen configuration where it is faster once more, else the defaults; and the proof."""
    final = benchmark.compare(defaults, chosen, FINAL_PAIRS)
    return (chosen if final.wins else defaults), final


def settings_to_tune(
    config: TrainConfig, training: TimedTraining, may_change: Collection[str] = ()
) -> list[TunedSetting]:
    """The settings that can be tuned of a configuration that is open as `training`, in order.

    First what decides the work of a step, then how steps overlap, then the cache.
    """
    steps, embedding = training.steps, training.steps.embedding
    settings = []

    def add(name: str, values: Sequence[Any], ordered: bool = True, changes: str = "") -> None:
        changes = changes or SETTINGS[name].changes
        if changes == "results" and name not in may_change:
            return
        tried = tuple(dict.fromkeys([getattr(config, name), *values]))  # in one order on all ranks
        if len(tried) > 1:
            tried = tuple(sorted(tried)) if ordered else tried
            settings.append(TunedSetting(name, tried, changes, ordered))

    formats = SETTINGS["precision"].choices
    add("precision", [f for f in formats if f != "tf32" or config.device != "cpu"], ordered=False)
    add("table_dtype", ("float32", "bfloat16"), ordered=False)
    size = config.batch_size or 1
    add("batch_size", [max(size * n // 4, 1) for n in (1, 2, 4, 8, 16)])
    changes = "results" if _has_statistics(steps.model) else ""
    add("micro_batches", [n for n in (1, 2, 4, 8) if n <= size], changes=changes)
    add("pack_parts", [n for n in (1, 0, 2, 4) if n <= len(embedding.tables)], ordered=False)
    if steps.ranks.num_ranks > 1:
        small = sum(steps.ranks.gather_objects(embedding.num_bytes)) <= _SMALL_TABLES
        kinds = ("rows", "tables", "columns", *(["replicated"] if small else []))
        add("sharding", [kind for kind in kinds if not _places(steps, kind)], ordered=False)
        add("wire_dtype", SETTINGS["wire_dtype"].choices, ordered=False)
    add("plan_depth", (0, 1, 2, 4, 8))
    caching = steps.config.caching()
    if caching is not None:
        add("in_flight", (1, 2, 4, 8, 16))
        if config.policy == "lookahead":
            add("policy", ("lookahead", "lru", "frequency"), ordered=False)
            window = caching.lookahead_bytes
            add("lookahead_memory", (window // 16, window // 4, window * 4), ordered=False)
        if len(embedding.groups) > 1:
            add("memory_split", SETTINGS["memory_split"].choices, ordered=False)
    return settings


def check_may_change(names: Collection[str]) -> None:
    for name in names:
        if name not in MAY_CHANGE:
            raise ValueError(
                f"what tuning may change of the results is any of {', '.join(MAY_CHANGE)}, not "
                f"{name!r}; all other settings are tried anyway, or fixed"
            )


def shown(name: str, value: Any) -> str:
    """A value of a setting, for people."""
    if isinstance(value, int):
        return format_bytes(value) if SETTINGS[name].unit == "bytes" else f"{value:,}"
    return "auto" if value is None else str(value)


def verdict(decision: Decision) -> str:
    """The outcome of a value, in words."""
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

    benchmark: PairedBenchmark
    config: TrainConfig
    is_late: Callable[[], bool]
    progress: Callable[[str, int, int], None]
    most: int
    decisions: list[Decision] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)

    def tune(self, setting: TunedSetting) -> None:
        index = setting.values.index(getattr(self.config, setting.name))
        below, above = setting.values[:index][::-1], setting.values[index + 1 :]
        if not setting.ordered:
            for other in (*below, *above):
                self._try(setting, other)
        elif not self._climb(setting, above):
            self._climb(setting, below)

    def _climb(self, setting: TunedSetting, values: Sequence[Any]) -> bool:
        """Goes on as long as it wins; whether it has won at all."""
        for number, value in enumerate(values):
            if not self._try(setting, value):
                return number > 0
        return bool(values)

    def _try(self, setting: TunedSetting, value: Any) -> bool:
        if self.is_late():
            self.skipped.append(setting.name)
            return False
        self.progress(f"{setting.name} {shown(setting.name, value)}", len(self.decisions), self.most)
        config, compare = self.config, self.benchmark.compare
        before = getattr(config, setting.name)
        try:
            changed = dataclasses.replace(config, **{setting.name: value})
            comparison = compare(config, changed, PAIRS)
            again = compare(config, changed, PAIRS, after_first=True) if comparison.wins else None
            decision = Decision(setting, before, value, comparison, again)
        except ValueError as error:
            decision = Decision(setting, before, value, None, refused=str(error))
        self.decisions.append(decision)
        self.config = changed if decision.taken else config
        return decision.taken


def _places(steps: StepTrainer, kind: str) -> bool:
    """True if the tables are dealt in this way already, by whatever name."""
    placements = uniform(kind, steps.embedding.tables, steps.ranks.num_ranks)
    return dict(steps.placing.sharding) == dict(placements)


def _has_statistics(model: Any) -> bool:
    """True if layers learn from statistics of the batch at hand, which a part of it changes."""
    return any(isinstance(layer, OverRanks) for layer in model.modules())
