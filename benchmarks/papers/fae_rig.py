"""The runs of FAE's evidence: whole trainings whose rows cross a link of a stated rate.

DLRM with wide rows and a small dense part, one epoch of synthetic Criteo. Every arm is the `Trainer` as
users run it; only settings differ, and where the rows are. Seconds are those of the wall: profiling and
regrouping where an arm needs them, filling fast memory, every step and every evaluation.
"""

import contextlib
import dataclasses
import functools
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from unittest import mock

import numpy as np
import torch
from hotrows.config import TrainConfig
from hotrows.datasets import schemas
from hotrows.datasets.synthetic import synth_criteo
from hotrows.train.evaluate import evaluate
from hotrows.train.recommender import Recommender

from benchmarks import fae, markdown
from benchmarks.gpu_parts.part import Findings
from benchmarks.link import gather_rate, pace
from benchmarks.papers.part import Setting
from benchmarks.workload import quietest
from hotrows.data import EncodedData, Loader, prepare, profile, regroup
from hotrows.data.hot_cold import Profile, hot_and_cold, row_bytes
from hotrows.optim import SGD
from hotrows.train import Trainer

RATIO = 12  # fast memory over slow memory, as in scratchpipe_rig.py
PCIE = 57  # a V100's memory, 900 GB/s, over PCIe 3.0 of 16 lanes, 15.75 GB/s
ROUNDS = 3
ROWS = 600_000  # of the data, 480,000 of them to train on
SHARE = 0.2  # of the tables' bytes that fast memory has


@dataclass(frozen=True)
class Arm:
    """regrouped: trains on regrouped data; serial: what moves, moves within the step."""

    what: str
    policy: str = "lru"
    regrouped: bool = False
    serial: bool = True
    cached: bool = True


CPU_ONLY, HYBRID, FAE = "all rows in slow memory", "static cache", "FAE"
OURS, OURS_REGROUPED, FAST = "ours", "ours, regrouped data", "all rows in fast memory"
ARMS = {
    CPU_ONLY: Arm("every row of a batch crosses the link, there and back, within the step"),
    HYBRID: Arm("the most popular rows stay in fast memory; all others cross within the step", "hot"),
    FAE: Arm("all-hot and cold batches in blocks; rows of cold ones cross within the step", "hot", True),
    OURS: Arm("looks ahead; rows cross while others train", "lookahead", serial=False),
    OURS_REGROUPED: Arm("the same on regrouped data", "lookahead", True, False),
    FAST: Arm("no link: the floor", cached=False),
}


def config_of(setting: Setting, batch_size: int) -> TrainConfig:
    dim, hidden = setting.pick(64, 8), setting.pick(64, 8)
    return TrainConfig(
        model="dlrm",
        model_options={"dim": dim, "bottom": [hidden], "top": [hidden]},
        batch_size=batch_size,
        row_optimizer=SGD(0.05),
        evaluate_every=1 << 30,  # at the end alone, and where the schedule asks
        linear_paths="plain",
    )


def data_of(setting: Setting, rows: int = ROWS) -> EncodedData:
    """Synthetic Criteo, encoded; that of whole runs is kept."""
    return _small_data()[0] if setting.small else fae.encoded(torch.get_num_threads(), rows)


@functools.cache
def _small_data() -> tuple[EncodedData, tempfile.TemporaryDirectory]:
    """A few samples, and the folder that they are in as long as this process runs."""
    folder = tempfile.TemporaryDirectory()
    text = synth_criteo(4000, Path(folder.name))
    schema = schemas.with_min_count(schemas.BY_NAME["criteo"], 2)
    out = Path(folder.name) / "enc"
    return prepare([text], schema, out, split="position:0.8,0.1,0.1"), folder


@dataclass(frozen=True)
class Layout:
    """Fast memory of a comparison, and the data regrouped for it."""

    fast_memory: int
    stride: int
    profile: Profile
    regrouped: EncodedData
    seconds: dict[str, float]
    rate: float  # of the link, bytes a second

    def facts(self) -> dict:
        hot, cold = hot_and_cold(self.regrouped)
        return {
            "link_gb_per_s": self.rate / 1e9,
            "fast_memory_mb": self.fast_memory / 1e6,
            "hot_rows": self.profile.hot_rows,
            "all_hot_samples": hot.rows / (hot.rows + cold.rows),
            "hot_lookups": self.profile.lookups.value,
            **{f"{name}_seconds": seconds for name, seconds in self.seconds.items()},
        }


@contextlib.contextmanager
def laid_out(
    setting: Setting, data: EncodedData, config: TrainConfig, ratio: float = RATIO
) -> Iterator[Layout]:
    """Profiles and regroups; the hot set leaves room in fast memory for the other rows of a batch.

    ratio: of the rate of fast memory to that of the link.
    """
    embedding = Recommender(config, data.schema).embedding
    stride = embedding.num_bytes // sum(pack.rows for pack in embedding.packs)
    slots = int(SHARE * embedding.num_bytes) // stride
    batch = next(iter(Loader(data.parts["train"], config.batch_size, seed=config.seed).batches(0)))
    distinct = sum(rows.unique().numel() for rows in embedding.planner.rows(batch))
    hot_slots = slots - min(slots // 2, 2 * distinct)
    bytes_per_row = row_bytes(embedding.tables, data.schema, config.row_optimizer)
    records = torch.zeros(setting.pick(1 << 29, 1 << 16) // stride, stride, dtype=torch.uint8)
    rate, _ = quietest(partial(gather_rate, records, setting.pick(1.5, 0.01)))
    rate /= ratio
    del records
    with tempfile.TemporaryDirectory(dir=data.path.parent) as folder:
        begin = time.perf_counter()
        found = profile(data, bytes_per_row=bytes_per_row, fast_memory=hot_slots * stride)
        profiled = time.perf_counter()
        hot = regroup(data, found, Path(folder) / "hot", force=True)
        seconds = {"profile": profiled - begin, "regroup": time.perf_counter() - profiled}
        yield Layout(slots * stride, stride, found, hot, seconds, rate)


def train(arm: Arm, data: EncodedData, layout: Layout, config: TrainConfig) -> dict:
    """One whole training, and where its seconds went."""
    if arm.cached:
        none = arm.what == ARMS[CPU_ONLY].what
        config = dataclasses.replace(
            config, fast_memory=layout.stride if none else layout.fast_memory, policy=arm.policy
        )
    if arm.serial and arm.cached:
        config = dataclasses.replace(config, plan_depth=0, in_flight=1)
    hot = {name: torch.from_numpy(ids) for name, ids in layout.profile.hot.items()}
    trained = layout.regrouped if arm.regrouped else data
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(dir=data.path.parent))
        stack.enter_context(mock.patch("hotrows.train.telling.pictures.draw_run", lambda _: None))
        stack.enter_context(mock.patch("hotrows.engine.read_through._LEAST_CHUNK", 1 << 16))
        if arm.policy == "hot" and not arm.regrouped:  # the trainer takes this policy with regrouped data
            stack.enter_context(mock.patch("hotrows.train.loop.step_trainer.popular_ids", lambda *_: hot))
        trainer = Trainer(trained, config, Path(folder) / "run")
        link = pace(trainer.embedding, layout.rate) if trainer.cached_tables else None
        timed = _Timed(trainer)
        begin, cpu = time.perf_counter(), time.process_time()
        result = trainer.fit(evaluate=timed)
        seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu
        shutil.rmtree(trainer.run)
    before = sum(layout.seconds.values()) if arm.regrouped else 0.0
    before += layout.seconds["profile"] if arm.policy == "hot" and not arm.regrouped else 0.0
    return {
        "what": arm.what,
        "seconds": before + seconds,
        "before_seconds": before,
        "cpu_seconds": cpu,
        "evaluation_seconds": timed.seconds,
        "evaluations": timed.num,
        "training_seconds": data.parts["train"].rows / result.samples_per_second,
        "link_seconds": link.busy_seconds if link else 0.0,
        "link_mb": link.num_bytes / 1e6 if link else 0.0,
        "auc": result.test.auc,
        "log_loss": result.test.log_loss,
    }


class _Timed:
    """Evaluations of a trainer, and their seconds."""

    def __init__(self, trainer: Trainer) -> None:
        self._evaluate = partial(evaluate, trainer.recommender)
        self.seconds, self.num = 0.0, 0

    def __call__(self, *arguments):
        begin = time.perf_counter()
        metrics = self._evaluate(*arguments)
        self.seconds, self.num = self.seconds + time.perf_counter() - begin, self.num + 1
        return metrics


def run_arms(
    findings: Findings,
    setting: Setting,
    data: Callable[[], EncodedData],
    config: TrainConfig,
    prefix: str = "",
    ratio: float = RATIO,
) -> None:
    """Adds the training of each arm to the findings, under prefix + its name.

    Arms take turns, round after round, and the round of the median counts.
    """
    if all(findings.has(prefix + name) for name in ARMS):
        return
    with laid_out(setting, data(), config, ratio) as layout:
        facts = {**layout.facts(), "batch_size": config.batch_size, "ratio": ratio}
        rounds: dict[str, list[dict]] = {name: [] for name in ARMS}
        for _ in range(setting.pick(ROUNDS, 1)):
            for name, arm in ARMS.items():
                run = partial(train, arm, data(), layout, config)
                figures, others = quietest(run, setting.pick(2, 1), 0.2)
                rounds[name].append({**figures, "other_cores": others, **facts})
    for name, found in rounds.items():
        in_order = sorted(found, key=lambda figures: figures["seconds"])
        seconds = [figures["seconds"] for figures in found]
        findings.add(prefix + name, {**in_order[len(in_order) // 2], "rounds": seconds})


def table_of_groups(head: str, arms: dict[str, dict]) -> str:
    """A line for each group of arms, "GROUP: ARM": seconds in all, and in brackets how many times faster
    than `all rows in slow memory` and than the static cache."""
    lines = []
    for group in dict.fromkeys(name.split(": ")[0] for name in arms):
        here = {name: arms[f"{group}: {name}"] for name in ARMS if f"{group}: {name}" in arms}
        cells = [
            f"{here[name]['seconds']:.1f} ({over(here, CPU_ONLY, name)}, {over(here, HYBRID, name)})"
            if name in here
            else ""
            for name in ARMS
        ]
        lines.append([group, percent(next(iter(here.values()))["all_hot_samples"]), *cells])
    return f"{markdown.table([head, 'all-hot samples', *ARMS], lines)}\n\n{others_used(arms)}"


def others_used(arms: dict[str, dict]) -> str:
    """How far the seconds are those of a machine of one's own."""
    cores = [arm["other_cores"] for arm in arms.values() if "other_cores" in arm]
    if not cores:
        return "How much of the cores other programs used was not noted."
    return f"Other programs used {min(cores):.2f} to {max(cores):.2f} of the cores meanwhile."


def over(arms: dict[str, dict], base: str, name: str) -> str:
    return f"{arms[base]['seconds'] / arms[name]['seconds']:.2f}" if base in arms else ""


def percent(share: float) -> str:
    return f"{share:.1%}".replace("%", " %")


# ---- what ids are read


def counts_of(data: EncodedData) -> np.ndarray:
    """How often each row of all vocabularies is read in the training part, falling; rows read alone."""
    from hotrows.data.description import row_counts

    counts = np.concatenate(list(row_counts(data).values()))
    return np.sort(counts[counts > 0])[::-1]


def num_bytes(data: EncodedData, stride: int = 256) -> dict[str, int]:
    """Bytes of a row, by vocabulary: one table each, 64 float32."""
    from hotrows.data.encode.encoder import readers_of

    return dict.fromkeys(readers_of(data.schema), stride)
