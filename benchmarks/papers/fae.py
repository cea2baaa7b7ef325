"""FAE: what the paper claims, measured."""

import contextlib
import dataclasses
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from hotrows.datasets import schemas
from hotrows.train.recommender import Recommender

from benchmarks import fae as accuracy
from benchmarks import figures, markdown
from benchmarks.accuracy_data import RAW
from benchmarks.gpu_parts.part import Findings
from benchmarks.papers import fae_recipes, fae_rig
from benchmarks.papers.fae_rig import CPU_ONLY, HYBRID, OURS, others_used, over, percent, table_of_groups
from benchmarks.papers.part import Paper, Part, Setting
from hotrows.data import EncodedData, prepare, profile, regroup
from hotrows.data.hot_cold import hot_and_cold
from hotrows.data.hot_cold.profile import all_hot, choose, row_bytes
from hotrows.data.hot_cold.sampling import Sample, count_accesses

BATCH = 2048
BATCHES = (1024, 8192, 32_768)  # and 2,048 in `speed`
BUDGETS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
ROW_BYTES = 256  # 64 float32, for figures of data sets alone


# ---- whole trainings


def run_speed(findings: Findings, setting: Setting) -> None:
    _run_arms(findings, setting, setting.pick(BATCH, 256), "")


def run_links(findings: Findings, setting: Setting) -> None:
    batch_size = setting.pick(BATCH, 256)
    _run_arms(findings, setting, batch_size, f"1/{fae_rig.PCIE}: ", ratio=fae_rig.PCIE)


def run_batches(findings: Findings, setting: Setting) -> None:
    for batch_size in setting.pick(BATCHES, (512,)):
        _run_arms(findings, setting, batch_size, f"{batch_size:,}: ")


def _run_arms(findings: Findings, setting: Setting, batch_size: int, prefix: str, **options: Any) -> None:
    config = fae_rig.config_of(setting, batch_size)
    fae_rig.run_arms(findings, setting, lambda: fae_rig.data_of(setting), config, prefix, **options)


def speed_table(arms: dict[str, dict]) -> str:
    lines = []
    for name, arm in arms.items():
        lines.append([
            f"**{name}**" if name.startswith(OURS) else name, f"{arm['seconds']:.1f}",
            over(arms, CPU_ONLY, name), over(arms, HYBRID, name), f"{arm['before_seconds']:.1f}",
            f"{arm['training_seconds']:.1f}", f"{arm['evaluation_seconds']:.1f} ({arm['evaluations']})",
            f"{arm['link_seconds']:.1f}", f"{arm['link_mb']:,.0f}", f"{arm['auc']:.4f}",
        ])  # fmt: skip
    head = ["arm", "seconds in all", "over all in slow memory", "over the static cache",
            "profile, regroup", "training", "evaluations", "link busy", "MB moved", "AUC"]  # fmt: skip
    one = next(iter(arms.values()))
    note = (
        f"Batches of {one['batch_size']:,}. Link: {one['link_gb_per_s']:.2f} GB/s, 1/{fae_rig.RATIO} of "
        f"the rate at which rows are gathered from fast memory here. Fast memory: "
        f"{one['fast_memory_mb']:.0f} MB, a fifth of the tables; {one['hot_rows']:,} hot rows serve "
        f"{percent(one['hot_lookups'])} of the lookups, {percent(one['all_hot_samples'])} of the "
        f"samples are all-hot. {others_used(arms)}"
    )
    return f"{markdown.table(head, lines)}\n\n{note}"


def links_table(arms: dict[str, dict]) -> str:
    return table_of_groups("link, of fast memory's rate", arms)


def batches_table(arms: dict[str, dict]) -> str:
    return table_of_groups("batch", arms)


# ---- data sets


@contextlib.contextmanager
def _sets(setting: Setting) -> Iterator[dict[str, EncodedData]]:
    """The data sets that there are; those of other licences lie beside the checkout."""
    from hotrows import datasets

    with tempfile.TemporaryDirectory() as folder:
        sets = {"synthetic Criteo": fae_rig.data_of(setting)}
        files = {"Criteo": ("criteo_kaggle_10k.tsv", "criteo"), "Avazu": ("avazu_14k.csv", "avazu")}
        for name, (file, schema) in files.items() if not setting.small else ():
            if (RAW / file).exists():
                out = Path(folder) / name
                split = "position:0.8,0.1,0.1"
                sets[name] = prepare([RAW / file], schemas.BY_NAME[schema], out, split=split)
        if not setting.small and (RAW / "movielens_1m_ratings.csv.gz").exists():
            out = Path(folder) / "movielens"
            sets["MovieLens-1M"] = datasets.prepare(datasets.BY_NAME["movielens_1m"], RAW, out)
        yield sets


def run_share(findings: Findings, setting: Setting) -> None:
    """The share of samples whose every lookup is hot."""
    with _sets(setting) as sets:
        for name, data in sets.items():
            for budget in BUDGETS:
                key = f"{name}: {budget:.0%}"
                if findings.has(key):
                    continue
                per_row = fae_rig.num_bytes(data, ROW_BYTES)
                total = _table_bytes(data)
                found = profile(data, bytes_per_row=per_row, fast_memory=int(budget * total), sample=0.5)
                samples, hot = data.parts["train"], all_hot(found.hot, data.schema)
                num = sum(int(hot(rows).sum()) for rows in samples.mapped(0, samples.rows))
                findings.add(
                    key,
                    {
                        "samples": samples.rows,
                        "rows": total // ROW_BYTES,
                        "all_hot": num / samples.rows,
                        "hot_lookups": found.lookups.value,
                    },
                )


def _table_bytes(data: EncodedData) -> int:
    from hotrows.data.encode.encoder import readers_of

    rows = (data.schema.rows_of(readers[0].name) for readers in readers_of(data.schema).values())
    return ROW_BYTES * sum(rows)


def share_table(arms: dict[str, dict]) -> str:
    lines = []
    for name in dict.fromkeys(key.split(": ")[0] for key in arms):
        here = [arms.get(f"{name}: {budget:.0%}") for budget in BUDGETS]
        first = next(arm for arm in here if arm)
        cells = [
            f"{percent(arm['all_hot'])} ({percent(arm['hot_lookups'])})" if arm else "" for arm in here
        ]
        lines.append([name, f"{first['samples']:,}", f"{first['rows']:,}", *cells])
    heads = [f"{budget:.0%}".replace("%", " %") for budget in BUDGETS]
    return markdown.table(["data", "samples", "rows", *heads], lines)


def run_skew(findings: Findings, setting: Setting) -> None:
    """How much more often the most read rows are read than others, and a picture of it."""
    with _sets(setting) as sets:
        counts = {name: fae_rig.counts_of(data) for name, data in sets.items()}
    for name, falling in counts.items():
        cumulated = falling.cumsum() / falling.sum()
        findings.add(
            name,
            {
                "rows": len(falling),
                "most": int(falling[0]),
                "median": int(np.median(falling)),
                "over_median": float(falling[0] / np.median(falling)),
                "over_mean_of_lower_half": float(falling[0] / falling[len(falling) // 2 :].mean()),
                **{
                    f"top_{share:g}": float(cumulated[max(int(share * len(falling)) - 1, 0)])
                    for share in (0.001, 0.01, 0.1)
                },
            },
        )
    if setting.pictures is not None:
        _draw_skew(counts, setting.pictures / "skew.png")


def _draw_skew(counts: dict[str, np.ndarray], path: Path) -> None:
    colors = (figures.BLUE, figures.ORANGE, figures.GREEN, figures.GRAY)
    figure = figures.new_figure(8.0, 4.2)
    with figures.style():
        axes = figure.subplots()
        for (name, falling), color in zip(counts.items(), colors, strict=False):
            places = np.unique(np.geomspace(1, len(falling), 300).astype(int)) - 1
            axes.loglog(places + 1, falling[places] / falling.min(), color=color, label=name)
        axes.axhline(1e4, color="#22252a", linewidth=1, linestyle=":", label="10,000 times")
        axes.set_xlabel("rows, the most read first")
        axes.set_ylabel("lookups, times those of the least read row")
        axes.legend()
        figures.set_title(figure, "Few rows are read most", "lookups of the training part")
        figures.save(figure, path)


def skew_table(arms: dict[str, dict]) -> str:
    lines = [
        [name, f"{arm['rows']:,}", f"{arm['most']:,}", f"{arm['median']:,}", f"{arm['over_median']:,.0f}",
         *(percent(arm[f"top_{share:g}"]) for share in (0.001, 0.01, 0.1))]
        for name, arm in arms.items()
    ]  # fmt: skip
    head = ["data", "rows read", "most read row, lookups", "median row", "times the median",
            "lookups of the top 0.1 %", "1 %", "10 %"]  # fmt: skip
    return markdown.table(head, lines)


# ---- the calibrator


def run_calibrator(findings: Findings, setting: Setting) -> None:
    """A sampled profile beside a scan of every row."""
    config = fae_rig.config_of(setting, 64)
    data = fae_rig.data_of(setting)
    embedding = Recommender(config, data.schema).embedding
    per_row = row_bytes(embedding.tables, data.schema, config.row_optimizer)
    budget = int(fae_rig.SHARE * embedding.num_bytes)
    part, begin = data.parts["train"], time.perf_counter()
    everything = Sample(part, np.array([[0, part.rows]]))
    accesses = list(count_accesses(everything, data.schema, per_row, lambda *_: None))
    best = dict(zip((a.vocabulary for a in accesses), choose(accesses, budget), strict=True))
    scan = time.perf_counter() - begin
    findings.add("scan of all", _calibrated(scan, best, best, accesses, data))
    for sample in (0.01, 0.05, 0.2):
        begin = time.perf_counter()
        found = profile(data, bytes_per_row=per_row, fast_memory=budget, sample=sample)
        seconds = time.perf_counter() - begin
        findings.add(f"{sample:.0%} sample", _calibrated(seconds, found.hot, best, accesses, data))


def _calibrated(seconds: float, hot, best, accesses, data: EncodedData) -> dict:
    """How near a hot set is to that of the scan, counted over all of the training part."""
    common = sum(len(np.intersect1d(hot[name], best[name])) for name in best)
    lookups = sum(int(a.counts[np.isin(a.ids, hot[a.vocabulary])].sum()) for a in accesses)
    part, test = data.parts["train"], all_hot(hot, data.schema)
    num = sum(int(test(rows).sum()) for rows in part.mapped(0, part.rows))
    return {
        "seconds": seconds,
        "hot_rows": sum(map(len, hot.values())),
        "of_scan": common / sum(map(len, best.values())),
        "hot_lookups": lookups / sum(int(a.counts.sum()) for a in accesses),
        "all_hot": num / part.rows,
    }


def calibrator_table(arms: dict[str, dict]) -> str:
    lines = [
        [name, f"{1e3 * arm['seconds']:.0f}", f"{arm['hot_rows']:,}", percent(arm["of_scan"]),
         percent(arm["hot_lookups"]), percent(arm["all_hot"])]
        for name, arm in arms.items()
    ]  # fmt: skip
    head = ["", "ms", "hot rows", "of the scan's, found", "lookups they serve", "all-hot samples"]
    return markdown.table(head, lines)


# ---- accuracy


def run_accuracy(findings: Findings, setting: Setting) -> None:
    """FAE's order beside a plain one: the difference of runs of one seed, over three seeds."""
    seeds = range(setting.pick(3, 2))
    with _sets(setting) as sets, tempfile.TemporaryDirectory() as folder:
        for name, data in sets.items():
            if findings.has(name):
                continue
            hot = _regrouped(data, Path(folder) / f"{name}-hot")
            runs = [
                {
                    arm: accuracy.measure(arm, data, hot, seed, Path(folder) / "run")
                    for arm in ("plain", "scheduled")
                }
                for seed in seeds
            ]
            both = {arm: accuracy.summarize(arm, runs) for arm in ("plain", "scheduled")}
            hot_half, cold = hot_and_cold(hot)
            findings.add(
                name,
                {
                    "all_hot": hot_half.rows / (hot_half.rows + cold.rows),
                    "seeds": len(seeds),
                    "plain_auc": both["plain"]["auc"]["mean"],
                    "scheduled_auc": both["scheduled"]["auc"]["mean"],
                    "deviation": both["plain"]["auc"]["deviation"],
                    "more": both["scheduled"]["auc"]["more_than_plain"],
                    "interval": both["scheduled"]["auc"]["interval_95"],
                },
            )


def _regrouped(data: EncodedData, out: Path) -> EncodedData:
    """Regrouped with a fifth of the tables' bytes hot; so much more that a tenth of the samples are."""
    embedding = Recommender(accuracy.CONFIG, data.schema).embedding
    per_row = row_bytes(embedding.tables, data.schema, accuracy.CONFIG.row_optimizer)
    for share in (0.2, 0.5, 0.8, 0.95):
        budget = int(share * embedding.num_bytes)
        found = profile(data, bytes_per_row=per_row, fast_memory=budget, sample=0.5)
        if found.samples.value > 0.1 or share == 0.95:
            break
    return regroup(data, dataclasses.replace(found), out, force=True)


def accuracy_table(arms: dict[str, dict]) -> str:
    lines = [
        [name, percent(arm["all_hot"]), f"{arm['plain_auc']:.4f} ± {arm['deviation']:.4f}",
         f"{arm['scheduled_auc']:.4f}", f"{arm['more']:+.4f}",
         f"{arm['interval'][0]:+.4f} to {arm['interval'][1]:+.4f}"]
        for name, arm in arms.items()
    ]  # fmt: skip
    head = ["data", "all-hot samples", "AUC, plain", "AUC, FAE's order", "difference", "95 % interval"]
    return markdown.table(head, lines)


PAPER = Paper(
    "fae",
    "FAE (VLDB 2022)",
    {
        "speed": Part("How long does a whole training take, by arm?", run_speed, speed_table),
        "links": Part("And behind a link as slow as PCIe?", run_links, links_table),
        "batches": Part("And by the size of a batch?", run_batches, batches_table),
        "recipes": fae_recipes.PART,
        "skew": Part("How much more often are the popular rows read?", run_skew, skew_table),
        "share": Part("How many samples are all-hot, by data and budget?", run_share, share_table),
        "calibrator": Part("How near is a sample to a scan?", run_calibrator, calibrator_table),
        "accuracy": Part("Does FAE's order keep accuracy?", run_accuracy, accuracy_table),
    },
)
