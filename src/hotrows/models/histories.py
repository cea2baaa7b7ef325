"""Histories: the sequences that a model compares with features of a sample.

A history is one sequence, or several whose elements belong together (the item and the category of
each click), side by side. It is compared with the features that share the sequences' vocabularies:
the item and the category at hand.
"""

from __future__ import annotations

from collections.abc import Sequence as Names
from dataclasses import dataclass

import torch
from torch import Tensor

from hotrows.engine.shared_lists import SharedLists
from hotrows.models.nn.jagged_products import Lists
from hotrows.models.vectors import LookedUpVectors, shared_lists
from hotrows.ops.layers.padded import PaddedLists
from hotrows.schema import Schema, Sequence, vocabulary_of


@dataclass(frozen=True)
class History:
    """targets: features of the sample; sequences: those of their vocabularies, in the same order."""

    targets: tuple[str, ...]
    sequences: tuple[str, ...]

    def target(self, vectors: LookedUpVectors, role: str = "vector") -> Tensor:
        """[B, D], the targets' vectors side by side."""
        return _joined([vectors[name, role] for name in self.targets])

    def past(self, vectors: LookedUpVectors, role: str = "vector") -> tuple[Tensor, Lists, Tensor | None]:
        """[N, D], the vectors of the elements, their offsets [B + 1], and in host memory lengths [B]."""
        if (shared := self.shared_past(vectors, role)) is not None:
            values, lists, lengths = shared
            lengths = lengths.repeat_interleave(lists.starts.diff())
            return lists.repeated(values), lists.sample_offsets, lengths
        pairs = [vectors.sequence(name, role) for name in self.sequences]
        if isinstance(pairs[0][1], PaddedLists):  # whose lengths are equal: who pads them sees to it
            return _joined([values for values, _ in pairs]), pairs[0][1], None
        return _joined([values for values, _ in pairs]), pairs[0][1], self._lengths(vectors)

    def shared_past(
        self, vectors: LookedUpVectors, role: str = "vector"
    ) -> tuple[Tensor, SharedLists, Tensor] | None:
        """The result of `past`, once for each request: lists of R requests, and lengths [R]; None where
        samples of a request do not share all of it."""
        pairs = [shared_lists(vectors, name, role) for name in self.sequences]
        present = [pair for pair in pairs if pair is not None]
        if len(present) < len(pairs):
            return None
        lengths = self._lengths(vectors)[present[0][1].starts[:-1]]
        return _joined([values for values, _ in present]), present[0][1], lengths

    def _lengths(self, vectors: LookedUpVectors) -> Tensor:
        """How many elements each sample has, [B] in host memory, in each of the sequences."""
        lengths = vectors.lengths(self.sequences[0])
        for name in self.sequences[1:]:
            if not torch.equal(lengths, vectors.lengths(name)):
                raise ValueError(
                    f"the sequences {self.sequences[0]!r} and {name!r} of one history differ in "
                    f"length in a sample; name them as two histories"
                )
        return lengths


def histories_of(
    schema: Schema, histories: Names[str | Names[str]] | None, model: str
) -> tuple[History, ...]:
    """Histories of a schema's features.

    histories: a sequence, or several to be joined, for each; None: all sequences that have a target.

    The target of a sequence is the first feature of one id per sample that shares its vocabulary.
    """
    targets = {vocabulary_of(f): f.name for f in reversed(schema.single)}
    sequences = {f.name: f for f in schema.sequences}
    if histories is None:
        histories = [name for name, f in sequences.items() if vocabulary_of(f) in targets]
        if not histories:
            raise ValueError(
                f"{model} compares a sequence of ids with a feature that shares its vocabulary, but "
                f"the schema has no such pair: declare Sequence('history', vocabulary='item') beside "
                f"Sparse('item')"
            )
    groups = [(group,) if isinstance(group, str) else tuple(group) for group in histories]
    if isinstance(histories, str) or not groups or not all(groups):
        raise ValueError(
            f'{model}: histories must be a list of sequences, such as ["history"], or of lists of '
            f"those to be joined, not {histories!r}"
        )
    return tuple(
        History(tuple(_target(name, sequences, targets, model) for name in group), group)
        for group in groups
    )


def _target(name: str, sequences: dict[str, Sequence], targets: dict[str, str], model: str) -> str:
    if name not in sequences:
        raise ValueError(f"{model}: {name!r} is none of the sequences {list(sequences)}")
    vocabulary = vocabulary_of(sequences[name])
    if vocabulary not in targets:
        raise ValueError(
            f"{model}: the sequence {name!r} needs a feature of one id per sample to be compared "
            f"with: declare one with vocabulary={vocabulary!r}, or leave the sequence out"
        )
    return targets[vocabulary]


def _joined(values: list[Tensor]) -> Tensor:
    return values[0] if len(values) == 1 else torch.cat(values, 1)
