"""Messages between rank 0 and all ranks: large ones, which no other rank needs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hotrows.engine.distributed.comm import Ranks


def to_first(ranks: Ranks, values: Tensor) -> list[Tensor]:
    """Collective: on rank 0 the values of every rank, [n] of one dtype; on others empty ones."""
    counts, none = ranks.all_gather(torch.tensor(len(values))).wait().tolist(), [0] * ranks.num_ranks
    received = none if ranks.rank else counts
    sent = [len(values), *none[1:]]
    return list(ranks.all_to_all(values, sent, received).wait().split(received))


def from_first(ranks: Ranks, messages: Sequence[bytes]) -> bytes:
    """Collective: this rank's message of those that rank 0 has, one for each rank; others have none."""
    sizes = [len(message) for message in messages] or [0] * ranks.num_ranks
    from_rank_0 = [1] + [0] * (ranks.num_ranks - 1)
    ones = [int(ranks.rank == 0)] * ranks.num_ranks
    size = int(ranks.all_to_all(torch.tensor(sizes)[: sum(ones)], ones, from_rank_0).wait())
    sent = torch.frombuffer(bytearray(b"".join(messages) or b"\0"), dtype=torch.uint8)[: sum(sizes)]
    received = [size * n for n in from_rank_0]
    return ranks.all_to_all(sent, sizes, received).wait().numpy().tobytes()
