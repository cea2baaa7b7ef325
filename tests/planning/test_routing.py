"""Row numbers between ranks against a plain model of what each rank serves to whom."""

import pytest

from hotrows.batch import split
from hotrows.engine.distributed.in_process import run
from hotrows.engine.planning.packing import pack_tables
from hotrows.engine.planning.planner import Planner
from hotrows.engine.planning.sharding import Sharding, uniform
from hotrows.optim import SGD
from tests.support.embeddings import SHARDINGS, batches_of, mixed_tables, placements


def requested(rows, sharding: Sharding, owner):
    """The shared rows, and those of an owner's store that it is to send, of rows read, ascending."""
    if sharding.columns:
        return [], rows
    starts, shared = sharding.owner_starts, sharding.num_shared
    of_owner = [row - starts[owner] + shared for row in rows if starts[owner] <= row < starts[owner + 1]]
    return [row for row in rows if row < shared], of_owner


def served(reads, sharding, rank):
    """What a rank looks up, in the order of its places. reads: by micro-batch and rank, rows."""
    of_all = [rows for of_ranks in reads for rows in of_ranks]
    shared = sorted({row for rows in of_all for row in requested(rows, sharding, rank)[0]})
    return shared, [requested(rows, sharding, rank)[1] for rows in of_all]


@pytest.mark.parametrize("micro_batches", [1, 3])
@pytest.mark.parametrize("num_ranks", [2, 5])
@pytest.mark.parametrize("name", SHARDINGS)
@pytest.mark.parametrize("kind", ["single", "jagged"])
def test_each_rank_serves_what_all_have_requested_in_order(kind, name, num_ranks, micro_batches):
    batch = batches_of(kind, 1, size=11)[0]
    tables, sharding = mixed_tables(SGD()), placements(name, num_ranks)
    if isinstance(sharding, str):
        sharding = uniform(sharding, tables, num_ranks)
    packs = pack_tables(tables, (), sharding)

    def work(ranks):
        planner = Planner(packs, ranks=ranks, micro_batches=micro_batches)
        return planner.plan(split(batch, num_ranks)[ranks.rank], step=7 * ranks.rank, signals=ranks.rank)

    plans = run(work, num_ranks)
    for p, pack in enumerate(packs):
        rows_of = [[part.packs[p].rows.tolist() for part in plan.micro_batches] for plan in plans]
        reads = list(zip(*rows_of, strict=True))  # by micro-batch and rank
        for rank, plan in enumerate(plans):
            shared, answers = served(reads, pack.sharding(num_ranks), rank)
            part, exchange = plan.packs[p], plan.row_exchanges[p]
            places = part.rows[part.inverse.long()].tolist()
            assert places == [*shared, *(row for rows in answers for row in rows)]
            assert part.rows.tolist() == sorted(set(places)) and part.num_bags == len(places)
            assert exchange.num_shared == len(shared)
            counts = [len(rows) for rows in answers]
            for s in range(micro_batches):
                sent = counts[s * num_ranks : (s + 1) * num_ranks]
                assert list(exchange.send_counts[s]) == sent
                for other, of_other in enumerate(plans):
                    assert of_other.row_exchanges[p].recv_counts[s][rank] == sent[other]
                own = requested(reads[s][rank], pack.sharding(num_ranks), 0)[0]
                assert [shared[place] for place in exchange.shared_places[s].tolist()] == own
                crosses = any(
                    plans[a].row_exchanges[p].send_counts[s][b]
                    for a in range(num_ranks) for b in range(num_ranks) if a != b
                )  # fmt: skip
                assert exchange.crosses_ranks[s] == crosses
    agreed = (7 * (num_ranks - 1), 11, 1 if num_ranks == 2 else 3)
    assert {(plan.step, plan.global_size, plan.signals) for plan in plans} == {agreed}
