"""An embedding on several ranks against the same one on a single rank."""

import random
import threading

import pytest
import torch
from torch.testing import assert_close

from hotrows import SGD, Adagrad, Embedding, LazyAdam, RowWiseAdagrad
from hotrows.engine.caching import Caching
from hotrows.engine.distributed.in_process import run
from hotrows.engine.distributed.row_exchange import RowExchange
from hotrows.engine.packed_tables import PackedTables
from hotrows.engine.planning.policy import Frequency
from hotrows.engine.planning.sharding import BY_COLUMNS
from tests.support.embeddings import (
    OPTIMIZERS,
    SHARDINGS,
    batches_of,
    jagged_batch,
    mixed_tables,
    placements,
    single_batch,
    train,
)
from tests.support.sharded import MOST, whole_weights, with_dtype


def on_ranks(num_ranks, sharding, tables, batches, micro_batches=1, **options):
    """The embeddings of all ranks after training, and what each has looked up."""

    def work(ranks):
        embedding = Embedding(
            tables, seed=3, ranks=ranks, sharding=sharding, micro_batches=micro_batches, **options
        )
        return embedding, train(embedding, batches, micro_batches)

    return zip(*run(work, num_ranks), strict=True)


def check(num_ranks, name, tables, batches, micro_batches=1, exact=False, rtol=3e-5, **options):
    alone = Embedding(tables, seed=3)
    train(alone, batches)
    embeddings, _ = on_ranks(
        num_ranks, placements(name, num_ranks), tables, batches, micro_batches, **options
    )
    for table, weights in whole_weights(embeddings).items():
        expected = alone.weights(table).float()
        if exact:
            assert torch.equal(weights, expected)
        else:
            assert_close(weights, expected, rtol=rtol, atol=rtol / 10)


@pytest.mark.pairs
@pytest.mark.parametrize("name", SHARDINGS)
@pytest.mark.parametrize("num_ranks", [2, 3, 4])
@pytest.mark.parametrize("kind", ["single", "jagged"])
def test_any_sharding_equals_one_rank(kind, num_ranks, name):
    check(num_ranks, name, mixed_tables(Adagrad(lr=0.05)), batches_of(kind, 3))


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=str)
@pytest.mark.parametrize("name", ["rows", "columns", "mixed"])
def test_any_optimizer_equals_one_rank(name, optimizer):
    check(2, name, mixed_tables(optimizer), batches_of("single", 3))


@pytest.mark.pairs
@pytest.mark.parametrize("name", SHARDINGS)
@pytest.mark.parametrize("num_ranks", [1, 2, 3])
@pytest.mark.parametrize("micro_batches", [2, 5])
def test_slices_equal_whole_batches(micro_batches, num_ranks, name):
    tables, batches = mixed_tables(RowWiseAdagrad(lr=0.05)), batches_of("jagged", 2)
    check(num_ranks, name, tables, batches, micro_batches)


@pytest.mark.few(5)
@pytest.mark.parametrize("name", SHARDINGS)
@pytest.mark.parametrize("micro_batches", [1, 2])
def test_a_cache_on_every_rank_changes_nothing(micro_batches, name):
    tables, batches = mixed_tables(LazyAdam(lr=0.01, weight_decay=0.1)), batches_of("single", 4)
    plain, _ = on_ranks(3, placements(name, 3), tables, batches, micro_batches)
    caching = Caching(fast_memory=3000)
    cached, _ = on_ranks(3, placements(name, 3), tables, batches, micro_batches, caching=caching)
    expected, weights = whole_weights(plain), whole_weights(cached)
    for table in expected:
        assert torch.equal(weights[table], expected[table])


@pytest.mark.parametrize("num_ranks", [1, 2])
@pytest.mark.parametrize("pack_parts", [2, 100])
def test_packs_in_parts_equal_whole_ones(pack_parts, num_ranks):
    tables, batches = mixed_tables(Adagrad(lr=0.05)), batches_of("jagged", 2)
    check(num_ranks, "rows", tables, batches, exact=num_ranks == 1, pack_parts=pack_parts)


@pytest.mark.parametrize("pack_parts", [1, 2])
def test_a_pack_is_updated_before_the_gradients_of_the_next_are_waited_for(monkeypatch, pack_parts):
    events = []

    def noting(kind, name):
        plain, what = getattr(kind, name), name.strip("_")

        def noted(self, *arguments):
            result = plain(self, *arguments)
            numbers = [getattr(argument, "p", argument) for argument in arguments]
            p = next(number for number in numbers if isinstance(number, int))
            events.append((what, p)) if threading.current_thread() is first else None
            return result

        monkeypatch.setattr(kind, name, noted)

    noting(RowExchange, "gradients")
    noting(PackedTables, "_update")
    first = None

    def work(ranks):
        nonlocal first
        first = threading.current_thread() if ranks.rank == 0 else first
        ranks.barrier()
        embedding = Embedding(mixed_tables(SGD(0.1)), ranks=ranks, pack_parts=pack_parts)
        train(embedding, batches_of("single", 1))
        return len(embedding.packs)

    num_packs = run(work, 2)[0]
    assert num_packs > pack_parts
    packs = [p for _, p in events[::2]]  # group by group
    assert sorted(packs) == list(range(num_packs))
    assert events == [(what, p) for p in packs for what in ("gradients", "update")]


@pytest.mark.pairs
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", SHARDINGS)
@pytest.mark.parametrize("num_ranks", [1, 2, 3])
def test_sums_where_rows_are_equal_rows_that_travel(num_ranks, name, weighted):
    torch.manual_seed(0)
    batches = [jagged_batch(37, weighted) for _ in range(3)]
    pooling = {"item": "mean", "user": "sum", "last_item": "mean"}
    tables = mixed_tables(Adagrad(lr=0.05))
    alone = Embedding(tables, seed=3, pooling=pooling)
    train(alone, batches)
    embeddings, _ = on_ranks(
        num_ranks, placements(name, num_ranks), tables, batches, 2, pooling=pooling,
        summed=("item", "user"),
    )  # fmt: skip
    for table, weights in whole_weights(embeddings).items():
        assert_close(weights, alone.weights(table), rtol=3e-5, atol=3e-6)


@pytest.mark.pairs
@pytest.mark.parametrize("seed", range(24))
def test_any_combination_equals_one_rank(seed):
    """Ranks, sharding, optimizer, cache, slices, parts of packs and sums, drawn together."""
    choose = random.Random(seed).choice
    name, num_ranks = choose(list(SHARDINGS)), choose((1, 2, 3, 4))
    caching = choose((None, Caching(3000), Caching(900), Caching(4000, policy=Frequency(2, 2))))
    check(
        num_ranks, name, mixed_tables(choose(OPTIMIZERS)), batches_of("jagged", 4, seed=seed),
        micro_batches=choose((1, 2, 4)), caching=caching, pack_parts=choose((1, 2, 9)),
        summed=choose(((), ("item",), ("user", "last_item"))),
        rtol=3e-4,  # four steps of plain SGD make rounding larger
    )  # fmt: skip


@pytest.mark.parametrize("name", SHARDINGS)
def test_rows_begin_the_same_on_any_number_of_ranks(name):
    alone = Embedding(mixed_tables(SGD()), seed=3)
    for num_ranks in (2, 3, 7):
        embeddings, _ = on_ranks(num_ranks, placements(name, num_ranks), mixed_tables(SGD()), [])
        for table, weights in whole_weights(embeddings).items():
            assert torch.equal(weights, alone.weights(table))


@pytest.mark.parametrize("name", SHARDINGS)
@pytest.mark.parametrize("kind", ["single", "jagged"])
def test_lookups_have_the_bits_of_one_rank(kind, name):
    tables, batches = mixed_tables(SGD(lr=0.1)), batches_of(kind, 1)
    _, seen = on_ranks(3, placements(name, 3), tables, batches)
    alone = train(Embedding(tables, seed=3), batches)
    assert torch.equal(torch.cat(seen), alone)


def test_empty_shares_and_more_ranks_than_samples():
    check(4, "rows", mixed_tables(Adagrad()), batches_of("single", 2, size=2))
    check(3, "mixed", mixed_tables(Adagrad()), batches_of("jagged", 2, size=1))


@pytest.mark.parametrize("dtype", ["bfloat16", "int8", "int4"])
def test_rounding_does_not_depend_on_the_sharding(dtype):
    """Stochastic rounding is keyed by table, id and column: where sums have one order, so do bits."""
    import dataclasses

    tables = with_dtype(mixed_tables(SGD(lr=0.5)), dtype)
    torch.manual_seed(0)
    ids = torch.cat([torch.randperm(rows)[:3] for rows in (50, 300, 3, 300)])
    ids[9:] = (ids[3:6] + 1) % 300  # items read once each
    batch = single_batch(3)
    batch = dataclasses.replace(batch, ids=ids)
    alone = Embedding(tables, seed=3)
    train(alone, [batch])
    for name in ("rows", "tables", "columns")[: 2 if dtype in MOST else 3]:
        embeddings, _ = on_ranks(2, placements(name, 2), tables, [batch])
        for table, weights in whole_weights(embeddings).items():
            assert_close(weights, alone.weights(table).float(), rtol=1e-2, atol=1e-5)


@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_tables_of_integers_are_dealt_by_rows_where_others_are_by_columns(dtype):
    """A row has one scale, which a rank with some of its columns could not choose."""
    tables = mixed_tables(SGD(lr=0.5))
    of_integers = with_dtype(tables, dtype)
    embeddings, _ = on_ranks(2, "columns", of_integers, batches_of("single", 1))
    shards = [shard for one in embeddings for shard in one.shards if shard.tables[0].dtype == dtype]
    assert shards and all(shard.dim in (8, 16) for shard in shards)
    with pytest.raises(ValueError, match=f"rows of {dtype} have one scale for all columns.* by rows"):
        on_ranks(2, {t.name: BY_COLUMNS for t in tables}, of_integers, batches_of("single", 1))


@pytest.mark.parametrize("wire", ["bfloat16", "float16"])
def test_narrow_wires_round_what_travels(wire):
    tables, batches = mixed_tables(SGD(lr=0.1)), batches_of("single", 1)
    _, seen = on_ranks(2, "rows", tables, batches, wire_dtype=wire)
    alone = train(Embedding(tables, seed=3), batches)
    assert not torch.equal(torch.cat(list(seen)), alone)
    assert_close(torch.cat(list(seen)), alone, rtol=1e-2, atol=1e-4)


def test_an_unknown_sharding_or_wire_says_what_there_is():
    with pytest.raises(ValueError, match=r"sharding must be one of .*rows.*, not 'hash'"):
        on_ranks(2, "hash", mixed_tables(SGD()), [])
    with pytest.raises(ValueError, match=r"wire_dtype must be one of .*, not 'int8'"):
        Embedding(mixed_tables(SGD()), wire_dtype="int8")


def test_a_signal_of_one_rank_is_known_to_all_and_the_end_only_once_all_have_ended():
    from hotrows.engine.planning.routing import RankSignals

    STOP, CHECKPOINT, NO_MORE, _ = RankSignals

    def work(ranks):
        embedding = Embedding(mixed_tables(SGD()), ranks=ranks)
        batch = single_batch(4)
        signals = [STOP if ranks.rank == 1 else 0, CHECKPOINT, NO_MORE * ranks.rank, NO_MORE]
        return [embedding.plan(batch, 0, signal).signals for signal in signals]

    torch.manual_seed(0)
    assert run(work, 2) == [[STOP, CHECKPOINT, 0, NO_MORE]] * 2


def test_ranks_that_call_different_collectives_raise_and_do_not_hang():
    def work(ranks):
        ranks.barrier() if ranks.rank else ranks.gather_objects(1)

    with pytest.raises(AssertionError, match="different collectives"):
        run(work, 2)


def test_a_sharding_that_is_not_known_is_refused():
    def work(ranks):
        with pytest.raises(ValueError, match="sharding must be one of .*rows.*, not 'lines'"):
            Embedding(mixed_tables(Adagrad()), ranks=ranks, sharding="lines")

    run(work, 2)
