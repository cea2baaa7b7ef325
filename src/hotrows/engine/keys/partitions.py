"""Key partitions: the key tables of a model over ranks.

The keys of a vocabulary are dealt by hash to as many partitions as it declares; each is a key table of
its own, with its share of the capacity. The partitions of all vocabularies are dealt to the ranks in
turn. So which keys are live does not depend on the number of ranks: the owner of a partition gets the
keys that all ranks read of it, and what it decides depends on how often each is read, not on the order.

    rank 0 reads  a b c     keys to their owners      rank 0 owns partition 0   a a c
    rank 1 reads  a d       ids and new keys back     rank 1 owns partition 1   b d

Two messages to each rank per batch, and two back. With Q partitions, row r of partition q is the row
r * Q + q of the vocabulary.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hotrows.dynamic import Dynamic
from hotrows.engine.distributed.comm import Ranks
from hotrows.engine.distributed.first_rank import to_first
from hotrows.engine.keys.table import COUNTERS, READ, KeyTable, Resolved
from hotrows.ops.rows.reference_random import mix64

GROWTH = COUNTERS[2:6]  # rows, admitted, evicted, refused
NewKeys = tuple[Tensor, Tensor]  # of a vocabulary: ids [b], ascending, and their keys
Pieces = list[list[Tensor]]  # to or from each rank: int64 tensors
_NONE = torch.empty(0, dtype=torch.int64)


@dataclass(frozen=True)
class Vocabulary:
    """The declaration of a vocabulary of dynamic features."""

    dynamic: Dynamic
    num_unknown: int

    def partition(self, number: int) -> KeyTable:
        """The empty key table of a partition."""
        capacity, num = self.dynamic.capacity, self.dynamic.partitions
        if capacity is not None:
            capacity = capacity // num + (number < capacity % num)  # the first ones have one more
        return KeyTable(
            dataclasses.replace(self.dynamic, capacity=capacity, partitions=1), self.num_unknown
        )


@dataclass(frozen=True)
class KeyChanges:
    """The changes of a vocabulary by a batch: the ids of new keys, these keys, and, of the partitions of
    this rank, keys that have lost their rows before."""

    ids: Tensor
    keys: Tensor
    gone: Tensor


@dataclass(frozen=True)
class SentKeys:
    """The keys of a batch, with their owners.

    orders: by vocabulary, how this rank's keys are sorted by partition; None: there is one partition.
    counts: [P, K], the keys that each rank reads of each partition. keys: of each partition of this rank,
    those of rank 0, of rank 1, .., end to end. time: largest event time of the batch.
    """

    orders: tuple[Tensor | None, ...]
    counts: Tensor
    keys: dict[int, Tensor]
    time: int | None


class KeyPartitions:
    """The key tables of vocabularies, those of this rank, and how keys get their ids from all.

    Every method but `trained` and those below it is collective.
    """

    def __init__(self, vocabularies: Mapping[str, Vocabulary], ranks: Ranks) -> None:
        self.vocabularies, self._ranks = dict(vocabularies), ranks
        self._partitions = [
            (name, number)
            for name, vocabulary in self.vocabularies.items()
            for number in range(vocabulary.dynamic.partitions)
        ]
        self._owned = [k for k in range(len(self._partitions)) if self._owner(k) == ranks.rank]
        self._tables = {k: self._vocabulary(k).partition(self._partitions[k][1]) for k in self._owned}
        # [K, 4] as of the batches trained, then of each batch that is resolved and not trained
        self._growth = deque([torch.zeros(len(self._partitions), len(GROWTH), dtype=torch.int64)])
        self._changes: deque[list[KeyChanges]] = deque()  # of each such batch
        self.observers: list[Callable[[str, KeyChanges], None]] = []  # of batches as they are trained
        self.note_saved()

    def _owner(self, k: int) -> int:
        return k % self._ranks.num_ranks

    def _vocabulary(self, k: int) -> Vocabulary:
        return self.vocabularies[self._partitions[k][0]]

    @property
    def batches_ahead(self) -> int:
        """Number of batches after the next one that must be known."""
        return max(vocabulary.dynamic.batches_ahead for vocabulary in self.vocabularies.values())

    # ---- keys to ids

    def send(self, keys: Sequence[Tensor] | None, time: int | None = None) -> SentKeys | None:
        """Sends the keys of the next batch, by vocabulary, to their owners.

        keys: None where this rank has no more batches. None: no rank has any. time: largest event time.
        """
        ranks, has_more, owners = self._ranks, keys is not None, range(self._ranks.num_ranks)
        none = torch.empty(0, dtype=torch.int64)
        orders, pieces = self._dealt([none] * len(self.vocabularies) if keys is None else keys)
        header = [has_more, time is not None, time or 0]  # 0 is a time, too
        message = torch.tensor([*header, *map(len, pieces)], dtype=torch.int64)
        messages = ranks.all_gather(message).wait()  # [P, 3 + K]
        if not messages[:, 0].any():  # known to all ranks, so that all end together
            return None
        times, counts = messages[messages[:, 1] > 0, 2], messages[:, len(header) :]
        mine = [[pieces[k] for k in range(len(pieces)) if self._owner(k) == p] for p in owners]
        of_ranks = _exchange(ranks, mine, counts[:, self._owned].tolist())
        received = {k: _joined([of_rank[i] for of_rank in of_ranks]) for i, k in enumerate(self._owned)}
        return SentKeys(orders, counts, received, int(times.max()) if len(times) else None)

    def feed(self, sent: SentKeys) -> None:
        """Makes known the keys of a batch to come."""
        for k, table in self._tables.items():
            if table.dynamic.batches_ahead:
                table.feed(sent.keys[k])

    def end(self) -> None:
        """Marks the last batch fed as the last one."""
        for table in self._tables.values():
            table.end()

    def resolve(self, sent: SentKeys) -> tuple[list[Tensor], list[NewKeys]]:
        """The ids of the next batch's keys on this rank, and all new keys of all ranks, by vocabulary."""
        results = {k: self._tables[k].resolve(sent.keys[k], sent.time) for k in self._owned}
        counts = [[0] * (1 + len(GROWTH)) for _ in self._partitions]
        died: dict[str, list[Tensor]] = {name: [] for name in self.vocabularies}
        for k, resolved in results.items():
            growth = self._tables[k].growth()
            counts[k] = [len(resolved.born), *(growth[name] for name in GROWTH)]
            died[self._partitions[k][0]].append(resolved.died_keys)
        changes = self._ranks.all_reduce(torch.tensor(counts)).wait()  # [K, 5], of one rank each
        self._growth.append(changes[:, 1:])
        ids, new = self._answered(sent, results, changes[:, 0].tolist())
        gone = [_joined(of_vocabulary or [_NONE]) for of_vocabulary in died.values()]
        self._changes.append([KeyChanges(*born, died) for born, died in zip(new, gone, strict=True)])
        return ids, new

    def find(self, keys: Sequence[Tensor]) -> list[Tensor]:
        """The ids of this rank's keys, by vocabulary, as of the batches trained; changes nothing."""
        sent = self.send(keys)
        assert sent is not None
        none = torch.empty(0, dtype=torch.int64)
        results = {
            k: Resolved(self._tables[k].find(sent.keys[k]), none, none, none, none) for k in self._owned
        }
        return self._answered(sent, results, [0] * len(self._partitions))[0]

    def _dealt(self, keys: Sequence[Tensor]) -> tuple[tuple[Tensor | None, ...], list[Tensor]]:
        """Sorts the keys of each vocabulary by partition: orders, and the keys of each partition."""
        orders: list[Tensor | None] = []
        pieces: list[Tensor] = []
        for vocabulary, of_vocabulary in zip(self.vocabularies.values(), keys, strict=True):
            num = vocabulary.dynamic.partitions
            if num == 1:
                orders.append(None)
                pieces.append(of_vocabulary)
                continue
            partitions = partition_of(of_vocabulary, num)
            narrow = partitions.numpy().astype(np.uint16)  # which NumPy sorts by radix
            order = torch.from_numpy(narrow.argsort(kind="stable"))
            orders.append(order)
            pieces += of_vocabulary[order].split(partitions.bincount(minlength=num).tolist())
        return tuple(orders), pieces

    def _answered(
        self, sent: SentKeys, results: Mapping[int, Resolved], num_new: Sequence[int]
    ) -> tuple[list[Tensor], list[NewKeys]]:
        """Sends ids back to where the keys came from, and new keys to all ranks."""
        counts = sent.counts.tolist()  # [P, K]
        owned_by = [[k for k in range(len(num_new)) if self._owner(k) == p] for p in range(len(counts))]
        new = [t for k in self._owned for t in (self._ids(k, results[k].born), results[k].born_keys)]
        ids = {
            k: _cut(self._ids(k, results[k].ids), [of_rank[k] for of_rank in counts]) for k in self._owned
        }
        to_ranks = [[*(ids[k][p] for k in self._owned), *new] for p in range(len(counts))]
        sizes = [
            [
                *(counts[self._ranks.rank][k] for k in owned),
                *(num_new[k] for k in owned for _ in range(2)),  # ids, then keys
            ]
            for owned in owned_by
        ]
        of_partition: dict[int, Tensor] = {}
        born_ids: dict[int, Tensor] = {}
        born_keys: dict[int, Tensor] = {}
        for owned, answers in zip(owned_by, _exchange(self._ranks, to_ranks, sizes), strict=True):
            of_partition.update(zip(owned, answers, strict=False))
            born_ids.update(zip(owned, answers[len(owned) :: 2], strict=True))
            born_keys.update(zip(owned, answers[len(owned) + 1 :: 2], strict=True))
        # Join the partitions of each vocabulary, in the order in which its keys were sent.
        all_ids: list[Tensor] = []
        all_new: list[NewKeys] = []
        first = 0
        for vocabulary, order in zip(self.vocabularies.values(), sent.orders, strict=True):
            partitions = range(first, first + vocabulary.dynamic.partitions)
            first = partitions.stop
            joined = _joined([of_partition[k] for k in partitions])
            new_ids, new_keys = (_joined([b[k] for k in partitions]) for b in (born_ids, born_keys))
            if order is not None:
                joined = torch.empty_like(joined).scatter_(0, order, joined)  # as in the batch
                new_ids, by_id = new_ids.sort()
                new_keys = new_keys[by_id]
            all_ids.append(joined)
            all_new.append((new_ids, new_keys))
        return all_ids, all_new

    def _ids(self, k: int, ids: Tensor) -> Tensor:
        """Ids of a vocabulary for those of its partition."""
        name, number = self._partitions[k]
        vocabulary = self.vocabularies[name]
        return row_ids(ids, 2 + vocabulary.num_unknown, number, vocabulary.dynamic.partitions)

    # ---- as of the batches trained

    @property
    def has_plans(self) -> bool:
        """True if a batch is resolved and not trained."""
        return len(self._growth) > 1

    def trained(self) -> None:
        """Notes that the oldest batch that was resolved and not trained has now been trained."""
        self._growth.popleft()
        for table in self._tables.values():
            table.trained()
        for name, changes in zip(self.vocabularies, self._changes.popleft(), strict=True):
            for observer in self.observers:
                observer(name, changes)

    def forget_plans(self) -> None:
        """Goes back to the batches trained."""
        for table in self._tables.values():
            table.load(table.state())  # a state is always as of these
        while len(self._growth) > 1:
            self._growth.pop()
        self._changes.clear()

    def growth(self, name: str, trained: bool = False) -> dict[str, int]:
        """Counts of a vocabulary over all ranks, as of the batches resolved or trained: `GROWTH`.

        rows: used at most so far, of the vocabulary.
        """
        counts = self._growth[0 if trained else -1]
        parts = [k for k, (vocabulary, _) in enumerate(self._partitions) if vocabulary == name]
        # Row r of partition q, of Q in all, is row r Q + q of the vocabulary (`row_ids`).
        rows = [(r - 1) * len(parts) + q + 1 for q, r in enumerate(counts[parts, 0].tolist()) if r]
        return {
            "rows": max(rows, default=0),
            **dict(zip(GROWTH[1:], counts[parts, 1:].sum(0).tolist(), strict=True)),
        }

    def live(self, name: str) -> tuple[Tensor, Tensor]:
        """The ids of the vocabulary's keys, ascending, and these keys. Of several ranks collective: rank
        0 has them, others none."""
        states = [(k, self._tables[k].state()) for k in self._owned if self._partitions[k][0] == name]
        of_rank = [_NONE, *(self._ids(k, state["ids"]) for k, state in states)]
        ids, order = torch.cat(to_first(self._ranks, torch.cat(of_rank))).sort()
        keys = torch.cat([_NONE, *(state["keys"] for _, state in states)])
        return ids, torch.cat(to_first(self._ranks, keys))[order]

    def state(self) -> dict[str, Tensor]:
        """The state of this rank's partitions, to resume: PARTITION/NAME, see `KeyTable.state`."""
        states = {self._name(k): table.state() for k, table in self._tables.items()}
        return {f"{name}/{what}": value for name, s in states.items() for what, value in s.items()}

    def note_saved(self) -> None:
        """Makes `saved` say by key table how many batches are trained: a checkpoint has its state."""
        self.saved = {self._name(k): table.num_trained for k, table in self._tables.items()}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Goes on from the states of all ranks, however many these were."""
        growth = torch.zeros_like(self._growth[0])
        for k in range(len(self._partitions)):
            begin = f"{self._name(k)}/"
            parts = {name.removeprefix(begin): v for name, v in state.items() if name.startswith(begin)}
            if "counters" not in parts:
                name = self._partitions[k][0]
                saved = sorted({other.rpartition("/")[0] for other in state})
                raise ValueError(
                    f"there are no keys of {self._name(k)}, and vocabulary {name!r} is dynamic in the "
                    f"schema with partitions={self.vocabularies[name].dynamic.partitions}; saved are "
                    f"{', '.join(saved) or 'none'}"
                )
            growth[k] = parts["counters"][2:6]  # those of `COUNTERS` that `GROWTH` names
            if k in self._tables:
                self._tables[k].load(parts)
        self._growth = deque([growth])
        self._changes.clear()
        self.note_saved()

    def begin_with(self, keys: Mapping[str, Tensor]) -> dict[str, NewKeys]:
        """Makes keys live, by vocabulary [n], distinct, in order, as far as there is room; returns those
        that are, with their ids. The first ones count as read last."""
        growth = torch.zeros_like(self._growth[0])
        live: dict[str, tuple[list[Tensor], list[Tensor]]] = {name: ([], []) for name in keys}
        for k, (name, number) in enumerate(self._partitions):
            partitions = partition_of(keys[name], self.vocabularies[name].dynamic.partitions)
            # Of another rank's partition a table says which keys have room there.
            table = self._tables.get(k) or self._vocabulary(k).partition(number)
            of_partition = keys[name][partitions == number][: table.dynamic.capacity]
            table.load(_begun(table, of_partition))
            growth[k, :2] = len(of_partition)  # rows, admitted
            live[name][0].append(self._ids(k, table.first_id + torch.arange(len(of_partition))))
            live[name][1].append(of_partition)
        self._growth = deque([growth])
        self.note_saved()
        return {name: (_joined(ids), _joined(of_ids)) for name, (ids, of_ids) in live.items()}

    def _name(self, k: int) -> str:
        name, number = self._partitions[k]
        num = self.vocabularies[name].dynamic.partitions
        return name if num == 1 else f"{name}/{number} of {num}"


def row_ids(ids: Tensor, first_id: int, number: int, num_partitions: int) -> Tensor:
    """The ids of a vocabulary that ids of its partition are."""
    if num_partitions == 1:
        return ids
    return torch.where(ids < first_id, ids, (ids - first_id) * num_partitions + number + first_id)


def partition_of(keys: Tensor, num_partitions: int) -> Tensor:
    """The partition of each key: by bits of its hash that key tables do not use to find it."""
    return (mix64(keys) >> 8 & 0xFFFFFF) % num_partitions


def _exchange(ranks: Ranks, to_ranks: Pieces, sizes: Sequence[Sequence[int]]) -> Pieces:
    """Sends each rank some tensors; sizes: of those that come from each rank."""
    if ranks.num_ranks == 1:
        return to_ranks
    sent, received = [sum(map(len, pieces)) for pieces in to_ranks], [sum(of_rank) for of_rank in sizes]
    none = torch.empty(0, dtype=torch.int64)
    values = ranks.all_to_all(torch.cat([none, *itertools.chain(*to_ranks)]), sent, received).wait()
    pieces = iter(values.split(list(itertools.chain(*sizes))))
    return [list(itertools.islice(pieces, len(of_rank))) for of_rank in sizes]


def _begun(table: KeyTable, keys: Tensor) -> dict[str, Tensor]:
    """The state of a key table that begins with keys."""
    counters, numbers = table.state()["counters"], torch.arange(len(keys))
    counters[2:4] = len(keys)  # rows, admitted
    expire = table.dynamic.eviction.kind in ("idle", "time")
    return table.state() | {
        "keys": keys,
        "ids": table.first_id + numbers,
        # Before batch 0, in turn; keys that expire are equally old, or the last would go at once.
        "last_use": -1 - (torch.zeros_like(numbers) if expire else numbers),
        "counts": torch.full_like(numbers, READ if table.dynamic.eviction.kind == "lfu" else 0),
        "counters": counters,
    }


def _cut(tensor: Tensor, sizes: Sequence[int]) -> Sequence[Tensor]:
    return [tensor] if len(sizes) == 1 else tensor.split(list(sizes))


def _joined(pieces: Sequence[Tensor]) -> Tensor:
    return pieces[0] if len(pieces) == 1 else torch.cat(list(pieces))
