"""The base of all models: the tables that they read, and the logits that they make of the vectors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from hotrows.models.histories import History
from hotrows.table import Cross, Table

LossFunction = Callable[[Tensor, Tensor, Tensor | None], Tensor]


class Model(nn.Module):
    """The dense part of a recommender model, and what it needs of the data.

    A subclass sets in `__init__`, after `super().__init__()`:

    tables: the rows it reads, by feature and role.
    sequences: features whose vectors it wants apart, as `vectors.sequence(name)` gives them; other
        sequences are pooled by their mean and are among the features of one vector.
    crosses: features hashed from the ids of others, which tables name among their features.
    histories: sequences that it compares with features of the sample, those of one in equal lengths.
    labels: the labels it predicts, one logit each; None: a single one, which the run names.
    first_layer_roles: roles whose vectors it reads through `vectors.joined` alone, whose only reader
        is an `MLP`.
    takes_padding: True if vectors of no sample may follow those of its sequences, from offsets[-1] on, as
        they do in training on a GPU: zeros, which no result or statistic of its may depend on.
    rates: which rates a training without settings has: those of a "network", of "weights" of features, or
        of weights and "products" of vectors (`train.start.defaults`).
    small: options of its network where few samples are read again and vectors decay; None: as ever.

    and in `forward(vectors, dense)`, with vectors of the batch by feature and role and dense
    [B, num_dense] float32, returns logits: [B] float32, or [B, T] where it has labels. In training
    it may return (logits, loss) instead: a scalar that is added to the loss of the labels, or a function
    of (logits, labels, weights) that returns the whole loss in its place: all of one shape, weights 0
    where a label is missing, or None where all are 1.

    >>> class Net(Model):
    ...     def __init__(self, schema):
    ...         super().__init__()
    ...         self.tables = hotrows.models.tables.vector_tables(schema, 8)
    ...         self.layer = torch.nn.LazyLinear(1)
    ...     def forward(self, vectors, dense):
    ...         return self.layer(vectors.joined(dense)).squeeze(1)
    >>> len(Net(data.schema).tables)
    2
    """

    tables: tuple[Table, ...] = ()
    sequences: tuple[str, ...] = ()
    crosses: tuple[Cross, ...] = ()
    histories: tuple[History, ...] = ()
    labels: tuple[str, ...] | None = None
    first_layer_roles: tuple[str, ...] = ()
    takes_padding: bool = False
    rates: ClassVar[str] = "network"
    small: ClassVar[Mapping[str, Any] | None] = None

    @torch.no_grad()
    def begin_at(self, logits: Tensor) -> None:
        """Sets a bias such that training begins near these logits, [T] in host memory, which say how
        frequent each label is.

        By default the last parameter that is named as a bias and has T numbers; a model without one
        begins where its first values say. Called once, before a training.
        """
        biases = [
            parameter
            for name, parameter in self.named_parameters()
            if name.rpartition(".")[2] == "bias" or ".biases." in f".{name}"
        ]
        fitting = [bias for bias in biases if bias.numel() == len(logits)]
        if fitting:
            fitting[-1].copy_(logits.view_as(fitting[-1]))


def logits_and_loss(output: Tensor | tuple[Tensor, Tensor | LossFunction]) -> tuple[Tensor, Any]:
    """The logits and, where the model returned one, the loss of its own: a scalar or a function."""
    logits, loss = output if isinstance(output, tuple) and len(output) == 2 else (output, None)
    if not isinstance(logits, Tensor):
        raise ValueError(f"a model must return logits, or (logits, loss), not {type(logits).__name__}")
    return logits, loss
