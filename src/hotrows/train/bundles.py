"""Writes the bundle of a run: program, tables, encoders, and what it all is, in one folder.

What a bundle holds and how it is read: `hotrows.serving.bundle`. Before it counts as written, it scores
random ids beside the model that it was made of, and is refused where the two differ.
"""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hotrows.batch import Batch
from hotrows.checkpoint import files
from hotrows.runtime.atomic_files import link_or_copy
from hotrows.runtime.file_sums import FileSum, sum_of
from hotrows.schema import is_list
from hotrows.serving import table_rows
from hotrows.serving.bundle import (
    ENCODERS,
    PROGRAMS,
    Bundle,
    StoredLoss,
    StoredTable,
    fields_of,
    table_file,
)
from hotrows.serving.requests import Request, bucket_of
from hotrows.serving.scorer import Scorer
from hotrows.table import Table
from hotrows.train import run_folder
from hotrows.train.evaluate import logits_of
from hotrows.train.program import PlainModel, onnx_program, torch_program
from hotrows.train.recommender import Recommender

Progress = Callable[[str, int, int], None]
_SAMPLES, _LONGEST = 128, 6  # of the ids that a new bundle is compared on
_TOLERANCE = 1e-3  # for other results than rounding gives; tests compare a thousand times finer


def write_bundle(
    folder: Path, recommender: Recommender, run: Path, kind: str, table_dtype: str, progress: Progress
) -> tuple[dict[str, Any], dict[str, FileSum]]:
    """Writes all of a bundle but its `export.json`; returns the fields and the sums of files for it.

    recommender: what is served; run: its folder, which has the encoders. kind: one of `PROGRAMS`;
    table_dtype: one of `table_rows.DTYPES`.
    """
    run_folder.open_encoder(run)  # refuses a run whose data came encoded
    dynamic = [f.name for f in recommender.schema.id_features if f.dynamic is not None]
    if dynamic:
        raise ValueError(
            f"features {', '.join(dynamic)} are dynamic, and a bundle has rows of vocabularies alone; "
            f"use --format safetensors"
        )
    embedding, model = recommender.embedding, recommender.model
    on_host = copy.deepcopy(model).cpu()  # as it is to be exported, not trained
    plain = PlainModel(on_host, embedding.packs, len(recommender.schema.dense))
    sums = {PROGRAMS[kind]: _write_program(folder / PROGRAMS[kind], plain, kind)}
    tables = []
    (folder / "tables").mkdir()
    done, num_rows = 0, sum(table.rows for table in embedding.tables)
    for table in embedding.tables:
        chunks = embedding.weight_chunks(table.name)
        stored, sums[table_file(table.name)] = _write_table(folder, table, chunks, table_dtype)
        tables.append(stored)
        done += table.rows
        progress("exporting", done, num_rows)
    sums |= _copy_encoders(run, folder)
    histories = getattr(model, "histories", ())
    bundle = Bundle(
        path=folder,
        program=PROGRAMS[kind],
        inputs=plain.inputs,
        tables=tuple(tables),
        crosses=tuple(model.crosses),
        equal_lengths=tuple(h.sequences for h in histories if len(h.sequences) > 1),
        losses={
            label: StoredLoss(str(loss), loss.link)
            for label, loss in zip(recommender.labels, recommender.losses, strict=True)
        },
        files=sums,
    )
    return fields_of(bundle), sums


def check_bundle(folder: Path, recommender: Recommender) -> float:
    """The largest difference between logits of a bundle and those of the run, for random ids.

    ValueError where tables are as trained and the difference is none of rounding.
    """
    scorer = Scorer(folder, trust=True)
    batch, request = _random_ids(recommender, scorer.bundle)
    try:
        ((_, expected),) = logits_of(recommender, [batch])
    except Exception as error:
        raise ValueError(
            f"{type(recommender.model).__name__} fails on random ids, so that no program of it can be "
            f"compared: {str(error)[:200]}; use --format safetensors"
        ) from error
    (logits,) = scorer.logits_of([request])
    difference = float(np.abs(logits - expected.numpy()).max())
    exact = all(table.dtype == "float32" for table in scorer.bundle.tables)
    if not difference <= _TOLERANCE * max(1.0, float(expected.abs().max())) and exact:
        raise ValueError(
            f"the program of {type(recommender.model).__name__} computes other logits than the model, by "
            f"up to {difference:.3g}: lists are padded in it, so use the list layers of hotrows.nn on "
            f"`vectors.sequence`, or --format safetensors"
        )
    return difference


def _write_program(path: Path, plain: PlainModel, kind: str) -> FileSum:
    program = torch_program(plain)
    if kind == "onnx":
        return files.write_file(path, [onnx_program(plain, program).SerializeToString()])
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    return files.write_file(path, [buffer.getvalue()])


def _write_table(
    folder: Path, table: Table, chunks: Iterable[Tensor], wanted: str
) -> tuple[StoredTable, FileSum]:
    dtype = table_rows.smallest_dtype(wanted, table.dim)
    largest, squares = 0.0, 0.0

    def content() -> Iterator[bytes | memoryview]:
        nonlocal largest, squares
        yield _npy_header(*table_rows.stored_shape(dtype, table.rows, table.dim))
        for chunk in chunks:
            weights = chunk.float().numpy()
            if not np.isfinite(weights).all():
                raise ValueError(f"table {table.name!r} has weights that are no finite numbers")
            stored = np.ascontiguousarray(table_rows.encode(weights, dtype))
            error = table_rows.decode(stored, dtype, table.dim).astype(np.float64) - weights
            largest = max(largest, float(np.abs(error).max(initial=0.0)))
            squares += float(np.square(error).sum())
            yield memoryview(stored.reshape(-1).view(np.uint8).data)

    name = table_file(table.name)
    of_file = files.write_file(folder / name, content())
    rms = (squares / (table.rows * table.dim)) ** 0.5
    sizes = table.role, table.features, table.rows, table.dim
    return StoredTable(table.name, *sizes, dtype, name, largest, rms), of_file


def _npy_header(dtype: np.dtype, shape: tuple[int, int]) -> bytes:
    buffer = io.BytesIO()
    fields = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(buffer, fields)
    return buffer.getvalue()


def _copy_encoders(run: Path, folder: Path) -> dict[str, FileSum]:
    source, sums = run / ENCODERS, {}
    for file in sorted(path for path in source.rglob("*") if path.is_file()):
        name = f"{ENCODERS}/{file.relative_to(source).as_posix()}"
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        link_or_copy(file, folder / name)
        sums[name] = sum_of(folder / name)
    return sums


def _random_ids(recommender: Recommender, bundle: Bundle) -> tuple[Batch, Request]:
    """Ids of all features, drawn at random, as a batch and as a request."""
    random = np.random.default_rng(0)
    schema = recommender.schema
    dense = random.normal(size=(_SAMPLES, len(schema.dense))).astype(np.float32)
    together = {name: group[0] for group in bundle.equal_lengths for name in group}
    by_group: dict[str, np.ndarray] = {}
    ids, lengths = {}, {}
    offsets: dict[str, np.ndarray | None] = {}
    for feature in schema.id_features:
        name = feature.name
        count = np.ones(_SAMPLES, np.int64)
        if is_list(feature):
            most = min(feature.max_length or _LONGEST, _LONGEST)
            drawn = random.integers(0, most + 1, _SAMPLES)
            count = by_group.setdefault(together.get(name, name), drawn)
        lengths[name] = count
        ids[name] = random.integers(0, schema.rows_of(name), int(count.sum()))
        offsets[name] = np.concatenate([[0], count.cumsum()]) if is_list(feature) else None
    ends = np.concatenate([np.zeros(1, np.int64), *lengths.values()]).cumsum()
    batch = Batch(
        features=tuple(ids),
        ids=torch.from_numpy(np.concatenate([np.zeros(0, np.int64), *ids.values()])),
        dense=torch.from_numpy(dense),
        offsets=torch.from_numpy(ends) if any(o is not None for o in offsets.values()) else None,
    )
    for cross in bundle.crosses:
        ids[cross.name] = bucket_of([ids[name] for name in cross.features], cross.rows)
        offsets[cross.name] = None
    return batch, Request(_SAMPLES, ids, offsets, dense)
