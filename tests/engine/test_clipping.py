"""Clipping by the norm of all gradients, against `clip_grad_norm_` of a plain model in float64."""

import pytest
import torch
from torch.testing import assert_close

from hotrows import SGD, Adagrad, Batch, DenseAdam, DenseAdamW, DenseSGD, Embedding, LazyAdam, Table
from hotrows.engine import checkpoint
from hotrows.engine.clipping import Clip
from hotrows.engine.distributed.in_process import run
from hotrows.train.config import TrainConfig
from tests.support.cached import caching_of

FEATURES, ROWS, DIM, MAX_NORM = ("a", "b"), (40, 3), 5, 0.5
BATCHES = [
    Batch(FEATURES, torch.randint(0, 3, (2, 6), generator=torch.Generator().manual_seed(k)).flatten(),
          torch.zeros(6, 1))
    for k in range(12)
]  # fmt: skip


def embedding_of(optimizer, **options):
    tables = [
        Table(n, rows, DIM, (n,), optimizer=optimizer) for n, rows in zip(FEATURES, ROWS, strict=True)
    ]
    return Embedding(tables, seed=3, **options)


def loss_of(vectors, scale=3.0):
    return sum((scale * (k + 1) * v + k).sin().sum() for k, v in enumerate(vectors)) / 6


def clipped_steps(embedding, batches, dense_squares=0.01):
    """The factors of all steps, and the vectors that were looked up last."""
    embedding.count_squares()
    factors = []
    for batch in batches:
        vectors = embedding.lookup(plan := embedding.plan(batch, len(factors)))
        loss_of([vectors[name] for name in FEATURES]).backward()
        factors.append(embedding.update(plan, vectors, clip=Clip(MAX_NORM, dense_squares)))
    return factors


def plain_steps(embedding, optimizer, l2, batches, dense_squares=0.01):
    """The same in PyTorch, with the L2 term in the loss and a parameter whose gradient is given."""
    tables = [torch.nn.Parameter(embedding.weights(n).double().clone()) for n in FEATURES]
    dense, stepping, factors = torch.nn.Parameter(torch.zeros(())), optimizer(tables), []
    for batch in batches:
        stepping.zero_grad()
        ids = batch.ids.view(2, -1)
        loss = loss_of([table[i] for table, i in zip(tables, ids, strict=True)])
        (loss + sum(l2 / 2 * table.square().sum() for table in tables)).backward()
        dense.grad = torch.tensor(dense_squares, dtype=torch.float64).sqrt().float()
        norm = torch.nn.utils.clip_grad_norm_([*tables, dense], MAX_NORM)
        factors.append(min(1.0, MAX_NORM / (float(norm) + 1e-6)))
        stepping.step()
    return factors, dict(zip(FEATURES, tables, strict=True))


CASES = [
    (DenseAdam(lr=0.01, l2=1e-3), lambda p: torch.optim.Adam(p, 0.01), 1e-3),
    (DenseAdamW(lr=0.01, l2=1e-3), lambda p: torch.optim.AdamW(p, 0.01), 1e-3),
    (DenseSGD(lr=0.1, momentum=0.9, l2=1e-2), lambda p: torch.optim.SGD(p, 0.1, 0.9), 1e-2),
    (DenseSGD(lr=0.1, weight_decay=0.1), lambda p: torch.optim.SGD(p, 0.1, weight_decay=0.1), 0.0),
    (SGD(lr=0.1), lambda p: torch.optim.SGD(p, 0.1), 0.0),
    (Adagrad(lr=0.1), lambda p: torch.optim.Adagrad(p, 0.1), 0.0),
]


@pytest.mark.parametrize(("optimizer", "plain", "l2"), CASES, ids=[str(case[0]) for case in CASES])
def test_factors_and_weights_are_those_of_pytorch(optimizer, plain, l2):
    """Rows 3 to 39 of a table are never read: their L2 gradients count, as far as they are known."""
    embedding = embedding_of(optimizer)
    expected, tables = plain_steps(embedding, plain, l2, BATCHES)
    factors = clipped_steps(embedding, BATCHES)
    assert min(expected) < 0.9
    assert_close(factors, expected, rtol=1e-5, atol=0)
    for name, table in tables.items():
        assert_close(embedding.weights(name).double(), table.detach(), rtol=1e-5, atol=1e-6)


def test_the_norm_of_a_term_over_a_whole_table_is_kept_up_to_date():
    """A large L2 term is most of the norm; all rows catch up before each step, so it is exact."""
    embedding = embedding_of(DenseSGD(lr=0.5, l2=3.0))
    expected, _ = plain_steps(embedding, lambda p: torch.optim.SGD(p, 0.5), 3.0, BATCHES)
    factors = []
    for batch in BATCHES:
        factors += clipped_steps(embedding, [batch])
        embedding.catch_up()
    assert_close(factors, expected, rtol=1e-5, atol=0)


def test_a_norm_that_is_small_enough_changes_no_bit():
    clipped, plain = embedding_of(DenseAdam(l2=1e-3)), embedding_of(DenseAdam(l2=1e-3))
    clipped.count_squares()
    for step, batch in enumerate(BATCHES):
        for embedding, clip in ((clipped, Clip(1e6, 1.0)), (plain, None)):
            vectors = embedding.lookup(plan := embedding.plan(batch, step))
            loss_of([vectors[name] for name in FEATURES]).backward()
            assert embedding.update(plan, vectors, clip=clip) == 1.0
    assert torch.equal(clipped.stores[0].records, plain.stores[0].records)


@pytest.mark.parametrize("sharding", ["rows", "columns", "replicated"])
def test_ranks_clip_by_one_factor(sharding):
    optimizer = DenseAdam(lr=0.01, l2=0.1)
    alone = clipped_steps(embedding_of(optimizer), BATCHES)

    def work(ranks):
        embedding = embedding_of(optimizer, ranks=ranks, sharding=sharding)
        embedding.count_squares()
        factors = []
        for step, batch in enumerate(BATCHES):
            ids = batch.ids.view(2, 6)[:, 3 * ranks.rank : 3 * ranks.rank + 3]
            mine = Batch(FEATURES, ids.flatten(), torch.zeros(3, 1))
            vectors = embedding.lookup(plan := embedding.plan(mine, step))
            loss_of([vectors[name] for name in FEATURES]).backward()
            factors.append(embedding.update(plan, vectors, clip=Clip(MAX_NORM, 0.01)))
        return factors

    first, second = run(work, 2)
    assert first == second
    assert_close(first, alone, rtol=1e-5, atol=0)


def test_behind_a_cache_and_after_loading_the_factors_are_the_same(tmp_path):
    optimizer, model = DenseAdam(lr=0.01, l2=0.1), torch.nn.Linear(1, 1)
    whole = embedding_of(optimizer)
    factors = clipped_steps(whole, BATCHES)
    cached = embedding_of(optimizer, caching=caching_of(0.5, like=whole))
    assert clipped_steps(cached, BATCHES) == factors
    cut, resumed = embedding_of(optimizer), embedding_of(optimizer)
    assert clipped_steps(cut, BATCHES[:5]) == factors[:5]
    name = checkpoint.save(tmp_path, cut, model, checkpoint.State(5, {}, {}))
    checkpoint.load(tmp_path / "checkpoints" / name, resumed, model)
    assert resumed.packed.dense_rows.counts_squares
    assert clipped_steps(resumed, BATCHES[5:]) == factors[5:]


@pytest.mark.parametrize("settings", [{}, {"clip_norm": 1.0, "device": "cuda"}])
def test_settings_that_make_no_sense_are_refused(settings):
    with pytest.raises(ValueError, match="clip_rows needs clip_norm, and device='cpu'"):
        TrainConfig(clip_rows=True, row_optimizer=LazyAdam(), **settings)
