"""What the library itself wrote, damaged: prepared folders, interrupted preparations, schema files."""

from __future__ import annotations

import json
import math
import os
import random
import struct
import tempfile
import warnings
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

from hotrows.data import EncodedData, Encoder, Loader, describe, prepare
from hotrows.data.datasets import schemas
from hotrows.data.raw import chunks
from hotrows.data.stored.sections import MAGIC
from hotrows.schema import Dense, Label, Schema, Sequence, Sparse
from tests.fuzz.case import Case, core, outcome, write_files
from tests.fuzz.damage import as_json, damaged, damaged_json
from tests.fuzz.readers import check_clean, rows_of, small_shards
from tests.fuzz.rows import some_schema

PREPARED = Schema(
    features=(
        Dense("n0", transform="standard"),
        Sparse("s0", num_unknown=2, min_count=2),
        Sparse("s1", many=True),
        Sequence("s2", vocabulary="s0", num_unknown=2, min_count=2),
    ),
    label=("label", Label("other", column="n1", at_least=2)),
    weight="w",
    group="g",
    delimiter=",",
)


@cache
def raw_rows() -> bytes:
    choose = random.Random(0)
    lines = ["label,n0,n1,s0,s1,s2,w,g"]
    for row in range(60):
        word = f"word{choose.randrange(20)}" * choose.choice([1, 1, 3])
        many = "|".join(f"m{choose.randrange(9)}" for _ in range(choose.randrange(4)))
        lines.append(
            f"{row % 2},{choose.random():.3f},{row % 5},{word},{many},{word}|new{row},1,g{row % 7}"
        )
    return ("\n".join(lines) + "\n").encode()


@cache
def prepared_files() -> dict[str, bytes]:
    """A prepared folder of three parts with several shards."""
    with tempfile.TemporaryDirectory() as folder, small_shards():
        (Path(folder) / "raw.csv").write_bytes(raw_rows())
        out = Path(folder) / "enc"
        prepare(Path(folder) / "raw.csv", PREPARED, out, split="position:0.7,0.1,0.2", memory=256 << 20)
        return {f"enc/{path.name}": path.read_bytes() for path in sorted(out.iterdir())}


def make_stored(choose: random.Random) -> Case:
    files = {**prepared_files(), "raw.csv": raw_rows()}
    name = choose.choice([name for name in files if name.endswith((".shard", ".values"))])
    kind = choose.randrange(4)
    if kind == 0:
        files[name] = damaged(files[name], choose, [MAGIC, b"\0" * 64, b"\xff" * 8])
    elif kind == 1:
        header, data = opened(files[name])
        files[name] = closed(damaged_json(header, choose), data)
    elif kind == 2:
        header, data = opened(files[name])
        files[name] = _closed_text(as_json(header, choose), data)
    else:
        files[name] = _other_values(files[name], choose)
    files["enc/data.json"] = _naming(json.loads(files["enc/data.json"]), name, files[name])
    return Case(files, name, {"threads": choose.randint(1, 2), **_some_uses(choose)})


def _some_uses(choose: random.Random) -> dict[str, Any]:
    """What a case does with a folder beside opening and checking it: most inputs do little of it, as
    preparing and encoding take a hundred times longer than reading."""
    uses: list[Any] = ["describe"] * (choose.random() < 0.05) + ["encode"] * (choose.random() < 0.03)
    if choose.random() < 0.005:
        uses.append({choose.choice(["like", "extend"]): "enc"})
    return {"uses": uses, "plain": choose.random() < 0.3, "shuffle": choose.random() < 0.5}


def _naming(manifest: dict[str, Any], name: str, content: bytes) -> bytes:
    """data.json that names the header of this file, as its checksum would refuse most damage."""
    shards = [shard for part in manifest["parts"].values() for shard in part["shards"]]
    for entry in (*shards, *manifest["vocabularies"].values()):
        if entry["file"] == Path(name).name:
            entry["header"] = int.from_bytes(content[16:20], "little")
    return json.dumps(signed(manifest)).encode()


def signed(manifest: dict[str, Any]) -> dict[str, Any]:
    """data.json with its version and the checksum of its fields."""
    fields = {name: value for name, value in manifest.items() if name != "crc32"} | {"version": 3}
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    return {**fields, "crc32": zlib.crc32(text.encode())}


def opened(content: bytes) -> tuple[dict[str, Any], bytes]:
    (length,) = struct.unpack("<I", content[12:16])
    return json.loads(content[20 : 20 + length]), content[_aligned(20 + length) :]


def closed(header: Any, data: bytes) -> bytes:
    return _closed_text(json.dumps(header).encode(), data)


def _closed_text(text: bytes, data: bytes) -> bytes:
    """The file with this header, rightly signed and padded, before the data."""
    front = MAGIC + struct.pack("<III", 1, len(text), zlib.crc32(text)) + text
    return front + b"\0" * (_aligned(len(front)) - len(front)) + data


def _aligned(size: int) -> int:
    return (size + 63) // 64 * 64


def _other_values(content: bytes, choose: random.Random) -> bytes:
    """Other numbers in one section, rightly signed: nothing but their meaning is wrong."""
    header, data = opened(content)
    section = choose.choice(header["sections"])
    size = math.prod(section["shape"]) * int(section["dtype"][2:])
    values = bytearray(data[section["offset"] : section["offset"] + size])
    width = int(section["dtype"][2:])
    for _ in range(choose.choice([1, 1, 3, 100])):
        if not size:
            break
        place = choose.randrange(size // width) * width
        number = choose.choice([0, 1, 255, 1 << 31, 1 << 62, (1 << 64) - 1, choose.getrandbits(64)])
        values[place : place + width] = number.to_bytes(8, "little")[:width]
    section["crc32"] = zlib.crc32(values)
    changed = bytearray(data)
    changed[section["offset"] : section["offset"] + size] = values
    return closed(header, bytes(changed))


def make_manifest(choose: random.Random) -> Case:
    files = {**prepared_files(), "raw.csv": raw_rows()}
    manifest = damaged_json(json.loads(files["enc/data.json"]), choose)
    if choose.random() < 0.9 and isinstance(manifest, dict):
        manifest = signed(manifest)
    files["enc/data.json"] = as_json(manifest, choose)
    return Case(files, "enc/data.json", {"threads": 1, **_some_uses(choose)})


def run_stored(case: Case) -> None:
    """Opens, checks, describes, loads, encodes and prepares with a folder; each step by itself."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # damaged floats may be no numbers
        warnings.filterwarnings("ignore", "values differ from those that the data was prepared from")
        _run_stored(case)


def _run_stored(case: Case) -> None:
    threads = case.how["threads"]
    names: tuple[str, ...] = (Path(case.damaged).name, CHECK_SAYS)
    if case.damaged.endswith("data.json"):
        names = ("enc", "raw.csv", "schema")  # its schema may be another one that is legal
    kind, data = outcome(lambda: EncodedData.open("enc"), *names)
    if kind == "refused":
        return
    outcome(data.check, *names)
    how, uses = case.how, case.how["uses"]
    if "describe" in uses:
        outcome(lambda: describe(data), *names)
    with core(how["plain"]):
        for name, part in data.parts.items():
            if not names[0].endswith(".shard") or names[0].startswith(name):
                outcome(lambda part=part: _load(part, how["shuffle"]), *names)
        if "encode" in uses:
            outcome(lambda: list(Encoder.open("enc", threads).encode("raw.csv")), *names)
        for prepared in (use for use in uses if isinstance(use, dict)):
            with small_shards():
                outcome(lambda prepared=prepared: _prepare_again(prepared, threads), *names)
            check_clean()


CHECK_SAYS = "EncodedData.check() says which"  # what is said of offsets that a loader stumbles over


def _load(part: Any, shuffle: bool) -> None:
    for batch in Loader(part, 7, shuffle=shuffle).batches(0):
        batch.ids.sum()


def _prepare_again(how: dict[str, str], threads: int) -> None:
    prepare("raw.csv", None, "out", **how, threads=threads, memory=256 << 20)  # type: ignore[arg-type]


# ---- preparations that were interrupted


class Interrupted(BaseException):
    """As Ctrl-C."""


@cache
def interrupted_files(stage: str) -> dict[str, bytes]:
    """What a preparation leaves that is stopped while it counts or encodes."""
    seen = []

    def stop(now: str, done: int, total: int) -> None:
        seen.append(now)
        if seen.count(stage) == 3:
            raise Interrupted

    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            write_files({"raw.csv": raw_rows()})
            _prepare_slowly(stop)
        except Interrupted:
            return {f"{path}": path.read_bytes() for path in sorted(Path("out.part").iterdir())}
        finally:
            os.chdir(before)
    raise AssertionError("was not interrupted")


def _prepare_slowly(progress: Callable | None = None) -> EncodedData:
    """Notes its place after every chunk, of which there are many."""
    slowly = mock.patch("hotrows.data.encode.passes.SAVE_SECONDS", -1.0)
    cut = mock.patch.object(chunks, "CHUNK_BYTES", 600)
    with slowly, cut, small_shards():
        return prepare(
            "raw.csv", PREPARED, "out", split="stratified:0.6,0.2,0.2", memory=256 << 20, threads=1,
            progress=progress,
        )  # fmt: skip


def make_state(choose: random.Random) -> Case:
    files = {**interrupted_files(choose.choice(["count", "encode"])), "raw.csv": raw_rows()}
    name = choose.choice([name for name in files if name.startswith("out.part/") and "lock" not in name])
    if choose.random() < 0.5:
        name = "out.part/state.json"
    if name.endswith(".json") and choose.random() < 0.9:
        files[name] = as_json(damaged_json(json.loads(files[name]), choose), choose)
    elif choose.random() < 0.1:
        del files[name]
    elif name.endswith((".shard", ".values")) and choose.random() < 0.5:
        files[name] = _other_values(files[name], choose)
    else:
        files[name] = damaged(files[name], choose, [b"\0" * 8, b"\xff" * 8])
    return Case(files, name)


def run_state(case: Case) -> None:
    outcome(_prepare_slowly, "out.part", "raw.csv", "out is damaged")


# ---- schema files


def make_schema(choose: random.Random) -> Case:
    schema = json.loads(choose.choice([PREPARED, some_schema(choose)]).to_json())
    text = as_json(damaged_json(schema, choose, 3), choose)
    return Case({"schema.json": text, "raw.csv": raw_rows()}, "schema.json")


def run_schema(case: Case) -> None:
    kind, schema = outcome(lambda: schemas.load("schema.json"), "schema.json")
    if kind == "worked":
        outcome(lambda: schema.to_json(), "schema.json")
        names = ("raw.csv", "schema", "feature", "label", "format", "time")
        outcome(lambda: rows_of(schema, "raw.csv", 1, True), *names)
