"""Facts: what a run's folder says of it: settings, data, metrics by step, time, cache, sharding, machine.

Functions give texts by name, in order, so that runs stand side by side and their differences show.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hotrows import losses
from hotrows.data import EncodedData
from hotrows.engine import checkpoint
from hotrows.runtime.locks import holder_of
from hotrows.runtime.units import format_bytes
from hotrows.schema import Schema, vocabulary_of
from hotrows.train.config import GROUPS, SETTINGS, TrainConfig
from hotrows.train.run import folder as run_folder
from hotrows.train.telling import metrics_log

Texts = dict[str, str]
Lines = list[dict[str, Any]]
_LISTED, _MOST_LETTERS = 6, 80  # tables of a placement, and of the list of an option


@dataclass(frozen=True)
class Facts:
    """A run's folder as it is now. writer: the process that trains it; None: none does.

    steps, evaluations, windows: lines of metrics.jsonl; result: how it ended, empty where it has not.
    stored: which data it was trained on; data: None where that is not to be had.
    """

    run: Path
    name: str
    config: TrainConfig
    schema: Schema
    stored: run_folder.DataOfRun
    data: EncodedData | None
    writer: str | None
    steps: Lines
    evaluations: Lines
    windows: Lines
    result: Mapping[str, Any]

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels that it learns, as far as its folder says."""
        if self.evaluations and (tasks := self.evaluations[-1].get("tasks")):
            return tuple(tasks)
        return (self.config.label or self.schema.labels[0].name,)

    @property
    def data_path(self) -> str:
        return str(self.data.path) if self.data is not None else self.stored.path or "Parquet files"

    @property
    def num_ranks(self) -> int:
        """How many ranks wrote its last checkpoint."""
        if checkpoint.pointed(self.run) is None:
            return 1
        return checkpoint.read_manifest(checkpoint.folder_of(self.run, "last")).num_ranks


def shown(path: str | Path) -> str:
    """A path on a page that others read: from the current folder, or without the folders above."""
    text = str(path)
    inside = os.path.relpath(text) if os.path.isabs(text) else text
    return os.path.basename(text) if inside.startswith(os.pardir) else inside


def read_facts(runs: Sequence[Path], folder: Path | None = None) -> list[Facts]:
    """Reads the folders of runs. folder: their data, where it has moved."""
    names = [run.resolve().name for run in runs]
    names = names if len(set(names)) == len(names) else [str(run) for run in runs]
    return [_read(run, name, folder) for run, name in zip(runs, names, strict=True)]


def _read(run: Path, name: str, folder: Path | None) -> Facts:
    writer, config, schema = holder_of(run), run_folder.read_config(run), run_folder.read_schema(run)
    stored, records = run_folder.read_data(run), metrics_log.read_metrics(run)
    steps, evaluations, windows = (
        [record for record in records if record["kind"] == kind]
        for kind in ("train", "evaluation", "window")
    )
    is_over = writer is None and (run / "result.json").exists()
    result = run_folder.read_json(run / "result.json") if is_over else {}
    try:
        data = run_folder.open_data(run, folder)
    except ValueError:
        if folder is not None:
            raise
        data = None
    return Facts(run, name, config, schema, stored, data, writer, steps, evaluations, windows, result)


def training(facts: Facts) -> Texts:
    """The model and the data of a run."""
    config, schema, result = facts.config, facts.schema, facts.result
    num_ids = {vocabulary_of(f): f.rows or 0 for f in schema.id_features}
    parts = {} if facts.data is None else facts.data.parts
    step = facts.steps[-1]["step"] if facts.steps else 0
    early = ", stopped early" if result.get("stopped_early") else ""
    ended = f"ended{early}" if result else "is training" if facts.writer else "stopped before its end"
    optimizer, dense_lr = _words(config.row_optimizer), _words(config.dense_lr)
    at_most = "at most " if facts.windows else ""  # batches of a stream are as they come
    return {
        "model": f"{config.model}{_options(config.model_options)}",
        "data": shown(facts.data_path),
        "its fingerprint": facts.stored.fingerprint[:12],
        "schema": schema.name,
        "rows": ", ".join(f"{part.rows:,} {name}" for name, part in parts.items()),
        "features": ", ".join(f"{len(listed):,} {kind}" for kind, listed in schema.by_kind.items()),
        "labels": ", ".join(f"{name} ({_loss(facts, name)})" for name in facts.labels),
        "groups": schema.grouping or "none",
        "ids of all vocabularies": f"{sum(num_ids.values()):,}",
        "began with": shown(config.start_from or ""),
        "stream": str(run_folder.read_stream(facts.run).get("source", "")),
        "steps": f"{step:,} of {at_most}{config.batch_size or 0:,} samples, {ended}",
        "best checkpoint": f"step {result['best_step']:,}" if result else "",
        "optimizers": f"{optimizer}; dense {config.dense_optimizer} (lr={dense_lr})",
        "seed": str(config.seed),
    }


def _loss(facts: Facts, name: str) -> str:
    label = next(label for label in facts.schema.labels if label.name == name)
    named = losses.parse_by_label(facts.config.loss) if facts.config.loss else {}
    return str(named.get(name) or named.get("") or label.loss or losses.Loss.name)


def settings(facts: Facts) -> Texts:
    return {name: _words(getattr(facts.config, name)) for names in GROUPS.values() for name in names}


def changed_settings(facts: Facts) -> set[str]:
    """The settings with another value than their default, those that the data decided too."""
    return {name for name, known in SETTINGS.items() if getattr(facts.config, name) != known.default}


def _words(value: Any) -> str:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        numbers = {f.name: (getattr(value, f.name), f.default) for f in dataclasses.fields(value)}
        changed = {name: n for name, (n, default) in numbers.items() if n != default or name == "lr"}
        return f"{getattr(value, 'kind', type(value).__name__)}{_options(changed)}"
    if value is None or value in ({}, ()):
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return json.dumps(value) if isinstance(value, dict | list | tuple) else str(value)


def _options(options: Mapping[str, Any]) -> str:
    texts = (f"{name}={_text(value)}" for name, value in options.items())
    return f" ({', '.join(texts)})" if options else ""


def _text(value: Any) -> str:
    """The text of an option; of a long list, such as that of effects, how long it is."""
    if isinstance(value, float):
        return f"{value:.4g}"
    is_long = isinstance(value, list) and len(str(value)) > _MOST_LETTERS
    return f"[{len(value):,} values]" if is_long else str(value)


def environment(facts: Facts) -> Texts:
    """The machine and the versions."""
    path = facts.run / "environment.json"
    fields = run_folder.read_json(path) if path.exists() else {}
    return {name.replace("_", " "): _words(value) for name, value in fields.items()}


def time_used(facts: Facts) -> Texts:
    """Where the time of training went, and how busy the machine was."""
    steps = [line for line in facts.steps if line.get("seconds")]
    if not steps:
        return {}
    total, used = sum(line["seconds"] for line in steps), metrics_log.utilization(steps)
    speed = statistics.median(line["samples_per_second"] for line in steps)
    return {
        "seconds in training steps": f"{total:,.1f}",
        "samples a second, median": f"{speed:,.0f}",
        "waiting for a batch": f"{sum(line['stall_seconds'] for line in steps) / total:.1%}",
        "cores busy with training": f"{used['cores_busy']:.0%}" if used else "",
        "cores busy with all programs": f"{used['machine_busy']:.0%}" if "machine_busy" in used else "",
        "peak memory": format_bytes(int(used["peak_memory_bytes"]))
        if "peak_memory_bytes" in used
        else "",
    }


def stage_shares(lines: Lines) -> dict[str, tuple[float, float]]:
    """By stage, the shares of the time in which it was at work, and in which training waited for it."""
    total = sum(line["seconds"] for line in lines) if lines else 0.0
    names = dict.fromkeys(name[5:] for line in lines for name in line if name.startswith("busy_"))

    def share(name: str) -> float:
        return sum(line.get(name, 0.0) for line in lines) / total

    return {name.replace("_", " "): (share(f"busy_{name}"), share(f"waited_{name}")) for name in names}


def cache(facts: Facts) -> Texts:
    """The tiers of memory, and what crossed between them; empty where all rows are in memory."""
    config, lines = facts.config, [line for line in facts.steps if "hit_rate" in line]
    if config.fast_memory is None or not lines:
        return {}
    total = sum(line["seconds"] for line in lines)
    names = ("hit_rate", "bytes_in", "bytes_out")
    hits, *moved = (sum(line[name] * line["seconds"] for line in lines) / total for name in names)
    return {
        "fast memory": format_bytes(config.fast_memory),
        "store": config.store,
        "policy": config.policy,
        "rows found in fast memory": f"{hits:.1%}",
        "moved in and out, a second": " and ".join(format_bytes(int(each_way)) for each_way in moved),
    }


def sharding(facts: Facts) -> Texts:
    """How tables are dealt over ranks, and what each rank sent; empty on one rank."""
    num_ranks = facts.num_ranks
    if num_ranks == 1:
        return {}
    plan, kinds = run_folder.read_placing(facts.run, num_ranks), dict[str, list[str]]()
    for table, placement in (plan.sharding if plan else {}).items():
        kind = "columns" if placement.columns else "rows" if placement.num_ranks > 1 else "whole tables"
        kinds.setdefault(f"{kind}, hot rows on every rank" if placement.hot else kind, []).append(table)
    texts = {"ranks": f"{num_ranks:,}"}
    for kind, tables in kinds.items():
        more = " …" if len(tables) > _LISTED else ""
        texts[f"dealt by {kind}"] = f"{len(tables):,} tables: {', '.join(tables[:_LISTED])}{more}"
    for rank in range(num_ranks):
        file = f"ranks/rank-{rank}.jsonl" if rank else metrics_log.METRICS
        sent = [r["bytes_sent"] for r in metrics_log.read_metrics(facts.run, file) if "bytes_sent" in r]
        texts[f"rank {rank} sent, a step"] = format_bytes(int(statistics.mean(sent))) if sent else ""
    return texts


def sharding_reasons(facts: Facts) -> Texts:
    """Why tables are dealt as they are, a sentence for each choice; empty on one rank."""
    plan = run_folder.read_placing(facts.run, facts.num_ranks) if facts.num_ranks > 1 else None
    return {f"reason {number}": words for number, words in enumerate(plan.reasons if plan else (), 1)}


def growth(facts: Facts) -> dict[str, tuple[int, int]]:
    """By vocabulary, its rows before and now, of a run that began with another one."""
    start = Path(facts.config.start_from or "")
    if not facts.config.start_from or not (start / "schema.json").exists():
        return {}
    before = {vocabulary_of(f): f.rows or 0 for f in run_folder.read_schema(start).id_features}
    now = {vocabulary_of(f): f.rows or 0 for f in facts.schema.counted_features}
    return {name: (before.get(name, 0), rows) for name, rows in now.items()}


def command(facts: Facts) -> str:
    """The command that trains alike."""
    run, source = shown(facts.run), facts.stored.source
    words = ["hotrows", "train"]
    if facts.num_ranks > 1:
        words = ["torchrun", "--nproc-per-node", str(facts.num_ranks), "-m", *words]
    if source is None:
        words.append(shown(facts.data_path))
    else:
        words += [*map(shown, source["train"]), "--schema", f"{run}/schema.json"]
        for part in ("validation", "test"):
            words += [word for path in source[part] for word in (f"--{part}", shown(path))]
    words += ["--config", f"{run}/config.json", "--run-dir", f"{run}-again"]
    if stream := run_folder.read_stream(facts.run):
        words += ["--stream", str(stream["source"])]
        if stream.get("labels"):
            words += ["--labels", str(stream["labels"]), "--join-on", str(stream["join_on"])]
    return shlex.join([*words, *(["--trust-code"] if ":" in (facts.config.model or "") else [])])
