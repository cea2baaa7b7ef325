"""Scenarios of same_bits about files: prepared data, dynamic ids, streams, versions, bundles, help.

Each writes files in a folder of its own and returns their hashes, without the fields that say when and
where a file was written.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet

import hotrows
from benchmarks import same_bits

# Files and fields of JSON that differ between two runs of one tree. PyTorch's exporters write the paths
# of sources into programs.
_VOLATILE = ("time", "chain", "crc32", "checksum", "previous_checksum", "model.onnx")


def prepared(folder: Path, steps: int, seed: int) -> same_bits.Digests:
    """All files of prepared data: text, JSON lines, Parquet and lists of candidates, by three splits."""
    table = rows(seed, 5_000)
    raw = folder / "raw"
    raw.mkdir(parents=True)
    pa.parquet.write_table(table, raw / "a.parquet")
    table.to_pandas().to_json(raw / "a.jsonl", orient="records", lines=True)
    text = table.drop_columns(["past"])
    text.to_pandas().to_csv(raw / "a.csv", index=False, sep="\t")
    row_schema(lists=True).save(folder / "lists.json")
    row_schema(lists=False).save(folder / "plain.json")
    pa.parquet.write_table(candidates(seed, 800), raw / "requests.parquet")
    request_schema().save(folder / "requests.json")
    for name, declared, split in (
        ("a.parquet", "lists", "fraction:0.8,0.1,0.1"),
        ("a.jsonl", "lists", "time:0.8,0.1,0.1"),
        ("a.csv", "plain", "position:0.7,0.1,0.2"),
        ("requests.parquet", "requests", "position:0.8,0.1,0.1"),
    ):
        command = ["prepare", raw / name, "--schema", folder / f"{declared}.json", "--split", split]
        same_bits.run_command(
            *command, "--min-count", "2", "--seed", str(seed), "--out", folder / "enc" / name
        )
    return hashes(folder / "enc")


def dynamic(folder: Path, steps: int, seed: int) -> same_bits.Digests:
    """Rows, keys and metrics of a run whose keys come and go, behind a cache."""
    config = same_bits.settings("deepfm", steps, seed, fast_memory=40_000)
    return same_bits.fit(keyed_data(folder, seed), config, folder / "run")


def stream(folder: Path, steps: int, seed: int) -> same_bits.Digests:
    """A run on events of a folder, and one that repeats its batches: rows, metrics, batch log."""
    events = folder / "events"
    keyed_data(folder, seed)
    events.mkdir()
    for part in range(3):
        table = rows(seed + 1 + part, steps * same_bits.BATCH // 3).drop_columns(["past"])
        table.to_pandas().to_json(events / f"{part}.jsonl", orient="records", lines=True)
    for run, more in (("run", []), ("again", ["--repeat", folder / "run"])):
        same_bits.run_command(
            "train", folder / "keyed", "--run", folder / run, "--model", "dnn",
            "--epochs", "1", "--seed", str(seed),
            "--option", "dim=8", "--option", "hidden=[16]",
            "--batch-size", str(same_bits.BATCH), "--linear-paths", "plain",
            "--stream", f"folder:{events}", "--stop-when-idle", "1", "--max-wait", "60", *more,
        )  # fmt: skip
    first, again = (same_bits.exported(folder / run) for run in ("run", "again"))
    different = same_bits.differences(first, again)
    assert not different, f"a repeated stream trained something else: {different}"
    return {**first, "batches": same_bits.digest((folder / "run" / "stream.jsonl").read_text())}


def published(folder: Path, steps: int, seed: int) -> same_bits.Digests:
    """A chain of versions: base, deltas, and the bundle made of them."""
    data = keyed_data(folder, seed)
    config = same_bits.settings("deepfm", steps, seed)
    publisher = hotrows.Publisher(folder / "published", every=f"{max(steps // 3, 1)}b")
    hotrows.Trainer(data, config, folder / "run").fit(callbacks=[publisher])
    same_bits.run_command("checkpoint", "merge", folder / "published", folder / "merged")
    return hashes(folder / "published") | hashes(folder / "merged")


def bundle(folder: Path, steps: int, seed: int) -> same_bits.Digests:
    """Bundles in float32 and int8: tables, encoders, and the scores of 500 rows."""
    data = same_bits.histories(folder)
    run = folder / "run"
    hotrows.Trainer(data, same_bits.settings("din", steps, seed), run).fit()
    rng = np.random.default_rng(seed)
    rows = {name: rng.integers(3_500, size=500).tolist() for name in ("user", "item")}
    rows |= {"age": rng.normal(40, 9, 500).tolist()}
    rows |= {"history": [rng.integers(2_500, size=k % 15).tolist() for k in range(500)]}
    from hotrows.serving import Scorer

    digests = {}
    for dtype in ("float32", "int8"):
        out = folder / dtype
        same_bits.run_command("export", run, "--format", "onnx", "--table-dtype", dtype, "--out", out)
        digests |= {f"{dtype}.{name}": value for name, value in hashes(out).items()}
        scores = np.asarray(Scorer(out).score(rows))
        digests[f"{dtype}.scores"] = hashlib.sha256(scores.tobytes()).hexdigest()
    return digests


def helped(folder: Path, steps: int, seed: int) -> same_bits.Digests:
    """The help of every command."""
    from hotrows.cli import main

    os.environ["COLUMNS"] = "100"
    texts, commands = {}, [[]]
    while commands:
        command = commands.pop()
        with redirect_stdout(io.StringIO()) as output:
            main([*command, "--help"])
        text = texts[" ".join(["hotrows", *command])] = output.getvalue()
        if "[ARGS]..." in text and len(command) < 2:
            names = re.findall(r"^  ([a-z]+)(?:  |$)", text, re.M)
            commands += [[*command, name] for name in names]
    assert len(texts) > 20, texts.keys()
    return {name: same_bits.digest(text) for name, text in texts.items()}


SCENARIOS = {
    "prepared": prepared,
    "dynamic": dynamic,
    "stream": stream,
    "published": published,
    "bundle": bundle,
    "helped": helped,
}


def keyed_data(folder: Path, seed: int) -> hotrows.EncodedData:
    """Clicks whose items are keys that come and go."""
    items = hotrows.Dynamic(capacity=600, admit="after:2", evict="lru")
    features = (hotrows.Dense("age"), hotrows.Sparse("user"), hotrows.Sparse("item", dynamic=items))
    schema = hotrows.Schema(features, label="click")
    return hotrows.prepare(rows(seed, 6_000), schema, folder / "keyed", split="position:0.8,0.1,0.1")


def rows(seed: int, n: int) -> pa.Table:
    """Clicks of users on items: ids, text, numbers, times, lists, and some values that are missing."""
    rng = np.random.default_rng(seed)
    user, item = rng.integers(900, size=n), rng.zipf(1.3, n) % 1_500
    past = [rng.zipf(1.3, rng.integers(0, 9)) % 1_500 for _ in range(n)]
    columns = {
        "click": (rng.random(n) < 0.2 + 0.5 * (item % 3 == user % 3)).astype(int),
        "age": pa.array(rng.normal(40, 9, n).round(2), mask=rng.random(n) < 0.05),
        "user": pa.array([f"u{k:04x}" for k in user], mask=rng.random(n) < 0.05),
        "item": item,
        "when": 1_700_000_000 + np.arange(n) * 60,
        "past": past,
    }
    return pa.table(columns)


def candidates(seed: int, n: int) -> pa.Table:
    """Requests with one to six candidates each."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 7, n)
    columns = {
        "request": [f"r{k}" for k in range(n)],
        "user": rng.integers(300, size=n),
        "past": [rng.integers(900, size=rng.integers(0, 9)).tolist() for _ in range(n)],
        "item": [rng.integers(900, size=k).tolist() for k in sizes],
        "click": [rng.integers(2, size=k).tolist() for k in sizes],
    }
    return pa.table(columns)


def row_schema(lists: bool) -> hotrows.Schema:
    features = [
        hotrows.Dense("age", transform="standard"),
        hotrows.Sparse("user"),
        hotrows.Sparse("item"),
    ]
    if lists:
        features.append(hotrows.Sequence("past", vocabulary="item", max_length=6))
    return hotrows.Schema(tuple(features), label="click", time=hotrows.schema.Time("when"))


def request_schema() -> hotrows.Schema:
    past = hotrows.Sequence("past", vocabulary="item", max_length=6)
    features = (hotrows.Sparse("user"), hotrows.Sparse("item"), past)
    return hotrows.Schema(features, label="click", request="request", shared=("user", "past"))


def hashes(folder: Path) -> same_bits.Digests:
    """The sha256 of every file below a folder, by its path, without what `_VOLATILE` names."""
    digests = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name not in _VOLATILE:
            content = path.read_bytes()
            if path.suffix == ".safetensors":  # eight bytes of size, then JSON
                end = 8 + int.from_bytes(content[:8], "little")
                content = _stable_text(content[8:end]) + content[end:]
            elif path.suffix == ".json":
                content = _stable_text(content)
            digests[str(path.relative_to(folder.parent))] = hashlib.sha256(content).hexdigest()
    return digests


def _stable_text(text: bytes) -> bytes:
    return json.dumps(_stable(json.loads(text)), sort_keys=True).encode()


def _stable(value: Any) -> Any:
    if isinstance(value, str) and value.startswith("{"):  # JSON in the metadata of safetensors
        return _stable(json.loads(value))
    if isinstance(value, dict):
        return {k: _stable(v) for k, v in value.items() if k not in _VOLATILE}
    return [_stable(v) for v in value] if isinstance(value, list) else value
