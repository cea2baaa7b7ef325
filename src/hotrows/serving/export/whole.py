"""export: a trained model in files, to read without hotrows, or to serve without PyTorch.

    OUT/export.json                     model, options, schema, crosses; the loss of each label; tables by
                                        role, features, rows and dim; a checksum of every file

--format safetensors, which any PyTorch user reads without hotrows:

    OUT/model.safetensors               the dense part, by parameter
    OUT/tables/<table>.safetensors      "weight": [rows, dim], as it is stored; of a dynamic feature also
                                        "ids" [n], ascending, and "keys" [n]: whose row each of them is;
                                        with --state the row optimizer's numbers, [rows, dim] or [rows]
    OUT/trainer.safetensors             with --state that of the dense part's optimizer, and more
    OUT/keys.safetensors                with --state what is known of the keys of dynamic features

    weight = safetensors.torch.load_file("OUT/tables/C1.safetensors")["weight"]
    vectors = torch.nn.functional.embedding(ids, weight)

--format onnx or pt2, which `hotrows.serving.Scorer` reads: a bundle, see `hotrows.serving.bundle`.

Rows under a dense optimizer are up to date. Tables are written some rows at a time, so that one in a file
store may be larger than memory.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save as tensors_to_bytes
from torch import Tensor

from hotrows.engine import checkpoint
from hotrows.engine.checkpoint import files
from hotrows.engine.checkpoint.manifest import KEYS, read_manifest
from hotrows.engine.checkpoint.table_files import TableFiles, describe, table_file
from hotrows.engine.distributed.all_or_none import together
from hotrows.models.model import Model
from hotrows.ops.record import RecordViews, layout_of
from hotrows.optim import RowWiseAdagrad
from hotrows.runtime.atomic_files import new_folder
from hotrows.runtime.file_sums import FileSum
from hotrows.runtime.tensor_file import DTYPES, Stored
from hotrows.serving.bundle import PRECISIONS
from hotrows.serving.export.bundles import BundleForm, check_bundle, write_bundle
from hotrows.serving.export.held_out import compare_held_out, compare_precisions, smallest
from hotrows.serving.table_rows import DTYPES as ROW_DTYPES
from hotrows.table import Table
from hotrows.train.loop.predictor import Predictor, load_run
from hotrows.train.loop.recommender import Recommender
from hotrows.version import VERSION

FORMATS = ("safetensors", "onnx", "pt2")
_MODEL, _TRAINER, _MANIFEST = "model.safetensors", "trainer.safetensors", "export.json"
_FIELDS = ("name", "role", "features", "rows", "dim", "dtype")


def export(
    run: Path | str,
    out: Path | str,
    which: str = "best",
    *,
    format: str = "safetensors",
    table_dtype: str | None = None,
    shared: Sequence[str] = (),
    precision: str = "float32",
    state: bool = False,
    model: str | type[Model] | Model | None = None,
    trust: bool = False,
    progress: Callable[[str, int, int], None] = lambda stage, done, total: None,
) -> Path:
    """Writes the model of a run's `best` or `last` checkpoint into the new folder `out`.

    format: safetensors: weights and no program; onnx or pt2: a bundle with a program, to be served.
    table_dtype: number format of the tables of a bundle: float32, float16, int8 or int4; the errors
        are in its `export.json`, with the metric of held-out rows next to the run's. Without a
        program, weights are written as they are stored (default: float32).
    shared: features that all rows of a request have in common, such as user,history; a program of the
        bundle computes once what follows from them.
    precision: number format of attention when serving: float32, bfloat16, int8, or auto, the smallest
        that scores held-out rows almost as float32.
    state: write the state of the optimizers too; only in format safetensors.
    model, trust: of a model of one's own, see `load_run`.
    progress: called with "exporting", the rows written and the rows of all tables.

    >>> weights = export(run, f"{folder}/weights")  # as safetensors
    >>> (weights / "export.json").exists()
    True
    """
    _check(format, table_dtype, shared, precision, state)
    with new_folder(Path(out)) as folder:
        predictor = load_run(run, which, model=model, trust=trust)
        try:
            # Without a program: the dense part, the tables, on request the optimizers' state and keys.
            if format == "safetensors":
                fields = _description(predictor, which)
                table_files = _write_tables(folder, predictor, state, progress)
                table_files.sums[_MODEL] = _write_model(folder, predictor.model)
                if state:
                    saved = checkpoint.folder_of(run, which)
                    content = files.read_file(saved / _TRAINER, read_manifest(saved).files[_TRAINER])
                    table_files.sums[_TRAINER] = files.write_file(folder / _TRAINER, [content])
                    if keys := predictor.embedding.dynamic.state():
                        table_files.sums[KEYS] = files.write_file(folder / KEYS, [tensors_to_bytes(keys)])
                table_files.describe(_MANIFEST, {**fields, "parameters": _MODEL})
            else:
                form = BundleForm(format, table_dtype or "float32", tuple(shared), precision)
                write_whole_bundle(folder, predictor, predictor.run, which, form, progress, compare=True)
        finally:
            predictor.embedding.close()
    return Path(out)


def _check(
    format: str, table_dtype: str | None, shared: Sequence[str], precision: str, state: bool
) -> None:
    """Refuses arguments of an export that do not go together."""
    if format not in FORMATS:
        raise ValueError(f"format must be one of {', '.join(FORMATS)}, not {format!r}")
    if table_dtype is not None and (format == "safetensors" or table_dtype not in ROW_DTYPES):
        raise ValueError(
            f"table_dtype must be one of {', '.join(ROW_DTYPES)}, for format onnx or pt2, not "
            f"{table_dtype!r} for {format}"
        )
    if state and format != "safetensors":
        raise ValueError(f"state is written in format safetensors, not in {format}, which serves")
    if precision not in (*PRECISIONS, "auto") or (precision != "float32" and format != "onnx"):
        raise ValueError(
            f"precision must be one of {', '.join(PRECISIONS)}, auto, and is for format onnx, not "
            f"{precision!r} for {format}"
        )
    if shared and format == "safetensors":
        raise ValueError("shared features are for a program: give format onnx or pt2, not safetensors")


def write_whole_bundle(
    folder: Path | None,
    recommender: Recommender,
    run: Path,
    which: str,
    form: BundleForm,
    progress: Callable[[str, int, int], None] = lambda stage, done, total: None,
    compare: bool = False,
) -> None:
    """Writes the bundle of a model of `run` into `folder`, compares it with the model, and describes it.

    Collective: rank 0 has the folder, others None. which: of the states of the run it is, as
    `export.json` is to say. compare: whether tables in fewer bits and precisions are compared on held-out
    rows, too; of one rank.
    """
    bundle, sums = write_bundle(folder, recommender, run, form, progress)
    fields = {**_description(recommender, which), **bundle}

    def described() -> None:
        if folder:
            describe(folder / _MANIFEST, fields, sums)

    together(recommender.ranks, described)
    fields["largest_difference"] = check_bundle(folder, recommender)
    if folder and compare and form.table_dtype != "float32":
        fields["held_out"] = compare_held_out(folder, recommender, run)
    if form.precision != "float32":
        fields["precision"] = form.precision
        if folder and compare:
            fields["precisions"] = of_precisions = compare_precisions(folder, recommender, run)
            if form.precision == "auto":
                fields["precision"] = smallest(of_precisions)
    together(recommender.ranks, described)


def _write_model(folder: Path, model: torch.nn.Module) -> FileSum:
    parameters = {name: value.contiguous() for name, value in model.state_dict().items()}
    return files.write_file(folder / _MODEL, [tensors_to_bytes(parameters)])


def _write_tables(
    folder: Path, predictor: Predictor, state: bool, progress: Callable[[str, int, int], None]
) -> TableFiles:
    embedding = predictor.embedding
    num_rows = embedding.num_rows()
    written = TableFiles(folder, sum(num_rows.values()), progress)
    for table in embedding.tables:
        rows = num_rows[table.name]
        tensors = {"weight": Stored(DTYPES[_written_dtype(table)], (rows, table.dim))}
        contents: list[Iterable[np.ndarray]] = [map(_bytes_of, embedding.weight_chunks(table.name, rows))]
        for name, stored, column in _columns_of_state(table, rows) if state else ():
            chunks = embedding.packed.record_chunks(table.name, rows)
            tensors[name], of_chunk = stored, partial(_bytes_of_column, column)
            contents.append(map(of_chunk, chunks))
        for name, numbers in zip(("ids", "keys"), embedding.dynamic.live(table) or (), strict=False):
            tensors[name] = Stored("I64", (len(numbers),))
            contents.append([_bytes_of(numbers[:, None])])
        written.write(table_file(table.name, num_rows), tensors, contents)
    return written


def _written_dtype(table: Table) -> str:
    """The dtype of exported weights: as stored, and float32 in place of integers."""
    return table.dtype if table.dtype in DTYPES else "float32"


def _columns_of_state(table: Table, rows: int) -> Iterator[tuple[str, Stored, slice | None]]:
    """Name, dtype and shape of the numbers of a table's optimizer, and their columns in a record's state;
    None: they are its step."""
    optimizer, layout = table.optimizer, layout_of(table)
    assert optimizer is not None
    names = optimizer.state_names if layout.state_width else ()
    for k, name in enumerate(names):
        width = layout.state_width // len(names)
        shape = (rows,) if isinstance(optimizer, RowWiseAdagrad) else (rows, width)
        yield name, Stored("F32", shape), slice(k * width, (k + 1) * width)
    if layout.has_step:
        yield "step", Stored("I32", (rows,)), None


def _bytes_of_column(column: slice | None, chunk: RecordViews) -> np.ndarray:
    if column is not None:
        return _bytes_of(chunk.state[:, column])
    assert chunk.step is not None
    return _bytes_of(chunk.step[:, None])


def _bytes_of(numbers: Tensor) -> np.ndarray:
    """[n, m] numbers as [n, bytes of a row] uint8."""
    return numbers.contiguous().view(torch.uint8).numpy()


def _description(recommender: Recommender, which: str) -> dict[str, Any]:
    config = recommender.config
    return {
        "hotrows": VERSION,
        "torch": torch.__version__,
        "checkpoint": which,
        "model": config.model,
        "model_options": config.model_options,
        "losses": {n: dataclasses.asdict(x) for n, x in recommender.calibration.stored().items()},
        "tables": list(_tables(recommender.embedding.tables, recommender.embedding.num_rows())),
        "crosses": [
            {"of": cross.features, "rows": cross.rows, "name": cross.name}
            for cross in recommender.model.crosses
        ],
        "schema": json.loads(recommender.schema.to_json()),
    }


def _tables(tables: tuple[Table, ...], num_rows: Mapping[str, int]) -> Iterator[dict[str, Any]]:
    for table in tables:
        fields = {name: getattr(table, name) for name in _FIELDS}
        fields |= {"rows": num_rows[table.name], "dtype": _written_dtype(table)}
        yield {**fields, "file": table_file(table.name, num_rows)}
