"""Does this tree train what another commit trains, to the last bit?

    python -m benchmarks.same_bits --base main~3
    python -m benchmarks.same_bits --base main~3 --only ranks,device --steps 20 --jobs 2

Makes a throw-away git worktree of the commit, trains every scenario there and here, each in a process
of its own, and compares the sha256 of all rows (weights and optimizer state, by table), of all
parameters and of the metrics; of other scenarios (benchmarks/same_files.py) those of the files that they
write. Prints a line per scenario; exits with 1 where any of them differ.

A tree trains with its own copy of this file, which may name its own modules: when those are renamed,
rename them here, and leave data, models and settings as they are. Rows are read through the command
line, so that names are those that users see. One thread: sums of several may be cut elsewhere.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor, nn

import hotrows
from hotrows.cli import main as command_line
from hotrows.data import EncodedData

ROOT = Path(__file__).resolve().parents[1]
STEPS, BATCH = 60, 64
Digests = dict[str, str]  # sha256 by what it is of: "C1.weight", "mlp.0.bias", "test"


def clicks(folder: Path) -> EncodedData:
    """Synthetic clicks in Criteo's format: 26 features of one id, some 27,000 rows in all."""
    run_command("synth", "criteo", "--rows", "12000", "--out", folder / "raw")
    run_command(
        "prepare", folder / "raw" / "train.txt", "--schema", "criteo", "--min-count", "1",
        "--out", folder / "data",
    )  # fmt: skip
    return EncodedData.open(folder / "data")


def histories(folder: Path) -> EncodedData:
    """Users, items, and the items that each user has clicked on before."""
    rng, n = np.random.default_rng(0), 6_000
    user, item = rng.integers(3_000, size=n), rng.zipf(1.3, n) % 2_000
    history = [rng.zipf(1.3, rng.integers(1, 20)) % 2_000 for _ in range(n)]
    click = rng.random(n) < 0.2 + 0.5 * (item % 3 == user % 3)
    columns = {"click": click.astype(int), "age": rng.normal(40, 9, n), "user": user, "item": item}
    past = hotrows.Sequence("history", vocabulary="item", max_length=12)
    age = hotrows.Dense("age", transform="standard")
    features = (age, hotrows.Sparse("user"), hotrows.Sparse("item"), past)
    schema = hotrows.Schema(features, label="click")
    table = pa.table({**columns, "history": history})
    return hotrows.prepare(table, schema, folder / "data", split="position:0.8,0.1,0.1")


def in_memory(folder: Path, steps: int, seed: int) -> Digests:
    config = settings("dlrm", steps, seed, checkpoint_every=7, full_every=3, clip_norm=1.0)
    return fit(clicks(folder), config, folder / "run")


def host_cache(folder: Path, steps: int, seed: int) -> Digests:
    row_optimizer = hotrows.LazyAdam(lr=0.01)
    config = settings(
        "deepfm", steps, seed, fast_memory=500_000, pack_parts=2, row_optimizer=row_optimizer
    )
    return fit(clicks(folder), config, folder / "run")


def file_store(folder: Path, steps: int, seed: int) -> Digests:
    """DIN, interrupted midway and resumed. A file store exports weights; what state there was shows in
    them, as rows are trained again and again."""
    data, run = histories(folder), folder / "run"
    config = settings(
        "din", steps, seed, fast_memory=60_000, store=f"file:{folder / 'rows'}",
        checkpoint_every=max(steps // 4, 1), evaluate_every=steps,
    )  # fmt: skip

    def interrupt(progress: Any) -> None:
        if progress.stage == "train" and progress.done == max(steps // 2, 1):
            os.kill(os.getpid(), signal.SIGINT)

    with suppress(KeyboardInterrupt):
        hotrows.Trainer(data, config, run, progress=interrupt).fit()
        raise AssertionError("the run was not interrupted: it needs two steps or more")
    hotrows.Trainer(data, config, run, resume=True).fit()
    run_command("export", run, "--checkpoint", "last", "--out", folder / "model")
    dense = digests_of(run / "checkpoints" / f"step-{steps}", run)
    return digests_of(folder / "model", run) | dense


def ranks(folder: Path, steps: int, seed: int) -> Digests:
    from hotrows.distributed.in_process import run  # a path that commits before the moves have, too

    data = clicks(folder)
    # Threads of one process share its random numbers: nothing is drawn, and their state is left out.
    config = settings("dlrm", steps, seed, dropout=0.0, micro_batches=2, sharding="rows")
    run(lambda rank: hotrows.Trainer(data, config, folder / "run", ranks=rank).fit(), 2)
    digests = exported(folder / "run")
    del digests["trainer.random_state"]
    return digests


def device(folder: Path, steps: int, seed: int) -> Digests:
    from tests.support.pretend import gpu

    config = settings("dlrm", steps, seed, device="cuda", fast_memory=250_000)
    with gpu():
        return fit(clicks(folder), config, folder / "run")


def bfloat16(folder: Path, steps: int, seed: int) -> Digests:
    config = settings(
        "dlrm", steps, seed, table_dtype="bfloat16", row_optimizer=hotrows.RowWiseAdagrad(lr=0.05)
    )
    return fit(clicks(folder), config, folder / "run")


def accelerated(folder: Path, steps: int, seed: int) -> Digests:
    """A model of plain PyTorch whose tables live behind a cache, with dense Adam and a look ahead."""
    torch.manual_seed(seed)
    model = PlainDeepFM([4_000, 3_000, 2_000, 500, 50], dim=8)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=1e-5)
    hotrows.accelerate(model, optimizer, fast_memory=200_000)
    draw = torch.Generator().manual_seed(seed)
    skewed = torch.rand(steps, BATCH, len(model.rows), generator=draw) ** 4
    batches = [(ids, (ids.sum(1) % 3 == 0).float()) for ids in (skewed * model.rows).long()]
    for ids, labels in hotrows.lookahead(batches, model):
        loss = nn.functional.binary_cross_entropy_with_logits(model(ids), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    digests = {name: digest(value) for name, value in model.state_dict().items()}
    names, state = [name for name, _ in model.named_parameters()], optimizer.state_dict()["state"]
    for k, values in state.items():
        digests |= {f"{names[k]}.{name}": digest(value) for name, value in values.items()}
    return digests


class PlainDeepFM(nn.Module):
    def __init__(self, rows: Sequence[int], dim: int) -> None:
        super().__init__()
        self.rows = torch.tensor(rows)
        self.vectors = nn.ModuleList(nn.Embedding(n, dim) for n in rows)
        self.weights = nn.ModuleList(nn.Embedding(n, 1) for n in rows)
        self.deep = nn.Sequential(nn.Linear(len(rows) * dim, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, ids: Tensor) -> Tensor:
        vectors = torch.stack([table(ids[:, f]) for f, table in enumerate(self.vectors)], 1)
        first = torch.cat([table(ids[:, f]) for f, table in enumerate(self.weights)], 1).sum(1)
        pairs = (vectors.sum(1) ** 2 - (vectors**2).sum(1)).sum(1) / 2
        return self.deep(vectors.flatten(1)).squeeze(1) + first + pairs


TRAININGS: dict[str, Callable[[Path, int, int], Digests]] = {
    "in-memory": in_memory,
    "host-cache": host_cache,
    "file-store": file_store,
    "ranks": ranks,
    "device": device,
    "bfloat16": bfloat16,
    "accelerated": accelerated,
}


def scenarios() -> dict[str, Callable[[Path, int, int], Digests]]:
    """All scenarios by name: trainings, and what writes other files."""
    from benchmarks import same_files  # which calls functions of this file

    return TRAININGS | same_files.SCENARIOS


def settings(
    model: str, steps: int, seed: int, dropout: float = 0.1, **changes: Any
) -> hotrows.TrainConfig:
    layers = {"dlrm": {"bottom": [32], "top": [32]}, "deepfm": {"hidden": [32]}, "din": {}}
    values = {
        "model": model, "model_options": {"dim": 8, "dropout": dropout, **layers[model]},
        "steps": steps, "seed": seed, "batch_size": BATCH, "evaluate_every": max(steps // 2, 1),
        "linear_paths": "plain", "row_optimizer": hotrows.Adagrad(lr=0.05), "in_flight": 2,
    }  # fmt: skip
    return hotrows.TrainConfig(**{**values, **changes})


def fit(data: EncodedData, config: hotrows.TrainConfig, run: Path) -> Digests:
    hotrows.Trainer(data, config, run).fit()
    return exported(run)


def exported(run: Path) -> Digests:
    """All that the last checkpoint of a run holds."""
    folder = run.with_name(f"{run.name}-tables")
    run_command("export", run, "--out", folder, "--checkpoint", "last", "--state")
    return digests_of(folder, run)


def digests_of(folder: Path, run: Path) -> Digests:
    """Of all tensors of exported files, and of the metrics of their run."""
    from safetensors.torch import load_file

    digests = {}
    for path in sorted(folder.rglob("*.safetensors")):
        prefix = f"{path.stem}." if path.parent.name == "tables" or path.stem == "trainer" else ""
        digests |= {f"{prefix}{name}": digest(value) for name, value in load_file(path).items()}
    metrics = json.loads((run / "result.json").read_text())
    parts = {part: json.dumps(metrics[part], sort_keys=True) for part in ("validation", "test")}
    return digests | {f"metrics.{part}": digest(text) for part, text in parts.items()}


def digest(value: Any) -> str:
    """The sha256 of a tensor's bytes, dtype and shape; of anything else, of its text."""
    if not isinstance(value, Tensor):
        return hashlib.sha256(str(value).encode()).hexdigest()
    content = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return hashlib.sha256(f"{value.dtype} {tuple(value.shape)} ".encode() + content).hexdigest()


def run_command(*arguments: str | Path) -> None:
    with redirect_stdout(sys.stderr):
        command_line([str(argument) for argument in arguments])


def train(name: str, steps: int, seed: int = 0) -> Digests:
    """One scenario in this process, in a temporary folder."""
    with tempfile.TemporaryDirectory() as folder:
        return scenarios()[name](Path(folder), steps, seed)


@contextmanager
def worktree(revision: str) -> Iterator[Path]:
    """A throw-away worktree of a commit, with its native core."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        git = ["git", "-C", str(ROOT)]
        subprocess.run([*git, "worktree", "add", "-q", "--detach", tree, revision], check=True)
        try:
            bring_core(tree, revision)
            yield tree
        finally:
            subprocess.run([*git, "worktree", "remove", "--force", tree], check=True)


def bring_core(tree: Path, revision: str) -> None:
    """Copies the native core of this tree, or builds it where its sources are others."""
    cores = [*Path(ROOT, "src", "hotrows", "_native").glob("*.so")]
    diff = ["git", "diff", "--quiet", revision, "--", "csrc", "CMakeLists.txt"]
    if cores and subprocess.run(diff, cwd=ROOT).returncode == 0:
        folder = tree / "src" / "hotrows" / "_native"
        folder.mkdir(exist_ok=True)
        for core in cores:
            shutil.copy(core, folder)
    else:
        subprocess.run([sys.executable, "csrc/build.py"], cwd=tree, check=True, stdout=sys.stderr)


def train_in(tree: Path, name: str, steps: int) -> Digests:
    """One scenario in a fresh process, by the code of a tree."""
    if not (tree / "benchmarks" / "same_bits.py").exists():
        raise SystemExit("same_bits: the base has no benchmarks/same_bits.py; name a later commit")
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.same_bits", "--train", name]
    command += ["--steps", str(steps)]
    threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=tree, capture_output=True, text=True,
        env={**os.environ, **threads, "PYTHONPATH": str(tree / "src")},
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"same_bits: {name} failed in {tree}\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def differences(base: Digests, other: Digests) -> list[str]:
    """The names of what is not equal, or is on one side alone."""
    return [name for name in {**base, **other} if base.get(name) != other.get(name)]


def report(name: str, base: Digests, other: Digests) -> bool:
    """Prints the line of a scenario, and the names of what differs; whether nothing does."""
    unequal = differences(base, other)
    sums = [digest(sorted(digests.items()))[:12] for digests in (base, other)]
    words = f"NO: {len(unequal)} of {len(base)} differ" if unequal else f"yes, all {len(base)}"
    print(f"{name:12} {sums[0]} {sums[1]} {words}", flush=True)
    for k in range(0, len(unequal), 8):
        print(f"    differs: {', '.join(unequal[k : k + 8])}", flush=True)
    return not unequal


def compare(base: Path, other: Path, names: Sequence[str], steps: int, jobs: int = 1) -> bool:
    """Whether two trees train alike; prints a line per scenario."""
    print(f"{'scenario':12} {'base':12} {'here':12} equal")
    pool = ThreadPoolExecutor(jobs)
    try:
        runs = [[pool.submit(train_in, tree, n, steps) for tree in (base, other)] for n in names]
        pairs = zip(names, runs, strict=True)
        equal = [report(name, *(run.result() for run in pair)) for name, pair in pairs]
        return all(equal)
    finally:
        pool.shutdown(cancel_futures=True)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--base", metavar="REV", help="the commit to compare with")
    parser.add_argument("--only", metavar="NAME,...", default=",".join(scenarios()))
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--train", choices=scenarios(), help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    if args.train:
        sys.modules["tensorboard"] = None  # its events take longer
        print(json.dumps(train(args.train, args.steps)))
        return 0
    names = args.only.split(",")
    if not args.base or not set(names) <= scenarios().keys():
        parser.error(f"--base REV; --only takes of {', '.join(scenarios())}")
    if not list(ROOT.glob("src/hotrows/_native/*.so")):
        parser.error("this tree has no native core: python csrc/build.py")
    with worktree(args.base) as base:
        return 0 if compare(base, ROOT, names, args.steps, args.jobs) else 1


if __name__ == "__main__":
    sys.exit(main())
