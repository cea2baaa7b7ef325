"""Does regrouping keep accuracy, and what does it cost?

    python -m benchmarks.fae [--seeds N] [--quick]

One epoch of synthetic Criteo, every row in memory: only the order of the samples differs.

    plain         all samples shuffled
    scheduled     all-hot and cold batches in blocks whose length follows the validation loss
    sequential    all cold batches, then all hot ones: the schedule off

A seed sets first values and order. The test part is measured at the end of the epoch, and before its
last batch: that one has the rows that are left over, and however few they are, its step is a whole
one. No checkpoint is chosen. A difference is that of two runs of one seed; its interval is Student's,
over the seeds.
"""

import argparse
import shutil
import tempfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import mean, stdev

import torch
from hotrows.config import TrainConfig
from hotrows.datasets import schemas
from hotrows.datasets.synthetic import synth_criteo
from hotrows.metrics import Metrics
from hotrows.train.evaluate import evaluate as evaluate_part
from hotrows.train.recommender import Recommender

from benchmarks.harness import conditions, write
from hotrows.data import EncodedData, prepare, profile, regroup
from hotrows.data.hot_cold import hot_and_cold, row_bytes
from hotrows.optim import Adagrad
from hotrows.runtime.units import format_bytes
from hotrows.train import Trainer

QUESTION = "Does regrouping keep accuracy, and what does it cost?"
FOLDER = Path(__file__).parent / ".data"
ROWS, MIN_COUNT = 600_000, 2
CONFIG = TrainConfig(
    model="deepfm",
    model_options={"dim": 8, "hidden": [64, 64]},
    batch_size=2048,
    row_optimizer=Adagrad(),
    evaluate_every=1 << 30,  # at the end alone, and where the schedule asks
    linear_paths="plain",
)
ARMS = ("plain", "scheduled", "sequential")
COMPARED = ("auc", "log_loss", "auc_before_last", "log_loss_before_last")
SHARE = 0.2  # of the tables is hot, by bytes
T_95 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262}


def main() -> None:
    parser = argparse.ArgumentParser(description=QUESTION)
    parser.add_argument("--seeds", type=int, choices=T_95, default=10)
    parser.add_argument("--share", type=float, default=SHARE, help="of the tables that is hot")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="two seeds; nothing is written")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    data, num_seeds = encoded(args.threads), 2 if args.quick else args.seeds
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
        hot, layout = regrouped(data, args.share, Path(folder) / "hot")
        print(layout)
        runs = [
            {arm: measure(arm, data, hot, seed, Path(folder) / "run") for arm in ARMS}
            for seed in range(num_seeds)
        ]
    arms = {arm: summarize(arm, runs) for arm in ARMS}
    print(table(arms))
    if not args.quick:
        setting = {"rows": ROWS, "min_count": MIN_COUNT, "share": args.share}
        setting |= {"config": {**vars(CONFIG), "row_optimizer": str(Adagrad())}}
        facts = {"question": QUESTION, **setting, "num_seeds": num_seeds}
        write("fae-accuracy", facts | conditions(args.threads) | {"layout": layout, "arms": arms})


def encoded(threads: int, rows: int = ROWS) -> EncodedData:
    """The data, made once."""
    out = FOLDER / f"fae-{rows}"
    if not out.exists():
        FOLDER.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=FOLDER) as raw:
            text = synth_criteo(rows, Path(raw))
            schema = schemas.with_min_count(schemas.BY_NAME["criteo"], MIN_COUNT)
            prepare([text], schema, out, split="position:0.8,0.1,0.1", threads=threads)
    return EncodedData.open(out)


def regrouped(data: EncodedData, share: float, out: Path) -> tuple[EncodedData, dict]:
    """The data laid out anew, and what that took."""
    embedding = Recommender(CONFIG, data.schema).embedding
    bytes_per_row = row_bytes(embedding.tables, data.schema, CONFIG.row_optimizer)
    begin = time.perf_counter()
    fast_memory = int(share * embedding.num_bytes)
    hot_profile = profile(data, bytes_per_row=bytes_per_row, fast_memory=fast_memory)
    profiled = time.perf_counter()
    hot = regroup(data, hot_profile, out, force=True)
    end = time.perf_counter()
    return hot, {
        "tables": format_bytes(embedding.num_bytes),
        "fast_memory": format_bytes(fast_memory),
        "training_rows": data.parts["train"].rows,
        "all_hot_samples": hot_and_cold(hot)[0].rows / data.parts["train"].rows,
        "all_hot_samples_by_profile": vars(hot_profile.samples),
        "hot_lookups_by_profile": vars(hot_profile.lookups),
        "profile_seconds": profiled - begin,
        "regroup_seconds": end - profiled,
    }


def measure(arm: str, data: EncodedData, hot: EncodedData, seed: int, run: Path) -> dict:
    """One run: how good it is at the end of the epoch, and where its time went."""
    arm_data, config = (data, CONFIG) if arm == "plain" else (hot, replace(CONFIG, hot_cold=arm))
    before_last: list[Metrics] = []

    def look(now):
        if now.stage == "train" and now.done == now.total - 1:
            before_last.append(evaluate(arm_data.parts["test"]))

    trainer = Trainer(arm_data, replace(config, seed=seed), run, progress=look)
    evaluate, seconds = partial(evaluate_part, trainer.recommender), []

    def timed(part, progress):
        begin = time.perf_counter()
        metrics = evaluate(part, progress)
        seconds.extend([time.perf_counter() - begin] if part.name == "validation" else [])
        return metrics

    result = trainer.fit(evaluate=timed)
    shutil.rmtree(run)
    training = arm_data.parts["train"].rows / result.samples_per_second
    figures = {
        "seed": seed,
        "auc": result.test.auc,
        "log_loss": result.test.log_loss,
        "calibration": result.test.calibration,
        "auc_before_last": before_last[0].auc,
        "log_loss_before_last": before_last[0].log_loss,
        "calibration_before_last": before_last[0].calibration,
        "last_batch": _last_batch(arm, trainer.steps.batches.loader),
        "training_seconds": training,
        "evaluation_seconds": sum(seconds),
        "evaluations": len(seconds),
        "evaluation_share": sum(seconds) / (training + sum(seconds)),
    }
    print(f"{arm:11}", *(f"{k} {v:.6g}" for k, v in figures.items()), flush=True)
    return figures


def _last_batch(arm: str, loader) -> int:
    """The samples of the last batch: of the training part, of its hot or of its cold half."""
    last = {"plain": loader, "sequential": "hot", "scheduled": "cold"}[arm]
    last = getattr(loader, last) if isinstance(last, str) else last
    return last.part.rows - (len(last) - 1) * last.batch_size


def summarize(arm: str, runs: list[dict]) -> dict:
    """Means and standard deviations over the seeds, and what differs from plain."""
    runs_of_arm = [by_arm[arm] for by_arm in runs]
    figures: dict = {"runs": runs_of_arm}
    for name in runs_of_arm[0]:
        if name not in (*COMPARED, "seed"):
            figures[name] = mean(one[name] for one in runs_of_arm)
    for name in COMPARED:
        noise = stdev(by_arm["plain"][name] for by_arm in runs)
        more = [by_arm[arm][name] - by_arm["plain"][name] for by_arm in runs]
        half = T_95[len(runs)] * stdev(more) / len(runs) ** 0.5
        low, high = mean(more) - half, mean(more) + half
        figures[name] = {
            "mean": mean(one[name] for one in runs_of_arm),
            "deviation": stdev(one[name] for one in runs_of_arm),
            "more_than_plain": mean(more),
            "interval_95": [low, high],
            "in_seed_noise": mean(more) / noise,
            "interval_95_in_seed_noise": [low / noise, high / noise],
        }
    return figures


def table(arms: dict[str, dict]) -> str:
    lines = []
    for arm, row in arms.items():
        for name in COMPARED:
            m = row[name]
            low, high = m["interval_95_in_seed_noise"]
            lines.append(
                f"{arm:11} {name:20} {m['mean']:.6f} ± {m['deviation']:.6f}  {m['more_than_plain']:+.6f} "
                f"= {m['in_seed_noise']:+.2f} seed deviations ({low:+.2f} to {high:+.2f})"
            )
        lines.append(
            f"{'':11} calibration {row['calibration']:.3f} ({row['calibration_before_last']:.3f} before "
            f"the last batch of {row['last_batch']:.0f}), training {row['training_seconds']:.1f} s, "
            f"{row['evaluations']:.0f} evaluations, {row['evaluation_share']:.1%} of the time"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
