"""hotrows on several ranks: each reads its share of every batch, and holds a shard of the tables.

Batches are planned ahead on a background thread, ranks together. A batch may be learned from in
micro-batches: rows of the next one travel while the model learns from this one.
"""

from __future__ import annotations

from argparse import Namespace
from dataclasses import replace
from itertools import count

import torch
from torch.nn.functional import binary_cross_entropy_with_logits

import hotrows
from benchmarks.arms import arm, hotrows_arm, hotrows_models, rank_arm, sequence_hotrows
from benchmarks.sequences import DENSE_LEARNING_RATE, FEATURES, ROW_LEARNING_RATE
from benchmarks.sequences import batches_of as sequence_batches_of
from benchmarks.workload import LEARNING_RATE
from hotrows import models
from hotrows.batch import split
from hotrows.engine.distributed import process_group
from hotrows.engine.distributed.dense_gradients import SharedGradients
from hotrows.engine.pipeline.prefetch import prefetch
from hotrows.engine.planning.sharding import Placement, uniform
from hotrows.models.nn import choose_linear_paths, use_linear_paths
from hotrows.runtime import native

SEQUENCE_MODELS = ("din", "dien")
_A_PACK_PER_TABLE = 1 << 20


def main() -> None:
    rank_arm.report(_parse(), make_step, "torch")


def _parse() -> Namespace:
    parser = rank_arm.parser(
        models=(*arm.MODELS, *SEQUENCE_MODELS),
        sharding=("rows", "tables", "columns", "replicated"),
        plan=("ahead", "inline"),
        auxiliary=("off", "on"),
    )
    parser.add_argument("--dim", type=int, default=16, help="of din and dien")
    parser.add_argument("--micro-batches", type=int, default=1)
    parser.add_argument("--pack", choices=("none", "all"), default="all", help="a pack per table?")
    parser.add_argument("--splits", type=int, default=1, help="parts of packs that travel apart")
    parser.add_argument(
        "--hot-rows", type=int, help="bytes of rows on every rank; ids are then sorted by frequency"
    )
    return rank_arm.finish(parser.parse_args())


def make_step(args: Namespace) -> rank_arm.Step:
    torch.set_num_threads(args.threads // args.ranks)
    torch.manual_seed(0)  # dense layers begin alike on all ranks
    core = native.load()
    if core is not None:
        core.hotrows_keep_freed_memory()
    ranks = process_group.start(timeout=rank_arm.COLLECTIVE_TIMEOUT)
    model, schema, optimizers, batches = _setting(args)
    rows, dense = optimizers
    sharding = args.sharding if args.hot_rows is None else _with_hot(args, model, batches, ranks)
    embedding = hotrows.Embedding.for_model(
        model,
        schema,
        optimizer=rows,
        ranks=ranks,
        sharding=sharding,
        micro_batches=args.micro_batches,
        pack_parts=_A_PACK_PER_TABLE if args.pack == "none" else args.splits,
    )
    use_linear_paths(model, choose_linear_paths(model))
    shared = SharedGradients(model, ranks)
    mine = [split(batch, ranks.num_ranks)[ranks.rank] for batch in batches]
    parts = [split(batch, args.micro_batches) for batch in mine]

    def plan(k: int) -> tuple:
        k_of = k % len(mine)
        return parts[k_of], embedding.plan(mine[k_of], k)

    planned = prefetch(map(plan, count()), depth=2 if args.plan == "ahead" else 0)

    def step(k: int) -> float:
        parts, plan = next(planned)
        total = 0.0
        for number, part in enumerate(parts):
            last = number + 1 == len(parts)
            vectors = embedding.lookup(plan, number)
            logits, model_loss = models.logits_and_loss(model(vectors, part.dense))
            loss = binary_cross_entropy_with_logits(logits, part.labels)
            share = plan.micro_batches[number].share if plan.micro_batches else plan.share
            of_part = (loss if model_loss is None else loss + model_loss) * share
            if last:
                with shared.summing():
                    of_part.backward()
            else:
                of_part.backward()
                embedding.send_gradients(plan, number, vectors)
            total += loss.item() / len(parts)
        embedding.update(plan, vectors)
        dense.step()
        dense.zero_grad()
        return total

    return step


def _setting(args: Namespace) -> tuple:
    """Model, schema, optimizers of rows and layers, and batches: those of the arms of one rank."""
    if args.model in SEQUENCE_MODELS:
        model = hotrows_models.build(args.model, FEATURES, args.dim, **sequence_hotrows.options(args))
        hotrows_models.own_no_optimizers(model)
        optimizers = (
            hotrows.Adagrad(lr=ROW_LEARNING_RATE),
            torch.optim.Adam(model.parameters(), DENSE_LEARNING_RATE, fused=True),
        )
        batches = [
            hotrows_models.batch_of(FEATURES, samples)
            for samples in sequence_batches_of(batch_size=args.batch_size)
        ]
        return model, hotrows_models.schema_of(FEATURES), optimizers, batches
    schema = hotrows_arm.schema_of(args.workload)
    model = hotrows_arm.model_of(args, schema)
    dense = hotrows_arm.DENSE_OPTIMIZERS[args.optimizer]
    optimizers = (
        hotrows_arm.ROW_OPTIMIZERS[args.optimizer](lr=LEARNING_RATE),
        dense(model.parameters(), LEARNING_RATE, fused=True),
    )
    return model, schema, optimizers, hotrows_arm.batches_of(args)


def _with_hot(args: Namespace, model, batches: list, ranks) -> dict[str, Placement]:
    """Numbers ids by falling frequency, as `prepare` does, in place; the most frequent rows of all
    tables, as many as fit, are then on every rank."""
    counts = []
    for f, table in enumerate(model.tables):
        views = [batch.ids.view(len(model.tables), -1)[f] for batch in batches]
        count = torch.bincount(torch.cat(views), minlength=table.rows)
        order = count.argsort(descending=True, stable=True)
        new_id = torch.empty_like(order)
        new_id[order] = torch.arange(table.rows)
        for ids in views:
            ids.copy_(new_id[ids])
        counts.append(count[order])
    num_hot = args.hot_rows // (2 * 4 * model.tables[0].dim)  # weights and their Adagrad
    every = torch.cat(counts)
    least = every.topk(min(num_hot, len(every))).values[-1] if num_hot else every.max() + 1
    placed = uniform("rows", model.tables, ranks.num_ranks)
    return {
        table.name: replace(placed[table.name], hot=int((count >= least.clamp(min=1)).sum()))
        for table, count in zip(model.tables, counts, strict=True)
    }


if __name__ == "__main__":
    main()
