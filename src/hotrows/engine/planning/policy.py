"""Policies: which rows a cache protects and which it evicts first, as frozen values.

    Lookahead   evicts the row whose next use is farthest first; before all, oldest first, those
                without a use within the window. Window 0 is LRU, an infinite one Bélády's optimum
    Frequency   counts rows and protects the most frequent ones (PICASSO's HybridHash)
    Hot         protects a set of rows (FAE)
    Newest      evicts the row used last first: for tests, since LRU hides a pin that is missing

Protected rows are evicted after all others, oldest first. `slots` obeys policies, and `Window` turns
one into the number of batches to look ahead.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from hotrows.runtime.shapes import Int64


@dataclass(frozen=True)
class Policy:
    """A rule of a cache: which rows it protects. Kinds are frozen values, members of `_KINDS`.

    is_text: whether `parse` reads it: its kind, and behind a colon maybe a whole number for each field.
    counts_rows: whether the map counts how many batches use each row.
    """

    kind: ClassVar[str]
    is_text: ClassVar[bool] = True
    counts_rows: ClassVar[bool] = False

    def chooses_anew(self, batch: int) -> bool:
        """True if rows are chosen before this batch, from what the batches before it used."""
        return False

    def protected(self, num: int, most_counted: Callable[[int], Tensor]) -> Int64[Tensor, "_"]:
        """At most `num` rows to protect. most_counted: the rows that most batches used, so many."""
        raise NotImplementedError


@dataclass(frozen=True)
class Lookahead(Policy):
    """Evicts by next use.

    window: batches to look ahead; None: all there are; "auto": as many as fit the cache (`Window`).

    >>> hotrows.Caching(1 << 30, policy=Lookahead()).policy
    Lookahead(window='auto')
    """

    window: int | str | None = "auto"
    kind: ClassVar[str] = "lookahead"

    def __post_init__(self) -> None:
        known = self.window is None or self.window == "auto"
        if not known and not (isinstance(self.window, int) and 0 <= self.window < 1 << 31):
            raise ValueError(
                f'window must be a number of batches from 0 to below 2^31, "auto" or None (all of them), '
                f"not {self.window!r}"
            )


@dataclass(frozen=True)
class Frequency(Policy):
    """Protects the rows that most batches used: after `warmup` batches, then every `refresh_every`.

    A row counts once a batch. Until then no row is protected, which is LRU. At most 4 rows per slot
    (1,024 at least) are counted: where there is no room, counts are halved and zeros forgotten.

    >>> hotrows.Caching(1 << 30, policy=Frequency(warmup=200)).policy.warmup
    200
    """

    warmup: int = 100
    refresh_every: int = 100
    kind: ClassVar[str] = "frequency"
    counts_rows: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not (0 <= self.warmup < 1 << 31 and 1 <= self.refresh_every < 1 << 31):
            raise ValueError(
                f"Frequency needs warmup from 0 and refresh_every from 1, not {self.warmup} and "
                f"{self.refresh_every}"
            )

    def chooses_anew(self, batch: int) -> bool:
        after = batch - self.warmup
        return batch > 0 and after >= 0 and after % self.refresh_every == 0

    def protected(self, num: int, most_counted: Callable[[int], Tensor]) -> Int64[Tensor, "_"]:
        return most_counted(num)


@dataclass(frozen=True, eq=False)
class Hot(Policy):
    """Protects a fixed set of rows, most preferred first. JSON holds the kind alone.

    >>> hotrows.Caching(1 << 30, policy=Hot(torch.tensor([5, 2, 9]))).policy.rows
    tensor([5, 2, 9])
    """

    rows: Int64[Tensor, "_"]
    kind: ClassVar[str] = "hot"
    is_text: ClassVar[bool] = False

    def chooses_anew(self, batch: int) -> bool:
        return batch == 0

    def protected(self, num: int, most_counted: Callable[[int], Tensor]) -> Int64[Tensor, "_"]:
        return self.rows[:num]


@dataclass(frozen=True)
class Newest(Policy):
    """Evicts the row used most recently first, for tests."""

    kind: ClassVar[str] = "newest"
    is_text: ClassVar[bool] = False


LRU = Lookahead(0)
BELADY = Lookahead(None)
SIMULATED: dict[str, Policy] = {
    "lookahead": Lookahead(),
    "frequency": Frequency(),
    "hot": Hot(torch.empty(0, dtype=torch.int64)),
    "two batches": Lookahead(2),  # the published window, of ScratchPipe
    "lru": LRU,
    "belady": BELADY,
}
"""The policies that reports compare, by name; `Hot` without its rows."""
_KINDS: dict[str, type[Policy]] = {cls.kind: cls for cls in (Lookahead, Frequency, Hot, Newest)}


_SHORT = {"lru": LRU, "hot": SIMULATED["hot"]}


def to_json(policy: Policy) -> dict[str, Any]:
    settings = {} if isinstance(policy, Hot) else dataclasses.asdict(policy)
    return {"kind": policy.kind, **settings}


def from_json(fields: dict[str, Any]) -> Policy:
    """The policy of `to_json`; a Hot comes back without its rows."""
    settings = dict(fields)
    kind = settings.pop("kind")
    if kind == Hot.kind:
        return SIMULATED["hot"]
    if kind not in _KINDS:
        raise ValueError(f"policy must be one of {sorted(_KINDS)}, not {kind!r}")
    return _KINDS[kind](**settings)


def parse(text: str) -> Policy:
    """The policy of a text, one of `forms`.

    >>> parse('lookahead:64')
    Lookahead(window=64)
    """
    kind, colon, numbers = text.partition(":")
    try:
        settings = [int(number) for number in numbers.split(",")] if colon else []
        names = _names_of_numbers()
        if kind in names and len(settings) in (0, len(names[kind])):
            return _KINDS[kind](*settings)
    except ValueError:
        pass
    if text not in _SHORT:
        raise ValueError(f"policy must be one of {', '.join(forms())}, not {text!r}")
    return _SHORT[text]


def forms() -> list[str]:
    """What `parse` reads."""
    names = _names_of_numbers()
    return [
        *names,
        *(f"{kind}:{','.join(numbers)}" for kind, numbers in names.items() if numbers),
        *_SHORT,
    ]


def _names_of_numbers() -> dict[str, list[str]]:
    """The names of the numbers that may follow a kind of policy in a text, in capitals."""
    kinds = {name: kind for name, kind in _KINDS.items() if kind.is_text}
    return {
        name: [field.name.upper() for field in dataclasses.fields(kind)] for name, kind in kinds.items()
    }


def num_protected(num_slots: int, in_flight: int, first_batch_rows: int) -> int:
    """The most rows that may be protected: the slots but for a reserve for all other rows."""
    return num_slots - min(num_slots // 2, (in_flight + 1) * first_batch_rows)


def num_counted(num_slots: int) -> int:
    """The most rows that Frequency counts."""
    return max(4 * num_slots, 1024)


class Window:
    """The number of batches past the next one that a cache looks at, and whether it may look at one more.

    "auto" is 3 * slots / misses per batch, three times the batches in which misses replace the whole
    cache (misses are a mean over about 100 batches, and count as a sixteenth of a batch at least, so
    that a cache that hardly misses does not look ever farther). It is in_flight at least and grows by
    4 a batch at most.

    future_pins: batches that are looked at in any case. most_bytes: bound of `num_bytes`, at which no
    batch past them is looked at (default and at most 4 GiB). turnovers: in place of three.
    """

    GROWTH, MEMORY, LEAST_MISSES = 4, 100, 1 / 16
    MOST_BYTES = 1 << 32  # a billion uses: the native map tells two billion apart

    def __init__(
        self,
        policy: Policy,
        num_slots: int,
        in_flight: int,
        future_pins: int,
        most_bytes: int | None = None,
        turnovers: float = 3,
    ) -> None:
        window = policy.window if isinstance(policy, Lookahead) else 0
        self._grows = window == "auto"
        self.batches = in_flight if isinstance(window, str) else window
        self._num_slots, self._least = num_slots, in_flight
        self._future_pins = future_pins
        self._most_bytes = self.MOST_BYTES if most_bytes is None else min(most_bytes, self.MOST_BYTES)
        self._turnovers = turnovers
        self._misses, self._seen = 0.0, 0

    @staticmethod
    def num_bytes(num_uses: int, num_known: int) -> int:
        """Metadata of batches to come: uses, and rows known for these alone."""
        return 4 * num_uses + 13 * num_known

    def reaches(self, ahead: int, num_bytes: int) -> bool:
        """True if to look at the batch `ahead` batches after the next one, with num_bytes in use."""
        if ahead <= self._future_pins:
            return True
        if num_bytes >= self._most_bytes:
            return False
        return self.batches is None or ahead <= self.batches

    def after(self, num_rows: int, num_misses: int) -> None:
        """Adapts to a batch of so many distinct rows and misses."""
        if not self._grows or self.batches is None:
            return
        self._seen += 1
        counted = max(num_misses, num_rows * self.LEAST_MISSES)
        self._misses += (counted - self._misses) / min(self._seen, self.MEMORY)
        fits = int(self._turnovers * self._num_slots / self._misses) if self._misses else self.batches
        self.batches = max(self._least, min(fits, self.batches + self.GROWTH))
