"""The vectors of a batch whose samples share features with the others of their request.

A model that knows nothing of requests reads them as any `Vectors`: what is shared is repeated for each
sample when it is asked for, and gradients of the repetitions are summed per request. One that computes
something of a request alone does so once, and repeats the result:

    vectors["item"]                                            [B, D], as ever
    vectors["user"]                                            [B, D], repeated
    vectors.requests["user"]                                   [R, D]
    vectors.repeated(tower(vectors.requests["user"]))          [B, K], computed for R requests
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hotrows.engine.shared_lists import SharedLists
from hotrows.engine.vectors import Vectors
from hotrows.ops.plan import Plan
from hotrows.runtime.shapes import Float, Int64

if TYPE_CHECKING:
    from hotrows.engine.planning.packing import Pack


class SharedVectors(Vectors):
    """leaves: one per pack, [M, D]: bags of B samples, then bags of R requests; see `Vectors`.

    requests: the vectors of what samples share, a `Vectors` of R requests.
    """

    requests: Vectors

    def __init__(self, packs: Sequence[Pack], plan: Plan, leaves: tuple[Tensor, ...]) -> None:
        super().__init__(packs, plan, leaves)
        assert plan.requests is not None
        self._starts, self._shared = plan.requests.starts, frozenset(plan.requests.features)
        halves = plan.requests.samples, plan.requests.shared
        sizes = [[half.packs[p].num_bags for half in halves] for p in range(len(packs))]
        parts = [leaf.split(size) for leaf, size in zip(leaves, sizes, strict=True)]
        self._samples, self.requests = (
            Vectors(
                [_reading(pack, self._shared, bool(h)) for pack in packs],
                half,
                tuple(part[h] for part in parts),
            )
            for h, half in enumerate(halves)
        )
        self._repeated: dict[tuple[str, str], Tensor] = {}

    def repeated(self, values: Float[Tensor, "R K"]) -> Float[Tensor, "B K"]:
        """Repeats the values of each request for each of its samples."""
        return SharedLists(self._starts, self._starts).of_samples(values)

    def __getitem__(self, key: str | tuple[str, str]) -> Float[Tensor, "B D"]:
        feature, role = (key, "vector") if isinstance(key, str) else key
        if feature not in self._shared:
            return self._samples[feature, role]
        if (feature, role) not in self._repeated:
            self._repeated[feature, role] = self.repeated(self.requests[feature, role])
        return self._repeated[feature, role]

    def stack(
        self, role: str = "vector", features: Sequence[str] | None = None
    ) -> Float[Tensor, "B F D"]:
        """The vectors of several features; see `Vectors.stack`. A copy where some are shared."""
        if features is None:
            features = [name for pack in self.packs for name in _read_in(pack, role)]
        shared = [name for name in features if name in self._shared]
        if not shared:
            return self._samples.stack(role, features)
        of_requests = self.requests.stack(role, shared)  # [R, F', D]
        repeated = self.repeated(of_requests.flatten(1)).unflatten(1, of_requests.shape[1:])
        of_samples = [name for name in features if name not in self._shared]
        if not of_samples:
            return repeated
        places = {name: place for place, name in enumerate([*of_samples, *shared])}
        order = [places[name] for name in features]
        both = torch.cat([self._samples.stack(role, of_samples), repeated], 1)
        return both if order == sorted(order) else both[:, order]

    def joined(self, dense: Float[Tensor, "B d"], role: str = "vector") -> Float[Tensor, "B W"]:
        """All vectors of a role and the dense values side by side, in the order of the packs."""
        read = [names for pack in self.packs if (names := _read_in(pack, role))]
        return torch.cat([*(self.stack(role, names).flatten(1) for names in read), dense], 1)

    def sequence(
        self, feature: str, role: str = "vector"
    ) -> tuple[Float[Tensor, "N D"], Int64[Tensor, "{self._plan.batch_size}+1"]]:
        """The vectors of a sequence feature, and where each sample's begin."""
        shared = self.shared_lists(feature, role)
        if shared is None:
            return self._samples.sequence(feature, role)
        values, lists = shared
        if (feature, role) not in self._repeated:
            self._repeated[feature, role] = lists.repeated(values)
        return self._repeated[feature, role], lists.sample_offsets

    def shared_lists(
        self, feature: str, role: str = "vector"
    ) -> tuple[Float[Tensor, "N D"], SharedLists] | None:
        if feature not in self._shared:
            return None
        values, offsets = self.requests.sequence(feature, role)
        return values, SharedLists(offsets, self._starts)

    def lengths(self, feature: str) -> Int64[Tensor, "B"]:
        """How many elements each sample has in a sequence feature, in host memory."""
        if feature not in self._shared:
            return self._samples.lengths(feature)
        return self.requests.lengths(feature).repeat_interleave(self._starts.diff())


def _reading(pack: Pack, shared: frozenset[str], of_requests: bool) -> Pack:
    """A pack with what it reads of requests alone, or of samples alone."""
    columns, sequences = (
        tuple(read for read in reads if (read[0] in shared) == of_requests)
        for reads in (pack.columns, pack.sequences)
    )
    return replace(pack, columns=columns, sequences=sequences)


def _read_in(pack: Pack, role: str) -> list[str]:
    """The features that a pack reads in a role, one vector for each sample."""
    return [name for name, table in pack.columns if pack.tables[table].role == role]
