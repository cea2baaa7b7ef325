"""A run that begins with another one whose data had fewer features: what was learned goes on, and the new
features say nothing at first.

    table of a new vocabulary             weights 0 in all rows, optimizer state as of new rows
    layer that reads the features         columns of old features as they were; of new dense values 0; of
                                          new ids the first values, or nothing would be learned
    weights of new dense values alone     0, as a model that begins anew has them

So the first predictions are those of the other run. They differ where a new feature reads an old
vocabulary and the model multiplies vectors, or adds weights of ids.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from hotrows import checkpoint
from hotrows.data import EncodedData
from hotrows.dynamic import any_dynamic
from hotrows.engine.embedding import Embedding
from hotrows.models.tables import VECTOR
from hotrows.optim import DenseRowOptimizer
from hotrows.schema import Schema, vocabulary_of
from hotrows.train.pretrained import GivenRows

_NEW, _OLD, _ZERO = 0, 1, -1  # of a place among the inputs of a layer: first value, old one, or 0


def is_wider(then: Schema, data: EncodedData, fingerprint: str) -> bool:
    """True if data extend those of a run, which have this fingerprint, by features too."""
    return fingerprint in data.lineage[1:] and len(data.schema.features) > len(then.features)


def load_wider(
    run: Path,
    then: Schema,
    data: EncodedData,
    embedding: Embedding,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
) -> checkpoint.State:
    """Reads the best checkpoint of a run whose schema, `then`, lacks features of the data; collective
    between ranks."""
    folder = checkpoint.folder_of(run, "best")
    saved = {table.name: table.rows for table in checkpoint.read_manifest(folder).tables}
    of_steps = [t.name for t in embedding.tables if isinstance(t.optimizer, DenseRowOptimizer)]
    if any_dynamic(data.schema.id_features) or of_steps:
        raise ValueError(
            f"{run} has fewer features than {data.path}, which a run can begin with unless features are "
            f"dynamic or rows are under a dense optimizer; begin without --init-from"
        )
    old = {vocabulary_of(feature) for feature in then.id_features}
    of_new = {feature.name for feature in data.schema.id_features if vocabulary_of(feature) not in old}
    added = {
        table.name: [GivenRows(table, np.arange(table.rows), _zeros(table.rows, table.dim))]
        for table in embedding.tables
        if table.features[0] in of_new
    }
    new_ids = {name: np.arange(rows) for name, rows in saved.items()}
    widen = _Widening(embedding, model, optimizer, then, data.schema)
    return checkpoint.load_renumbered(folder, embedding, model, new_ids, added, widen)


def _zeros(*shape: int) -> np.ndarray:
    return np.broadcast_to(np.zeros((), np.float32), shape)  # which uses no memory


class _Widening:
    """Widens dense parameters, and their optimizer's state, to more features.

    Sizes alone say which dimension of a parameter is of inputs; a layer may have further inputs behind
    those of the features. Where two orders of inputs fit, or none does, a parameter stays as it is, and
    reading it is the error of a model of another shape.
    """

    def __init__(
        self,
        embedding: Embedding,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        then: Schema,
        now: Schema,
    ) -> None:
        old = {feature.name for feature in then.features}
        known = {vocabulary_of(feature) for feature in then.id_features}
        of_shared = {f.name for f in now.id_features if vocabulary_of(f) in known}

        def place(name: str) -> int:
            return _OLD if name in old else _ZERO if name in of_shared else _NEW

        columns = [
            (place(name), pack.tables[t].dim)
            for pack in embedding.packs
            for name, t in pack.columns
            if pack.tables[t].role == VECTOR
        ]
        fields = [place for place, _ in columns]
        vectors = [place for place, dim in columns for _ in range(dim)]
        dense = [_OLD if feature.name in old else _ZERO for feature in now.dense]
        pairs = [min(a, b) for i, a in enumerate(fields) for b in (_OLD, *fields[:i])]  # as in DLRM
        first = [_OLD] * max((dim for _, dim in columns), default=0)
        orders = (dense, fields, [*vectors, *dense], [*vectors, *dense, *vectors], [*first, *pairs])
        self._orders = [np.array(order, np.int8) for order in orders]
        self._own = {name: value.cpu() for name, value in model.state_dict().items()}
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        self._trained = [names[id(p)] for group in optimizer.param_groups for p in group["params"]]

    def __call__(
        self, parameters: dict[str, Tensor], state: dict[str, Tensor]
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """parameters: by name; state: of the optimizer, by number of the parameter and name."""
        of_run = [name for name in self._trained if name in parameters]
        widened = {
            name: self._widened(parameters[name], first) if name in parameters else first
            for name, first in self._own.items()
            if name in parameters or not first.any()
        }
        moved = {}
        for key, value in state.items():
            number, _, what = key.partition(".")
            if number.isdigit():
                name = of_run[int(number)]
                if value.shape == parameters[name].shape:
                    value = self._widened(value, torch.zeros_like(self._own[name], dtype=value.dtype))
                key = f"{self._trained.index(name)}.{what}"
            moved[key] = value
        return {**parameters, **widened}, moved

    def _widened(self, value: Tensor, first: Tensor) -> Tensor:
        """A tensor of the run in the shape of `first`, which has the values of new places."""
        if value.shape == first.shape or value.dim() != first.dim():
            return value
        wide, places = first.clone(), []
        for dim, (now, then) in enumerate(zip(first.shape, value.shape, strict=True)):
            order = np.ones(now, np.int8) if now == then else self._order(now, then)
            if order is None:
                return value
            if first.dim() > 1:  # scales of single inputs stay: two zeros in a row would learn nothing
                wide.index_fill_(dim, torch.from_numpy(np.flatnonzero(order == _ZERO)), 0)
            places.append(torch.from_numpy(np.flatnonzero(order == _OLD)))
        wide[torch.meshgrid(*places, indexing="ij")] = value
        return wide

    def _order(self, now: int, then: int) -> np.ndarray | None:
        """Which of the inputs of a layer were there; None: that cannot be said."""
        fitting = list(self._fitting(now, then))
        is_one = len({(order == _OLD).tobytes() for order in fitting}) == 1
        return np.minimum.reduce(fitting) if is_one else None

    def _fitting(self, now: int, then: int) -> Iterator[np.ndarray]:
        for order in self._orders:
            further = now - len(order)
            if further == 0 and (order == _OLD).sum() == then:
                yield order
        order = self._orders[2]
        further = now - len(order)
        if further > 0 and (order == _OLD).sum() + further == then:
            yield np.concatenate([order, np.full(further, _OLD, np.int8)])
