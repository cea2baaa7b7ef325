"""Policies: which rows a cache keeps and which go first, as frozen values; `slots` obeys them.

    Lookahead   the row whose next use is farthest goes first; none known within the window: before
                all, oldest first. Window 0 is LRU, an infinite one Bélády's optimum
    Frequency   counts rows and keeps the most frequent ones (PICASSO's HybridHash)
    Hot         keeps a given set of rows (FAE)
    Newest      the row used last goes first: for tests, since LRU hides a pin that is missing

`Window` turns a policy into the number of batches to look ahead.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor


@dataclass(frozen=True)
class Lookahead:
    """window: batches to look ahead; None: all there are; "auto": what fits the cache (`Window`)."""

    window: int | str | None = "auto"
    kind: ClassVar[str] = "lookahead"

    def __post_init__(self) -> None:
        known = self.window is None or self.window == "auto"
        if not known and not (isinstance(self.window, int) and self.window >= 0):
            raise ValueError(
                f'window must be a number of batches from 0, "auto" or None (all of them), '
                f"not {self.window!r}"
            )


@dataclass(frozen=True)
class Frequency:
    """Wants the rows that most batches used: after `warmup` batches, then every `refresh_every`.

    A row counts once a batch. Until then no row is wanted, which is LRU. At most 4 rows per slot
    (1,024 at least) are counted: where there is no room, counts are halved and zeros forgotten.
    """

    warmup: int = 100
    refresh_every: int = 100
    kind: ClassVar[str] = "frequency"

    def __post_init__(self) -> None:
        if self.warmup < 0 or self.refresh_every < 1:
            raise ValueError(
                f"Frequency needs warmup from 0 and refresh_every from 1, not {self.warmup} and "
                f"{self.refresh_every}"
            )


@dataclass(frozen=True, eq=False)
class Hot:
    """Wants these rows for good, the first given before all: [K] int64. JSON keeps the kind alone."""

    rows: Tensor
    kind: ClassVar[str] = "hot"


@dataclass(frozen=True)
class Newest:
    """The row used most recently among those that may go goes first."""

    kind: ClassVar[str] = "newest"


Policy = Lookahead | Frequency | Hot | Newest
LRU = Lookahead(0)
BELADY = Lookahead(None)


def to_json(policy: Policy) -> dict:
    settings = {} if isinstance(policy, Hot) else dataclasses.asdict(policy)
    return {"kind": policy.kind, **settings}


def from_json(fields: dict) -> Policy:
    """The policy of `to_json`; a Hot comes back without its rows."""
    given = dict(fields)
    kind = given.pop("kind")
    if kind == Hot.kind:
        return Hot(torch.empty(0, dtype=torch.int64))
    kinds: dict[str, type] = {of.kind: of for of in (Lookahead, Frequency, Newest)}
    if kind not in kinds:
        raise ValueError(f"policy must be one of {sorted([*kinds, Hot.kind])}, not {kind!r}")
    return kinds[kind](**given)


def parse(text: str) -> Policy:
    """lookahead, lookahead:WINDOW, lru, frequency, frequency:WARMUP,REFRESH_EVERY or hot."""
    name, _, numbers = text.partition(":")
    try:
        given = [int(number) for number in numbers.split(",")] if ":" in text else []
        if name == "lookahead" and len(given) <= 1:
            return Lookahead(*given)
        if name == "frequency" and len(given) in (0, 2):
            return Frequency(*given)
        if text == "lru":
            return LRU
        if text == "hot":
            return from_json({"kind": "hot"})
    except ValueError:
        pass
    raise ValueError(
        f"policy must be lookahead, lookahead:WINDOW, lru, frequency, "
        f"frequency:WARMUP,REFRESH_EVERY or hot, not {text!r}"
    )


def chooses_anew(policy: Policy, batch: int) -> bool:
    """Whether the wanted rows are chosen before this batch, from what the ones before it used."""
    if isinstance(policy, Frequency):
        after = batch - policy.warmup
        return batch > 0 and after >= 0 and after % policy.refresh_every == 0
    return isinstance(policy, Hot) and batch == 0


def num_wanted(num_slots: int, in_flight: int, first_batch_rows: int) -> int:
    """How many rows may be wanted: the slots but for a reserve that the others pass through."""
    return num_slots - min(num_slots // 2, (in_flight + 1) * first_batch_rows)


def num_counted(num_slots: int) -> int:
    """How many rows Frequency counts at most."""
    return max(4 * num_slots, 1024)


class Window:
    """How many batches past the next one a cache looks at, and whether it may look at one more.

    "auto" is 3 * slots / misses per batch, three times what misses take to turn the cache over (a
    mean over about 100 batches, no less than a sixteenth of the batch, so that a cache that hardly
    misses does not look ever farther). It is no less than in_flight and grows by 4 a batch at most.

    future_pins: batches that are looked at in any case. most_bytes: what `num_bytes` may reach
    before nothing past them is looked at; None: no bound.
    """

    TURNOVERS, GROWTH, MEMORY, LEAST_MISSES = 3, 4, 100, 1 / 16

    def __init__(
        self,
        policy: Policy,
        num_slots: int,
        in_flight: int,
        future_pins: int,
        most_bytes: int | None = None,
    ) -> None:
        given = policy.window if isinstance(policy, Lookahead) else 0
        self._grows = given == "auto"
        self.batches = in_flight if isinstance(given, str) else given
        self._num_slots, self._least = num_slots, in_flight
        self._future_pins, self._most_bytes = future_pins, most_bytes
        self._misses, self._seen = 0.0, 0

    @staticmethod
    def num_bytes(num_uses: int, num_known: int) -> int:
        """Metadata of what lies ahead: uses to come, and rows known for them alone."""
        return 8 * num_uses + 40 * num_known

    def knows(self, ahead: int) -> bool:
        """Whether the policy may know of a use that many batches ahead of the present one."""
        return self._grows or self.batches is None or ahead <= self.batches

    def reaches(self, ahead: int, num_bytes: int) -> bool:
        """Whether to look at the batch that many ahead of the next one, with num_bytes in use."""
        if ahead <= self._future_pins:
            return True
        if self._most_bytes is not None and num_bytes >= self._most_bytes:
            return False
        return self.batches is None or ahead <= self.batches

    def after(self, num_rows: int, num_misses: int) -> None:
        """Follows a batch of that many distinct rows and misses."""
        if not self._grows or self.batches is None:
            return
        self._seen += 1
        counted = max(num_misses, num_rows * self.LEAST_MISSES)
        self._misses += (counted - self._misses) / min(self._seen, self.MEMORY)
        fits = (
            int(self.TURNOVERS * self._num_slots / self._misses) if self._misses else self.batches
        )
        self.batches = max(self._least, min(fits, self.batches + self.GROWTH))
