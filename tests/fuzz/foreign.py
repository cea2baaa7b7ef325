"""What comes from elsewhere beside rows: settings of a training, and archives that are downloaded."""

from __future__ import annotations

import dataclasses
import io
import json
import random
import tarfile
import zipfile
from importlib import import_module
from pathlib import Path

from hotrows.cli import config_files
from hotrows.optim import FTRL, Adagrad, LazyAdam
from hotrows.train.config import TrainConfig
from tests.fuzz.case import Broken, Case, outcome
from tests.fuzz.damage import as_json, damaged, damaged_json

_unpack = import_module("hotrows.data.datasets.download").unpack
_NAMES = (
    "a",
    "b/c.txt",
    "b/d/e",
    "../f",
    "/tmp/fuzz-out",
    "b/../../g",
    "C:\\h",
    "..\\i",
    "j" * 300,
    "",
    "b",
    ".",
)
_TYPES = (tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.GNUTYPE_SPARSE)


def make_config(choose: random.Random) -> Case:
    config = TrainConfig(
        model_options={"dim": 4, "hidden": [8]},
        label_weights={"buy": 2.0},
        row_optimizer=choose.choice([Adagrad(), LazyAdam(), FTRL(), None]),
        fast_memory=choose.choice([None, 1 << 20]),
    )
    fields = json.loads(config.to_json())
    kept = {name: value for name, value in fields.items() if choose.random() < 0.5}
    return Case({"config.json": as_json(damaged_json(kept, choose, 3), choose)}, "config.json")


def run_config(case: Case) -> None:
    kind, config = outcome(lambda: config_files.read(Path("config.json")), "config.json")
    if kind == "worked":
        again = TrainConfig.from_json(config.to_json())
        if dataclasses.asdict(again) != dataclasses.asdict(config):
            raise Broken(f"settings change as they are written and read: {config} and {again}")


def make_archive(choose: random.Random) -> Case:
    make = choose.choice([_zip, _tar])
    content, name = make(choose), "raw/a.zip" if make is _zip else "raw/a.tar.gz"
    if choose.random() < 0.7:
        content = damaged(content, choose, [content[:4], b"PK\1\2", b"ustar", b"\0" * 512, b"\xff" * 4])
    return Case({name: content}, name)


def _zip(choose: random.Random) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", choose.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])) as archive:
        for name in dict.fromkeys(choose.choices(_NAMES, k=choose.randint(0, 3))):
            archive.writestr(zipfile.ZipInfo(name), choose.randbytes(choose.choice([0, 9, 900])))
    return file.getvalue()


def _tar(choose: random.Random) -> bytes:
    file = io.BytesIO()
    kind = choose.choice([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
    with tarfile.open(fileobj=file, mode="w:gz", format=kind) as archive:
        for name in choose.choices(_NAMES, k=choose.randint(0, 3)):
            member = tarfile.TarInfo(name)
            member.type = choose.choice([tarfile.REGTYPE, tarfile.REGTYPE, *_TYPES])
            member.linkname = choose.choice(_NAMES)
            member.size = choose.choice([0, 9, 900]) if member.isreg() else 0
            archive.addfile(member, io.BytesIO(choose.randbytes(member.size)))
    return file.getvalue()


def run_archive(case: Case) -> None:
    before = set(Path("..").iterdir())
    outcome(lambda: _unpack(Path(case.damaged), Path("raw")), Path(case.damaged).name)
    beside = {path.name for path in Path().iterdir()} - {"raw"}
    if beside or set(Path("..").iterdir()) != before or Path("/tmp/fuzz-out").exists():
        raise Broken(f"something was written outside of the folder: {beside}")
