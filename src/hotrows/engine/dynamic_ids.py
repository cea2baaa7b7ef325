"""Dynamic ids: keys of dynamic features become ids of rows, batch by batch, in one order.

    for step, batch in enumerate(embedding.resolved(batches)):   # ids for keys; new keys get rows
        plan = embedding.plan(batch, step)                       # and so on, as ever
    embedding.plan(another)      # to look at: keys are unknown that no batch trained so far gave a row

`hotrows.engine.stages` resolves the batches that it plans by itself. Behind this door everything deals
with ordinary ids: planning, caches and stores know nothing of keys. A batch says which of its ids are
new (`Batch.new_ids`); when it is trained, after all batches before it, the first values of their keys
replace what is in their rows. So no bit depends on how far planning is ahead, or on where a row is.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from hotrows.batch import Batch, NewIds, samples
from hotrows.dynamic import Dynamic
from hotrows.engine.distributed.comm import OneRank, Ranks
from hotrows.engine.keys.partitions import KeyPartitions, SentKeys, Vocabulary
from hotrows.engine.planning.crosses import append_crosses
from hotrows.optim import RowOptimizer
from hotrows.schema import MISSING, MISSING_KEY, Schema, vocabulary_of
from hotrows.table import Cross, Table


class DynamicIds:
    """The keys of a model's dynamic features, and the ids that they have.

    vocabularies: what each declares; features: by dynamic feature, its vocabulary. `begin` comes before
    all else. refusal: why a device cannot plan batches; None: it can.
    """

    refusal: str | None = "features are dynamic"

    def __init__(self, vocabularies: Mapping[str, Vocabulary], features: Mapping[str, str]) -> None:
        self.vocabularies, self.features = dict(vocabularies), dict(features)
        self._readers = {
            name: tuple(f for f, of_feature in self.features.items() if of_feature == name)
            for name in self.vocabularies
        }
        self._expire = tuple(n for n, v in self.vocabularies.items() if v.dynamic.eviction.kind == "time")
        self.begin(OneRank(), ())

    @classmethod
    def of_schema(cls, schema: Schema, tables: Sequence[Table]) -> DynamicIds:
        """Empty key tables of the dynamic features that tables read, if there are any."""
        read = {feature for table in tables for feature in table.features}
        dynamic = schema.dynamic_vocabularies
        readers = [f for f in schema.id_features if f.name in read and vocabulary_of(f) in dynamic]
        features = {f.name: vocabulary_of(f) for f in readers}
        num_unknown = {features[f.name]: f.num_unknown for f in readers}
        declared = {name: Vocabulary(dynamic[name], num) for name, num in num_unknown.items()}
        return cls(declared, features) if declared else StaticIds()

    def begin(self, ranks: Ranks, crosses: Sequence[Cross]) -> None:
        """Makes empty key tables, dealt to ranks that plan together.

        crosses: features made of others, those of dynamic ones from their keys, whatever ids these have.
        """
        self.keys = KeyPartitions(self.vocabularies, ranks)
        self._crosses = tuple(c for c in crosses if set(c.features) & set(self.features))
        self._rank = ranks.rank
        self._is_ahead = False  # of the batches trained, or of those that come

    def check(self, tables: Sequence[Table], can_grow: bool) -> None:
        """Raises ValueError for what dynamic features cannot be combined with.

        tables: every one with its optimizer filled in. can_grow: memory is taken for rows as they come.
        """
        for name, vocabulary in self.vocabularies.items():
            _check_declared(name, vocabulary.dynamic, can_grow)
        for table in tables:
            if not set(table.features) & set(self.features):
                continue
            if len({self.features.get(feature) for feature in table.features}) > 1:
                raise ValueError(
                    f"table {table.name!r} is read by features of several vocabularies, some of which "
                    f"are dynamic: {', '.join(table.features)}; give each vocabulary a table of its own"
                )
            if isinstance(table.optimizer, RowOptimizer) and table.optimizer.decay_by_count:
                raise ValueError(
                    f"table {table.name!r}: decay_by_count needs the counts of ids, and dynamic features "
                    f"have none: leave it out"
                )

    def check_squares(self, tables: Sequence[Table]) -> None:
        """Raises ValueError where L2 terms would be counted of rows that stand for no key."""
        for table in tables:
            if table.optimizer and table.optimizer.l2_term and set(table.features) & set(self.features):
                raise ValueError(
                    f"table {table.name!r}: a norm that is clipped counts the L2 terms of all rows, and "
                    f"those of dynamic features come and go: leave out the clipping, or l2"
                )

    # ---- training

    def resolved(self, batches: Iterable[tuple[int, Batch]]) -> Iterator[tuple[int, Batch]]:
        """Yields numbered batches with ids for keys, having looked as far ahead as tables want.

        Batches that were resolved before and not trained are forgotten. Between ranks: collective; each
        brings its own samples. A rank that has no more batches yields empty ones until none has any.
        """
        self._forget_plans()
        ahead = self.keys.batches_ahead
        coming: deque[tuple[int, Batch, SentKeys]] = deque()
        numbered, last = iter(batches), None
        while True:
            step, batch = next(numbered, (0, None))
            batch = None if batch is None else batch.expanded()
            sent = self.keys.send(None if batch is None else self.present_keys(batch), self._time(batch))
            if sent is None:
                break
            if batch is None:
                if last is None:
                    raise ValueError(
                        f"rank {self._rank} has not a single batch, while others have some: give every "
                        f"rank one at least"
                    )
                batch = samples(last, 0, 0)
            last = batch
            self._is_ahead = True
            self.keys.feed(sent)
            coming.append((step, last, sent))
            if len(coming) > ahead:
                yield self._resolve(*coming.popleft())
        self.keys.end()
        while coming:
            yield self._resolve(*coming.popleft())

    def to_plan(
        self, batches: Iterable[tuple[int, Batch]], future: Iterable[Batch] | None
    ) -> tuple[Iterable[tuple[int, Batch]], Iterable[Batch] | None]:
        """Resolved batches, in one order, by the one who reads furthest ahead."""
        return self.resolved(batches), None

    def _resolve(self, step: int, batch: Batch, sent: SentKeys) -> tuple[int, Batch]:
        ids, new = self.keys.resolve(sent)
        readers = zip(self._readers.values(), new, strict=True)
        new_ids = tuple(NewIds(features, *of_keys) for features, of_keys in readers if len(of_keys[0]))
        return step, dataclasses.replace(self._with_ids(batch, ids), new_ids=new_ids)

    def check_resolved(self) -> None:
        """Raises ValueError where no batch is resolved that was not trained."""
        if not self.keys.has_plans:
            raise ValueError(
                "a batch is trained whose keys have no ids: loop over embedding.resolved(batches)"
            )

    def trained(self) -> None:
        """Says that the oldest batch that is resolved and not trained is trained now."""
        self.keys.trained()

    def _time(self, batch: Batch | None) -> int | None:
        """The largest event time of a batch, where keys expire by it."""
        if batch is None or not self._expire:
            return None
        if batch.times is None:
            raise ValueError(
                f"keys of {', '.join(map(repr, self._expire))} expire by the time of samples, and the "
                f"batch has none: give it Batch(times=SECONDS)"
            )
        latest = int(batch.times.max()) if len(batch.times) else MISSING_KEY
        return None if latest == MISSING_KEY else latest

    def _forget_plans(self) -> None:
        """Goes back to the batches trained: those resolved or fed beyond them will come again."""
        if self._is_ahead:
            self.keys.forget_plans()
        self._is_ahead = False

    # ---- looking

    def find(self, batch: Batch) -> Batch:
        """A batch with the ids that its keys have as of the batches trained, if it is not resolved;
        changes nothing.

        Between ranks: collective.
        """
        if batch.new_ids is not None:
            return batch
        batch = batch.expanded()
        ids = self.keys.find(self.present_keys(batch))
        return dataclasses.replace(self._with_ids(batch, ids), new_ids=())

    def live(self, table: Table) -> tuple[Tensor, Tensor] | None:
        """The ids of a table that have keys as of the batches trained, ascending, and these keys; None:
        no feature that reads it is dynamic. Of several ranks see `KeyPartitions.live`."""
        name = self.features.get(table.features[0])
        return None if name is None else self.keys.live(name)

    def growth(self) -> dict[str, dict[str, int]]:
        """By vocabulary, as of the batches planned: live keys, rows used at most so far, and how many
        keys were admitted, evicted, and refused since there was no room."""
        counts = {name: self.keys.growth(name) for name in self.vocabularies}
        return {name: {"live": n["admitted"] - n["evicted"], **n} for name, n in counts.items()}

    def num_rows(self, tables: Sequence[Table]) -> dict[str, int]:
        """By table of dynamic ids, the rows that batches trained so far have used, with reserved ones."""
        used = {
            name: 2 + vocabulary.num_unknown + self.keys.growth(name, trained=True)["rows"]
            for name, vocabulary in self.vocabularies.items()
        }
        read = {table.name: self.features.get(table.features[0]) for table in tables}
        return {table: used[name] for table, name in read.items() if name is not None}

    def state(self) -> dict[str, Tensor]:
        """All that resume needs of this rank's key tables, as of the batches trained: VOCABULARY/NAME."""
        return self.keys.state()

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Goes on from the states of all ranks."""
        self.keys.load(state)
        self._is_ahead = False

    # ---- the ids of a batch

    def present_keys(self, batch: Batch) -> list[Tensor]:
        """By vocabulary, the keys of all its features that are not missing, end to end."""
        keys = [self._keys(batch, name) for name in self.vocabularies]
        return [_present(part) for part in keys] if (batch.ids == MISSING_KEY).any() else keys

    def _keys(self, batch: Batch, name: str) -> Tensor:
        """The keys of all features of a vocabulary, end to end."""
        parts = [batch.ids[span] for span in self._spans(batch, name)]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _with_ids(self, batch: Batch, by_vocabulary: Sequence[Tensor]) -> Batch:
        """A batch with ids in place of all keys that are not missing, and with the crosses of keys."""
        batch = append_crosses(batch, self._crosses)
        all_ids = batch.ids.clone()
        for name, ids in zip(self.vocabularies, by_vocabulary, strict=True):
            spans = self._spans(batch, name)
            lengths = [span.stop - span.start for span in spans]
            if len(ids) < sum(lengths):
                keys = self._keys(batch, name)
                ids = torch.full_like(keys, MISSING).masked_scatter_(keys != MISSING_KEY, ids)
            parts = [ids] if len(spans) == 1 else ids.split(lengths)
            for span, part in zip(spans, parts, strict=True):
                all_ids[span] = part
        return dataclasses.replace(batch, ids=all_ids)

    def _spans(self, batch: Batch, name: str) -> list[slice]:
        """Where the keys of a vocabulary are in `batch.ids`."""
        assert batch.new_ids is None, "the keys of this batch have become ids already"
        absent = [f for f in self._readers[name] if f not in batch.features]
        if absent:
            raise ValueError(
                f"the model reads feature {absent[0]!r}, but the batch has only {list(batch.features)}"
            )
        places, size = [batch.features.index(feature) for feature in self._readers[name]], batch.size
        if batch.offsets is None:
            return [slice(f * size, (f + 1) * size) for f in places]
        return [slice(int(batch.offsets[f * size]), int(batch.offsets[(f + 1) * size])) for f in places]


class StaticIds(DynamicIds):
    """The ids of a model without dynamic features: there are no keys, and ids are what batches say."""

    refusal = None

    def __init__(self) -> None:
        super().__init__({}, {})

    def resolved(self, batches: Iterable[tuple[int, Batch]]) -> Iterator[tuple[int, Batch]]:
        return iter(batches)

    def to_plan(
        self, batches: Iterable[tuple[int, Batch]], future: Iterable[Batch] | None
    ) -> tuple[Iterable[tuple[int, Batch]], Iterable[Batch] | None]:
        return batches, future

    def find(self, batch: Batch) -> Batch:
        return batch

    def check_resolved(self) -> None:
        """Accepts every batch."""

    def trained(self) -> None:
        """Notes nothing."""


def _present(keys: Tensor) -> Tensor:
    """Keys without missing values."""
    missing = keys == MISSING_KEY
    return keys[~missing] if missing.any() else keys


def _check_declared(name: str, dynamic: Dynamic, can_grow: bool) -> None:
    if dynamic.capacity is None and not can_grow:
        raise ValueError(
            f"keys of {name!r}: a table without a capacity grows in host memory or in a file, and not in "
            f"the memory of a device; give it a capacity=ROWS, or keep its rows in a store behind a "
            f"cache, with cache_transfer='staged' in host memory"
        )
