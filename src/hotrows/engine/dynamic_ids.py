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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from hotrows.batch import Batch, NewIds
from hotrows.dynamic import Dynamic
from hotrows.optim import DenseRowOptimizer, RowOptimizer
from hotrows.planning.key_table import COUNTERS
from hotrows.planning.keys import KeyTable, Resolved, key_table
from hotrows.schema import MISSING, MISSING_KEY, Schema, vocabulary_of
from hotrows.table import Cross, Table


class DynamicIds:
    """The key tables of a model.

    tables: by vocabulary; features: by dynamic feature, its vocabulary.
    """

    def __init__(self, tables: Mapping[str, KeyTable], features: Mapping[str, str]) -> None:
        self.tables, self.features = dict(tables), dict(features)
        self._readers = {
            name: tuple(f for f, of_feature in self.features.items() if of_feature == name)
            for name in self.tables
        }
        self._is_ahead = False  # of the batches trained, or of those that come

    @classmethod
    def of_schema(cls, schema: Schema, tables: Sequence[Table]) -> DynamicIds | None:
        """Empty key tables of the dynamic features that tables read; None: there are none."""
        read = {feature for table in tables for feature in table.features}
        dynamic = [f for f in schema.id_features if f.dynamic is not None and f.name in read]
        features = {f.name: vocabulary_of(f) for f in dynamic}
        keys = {features[f.name]: key_table(f.dynamic, f.num_unknown) for f in dynamic if f.dynamic}
        return cls(keys, features) if keys else None

    def check(
        self, tables: Sequence[Table], crosses: Sequence[Cross], num_ranks: int, can_grow: bool
    ) -> None:
        """Raises ValueError for what dynamic features cannot be combined with.

        tables: every one with its optimizer filled in. can_grow: rows are in host memory.
        """
        for name, keys in self.tables.items():
            _check_declared(name, keys.dynamic, can_grow)
        if num_ranks > 1:
            raise ValueError(
                f"dynamic features ({', '.join(self.features)}) are trained by one rank so far, not by "
                f"{num_ranks:,}: start one, or give the features vocabularies"
            )
        for cross in crosses:
            for feature in cross.features:
                if feature in self.features:
                    raise ValueError(
                        f"cross {cross.name!r} is made of the dynamic feature {feature!r}, whose ids "
                        f"come to stand for other keys: leave the cross out, or give the feature a "
                        f"vocabulary"
                    )
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
            if isinstance(table.optimizer, DenseRowOptimizer):
                raise ValueError(
                    f"table {table.name!r}: an optimizer with dense meaning updates all rows in every "
                    f"step, and rows of dynamic features come and go: give them a lazy one, such as Adam"
                )

    # ---- training

    def resolved(self, batches: Iterable[tuple[int, Batch]]) -> Iterator[tuple[int, Batch]]:
        """Yields numbered batches with ids for keys, having looked as far ahead as tables want.

        Batches that were resolved before and not trained are forgotten.
        """
        self._forget_plans()
        ahead = max(table.dynamic.batches_ahead for table in self.tables.values())
        coming: deque[tuple[int, Batch]] = deque()
        for step, batch in batches:
            self._is_ahead = True
            for name, table in self.tables.items():
                if table.dynamic.batches_ahead:
                    table.feed(_present(self._keys(batch, name)))
            coming.append((step, batch))
            if len(coming) > ahead:
                step, batch = coming.popleft()
                yield step, self._resolve(batch)
        for table in self.tables.values():
            table.end()
        for step, batch in coming:
            yield step, self._resolve(batch)

    def _resolve(self, batch: Batch) -> Batch:
        results: dict[str, Resolved] = {}

        def resolve(name: str, keys: Tensor) -> Tensor:
            results[name] = self.tables[name].resolve(keys)
            return results[name].ids

        resolved = self._with_ids(batch, resolve)
        new = [NewIds(self._readers[name], r.born, r.born_keys) for name, r in results.items()]
        return dataclasses.replace(resolved, new_ids=tuple(ids for ids in new if len(ids.ids)))

    def trained(self) -> None:
        """Says that the oldest batch that is resolved and not trained is trained now."""
        for table in self.tables.values():
            if table.num_trained == table.num_resolved:
                raise ValueError(
                    "a batch is trained whose keys have no ids: loop over embedding.resolved(batches)"
                )
            table.trained()

    def _forget_plans(self) -> None:
        """Goes back to the batches trained: those resolved or fed beyond them will come again."""
        for table in self.tables.values() if self._is_ahead else ():
            table.load(table.state())
        self._is_ahead = False

    # ---- looking

    def find(self, batch: Batch) -> Batch:
        """A batch with the ids that its keys have as of the batches trained; changes nothing."""
        with_ids = self._with_ids(batch, lambda name, keys: self.tables[name].find(keys))
        return dataclasses.replace(with_ids, new_ids=())

    def live(self, table: Table) -> tuple[Tensor, Tensor] | None:
        """The ids of a table that have keys as of the batches trained, ascending, and these keys; None:
        no feature that reads it is dynamic."""
        name = self.features.get(table.features[0])
        if name is None:
            return None
        state = self.tables[name].state()
        return state["ids"], state["keys"]

    def growth(self) -> dict[str, dict[str, int]]:
        """By vocabulary, as of the batches planned: live keys, rows used at most so far, and how many
        keys were admitted, evicted, and refused since there was no room."""
        return {name: {"live": keys.num_live, **keys.growth()} for name, keys in self.tables.items()}

    def num_rows(
        self, tables: Sequence[Table], state: Mapping[str, Tensor] | None = None
    ) -> dict[str, int]:
        """By table of dynamic ids, the rows that batches trained so far have used, with reserved ones.

        state: of this moment, where it is known.
        """
        state, rows = state or self.state(), COUNTERS.index("rows")
        used = {
            name: keys.first_id + int(state[f"{name}/counters"][rows])
            for name, keys in self.tables.items()
        }
        read = {table.name: self.features.get(table.features[0]) for table in tables}
        return {table: used[name] for table, name in read.items() if name is not None}

    def state(self) -> dict[str, Tensor]:
        """All that resume needs, as of the batches trained: VOCABULARY/NAME."""
        states = {name: table.state() for name, table in self.tables.items()}
        return {f"{name}/{what}": value for name, s in states.items() for what, value in s.items()}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Goes on from a `state`."""
        for name, table in self.tables.items():
            begin = f"{name}/"
            parts = {k.removeprefix(begin): v for k, v in state.items() if k.startswith(begin)}
            if "counters" not in parts:
                raise ValueError(
                    f"there are no keys of vocabulary {name!r}, which is dynamic in the schema"
                )
            table.load(parts)
        self._is_ahead = False

    # ---- the ids of a batch

    def _keys(self, batch: Batch, name: str) -> Tensor:
        """The keys of all features of a vocabulary, end to end."""
        parts = [batch.ids[span] for span in self._spans(batch, name)]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _with_ids(self, batch: Batch, ids_of: Callable[[str, Tensor], Tensor]) -> Batch:
        """A batch with ids_of(vocabulary, keys) in place of all keys that are not missing."""
        all_ids = batch.ids.clone()
        for name in self.tables:
            spans, keys = self._spans(batch, name), self._keys(batch, name)
            ids = ids_of(name, _present(keys))
            if len(ids) < len(keys):
                ids = torch.full_like(keys, MISSING).masked_scatter_(keys != MISSING_KEY, ids)
            for span, part in zip(spans, ids.split([s.stop - s.start for s in spans]), strict=True):
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


def _present(keys: Tensor) -> Tensor:
    """Keys without missing values."""
    missing = keys == MISSING_KEY
    return keys[~missing] if missing.any() else keys


def _check_declared(name: str, dynamic: Dynamic, can_grow: bool) -> None:
    if dynamic.keep is not None:
        raise ValueError(
            f"keys of {name!r}: evicted rows are not kept aside so far; leave out keep={dynamic.keep!r}"
        )
    if dynamic.eviction.kind == "time":
        raise ValueError(
            f"keys of {name!r}: batches have no event time so far; evict by batches, such as "
            f"evict='idle:1000', in place of {dynamic.evict!r}"
        )
    if dynamic.capacity is None and not can_grow:
        raise ValueError(
            f"keys of {name!r}: a table without a capacity grows in host memory alone; give it a "
            f"capacity=ROWS, or keep rows neither in a file nor on a device"
        )
