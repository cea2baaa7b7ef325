"""Does `simulate --store file --disk measured` say how fast training will be?

    python -m benchmarks.advisor predict       # results/advisor-predicted.json; commit it before the next
    python -m benchmarks.advisor measure       # results/advisor.json

Twenty settings: five jobs, each with 5, 10, 20 and 40 % of its tables in fast memory and all rows in a
file store. What is predicted and measured is a long run: epochs after the first. `predict` replays four
epochs, of which the first is left out, and measures the disk, training in memory, and training behind
caches whose store is in memory; nothing is trained from a file. `measure` trains an epoch from a file,
untimed, behind each cache, and times what follows, with the checkpoints and merges that a run has.
Between them it measures training in memory again: what the machine itself has changed since. No figure
of the model was chosen by these settings.
"""

import argparse
import dataclasses
import gc
import json
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

import hotrows
from benchmarks.harness import RESULTS, conditions, write
from benchmarks.workload import CRITEO_KAGGLE, DATA
from hotrows.data import EncodedData
from hotrows.data.encode.writing import write_encoded
from hotrows.engine.distributed.comm import OneRank
from hotrows.engine.planning.policy import SIMULATED
from hotrows.optim import Adagrad, RowWiseAdagrad
from hotrows.tools.tuning.advice import advise
from hotrows.tools.tuning.benchmark import TimedTraining
from hotrows.tools.tuning.cache_simulation import simulate
from hotrows.tools.tuning.measured_speed import measured_speed
from hotrows.train.config import TrainConfig
from hotrows.train.start.defaults import settle

SHARES = (0.05, 0.1, 0.2, 0.4)
EPOCH, EPOCHS = 150, 4  # batches
TIMED, LEAST = 20.0, 75  # seconds that are timed about, and steps at least
WARM_UP, WINDOW = 1.5, 2.0  # seconds in memory
AIM = 0.1


@dataclasses.dataclass(frozen=True)
class Job:
    """A model and a stream of fresh samples: ids by a power law, popular rows scattered."""

    model: str
    rows: int  # of all tables together
    criteo: bool  # 26 tables in the proportions of Criteo Kaggle; else of equal size
    exponent: float
    batch_size: int
    dim: int = 16
    rowwise: bool = False
    table_dtype: str = "float32"

    @property
    def config(self) -> TrainConfig:
        return TrainConfig(
            model=self.model,
            model_options={} if self.model == "lr" else {"dim": self.dim},
            row_optimizer=RowWiseAdagrad() if self.rowwise else Adagrad(),
            table_dtype=self.table_dtype,
            batch_size=self.batch_size,
        )


JOBS = {
    "dlrm, small batches": Job("dlrm", 2_000_000, False, 0.8, 768, dim=32),
    "deepfm, bfloat16": Job("deepfm", 3_000_000, True, 0.7, 1536, table_dtype="bfloat16"),
    "dcnv2, row-wise": Job("dcnv2", 2_400_000, False, 0.9, 1024, dim=24, rowwise=True),
    "fm": Job("fm", 3_000_000, False, 0.65, 1280, dim=12),
    "lr, Criteo's tables": Job("lr", 3_000_000, True, 0.6, 2048),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("predict", "measure"))
    parser.add_argument("--jobs", nargs="+", choices=JOBS, default=JOBS, help="only these")
    args = parser.parse_args()
    torch.set_num_threads(2)
    facts = {"question": __doc__.splitlines()[0], "batches": EPOCH, "epochs": EPOCHS} | conditions(2)
    if args.what == "predict":
        for name in args.jobs:
            jobs = {**predicted_before(), name: predict(name)}
            write("advisor-predicted", {**facts, "jobs": jobs})
        return
    figures = measured_before()
    for name in args.jobs:
        figures[name] = measure(name)
        settings = [setting for job in figures.values() for setting in job]
        off = [setting["measured"] / setting["predicted"] - 1 for setting in settings]
        of_ratios = [setting["ratio_measured"] / setting["ratio_predicted"] - 1 for setting in settings]
        counts = {
            "of": len(settings),
            "within": sum(abs(share) <= AIM for share in off),
            "ratios_within": sum(abs(share) <= AIM for share in of_ratios),
        }
        print(
            f"{counts}; samples/s {min(off):+.1%} to {max(off):+.1%}, "
            f"of memory {min(of_ratios):+.1%} to {max(of_ratios):+.1%}"
        )
        write("advisor", {**facts, **counts, "jobs": figures})


def predicted_before() -> dict[str, dict]:
    """Jobs that were predicted earlier, as they are now."""
    jobs = {name: dataclasses.asdict(job) for name, job in JOBS.items()}
    return {name: said for name, said in _predictions().items() if said["job"] == jobs.get(name)}


def measured_before() -> dict[str, list[dict]]:
    """Jobs that were measured after the same predictions."""
    if not (RESULTS / "advisor.json").exists():
        return {}
    measured = json.loads((RESULTS / "advisor.json").read_text())["jobs"]
    predicted = _predictions()
    return {
        name: settings
        for name, settings in measured.items()
        if name in predicted
        and [s["predicted"] for s in settings] == list(predicted[name]["predicted"].values())
    }


def _predictions() -> dict[str, dict]:
    return json.loads((RESULTS / "advisor-predicted.json").read_text())["jobs"]


def predict(name: str) -> dict:
    """Samples/s of each size, as the advisor says before anything is trained behind a cache."""
    job, data = JOBS[name], stream(JOBS[name])
    speed, slow = measured_speed(data, job.config, DATA)
    probe = simulate(data, job.config, batches=2, fast_memory=[1 << 20], policies={})
    sizes = [int(share * probe.table_bytes) for share in SHARES]
    policies = {"lookahead": SIMULATED["lookahead"]}
    simulation = simulate(
        data, job.config, batches=EPOCHS * EPOCH, fast_memory=sizes, policies=policies, in_file=True
    )
    advice = advise(simulation, samples_per_second=speed, slow=slow)
    assert advice.speeds is not None
    predicted = {str(size): share * speed for size, share in advice.speeds.items()}
    print(f"{name}: {speed:,.0f} in memory; " + ", ".join(f"{p:,.0f}" for p in predicted.values()))
    return {
        "job": dataclasses.asdict(job),
        "in_memory": speed,
        "slow": dataclasses.asdict(slow),
        "replayed": [dataclasses.asdict(result) for result in simulation.results("lookahead")],
        "predicted": predicted,
    }


def measure(name: str) -> list[dict]:
    """Samples/s behind each cache, beside what was predicted."""
    job, data = JOBS[name], stream(JOBS[name])
    said = _predictions()[name]
    settings, choices = [], {}
    before = _in_memory(data, job.config, choices)
    for size, predicted in said["predicted"].items():
        with tempfile.TemporaryDirectory(dir=DATA) as folder:
            store = {"fast_memory": int(size), "store": f"file:{Path(folder) / 'store'}"}
            config = dataclasses.replace(job.config, **store)
            figures = _behind_cache(data, config, choices)
        measured, after = figures["measured"], _in_memory(data, job.config, choices)
        in_memory, before = (before + after) / 2, after
        setting = {
            "fast_memory": int(size),
            "predicted": predicted,
            **figures,
            "in_memory_predicted": said["in_memory"],
            "in_memory_beside": in_memory,
            "ratio_predicted": predicted / said["in_memory"],
            "ratio_measured": measured / in_memory,
        }
        settings.append(setting)
        print(
            f"{name}, {int(size) >> 20} MiB: predicted {predicted:,.0f}, measured {measured:,.0f} "
            f"({measured / predicted - 1:+.1%}); in memory {said['in_memory']:,.0f}, "
            f"now {in_memory:,.0f}; of it {setting['ratio_predicted']:.2f}, "
            f"{setting['ratio_measured']:.2f}",
            flush=True,
        )
    return settings


def _in_memory(data: EncodedData, config: TrainConfig, choices: dict) -> float:
    """Samples a second with all rows in memory."""
    training = TimedTraining(data, settle(config, data), OneRank(), choices)
    try:
        training.warm_up(WARM_UP)
        training.window(WARM_UP)
        return training.window(WINDOW)
    finally:
        training.close()
        gc.collect()


def _behind_cache(data: EncodedData, config: TrainConfig, choices: dict) -> dict:
    """Samples a second after the first epoch, and what happened meanwhile."""
    training = TimedTraining(data, settle(config, data), OneRank(), choices)
    try:
        for _ in range(EPOCH):
            training._step()
        (store,) = training._cached_tables.files
        before, logs = store.counters, max(store.generations, default=0)
        steps = samples = 0
        begin = time.perf_counter()
        while steps < LEAST or (steps < 2 * EPOCH and time.perf_counter() - begin < TIMED):
            samples += training._step()
            steps += 1
        seconds = time.perf_counter() - begin
        counted = {name: (n - before[name]) / steps for name, n in store.counters.items()}
        logs = max(store.generations, default=0) - logs
        return {
            "measured": samples / seconds,
            "steps": steps,
            "logs": logs,
            "filled": training.filled,
            "per_step": counted,
        }
    finally:
        training.close()
        gc.collect()


def stream(job: Job) -> EncodedData:
    """The samples of a job, made once."""
    num = EPOCH * job.batch_size
    path = DATA / f"advisor-{job.rows}-{job.criteo}-{job.exponent}-{num}"
    if not path.exists():
        DATA.mkdir(exist_ok=True)
        counts = _table_rows(job)
        schema = hotrows.Schema(
            tuple(hotrows.Dense(f"I{i}") for i in range(13))
            + tuple(hotrows.Sparse(f"C{f}", rows=rows) for f, rows in enumerate(counts)),
            name="advisor",
        )
        write_encoded(path, schema, {"train": _batches(job, counts, num)})
    return EncodedData.open(path)


def _table_rows(job: Job) -> list[int]:
    if not job.criteo:
        return [job.rows // len(CRITEO_KAGGLE)] * len(CRITEO_KAGGLE)
    return [max(int(rows * job.rows / sum(CRITEO_KAGGLE)), 3) for rows in CRITEO_KAGGLE]


def _batches(job: Job, counts: list[int], num: int):
    rng = np.random.default_rng(len(job.model) + job.rows)
    columns = np.stack([_draw(rows, num, job.exponent, rng) for rows in counts])
    names = tuple(f"C{f}" for f in range(len(counts)))
    for begin in range(0, num, 1 << 15):
        ids = columns[:, begin : begin + (1 << 15)]
        dense = np.log1p(rng.exponential(10.0, (ids.shape[1], 13))).astype(np.float32)
        labels = (rng.random(ids.shape[1]) < 0.25).astype(np.float32)
        flat = torch.from_numpy(ids.reshape(-1).copy())
        yield hotrows.Batch(names, flat, torch.from_numpy(dense), torch.from_numpy(labels))


def _draw(rows: int, num: int, exponent: float, rng: np.random.Generator) -> np.ndarray:
    """Rows by a power law, each rank of popularity anywhere in the table."""
    cumulated = np.cumsum(np.arange(1.0, rows + 1) ** -exponent)
    ranks = np.searchsorted(cumulated, rng.random(num) * cumulated[-1])
    return rng.permutation(rows)[np.minimum(ranks, rows - 1)].astype(np.int64)


if __name__ == "__main__":
    main()
