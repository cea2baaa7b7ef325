"""TwoStages: all-to-alls within nodes, then between them, of fewer and larger messages.

    ranks = two_stages.over(ranks)         # collective

Of N nodes with n ranks each, a rank gives each neighbour on its node what is for the ranks with that
neighbour's place on any node; then ranks of equal places exchange what they have collected. So a rank
sends n - 1 and N - 1 messages in place of n N - 1. It receives the same rows in the same order.

    one stage           rank 0 of node 0 -> 7 ranks            within      4 5 | 6 7    node 1
    two, 2 nodes of 4   -> 3 neighbours, then 1 other node     between     0-4 1-5 2-6 3-7

The first stage is waited for, the second, between nodes, is under way when `all_to_all` returns.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hotrows.distributed.comm import Arriving, Ranks


def ranks_of_node(ranks: Ranks) -> int:
    """Collective: how many ranks each node has, as torchrun numbers them; 1 where nodes have unequal
    numbers, or do not hold consecutive ranks, and all where there is one node."""
    num = int(os.environ.get("LOCAL_WORLD_SIZE", ranks.num_ranks))
    place = int(os.environ.get("LOCAL_RANK", ranks.rank % num))
    fits = ranks.num_ranks % num == 0 and place == ranks.rank % num
    return num if len(set(ranks.gather_objects((num, fits)))) == 1 and fits else 1


def over(ranks: Ranks, required: bool = False) -> Ranks:
    """Collective: the ranks, in two stages where there are several nodes of several ranks each.

    required: raise ValueError where there are not.
    """
    num = ranks_of_node(ranks)
    if 1 < num < ranks.num_ranks:
        return TwoStages(ranks, num)
    if required:
        raise ValueError(
            f"exchange='two_stages' needs several hosts with equally many ranks, two or more, numbered "
            f"host by host; of {ranks.num_ranks} ranks {os.environ.get('LOCAL_WORLD_SIZE', 'all')} are "
            f"here: start them by torchrun with the same --nproc-per-node everywhere, or leave it out"
        )
    return ranks


class TwoStages:
    """Ranks whose all-to-alls go in two stages; see `hotrows.distributed.comm.Ranks`."""

    def __init__(self, ranks: Ranks, ranks_of_node: int) -> None:
        self.rank, self.num_ranks, self.sent = ranks.rank, ranks.num_ranks, ranks.sent
        self.notes_times = False
        self._ranks, self._of_node = ranks, ranks_of_node
        self._channels: dict[str, TwoStages] = {}
        self._num_nodes = ranks.num_ranks // ranks_of_node
        numbers = torch.arange(ranks.num_ranks).view(self._num_nodes, ranks_of_node)
        self._within, self._between = ranks.among(numbers.tolist()), ranks.among(numbers.t().tolist())

    def all_to_all(
        self, rows: Tensor, sent: Sequence[int], received: Sequence[int], relayed: Sequence[int] = ()
    ) -> Arriving:
        relayed = relayed or self.relayed(torch.tensor(sent)[:, None])[:, 0].tolist()
        nodes, places = self._num_nodes, self._of_node
        by_place = _transposed(rows, sent, places)  # for place 0 of every node, for place 1, ..
        for_places = [sum(sent[place::places]) for place in range(places)]
        from_places = [sum(relayed[place * nodes : (place + 1) * nodes]) for place in range(places)]
        collected = self._within.all_to_all(by_place, for_places, from_places).wait()
        by_node = _transposed(collected, relayed, nodes)  # for node 0 from every place, for node 1, ..
        for_nodes = [sum(relayed[node::nodes]) for node in range(nodes)]
        from_nodes = [sum(received[node * places : (node + 1) * places]) for node in range(nodes)]
        return self._between.all_to_all(by_node, for_nodes, from_nodes)

    def relayed(self, sent: Tensor) -> Tensor:
        """[P, C]: of place 0 on this node to the rank of this place on node 0, on node 1, ..; of place
        1, .."""
        nodes, places = self._num_nodes, self._of_node
        by_place = sent.view(nodes, places, -1).transpose(0, 1).reshape(sent.shape)
        even = [nodes] * places
        return self._within.all_to_all(by_place, even, even).wait()

    def among(self, parts: Sequence[Sequence[int]]) -> Any:
        return self._ranks.among(parts)

    def all_reduce(self, values: Tensor) -> Arriving:
        return self._ranks.all_reduce(values)

    def all_gather(self, values: Tensor) -> Arriving:
        return self._ranks.all_gather(values)

    def gather_objects(self, value: Any) -> list[Any]:
        return self._ranks.gather_objects(value)

    def barrier(self) -> None:
        self._ranks.barrier()

    def channel(self, name: str) -> TwoStages:
        if name not in self._channels:
            self._channels[name] = TwoStages(self._ranks.channel(name), self._of_node)
        return self._channels[name]


def _transposed(rows: Tensor, counts: Sequence[int], num: int) -> Tensor:
    """Rows in blocks of so many each, of which every num-th block comes first, then those behind them.

    rows a b b c d, counts = [1, 2, 1, 1], num = 2  ->  a c b b d
    """
    blocks = rows.split(list(counts))
    return torch.cat([block for first in range(num) for block in blocks[first::num]])
