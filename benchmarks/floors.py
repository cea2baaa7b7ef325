"""How close is each model's training step to its floor: matrix work at the measured rate, plus memory?

    python -m benchmarks.floors                     # every model; results/floors.json
    python -m benchmarks.floors din-dim64 --quick

The floor of a step is what this machine needs for the products and the traffic that the step cannot do
without, one after the other, were each done at the best rate measured here in the same run:

    products   forward, and the gradients of both factors; the rate is that of large square ones
    traffic    each product reads its factors and writes its result once, in each of the three; a row is
               read for the lookup, read and written with its state for the update; a looked-up vector
               and its gradient are written and read once; a dense parameter and its state likewise.
               The rate is that of copying a block larger than the caches.

All else is left out: elementwise functions, softmax, gates, sums, planning, batches. What a product is
follows the algorithm: DIN's first layer counts [N, D] by [D, H], and not its four parts.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

import hotrows
from benchmarks import sequences
from benchmarks.arms.hotrows_models import batch_of, build, embedding_of, training_step
from benchmarks.harness import conditions, write
from benchmarks.workload import DEEPFM_DEEP, DIM, DLRM_BOTTOM, DLRM_TOP, WORKLOADS, batches, measure
from hotrows import models
from hotrows.models import nn as layers
from hotrows.models.nn import choose_linear_paths, use_linear_paths
from hotrows.ops.layers import products
from hotrows.runtime import native

QUESTION = __doc__.split("\n")[0]
SEQUENCES: dict[str, dict[str, Any]] = {
    "din": {
        "form": "paper",
        "attention": sequences.ATTENTION,
        "attention_activation": "sigmoid",
        "normalize": True,
        "hidden": sequences.HIDDEN,
        "activation": "relu",
    },
    "dien": {"hidden": sequences.HIDDEN, "activation": "relu", "auxiliary": 0.0},
    "can": {},
}
CRITEO: dict[str, dict[str, Any]] = {
    "lr": {},
    "fm": {},
    "dnn": {},
    "wide_deep": {},
    "deepfm": {"hidden": DEEPFM_DEEP[:-1]},
    "dlrm": {"bottom": DLRM_BOTTOM[:-1], "top": DLRM_TOP[:-1]},
    "dcnv2": {},
    "mmoe": {},
}
CASES = (*CRITEO, *(f"{name}-dim{dim}" for name in SEQUENCES for dim in (16, 64)))


@dataclass
class Work:
    """multiply_adds of a step, and the bytes that it moves."""

    multiply_adds: float = 0
    bytes: float = 0

    def product(self, rows: int, inner: int, columns: int, times: int = 1) -> None:
        """[rows, inner] by [inner, columns], and both gradients."""
        self.multiply_adds += 3 * times * rows * inner * columns
        self.bytes += 3 * 4 * times * (rows * inner + inner * columns + rows * columns)


def main() -> None:
    parser = argparse.ArgumentParser(description=QUESTION)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--windows", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="short windows; nothing is written")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    core = native.load()
    if core is not None:
        core.hotrows_keep_freed_memory()
    rates = {"gflops": _gflops(), "gigabytes_per_second": _bandwidth()}
    print(f"rates: {rates['gflops']:.0f} GFLOP/s, {rates['gigabytes_per_second']:.1f} GB/s")
    rows = {}
    for name in args.cases or CASES:
        rows[name] = _case(name, rates, 2 if args.quick else args.windows)
        print(_line(name, rows[name]), flush=True)
    if not args.quick:
        facts = {"question": QUESTION, "rates": rates, **conditions(args.threads)}
        write("floors", {**facts, "models": rows})


def _case(name: str, rates: dict, windows: int) -> dict:
    kind, _, dim = name.partition("-dim")
    torch.manual_seed(0)
    model, embedding, data = _sequence_case(kind, int(dim)) if dim else _criteo_case(kind)
    batch_size = data[0].size
    use_linear_paths(model, choose_linear_paths(model))
    work = _work(model, embedding, data)
    timing = measure(training_step(model, embedding, data), windows=windows, max_seconds=60)
    ms = timing.median * 1e3
    of_products = 2 * work.multiply_adds / rates["gflops"] / 1e6
    of_traffic = work.bytes / rates["gigabytes_per_second"] / 1e6
    return {
        "batch_size": batch_size,
        "ms": ms,
        "ms_lowest": timing.lowest * 1e3,
        "ms_highest": timing.highest * 1e3,
        "floor_ms": of_products + of_traffic,
        "products_ms": of_products,
        "traffic_ms": of_traffic,
        "gflop": 2 * work.multiply_adds / 1e9,
        "ratio": ms / (of_products + of_traffic),
        "samples_per_s": batch_size / timing.median,
        "other_cores": timing.other_cores,
    }


def _criteo_case(kind: str) -> tuple[models.Model, hotrows.Embedding, list[hotrows.Batch]]:
    workload = WORKLOADS["A"]
    names = tuple(f"C{f}" for f in range(len(workload.num_rows)))
    dense = tuple(hotrows.Dense(f"I{i}") for i in range(workload.num_dense))
    sparse = tuple(hotrows.Sparse(n, rows=r) for n, r in zip(names, workload.num_rows, strict=True))
    label = ("click", "buy") if kind == "mmoe" else "label"
    schema = hotrows.Schema((*dense, *sparse), label=label)
    options = CRITEO[kind] | ({} if kind == "lr" else {"dim": DIM})
    model = models.build(kind, schema, **options)
    data = []
    for batch in batches(workload, workload.batch_size):
        labels = torch.from_numpy(batch.labels)
        labels = torch.stack([labels, labels], 1) if kind == "mmoe" else labels
        ids, dense_values = torch.from_numpy(batch.ids).reshape(-1), torch.from_numpy(batch.dense)
        data.append(hotrows.Batch(names, ids, dense_values, labels))
    return model, hotrows.Embedding.for_model(model, schema, optimizer=hotrows.Adagrad()), data


def _sequence_case(kind: str, dim: int) -> tuple[models.Model, hotrows.Embedding, list[hotrows.Batch]]:
    data = [batch_of(sequences.FEATURES, samples) for samples in sequences.batches_of()]
    model = build(kind, sequences.FEATURES, dim, **SEQUENCES[kind])
    return model, embedding_of(model, sequences.FEATURES, hotrows.Adagrad()), data


def _work(model: models.Model, embedding: hotrows.Embedding, data: list[hotrows.Batch]) -> Work:
    """Of a mean step: counted where the layers are called, on four batches."""
    work, handles = Work(), []
    within = {id(m) for mlp in model.modules() if isinstance(mlp, layers.MLP) for m in mlp.layers}
    for module in model.modules():
        count_of = next((count for kind, count in _COUNTED.items() if isinstance(module, kind)), None)
        if count_of is not None and id(module) not in within:
            handles.append(module.register_forward_hook(_counter(count_of, work)))
    some = data[:4]
    for batch in some:
        plan = embedding.plan(batch)
        vectors = embedding.lookup(plan)
        model(vectors, batch.dense)
        for part, leaf, store in zip(plan.packs, vectors.leaves, embedding.stores, strict=True):
            width = leaf.shape[1]
            work.bytes += part.num_rows * (4 * width + 2 * store.layout.stride)
            work.bytes += 4 * leaf.numel() * 4
    for handle in handles:
        handle.remove()
    mean = Work(work.multiply_adds / len(some), work.bytes / len(some))
    mean.bytes += 7 * 4 * sum(p.numel() for p in model.parameters())  # Adam
    return mean


def _counter(count_of: Callable, work: Work) -> Callable:
    return lambda module, inputs, output: count_of(work, module, *inputs)


def _mlp(work: Work, mlp, x, *_) -> None:
    for layer in mlp.layers:
        work.product(len(x), layer.in_features, layer.out_features)


def _linear(work: Work, layer, x) -> None:
    work.product(x.numel() // layer.in_features, layer.in_features, layer.out_features)


def _target(work: Work, attention, queries, keys, offsets) -> None:
    width, inner = attention.first.weight.shape[0], attention.first.weight.shape[1] // 4
    work.product(len(keys), inner, width)


def _recurrent(work: Work, layer, x, *others) -> None:
    work.product(len(x), layer.input_size, 3 * layer.hidden_size)
    work.product(len(x), layer.hidden_size, 3 * layer.hidden_size)


def _co_action(work: Work, layer, weights, inputs, offsets) -> None:
    per_order = layer.num_parameters(layer.sizes, 1)
    work.multiply_adds += 3 * len(inputs) * layer.orders * per_order
    work.bytes += 3 * 4 * (weights.numel() + inputs.numel())


def _grouped(work: Work, grouped, x) -> None:
    if x.dim() == 2:
        work.product(len(x), grouped.first.in_features, grouped.first.out_features)
    else:
        sizes = x.shape[1], x.shape[2], grouped.first.out_features // len(x)
        work.product(*sizes, times=len(x))
    for weight in grouped.weights:
        work.product(x.shape[-2], weight.shape[1], weight.shape[2], times=grouped.num_groups)


def _dot(work: Work, layer, bottom, vectors) -> None:
    size, count_, width = vectors.shape
    work.multiply_adds += 3 * size * (count_ + 1) * count_ / 2 * width
    work.bytes += 3 * 4 * (vectors.numel() + size * (count_ + 1) * count_ / 2)


_COUNTED: dict[type[nn.Module], Callable] = {
    layers.GroupedMLP: _grouped,
    layers.MLP: _mlp,
    layers.TargetAttention: _target,
    layers.GRU: _recurrent,
    layers.AttentionalGRU: _recurrent,
    layers.CoAction: _co_action,
    layers.DotInteraction: _dot,
    nn.Linear: _linear,
}


def _gflops() -> float:
    """The best rate of a large square product, by any path."""
    x, weight = torch.randn(4096, 1024), torch.randn(1024, 1024)
    names = products.paths_for("forward")
    runs = [lambda path=products.FORWARD[name]: path(x, weight, None, False) for name in names]
    return max(2 * x.numel() * 1024 / _shortest(run, 15) / 1e9 for run in runs)


def _bandwidth() -> float:
    """Bytes read and written by a copy of 256 MiB."""
    source = torch.ones(64 << 20)
    target = torch.empty_like(source)
    return 2 * 4 * source.numel() / _shortest(lambda: target.copy_(source), 10) / 1e9


def _shortest(run: Callable[[], Any], times: int) -> float:
    seconds = []
    for _ in range(times):
        begin = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - begin)
    return min(seconds)


def _line(name: str, row: dict) -> str:
    busy = "" if row["other_cores"] < 0.12 else f"  others used {row['other_cores']:.2f} cores"
    return (
        f"{name:12} {row['ms']:8.1f} ms  floor {row['floor_ms']:7.1f} (products "
        f"{row['products_ms']:.1f}, traffic {row['traffic_ms']:.1f})  ratio {row['ratio']:.2f}{busy}"
    )


if __name__ == "__main__":
    main()
