"""DynamicEmbedding: stands in for `nn.Embedding` where ids are keys that come and go.

    items = hotrows.DynamicEmbedding(16, hotrows.Dynamic(capacity=1_000_000, evict="lru"))
    optimizer = torch.optim.Adam(model.parameters())
    items.follow(optimizer)              # whose state of a row begins anew with it; accelerate does this
    vectors = items(keys)                # [..., 16]; keys: int64 of any value

In training mode, with gradients, a call is a batch of the key table: keys get rows, and lose them to
others. Otherwise it looks: keys without a row read an unknown one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from hotrows.acceleration.exclusive import exclusive
from hotrows.acceleration.parameter import NO_TORCH_FUNCTION, TableParameter
from hotrows.dynamic import Dynamic
from hotrows.engine.keys.table import KeyTable
from hotrows.engine.storage.store import InitialValues
from hotrows.ops.record import RecordLayout, views
from hotrows.ops.rows.reference_random import mix64
from hotrows.table import Initializer, Normal


class DynamicEmbedding(nn.Embedding):
    """An embedding of keys, with a row for each live one.

    dynamic: when keys get rows and lose them; with a capacity.
    num_unknown: rows that keys without one read and train, by a hash.
    initializer: of rows, by (seed, key).
    options: of `nn.Embedding`.

    Rows that were read since the optimizer's last step are not evicted: where the capacity has no room
    for all keys of a step, a call raises ValueError.

    >>> embedding = DynamicEmbedding(4, hotrows.Dynamic(capacity=100, evict="lru"))
    >>> embedding.follow(torch.optim.Adam(embedding.parameters()))
    DynamicEmbedding(103, 4)
    >>> embedding(torch.tensor([12345678901, 7])).shape
    torch.Size([2, 4])
    """

    def __init__(
        self,
        embedding_dim: int,
        dynamic: Dynamic,
        *,
        num_unknown: int = 1,
        initializer: Initializer | None = None,
        seed: int = 0,
        **options: Any,
    ) -> None:
        _check(dynamic, num_unknown)
        assert dynamic.capacity is not None
        self._initial_values = _initial_values(embedding_dim, initializer or Normal(1.0), seed)
        super().__init__(2 + num_unknown + dynamic.capacity, embedding_dim, **options)
        self.keys = KeyTable(dynamic, num_unknown)
        self._optimizers: list[Optimizer] = []
        self._is_read = torch.zeros(self.num_embeddings, dtype=torch.bool)  # since the last step

    def follow(self, *optimizers: Optimizer) -> DynamicEmbedding:
        """Lets the state of a row in these optimizers begin anew whenever the row does."""
        for optimizer in optimizers:
            if optimizer not in self._optimizers:
                self._optimizers.append(optimizer)
                optimizer.register_step_post_hook(self._after_step)
        return self

    def _after_step(self, *arguments: Any) -> None:
        self._is_read.zero_()

    def forward(self, input: Tensor) -> Tensor:
        """[..., D]: the vectors of keys [...] int64."""
        return super().forward(self.ids_of(input))

    @torch.compiler.disable
    def ids_of(self, keys: Tensor) -> Tensor:
        """[...]: the ids of keys, which in training get rows now."""
        flat = keys.detach().reshape(-1).long()
        if not (self.training and torch.is_grad_enabled()):
            return self.keys.find(flat).view(keys.shape)
        if not self._optimizers:
            raise ValueError(
                "the state of rows begins anew with their keys: say which optimizer has it, "
                "DynamicEmbedding.follow(optimizer), before training"
            )
        resolved = self.keys.resolve(flat)
        self.keys.trained()
        if num := int(self._is_read[resolved.died].sum()):
            raise ValueError(
                f"{num:,} keys that this step has read would lose their rows to others that it reads: "
                f"give capacity=ROWS for all keys of a step, more than {self.keys.dynamic.capacity:,}"
            )
        if len(resolved.born):
            self._begin(resolved.born, resolved.born_keys)
        self._is_read[resolved.ids] = True
        return resolved.ids.view(keys.shape)

    def reset_parameters(self) -> None:
        with torch.no_grad():
            self.weight.copy_(self._first_values(torch.arange(self.num_embeddings)))

    def _first_values(self, keys: Tensor) -> Tensor:
        """[b, D]: the first values of keys, or of ids that stand for none."""
        records = self._initial_values.of_keys(torch.zeros_like(keys), keys)
        return views(records, self._initial_values.layout.as_ints()).weights

    @exclusive
    def _begin(self, rows: Tensor, keys: Tensor) -> None:
        """Gives rows the first values of their keys, and in every optimizer the state of new rows."""
        weight, values = self.weight, self._first_values(keys)
        with NO_TORCH_FUNCTION(), torch.no_grad():
            if isinstance(weight, TableParameter):
                table = weight.table
                table.refresh(table.rule)
                table.catch_up_rows(rows)
                table.before_write()
                table.values[rows] = values.to(table.values.dtype)
                _reset(table.states, rows, len(weight), table.optimizer)
            else:
                weight.data[rows] = values.to(weight.dtype)
                for optimizer in self._optimizers:
                    _reset(optimizer.state.get(weight, {}), rows, len(weight), optimizer)

    # ---- copies and checkpoints

    def get_extra_state(self) -> dict[str, Tensor]:
        return self.keys.state()

    def set_extra_state(self, state: Any) -> None:
        self.keys.load(state)

    def __getstate__(self) -> dict[str, Any]:
        """The state for a copy or a pickle, which follows no optimizer yet."""
        state = {**self.__dict__, "_optimizers": []}
        return {**state, "keys": (self.keys.dynamic, self.keys.num_unknown, self.keys.state())}

    def __setstate__(self, state: dict[str, Any]) -> None:
        dynamic, num_unknown, keys = state.pop("keys")
        super().__setstate__(state)
        self.keys = KeyTable(dynamic, num_unknown)
        self.keys.load(keys)


def _check(dynamic: Dynamic, num_unknown: int) -> None:
    if dynamic.capacity is None:
        raise ValueError(f"DynamicEmbedding needs a capacity, not {dynamic}")
    if dynamic.partitions > 1:
        raise ValueError(f"DynamicEmbedding has its keys in one partition, not {dynamic.partitions:,}")
    if dynamic.batches_ahead or dynamic.eviction.kind == "time":
        raise ValueError(
            f"DynamicEmbedding knows no batch ahead and no event time: not admit={dynamic.admit!r}, "
            f"evict={dynamic.evict!r}"
        )
    if num_unknown < 1:
        raise ValueError(
            f"num_unknown must be at least 1, not {num_unknown}: keys without a row read them"
        )


def _initial_values(dim: int, initializer: Initializer, seed: int) -> InitialValues:
    pieces = torch.tensor([[int(mix64(seed)), 0, 1, 0, dim]])
    return InitialValues(RecordLayout(dim), torch.tensor([0, 1]), pieces, initializer, ())


def _reset(state: Mapping[str, Any], rows: Tensor, num_rows: int, optimizer: Optimizer) -> None:
    """Sets what an optimizer has of rows to what it has of new ones."""
    for name, values in state.items():
        if isinstance(values, Tensor) and values.dim() == 2 and len(values) == num_rows:
            first = optimizer.defaults.get("initial_accumulator_value", 0.0) if name == "sum" else 0.0
            values[rows] = first
