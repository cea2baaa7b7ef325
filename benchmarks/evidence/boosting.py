"""The default beside the best of logistic regression, LightGBM and CatBoost, by data set and by half."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from statistics import stdev

from benchmarks.boosting import PEERS, half_of
from benchmarks.evidence.records import at, mean, signed

FEW_POSITIVES = 500  # of a test part, below which a set is shown and not counted
NEAR = 1.01  # times the best log loss


@dataclass(frozen=True)
class Beside:
    """The default beside the best peer on a data set."""

    name: str
    arms: dict  # by seed; `compared` has a difference of AUC, its standard error and a ratio of log loss

    @property
    def figures(self) -> dict:
        return self.arms["compared"]

    @property
    def counts(self) -> bool:
        return self.figures["test_positives"] >= FEW_POSITIVES

    @property
    def verdict(self) -> str:
        """Whether the difference has a sign at 95 %."""
        if not self.counts:
            return "few"
        apart, error = self.figures["auc"], self.figures["error"]
        return "" if abs(apart) <= 1.96 * error else "above" if apart > 0 else "below"

    @property
    def deviation(self) -> float:
        return stdev(run["auc"] for run in self.arms["ours"].values())

    def cell(self, arm: str, figure: str, form: str) -> str:
        """The mean over the seeds of the comparison; empty where the arm did not run."""
        seeds, runs = map(str, self.figures["seeds"]), self.arms.get(arm, {})
        return format(mean([runs[seed][figure] for seed in seeds]), form) if runs else ""

    def row(self) -> list[str]:
        figures = self.figures
        return [
            self.name,
            half_of(self.name),
            f"{self.arms['ours']['0']['rows']:,}",
            *(self.cell(arm, "auc", ".4f") for arm in ("ours", *PEERS)),
            f"{signed(figures['auc'])} ± {1.96 * figures['error']:.4f}",
            self.verdict,
            f"{figures['log_loss']:.3f}",
            f"{self.deviation:.4f} ({figures['of_drawing']:.4f})",
            *(self.cell(arm, "cpu_seconds", ".1f") for arm in ("catboost", "ours")),
        ]


@dataclass(frozen=True)
class Half:
    name: str

    @cached_property
    def sets(self) -> list[Beside]:
        """Those that count."""
        return [
            one
            for one in _sets()
            if half_of(one.name) == self.name and one.counts and len(one.figures["peers"]) == len(PEERS)
        ]

    def how_often(self, verdict: str) -> int:
        return sum(one.verdict == verdict for one in self.sets)

    @property
    def near(self) -> int:
        return sum(one.figures["log_loss"] <= NEAR for one in self.sets)

    @property
    def apart(self) -> list[float]:
        return [one.figures["auc"] for one in self.sets]

    def claim(self) -> list[object]:
        least, most = map(signed, (min(self.apart), max(self.apart)))
        verdicts = map(self.how_often, ("below", "above"))
        return [len(self.sets), *verdicts, signed(mean(self.apart)), least, most, self.near]

    def row(self) -> list[str]:
        """Shares of the sets, a mean difference, and the largest ratio of log loss."""
        counts = [*map(self.how_often, ("below", "above")), self.near]
        below, above, near = (f"{count} ({count / len(self.sets):.0%})" for count in counts)
        most = max(one.figures["log_loss"] for one in self.sets)
        cells = (below, above, signed(mean(self.apart)), near, f"{most:.3f}x")
        return [self.name, str(len(self.sets)), *cells]


def _sets() -> list[Beside]:
    return [Beside(name, arms) for name, arms in at("boosting/sets").items()]


def boosting() -> list[list[str]]:
    return [one.row() for one in sorted(_sets(), key=lambda one: (half_of(one.name), one.name))]


def halves() -> list[list[str]]:
    return [Half(name).row() for name in "AB"]
