"""export: a trained model in files that any PyTorch user can read without hotrows.

    OUT/export.json                     model, options, schema, crosses; tables by role, features,
                                        rows and dim
    OUT/model.safetensors               the dense part, by parameter
    OUT/tables/<table>.safetensors      one tensor, "weight": [rows, dim], as it is stored

    weight = safetensors.torch.load_file("OUT/tables/C1.safetensors")["weight"]
    vectors = torch.nn.functional.embedding(ids, weight)

Optimizer state stays in the run. Tables are written some rows at a time, so that one in a file
store may be larger than memory.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import torch
from safetensors.torch import save_file
from torch import Tensor

from hotrows.data.aside import written_aside
from hotrows.predict import Predictor
from hotrows.schema import Table
from hotrows.tensor_file import DTYPES, Stored, header
from hotrows.train import load_run
from hotrows.version import VERSION

FORMAT = 1
_MODEL = "model.safetensors"


def export(
    run: Path | str,
    out: Path | str,
    which: str = "best",
    *,
    progress: Callable[[str, int, int], None] = lambda stage, done, total: None,
) -> Path:
    """Writes the model of a run's `best` or `last` checkpoint into the new folder `out`.

    progress: told "exporting", and how many rows of how many are written.
    """
    with written_aside(Path(out)) as folder:
        predictor = load_run(run, which)
        try:
            _write_model(folder, predictor.model)
            _write_tables(folder, predictor, progress)
        finally:
            predictor.embedding.close()
        text = json.dumps(_description(predictor, which), indent=2)
        (folder / "export.json").write_text(text + "\n")
    return Path(out)


def _write_model(folder: Path, model: torch.nn.Module) -> None:
    parameters = {name: value.contiguous() for name, value in model.state_dict().items()}
    save_file(parameters, folder / _MODEL)


def _write_tables(
    folder: Path, predictor: Predictor, progress: Callable[[str, int, int], None]
) -> None:
    (folder / "tables").mkdir()
    embedding = predictor.embedding
    done, total = 0, sum(table.rows for table in embedding.tables)
    for table in embedding.tables:
        with open(folder / _file(table), "wb") as file:
            weight = Stored(DTYPES[table.dtype], (table.rows, table.dim))
            file.write(header({"weight": weight}))
            for weights in embedding.weight_chunks(table.name):
                file.write(_bytes_of(weights))
                done += len(weights)
                progress("exporting", done, total)


def _file(table: Table) -> str:
    """Where a table goes; its name comes from a column's and may hold any character."""
    return f"tables/{quote(table.name, safe=' ')}.safetensors"


def _bytes_of(weights: Tensor) -> memoryview:
    return memoryview(weights.contiguous().view(torch.uint8).numpy())  # type: ignore[arg-type]


def _description(predictor: Predictor, which: str) -> dict[str, Any]:
    config = predictor.config
    return {
        "format": FORMAT,
        "hotrows": VERSION,
        "torch": torch.__version__,
        "checkpoint": which,
        "model": config.model,
        "model_options": config.model_options,
        "parameters": _MODEL,
        "tables": list(_tables(predictor.embedding.tables)),
        "crosses": [dataclasses.asdict(cross) for cross in predictor.model.crosses],
        "schema": json.loads(predictor.schema.to_json()),
    }


def _tables(tables: tuple[Table, ...]) -> Iterator[dict[str, Any]]:
    for table in tables:
        fields = ("name", "role", "features", "rows", "dim", "dtype")
        yield {**{name: getattr(table, name) for name in fields}, "file": _file(table)}
