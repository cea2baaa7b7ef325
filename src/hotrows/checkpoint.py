"""Checkpoints: all that a run needs to go on or to predict, in plain files.

    RUN/checkpoints.json           which folder is the last and which the best; they may be one
    RUN/checkpoints/step-1200/
        manifest.json              tables by range of ids: file, offset, layout; a crc32 per file
        pack-0.records             the records of one pack, raw: weights and optimizer state
        model.safetensors          the dense part
        trainer.safetensors        its optimizer's state, the random state

Tables in a file store stay there: the manifest has the numbers of the stores' own checkpoints (see
`hotrows.storage.file`) in place of the records.

A folder is written aside, synced and renamed, then the pointer moves, then folders that nothing
points at go: a crash at any moment leaves a whole checkpoint. Records are found by table and id, so
a table may have more rows when it is loaded than when it was saved; the new ones keep their first
values. Records are read into the place where they live, in chunks: loading needs no second copy.
"""

from __future__ import annotations

import json
import os
import shutil
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from safetensors.torch import load as tensors_from_bytes
from safetensors.torch import save as tensors_to_bytes
from torch import Tensor, nn

from hotrows.embedding import Embedding
from hotrows.storage.log import sync_folder

FORMAT = 1
_CHUNK = 16 << 20
_FOLDER = "checkpoints"
_POINTER = "checkpoints.json"


@dataclass(frozen=True)
class State:
    """What a trainer keeps beside its model.

    fields: plain JSON values; tensors: optimizer and random state by name.
    """

    step: int
    fields: dict[str, Any]
    tensors: dict[str, Tensor]


@dataclass(frozen=True)
class Pointer:
    """Names of the last and the best checkpoint of a run."""

    last: str
    best: str


def save(
    run: Path, embedding: Embedding, model: nn.Module, state: State, fingerprint: str = ""
) -> str:
    """Writes a checkpoint of `run` and returns its name; nothing points at it yet.

    fingerprint: of the data's schema and encoders; `load` refuses another one.
    """
    name = _free_name(run, state.step)
    folder = run / _FOLDER / name
    part = folder.with_name(name + ".part")
    try:
        part.mkdir(parents=True)
        generations = embedding.tiers.checkpoint() if embedding.tiers else []
        tables, files = _write_packs(part, embedding)
        model_bytes = tensors_to_bytes(_contiguous(model.state_dict()))
        files["model.safetensors"] = _write(part / "model.safetensors", [model_bytes])
        trainer_bytes = tensors_to_bytes(_contiguous(state.tensors))
        files["trainer.safetensors"] = _write(part / "trainer.safetensors", [trainer_bytes])
        manifest = {
            "format": FORMAT,
            "step": state.step,
            "fingerprint": fingerprint,
            "tables": tables,
            "files": files,
            "stores": generations,
            "state": state.fields,
        }
        _write(part / "manifest.json", [_to_json(manifest)])
        sync_folder(part)
        os.replace(part, folder)
        sync_folder(folder.parent)
    except BaseException as error:
        shutil.rmtree(part, ignore_errors=True)
        if isinstance(error, OSError):
            raise OSError(
                f"could not write checkpoint {folder}: {error.strerror or error}; "
                f"earlier checkpoints are whole; make room, then resume the run"
            ) from error
        raise
    return name


def point(run: Path, pointer: Pointer) -> None:
    """Makes these the last and the best checkpoint of `run`, and deletes the others."""
    path = run / _POINTER
    part = path.with_name(path.name + ".part")
    _write(part, [_to_json({"last": pointer.last, "best": pointer.best})])
    os.replace(part, path)
    sync_folder(run)
    for folder in (run / _FOLDER).iterdir():
        if folder.name not in (pointer.last, pointer.best):
            shutil.rmtree(folder)


def pointed(run: Path) -> Pointer | None:
    """The last and the best checkpoint of `run`, None where it has none yet."""
    path = run / _POINTER
    if not path.exists():
        return None
    try:
        return Pointer(**json.loads(path.read_text()))
    except (ValueError, TypeError):
        raise ValueError(
            f"{path} is damaged: expected the names of the last and the best checkpoint; "
            f'write {{"last": NAME, "best": NAME}} with names from {run / _FOLDER}'
        ) from None


def folder_of(run: Path, which: str = "best") -> Path:
    """The folder of the `last` or the `best` checkpoint of `run`."""
    if which not in ("last", "best"):
        raise ValueError(f"checkpoint must be 'last' or 'best', not {which!r}")
    pointer = pointed(run)
    if pointer is None:
        raise ValueError(f"run {run} has no checkpoint yet: train it first, or name another run")
    return run / _FOLDER / getattr(pointer, which)


def load(
    folder: Path,
    embedding: Embedding,
    model: nn.Module,
    fingerprints: str | Sequence[str] | None = None,
    read_only: bool = False,
) -> State:
    """Reads the checkpoint in `folder` into `embedding` and `model`.

    fingerprints: of the data at hand, or several that will do, where tables have grown; None: any.
    read_only: a file store is read as it was then, and keeps what was trained since. After an error
    the rows and parameters are in no usable state.
    """
    manifest = _read_manifest(folder)
    _check_fingerprint(folder, manifest, fingerprints)
    _check_sizes(folder, manifest)
    _check_stores(folder, manifest, embedding)
    stores = manifest.get("stores")
    if embedding.tiers and stores:
        (embedding.tiers.view if read_only else embedding.tiers.restore)(stores)
    else:
        _read_packs(folder, manifest, embedding)
        if embedding.tiers:
            embedding.tiers.forget_plans()
    parameters = tensors_from_bytes(_read(folder, manifest, "model.safetensors"))
    _check_parameters(folder, parameters, model)
    model.load_state_dict(parameters)
    tensors = tensors_from_bytes(_read(folder, manifest, "trainer.safetensors"))
    return State(manifest["step"], manifest["state"], tensors)


def read_state(folder: Path) -> dict[str, Any]:
    """The plain values of the trainer's state alone."""
    return _read_manifest(folder)["state"]


def generations(folder: Path) -> list[int]:
    """The numbers of the file stores' own checkpoints; none where rows are in memory."""
    return _read_manifest(folder).get("stores") or []


def _check_stores(folder: Path, manifest: dict, embedding: Embedding) -> None:
    in_files = embedding.tiers is not None and embedding.tiers.caching.path is not None
    if bool(manifest.get("stores")) != in_files:
        where = "in a file store" if manifest.get("stores") else "in the checkpoint itself"
        raise ValueError(
            f"checkpoint {folder} has its rows {where}; load it with the store that the run was "
            f"begun with"
        )


def _free_name(run: Path, step: int) -> str:
    """step-1200; step-1200-2 where a checkpoint of that step, made before an evaluation, stands."""
    name, number = f"step-{step}", 1
    while (run / _FOLDER / name).exists():
        number += 1
        name = f"step-{step}-{number}"
    shutil.rmtree(run / _FOLDER / f"{name}.part", ignore_errors=True)
    return name


def _write_packs(folder: Path, embedding: Embedding) -> tuple[list[dict], dict[str, dict]]:
    tables: list[dict] = []
    files: dict[str, dict] = {}
    if not embedding.stores:
        return tables, files
    for pack, store in zip(embedding.packs, embedding.stores, strict=True):
        file = f"{pack.name}.records"
        files[file] = _write(folder / file, _chunks(_bytes_of(store.records)))
        for table, first_row in zip(pack.tables, pack.first_rows, strict=False):
            tables.append(
                {
                    "name": table.name,
                    "first_id": 0,
                    "num_ids": table.rows,
                    "file": file,
                    "offset": first_row * store.layout.stride,
                    "layout": store.layout.to_json(),
                }
            )
    return tables, files


def _write(path: Path, chunks) -> dict[str, int]:
    """Writes and syncs a file; returns what the manifest says of it."""
    size, checksum = 0, 0
    with open(path, "wb") as file:
        for chunk in chunks:
            file.write(chunk)
            checksum = zlib.crc32(chunk, checksum)
            size += len(chunk)
        file.flush()
        os.fsync(file.fileno())
    return {"bytes": size, "crc32": checksum}


def _bytes_of(records: Tensor) -> memoryview:
    """The memory of [R, stride] records, without a copy."""
    return memoryview(records.view(-1).numpy())  # type: ignore[arg-type]


def _chunks(memory: memoryview) -> Iterator[memoryview]:
    for first in range(0, len(memory), _CHUNK):
        yield memory[first : first + _CHUNK]


def _contiguous(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().contiguous() for name, tensor in tensors.items()}


def _to_json(fields: dict) -> bytes:
    return (json.dumps(fields, indent=2, allow_nan=False) + "\n").encode()


def _read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / "manifest.json"
    try:
        manifest = json.loads(path.read_bytes())
        written_by = manifest["format"]
    except FileNotFoundError:
        raise ValueError(f"{folder} is no checkpoint: it has no manifest.json") from None
    except (ValueError, KeyError, TypeError):
        raise _damaged(path, "it is no manifest") from None
    if written_by != FORMAT:
        raise ValueError(
            f"checkpoint {folder} has format {written_by}, this hotrows reads format {FORMAT}; "
            f"load it with the version of hotrows that wrote it"
        )
    return manifest


def _check_fingerprint(
    folder: Path, manifest: dict, fingerprints: str | Sequence[str] | None
) -> None:
    legal = [fingerprints] if isinstance(fingerprints, str) else fingerprints
    if legal is not None and manifest["fingerprint"] not in legal:
        raise ValueError(
            f"checkpoint {folder} belongs to data of another schema or encoding "
            f"({manifest['fingerprint'] or 'none'}, not {legal[0]}); use the data folder that "
            f"the run was trained on, or train a new run"
        )


def _check_sizes(folder: Path, manifest: dict) -> None:
    """Sees a missing or truncated file before anything is overwritten."""
    for name, expected in manifest["files"].items():
        path = folder / name
        if not path.exists():
            raise _damaged(path, "the file is missing")
        if path.stat().st_size != expected["bytes"]:
            raise _damaged(
                path, f"it has {path.stat().st_size:,} bytes instead of {expected['bytes']:,}"
            )


def _read_packs(folder: Path, manifest: dict, embedding: Embedding) -> None:
    places = _places(embedding)
    saved = {table["name"] for table in manifest["tables"]}
    missing, unknown = sorted(places.keys() - saved), sorted(saved - places.keys())
    if missing or unknown:
        raise ValueError(
            f"checkpoint {folder} does not fit the model: tables it lacks: "
            f"{', '.join(missing) or 'none'}; tables the model lacks: "
            f"{', '.join(unknown) or 'none'}; build the model that the run was trained with"
        )
    for file in dict.fromkeys(table["file"] for table in manifest["tables"]):
        ranges = [table for table in manifest["tables"] if table["file"] == file]
        _read_ranges(folder, manifest, sorted(ranges, key=lambda r: r["offset"]), places)


@dataclass(frozen=True)
class _Place:
    """Where a table's records live: their bytes and their layout."""

    memory: memoryview
    layout: dict


def _places(embedding: Embedding) -> dict[str, _Place]:
    places = {}
    for pack, store in zip(embedding.packs, embedding.stores, strict=True):
        memory, stride = _bytes_of(store.records), store.layout.stride
        for table, row in zip(pack.tables, pack.first_rows, strict=False):
            own = memory[row * stride : (row + table.rows) * stride]
            places[table.name] = _Place(own, store.layout.to_json())
    return places


def _read_ranges(folder: Path, manifest: dict, ranges: list[dict], places: dict) -> None:
    """Reads the ranges of one file, in the order in which they stand there."""
    path, checksum = folder / ranges[0]["file"], 0
    with open(path, "rb") as file:
        for saved in ranges:
            target = _target(folder, saved, places[saved["name"]])
            if file.tell() != saved["offset"]:
                raise _damaged(path, f"table {saved['name']!r} does not stand where it should")
            checksum = _read_into(file, target, checksum)
    if checksum != manifest["files"][path.name]["crc32"]:
        raise _damaged(path, "its checksum is wrong")


def _target(folder: Path, saved: dict, place: _Place) -> memoryview:
    """The bytes that a saved range of a table fills."""
    if saved["layout"] != place.layout:
        raise ValueError(
            f"checkpoint {folder}: records of table {saved['name']!r} are {saved['layout']}, "
            f"the model's are {place.layout}; use the dim, dtype and row optimizer of the run"
        )
    stride = place.layout["stride"]
    rows, needed = len(place.memory) // stride, saved["first_id"] + saved["num_ids"]
    if needed > rows:
        raise ValueError(
            f"checkpoint {folder}: table {saved['name']!r} has {needed:,} rows, the model's only "
            f"{rows:,}; a table may grow but not shrink: use the schema of the run"
        )
    return place.memory[saved["first_id"] * stride : needed * stride]


def _read_into(file: BinaryIO, target: memoryview, checksum: int) -> int:
    for chunk in _chunks(target):
        if file.readinto(chunk) != len(chunk):  # type: ignore[attr-defined]
            raise _damaged(Path(file.name), "it ends early")
        checksum = zlib.crc32(chunk, checksum)
    return checksum


def _read(folder: Path, manifest: dict, name: str) -> bytes:
    content = (folder / name).read_bytes()
    if zlib.crc32(content) != manifest["files"][name]["crc32"]:
        raise _damaged(folder / name, "its checksum is wrong")
    return content


def _check_parameters(folder: Path, saved: dict[str, Tensor], model: nn.Module) -> None:
    shapes = {name: tuple(value.shape) for name, value in saved.items()}
    own = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    for name in sorted(shapes.keys() | own.keys()):
        if shapes.get(name) != own.get(name):
            raise ValueError(
                f"checkpoint {folder}: parameter {name!r} has shape {shapes.get(name)}, the "
                f"model's {own.get(name)}; build the model that the run was trained with"
            )


def _damaged(path: Path, why: str) -> ValueError:
    return ValueError(f"{path} is damaged: {why}; restore it from a copy, or train the run again")
