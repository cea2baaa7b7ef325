"""A run that begins with one whose data had fewer features: what was learned goes on, and the new
features say nothing at first.

    rows of a new vocabulary    weights 0, optimizer state as of new rows
    layers that read features   places of old features as they were, of new dense values 0; of new ids the
                                first values, or nothing would be learned

So the first predictions are those of the other run. They differ where a new feature reads an old
vocabulary and the model multiplies vectors, or adds weights of ids.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from hotrows.data import EncodedData
from hotrows.engine import checkpoint
from hotrows.models.dense_input import DenseInput
from hotrows.models.tables import VECTOR
from hotrows.schema import Schema, vocabulary_of
from hotrows.train.loop.step_trainer import StepTrainer
from hotrows.train.start.pretrained import GivenRows

_NEW, _OLD, _ZERO = 0, 1, -1  # of a place among the inputs of a layer: its first values, old ones, or 0
Tensors = dict[str, Tensor]


def is_wider(then: Schema, data: EncodedData, fingerprint: str) -> bool:
    """True if data extend those of a run, which have this fingerprint, by features too."""
    return fingerprint in data.lineage[1:] and len(data.schema.features) > len(then.features)


def load_wider(run: Path, then: Schema, steps: StepTrainer) -> checkpoint.State:
    """Reads the best checkpoint of a run whose schema, `then`, lacks features of the data; collective
    between ranks."""
    embedding, schema = steps.embedding, steps.data.schema
    under_dense = any(p in embedding.packed.dense_rows for p in range(len(embedding.packs)))
    is_own = not type(steps.model).__module__.startswith("hotrows.")  # its inputs have any order
    if schema.dynamic_vocabularies or under_dense or is_own:
        raise ValueError(
            f"{run} has fewer features than {steps.data.path}; a run can begin so unless features are "
            f"dynamic, rows are under a dense optimizer, or the model is your own; begin without "
            f"--init-from"
        )
    known = {vocabulary_of(feature) for feature in then.id_features}
    new = {feature.name for feature in schema.id_features if vocabulary_of(feature) not in known}
    zero = np.zeros((), np.float32)  # broadcast, it needs no memory
    added = {
        table.name: [
            GivenRows(table, np.arange(table.rows), np.broadcast_to(zero, (table.rows, table.dim)))
        ]
        for table in embedding.tables
        if table.features[0] in new
    }
    folder = checkpoint.folder_of(run, "best")
    saved = {table.name: np.arange(table.rows) for table in checkpoint.read_manifest(folder).tables}
    widen = _Widening(steps, then, new)
    return checkpoint.load_renumbered(folder, embedding, steps.model, saved, added, widen)


class _Widening:
    """Widens dense parameters, and their optimizer's state, to more features.

    Sizes alone say which dimension of a parameter is of which inputs. Where several orders of inputs fit,
    or none does, a parameter stays as it is, and reading it is the error of a model of another shape.
    new: features of new vocabularies.
    """

    def __init__(self, steps: StepTrainer, then: Schema, new: set[str]) -> None:
        old, schema = {feature.name for feature in then.features}, steps.data.schema
        place = {f.name: _OLD if f.name in old else _ZERO for f in schema.features}
        place |= dict.fromkeys(new, _NEW)
        packs = steps.embedding.packs
        columns = [(place.get(n, _OLD), p.tables[t]) for p in packs for n, t in p.columns]
        fields = [place for place, table in columns if table.role == VECTOR]
        dims = [table.dim for _, table in columns if table.role == VECTOR]
        numbers, spans = list(map(place.__getitem__, schema.dense_places)), schema.dense_places.values()
        dense = np.repeat(numbers, [span.stop - span.start for span in spans])
        inputs = {n: m for n, m in steps.model.named_modules() if isinstance(m, DenseInput)}
        widths = next((module.widths for module in inputs.values()), [])
        narrow = np.repeat(numbers, widths) if inputs else dense
        vectors = np.repeat(fields, dims).tolist()
        pairs = [min(a, b) for i, a in enumerate(fields) for b in (_OLD, *fields[:i])]  # those of DLRM
        behind = [*vectors, *narrow, *vectors]
        orders = (dense, narrow, fields, behind, [_OLD] * max(dims, default=0) + pairs)
        self._orders = [np.array(order, np.int8) for order in orders]  # of all inputs
        self._first = np.array([*vectors, *narrow], np.int8)  # of inputs, behind which others may be
        # of new vectors, whose outputs are read by weights of 0
        self._narrowing = {f"{name}.{n}" for name, m in inputs.items() for n in m.state_dict()}
        self._own = {name: value.cpu() for name, value in steps.model.state_dict().items()}
        self._trained = [name for name, _ in steps.model.named_parameters()]  # in the optimizer's order

    def __call__(self, parameters: Tensors, state: Tensors) -> tuple[Tensors, Tensors]:
        """parameters: by name; state: of the optimizer, by number of the parameter and name."""
        wide = {n: self._widened(parameters.get(n, first), first) for n, first in self._own.items()}
        known = parameters.keys() | self._narrowing
        begun = {n: value for n, value in wide.items() if n in known or not value.any()}
        of_run, moved = [name for name in self._trained if name in parameters], {}
        for key, value in state.items():
            number, _, what = key.partition(".")
            if number.isdigit():
                name = of_run[int(number)]
                if value.shape == parameters[name].shape:
                    value = self._widened(value, torch.zeros_like(self._own[name]))
                key = f"{self._trained.index(name)}.{what}"
            moved[key] = value
        return {**parameters, **begun}, moved

    def _widened(self, value: Tensor, first: Tensor) -> Tensor:
        """A tensor of the run in the shape of `first`, which has the values of new places."""
        if value.shape == first.shape or value.dim() != first.dim():
            return value
        wide, places = first.clone(), []
        for dim, (now, then) in enumerate(zip(first.shape, value.shape, strict=True)):
            order = np.ones(now, np.int8) if now == then else self._order(now, then)
            if order is None:
                return value
            if first.dim() > 1:  # scales of inputs stay: behind a weight of 0, none would be learned
                wide.index_fill_(dim, torch.from_numpy(np.flatnonzero(order == _ZERO)), 0)
            places.append(torch.from_numpy(np.flatnonzero(order == _OLD)))
        wide[torch.meshgrid(*places, indexing="ij")] = value
        return wide

    def _order(self, now: int, then: int) -> np.ndarray | None:
        """Which of `now` inputs were among the `then` ones; None: that cannot be said."""
        behind = np.full(max(now - len(self._first), 0), _OLD, np.int8)
        orders = (*self._orders, np.concatenate([self._first, behind]))
        fitting = [x for x in orders if len(x) == now and (x == _OLD).sum() == then]
        is_one = len({(order == _OLD).tobytes() for order in fitting}) == 1
        return np.minimum.reduce(fitting) if is_one else None
