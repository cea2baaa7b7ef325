"""A rank that is a process: trains, saves in the background, goes on; `test_checkpoint_writer` starts
several of them."""

from datetime import timedelta

import torch
from torch import distributed as dist

from hotrows.engine import checkpoint
from hotrows.engine.checkpoint import Writer
from hotrows.engine.distributed.process_group import Processes
from hotrows.engine.embedding import Embedding
from tests.support.checkpoints import TABLES, dense, state
from tests.support.embeddings import batches_of, train


def batches():
    return batches_of("single", 4, 8)


def trained(embedding, of_every_rank, of_run=None):
    """Trains on this rank's share of the batches."""
    for step, batch in enumerate(of_every_rank):
        train(embedding, [batch])
        if of_run is not None:
            of_run.save(state(step))


def work(path, rank, num_ranks, mode):
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{path / f'meet-{mode}'}", rank=rank, world_size=num_ranks,
        timeout=timedelta(seconds=60),
    )  # fmt: skip
    ranks = Processes(60)
    embedding = Embedding(TABLES, seed=3, ranks=ranks)
    if mode == "write":
        of_run = Writer(path, embedding, dense(), background=True, full_every=3, keep_last=9)
        trained(embedding, batches(), of_run)
        of_run.wait()
    else:
        checkpoint.load(path / "checkpoints" / "step-3", embedding, dense())
        checkpoint.save(path, embedding, dense(), state(9))
    dist.barrier()
    dist.destroy_process_group()
