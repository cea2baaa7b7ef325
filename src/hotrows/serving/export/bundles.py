"""Writes the bundle of a run: program, tables, encoders, and what it all is, in one folder.

What a bundle holds and how it is read: `hotrows.serving.bundle`. Before it counts as written, it scores
random ids beside the model that it was made of, and is refused where the two differ.
"""

from __future__ import annotations

import copy
import io
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hotrows.batch import Batch, by_feature, of_features, samples
from hotrows.data.columns.of_schema import SchemaColumns
from hotrows.data.rows import ends_of
from hotrows.data.stored.histories import EVENTS_FILE
from hotrows.data.stored.user_histories import UserHistories
from hotrows.engine.checkpoint import files
from hotrows.engine.distributed.all_or_none import together
from hotrows.engine.distributed.job import RankLost
from hotrows.engine.dynamic_ids import DynamicIds
from hotrows.runtime.atomic_files import link_or_copy
from hotrows.runtime.file_sums import FileSum, sum_of
from hotrows.runtime.suggestions import did_you_mean
from hotrows.schema import MISSING_KEY, Schema
from hotrows.serving import table_rows
from hotrows.serving.bundle import (
    CORE_PROGRAM,
    ENCODERS,
    PROGRAMS,
    SHARED_PROGRAMS,
    Bundle,
    CoreLayer,
    ProgramInput,
    StoredKeys,
    StoredTable,
    fields_of,
    keys_file,
    table_file,
)
from hotrows.serving.export.core_program import BehindLayers, core_layers
from hotrows.serving.export.program import PlainModel, onnx_program, torch_program
from hotrows.serving.export.shared_program import SharedModel, shared_program
from hotrows.serving.requests import Request, bucket_of, weights_of
from hotrows.serving.scorer import Scorer, first_row
from hotrows.serving.version import Version
from hotrows.table import Table
from hotrows.train.loop.evaluate import logits_of
from hotrows.train.loop.recommender import Recommender
from hotrows.train.run import folder as run_folder

Progress = Callable[[str, int, int], None]
_SAMPLES, _LONGEST = 128, 6  # of the ids that a new bundle is compared on
_TOLERANCE = 1e-3  # for other results than rounding gives; tests compare a thousand times finer


@dataclass(frozen=True)
class BundleForm:
    """The form of a bundle.

    format: of its programs, one of `PROGRAMS`; table_dtype: one of `table_rows.DTYPES`; shared: features
    that all candidates of a user have in common, for a program that computes them once. precision: of
    products in layers of the core, one of `PRECISIONS`, or auto.
    """

    format: str = "onnx"
    table_dtype: str = "float32"
    shared: tuple[str, ...] = ()
    precision: str = "float32"


@dataclass(frozen=True)
class _Programs:
    """The programs of a bundle, once they are written, and what they read."""

    plain: PlainModel
    sums: dict[str, FileSum]
    shared_inputs: tuple[ProgramInput, ...]
    shared_lists: bool
    core_layers: tuple[CoreLayer, ...]
    core_inputs: tuple[ProgramInput, ...]


def write_bundle(
    folder: Path | None, recommender: Recommender, run: Path, form: BundleForm, progress: Progress
) -> tuple[dict[str, Any], dict[str, FileSum]]:
    """Writes all of a bundle but its `export.json`; returns the fields and the sums of files for it.

    Collective: rank 0 writes what all ranks have, and where it fails all do. folder: of rank 0, None on
    others, which get nothing. recommender: what is served; run: its folder, which has the encoders.
    """
    ranks, embedding = recommender.ranks, recommender.embedding
    programs = together(
        ranks, lambda: None if folder is None else _write_programs(folder, recommender, run, form)
    )
    names = ranks.gather_objects(programs and _names_read(programs.plain))[0]  # when serving
    tables = [table for table in embedding.tables if table.name in names]
    num_rows = embedding.num_rows()
    weights = {t.name: embedding.weight_chunks(t.name, num_rows[t.name]) for t in tables}
    stored: list[StoredTable] = []
    failures: list[Exception] = []
    if folder and programs:
        try:
            stored += _write_tables(folder, weights, tables, num_rows, form, programs.sums, progress)
        except Exception as error:
            failures.append(error)
    for chunks in weights.values():  # all ranks send them, also where rank 0 failed
        deque(chunks, maxlen=0)
    live = {name: embedding.dynamic.keys.live(name) for name in embedding.dynamic.vocabularies}

    def finished() -> tuple[dict[str, Any], dict[str, FileSum]]:
        if failures:
            raise failures.pop()
        if not folder or not programs:
            return {}, {}
        return _write_rest(folder, recommender, run, form, programs, tuple(stored), live)

    return together(ranks, finished)


def _write_programs(folder: Path, recommender: Recommender, run: Path, form: BundleForm) -> _Programs:
    run_folder.open_encoder(run)  # refuses a run whose data came encoded
    _check_shared(form.shared, recommender.schema)
    embedding, kind = recommender.embedding, form.format
    on_host = copy.deepcopy(recommender.model).cpu()  # as it is to be exported, not trained
    layers = core_layers(on_host, embedding.packs) if kind == "onnx" else ()
    if form.precision not in ("float32", "auto") and not any(layer.can_be_narrow for layer in layers):
        raise ValueError(
            f"precision {form.precision} is for attention that the native core computes: that of DIN, "
            f"without Dice, and of DIEN, but for 'aigru'; this {type(on_host).__name__} has none: leave "
            f"it out"
        )
    plain = PlainModel(on_host, embedding.packs, recommender.schema.num_dense)
    program = torch_program(plain)
    sums = {PROGRAMS[kind]: _write_program(folder / PROGRAMS[kind], plain, program, kind)}
    shared_inputs, shared_lists = tuple[ProgramInput, ...](), False
    if form.shared:
        places = recommender.schema.dense_places
        names = [name for name, place in places.items() for _ in range(place.start, place.stop)]
        both = SharedModel(plain, program, form.shared, names)
        name, shared_inputs = SHARED_PROGRAMS[kind], both.inputs
        sums[name] = _write_program(folder / name, both, shared_program(both), kind)
        shared_lists = bool(both.once)
    core_inputs = tuple[ProgramInput, ...]()
    if layers:
        behind = BehindLayers(plain, layers)
        core_inputs = behind.inputs
        sums[CORE_PROGRAM] = _write_program(folder / CORE_PROGRAM, behind, torch_program(behind), kind)
    return _Programs(plain, sums, shared_inputs, shared_lists, layers, core_inputs)


def _write_rest(
    folder: Path,
    recommender: Recommender,
    run: Path,
    form: BundleForm,
    programs: _Programs,
    tables: tuple[StoredTable, ...],
    live: Mapping[str, tuple[Tensor, Tensor]],
) -> tuple[dict[str, Any], dict[str, FileSum]]:
    """Writes keys and encoders; returns what `write_bundle` does. live: ids and keys by vocabulary."""
    model, sums = recommender.model, programs.sums
    keys = tuple(_write_keys(folder, recommender.embedding.dynamic, live))
    sums |= {stored.file: sum_of(folder / stored.file) for stored in keys}
    histories = recommender.histories or run_folder.open_encoder(run).histories
    sums |= _copy_encoders(run, folder, histories)
    reads = {read for entry in programs.plain.inputs for read in entry.reads}
    bundle = Bundle(
        path=folder,
        program=PROGRAMS[form.format],
        inputs=programs.plain.inputs,
        tables=tables,
        crosses=tuple(c for c in model.crosses if any(c.name == feature for feature, _ in reads)),
        equal_lengths=tuple(h.sequences for h in model.histories if len(h.sequences) > 1),
        losses=recommender.calibration.stored(),
        files=sums,
        keys=keys,
        shared=form.shared,
        shared_program=SHARED_PROGRAMS[form.format] if form.shared else "",
        shared_inputs=programs.shared_inputs,
        shared_lists=programs.shared_lists,
        core_layers=programs.core_layers,
        core_inputs=programs.core_inputs,
    )
    return fields_of(bundle), sums


def _names_read(plain: PlainModel) -> set[str]:
    """The names of the tables that a model reads."""
    return {name for entry in plain.inputs for _, name in entry.reads}


def _logits_of_all(recommender: Recommender, batch: Batch | None) -> Tensor:
    """Collective: the logits of a batch that rank 0 has, on rank 0."""
    of_first = recommender.ranks.gather_objects(batch)[0]
    ((_, logits),) = logits_of(recommender, [samples(of_first, 0, 0) if batch is None else batch])
    return logits


def _write_tables(
    folder: Path,
    weights: Mapping[str, Iterable[Tensor]],
    tables: Sequence[Table],
    num_rows: Mapping[str, int],
    form: BundleForm,
    sums: dict[str, FileSum],
    progress: Progress,
) -> Iterator[StoredTable]:
    """Writes the rows of tables, and adds the sums of their files."""
    (folder / "tables").mkdir()
    done = 0
    for table in tables:
        rows, file = num_rows[table.name], table_file(table.name, num_rows)
        chunks, dtype = weights[table.name], form.table_dtype
        stored, sums[file] = _write_table(folder, file, table, rows, chunks, dtype)
        yield stored
        done += rows
        progress("exporting", done, sum(num_rows[table.name] for table in tables))


def check_bundle(folder: Path | None, recommender: Recommender) -> float:
    """The largest difference between logits of a bundle and those of the run, for random ids. Collective:
    rank 0 has the folder.

    ValueError where tables are as trained and the difference is none of rounding.
    """
    ranks = recommender.ranks

    def opened() -> tuple[Scorer, Batch] | None:
        if folder is None:
            return None
        scorer = Scorer(folder, trust=True)
        return scorer, _random_ids(recommender, scorer.version)

    drawn = together(ranks, opened)
    try:
        expected = _logits_of_all(recommender, drawn and drawn[1])
    except RankLost:
        raise
    except Exception as error:
        raise ValueError(
            f"{type(recommender.model).__name__} fails on random ids, so that no program of it can be "
            f"compared: {str(error)[:200]}; use --format safetensors"
        ) from error
    return together(ranks, lambda: _compared(*drawn, expected, recommender) if drawn else 0.0)


def _compared(scorer: Scorer, batch: Batch, expected: Tensor, recommender: Recommender) -> float:
    """What `check_bundle` returns, of the logits of a batch that are expected."""
    request = request_of(batch, scorer.bundle, recommender.schema)
    (logits,) = scorer.logits_of([request])
    difference = float(np.abs(logits - expected.numpy()).max())
    if scorer.bundle.core_layers:  # and the whole program, which needs no core
        (logits,) = Scorer(scorer.bundle.path, trust=True, core=False).logits_of([request])
        difference = max(difference, float(np.abs(logits - expected.numpy()).max()))
    if scorer.bundle.shared:
        both = _sharing(request, scorer.bundle, recommender.schema)
        (logits,), (of_all,) = (scorer.logits_of([request]) for request in both)
        difference = max(difference, float(np.abs(logits - of_all).max()))
    exact = all(table.dtype == "float32" for table in scorer.bundle.tables)
    if not difference <= _TOLERANCE * max(1.0, float(expected.abs().max())) and exact:
        raise ValueError(
            f"the program of {type(recommender.model).__name__} computes other logits than the model, by "
            f"up to {difference:.3g}: lists are padded in it, so use the list layers of "
            f"hotrows.models.nn on `vectors.sequence`, or --format safetensors"
        )
    return difference


def _check_shared(shared: Sequence[str], schema: Schema) -> None:
    names = [feature.name for feature in schema.features]
    for name in shared:
        if name not in names:
            raise ValueError(
                f"shared features are some of the schema's, and {name!r} is none"
                f"{did_you_mean(name, names) or ': ' + ', '.join(names)}"
            )
    if set(names) <= set(shared):
        raise ValueError(
            "all features are shared, so that all rows of a request are equal; leave one out"
        )


def _sharing(request: Request, bundle: Bundle, schema: Schema) -> tuple[Request, Request]:
    """A request whose rows have the shared features of its first row, looked up once, and row by row."""
    first, dense = first_row(request), request.dense.copy()
    for name, place in schema.dense_places.items():
        if name in bundle.shared:
            dense[:, place] = dense[0, place]
    once, all_rows = (
        (dict(request.ids), dict(request.offsets)),
        (dict(request.ids), dict(request.offsets)),
    )
    shared_arrays = {*bundle.shared, *map(weights_of, bundle.shared)}
    for name in shared_arrays & set(request.ids):
        ids, ends = first.ids[name], first.offsets[name]
        once[0][name], once[1][name] = ids, ends
        all_rows[0][name] = np.tile(ids, request.size)
        all_rows[1][name] = None if ends is None else np.arange(request.size + 1) * len(ids)
    for cross in bundle.crosses:
        for of_rows, _ in (once, all_rows):
            of_rows[cross.name] = bucket_of([of_rows[name] for name in cross.features], cross.rows)
    shared = frozenset(bundle.shared)
    return Request(request.size, *once, dense, shared), Request(request.size, *all_rows, dense)


def _write_program(
    path: Path, plain: PlainModel | SharedModel, program: torch.export.ExportedProgram, kind: str
) -> FileSum:
    if kind == "onnx":
        return files.write_file(path, [onnx_program(plain, program).SerializeToString()])
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    return files.write_file(path, [buffer.getvalue()])


def _write_keys(
    folder: Path, dynamic: DynamicIds, live: Mapping[str, tuple[Tensor, Tensor]]
) -> Iterator[StoredKeys]:
    """Writes which key has which row, by vocabulary."""
    for name, vocabulary in dynamic.vocabularies.items():
        (folder / "keys").mkdir(exist_ok=True)
        ids, keys = (tensor.numpy() for tensor in live[name])
        order = keys.argsort()
        file = keys_file(name, dynamic.vocabularies)
        np.save(folder / file, np.stack([keys[order], ids[order]]))
        features = tuple(f for f, of_feature in dynamic.features.items() if of_feature == name)
        yield StoredKeys(name, features, vocabulary.num_unknown, file)


def _write_table(
    folder: Path, name: str, table: Table, rows: int, chunks: Iterable[Tensor], wanted: str
) -> tuple[StoredTable, FileSum]:
    dtype = table_rows.smallest_dtype(wanted, table.dim)
    largest, squares = 0.0, 0.0

    def content() -> Iterator[bytes | memoryview]:
        nonlocal largest, squares
        yield _npy_header(*table_rows.stored_shape(dtype, rows, table.dim))
        for chunk in chunks:
            weights = chunk.float().numpy()
            if not np.isfinite(weights).all():
                raise ValueError(
                    f"table {table.name!r} has weights that are no finite numbers: training diverged; "
                    f"export an earlier checkpoint, or train again with lower learning rates"
                )
            stored = np.ascontiguousarray(table_rows.encode(weights, dtype))
            error = table_rows.decode(stored, dtype, table.dim).astype(np.float64) - weights
            largest = max(largest, float(np.abs(error).max(initial=0.0)))
            squares += float(np.square(error).sum())
            yield memoryview(stored.reshape(-1).view(np.uint8).data)

    of_file = files.write_file(folder / name, content())
    rms = (squares / (rows * table.dim)) ** 0.5
    most = None if rows == table.rows else table.rows
    return StoredTable(
        table.name, table.role, table.features, rows, table.dim, dtype, name, largest, rms, most
    ), of_file


def _npy_header(dtype: np.dtype, shape: tuple[int, int]) -> bytes:
    buffer = io.BytesIO()
    fields = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(buffer, fields)
    return buffer.getvalue()


def _copy_encoders(run: Path, folder: Path, histories: UserHistories | None) -> dict[str, FileSum]:
    source, sums = run / ENCODERS, {}
    for file in sorted(path for path in source.rglob("*") if path.is_file()):
        name = f"{ENCODERS}/{file.relative_to(source).as_posix()}"
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if histories is not None and histories.count and file.name == EVENTS_FILE:
            histories.write(folder / name)
        else:
            link_or_copy(file, folder / name)
        sums[name] = sum_of(folder / name)
    return sums


def _random_ids(recommender: Recommender, version: Version) -> Batch:
    """Ids of all features, or their keys, drawn at random."""
    random, bundle = np.random.default_rng(0), version.bundle
    live = {f: version.keys[k.vocabulary].pairs()[0] for k in bundle.keys for f in k.features}
    schema = recommender.schema
    dense = random.normal(size=(_SAMPLES, schema.num_dense)).astype(np.float32)
    together = {name: group[0] for group in bundle.equal_lengths for name in group}
    by_group: dict[str, np.ndarray] = {}
    ids, lengths = {}, {}
    columns = SchemaColumns(schema).ids
    for column in columns:
        name = column.name
        count = np.ones(_SAMPLES, np.int64)
        if column.is_list:
            most = min(column.max_length or _LONGEST, _LONGEST)
            drawn = random.integers(0, most + 1, _SAMPLES)
            count = by_group.setdefault(together.get(name, name), drawn)
        lengths[name] = count
        drawn_ids = random.integers(0, schema.rows_of(name), int(count.sum()))
        if not column.lookup.has_values:  # some keys have rows, others none
            keys = np.append(live.get(name, ()), [7, MISSING_KEY]).astype(np.int64)
            drawn_ids = keys[drawn_ids % len(keys)]
        ids[name] = drawn_ids
    # Put them end to end, with weights where a feature has them.
    if not columns:
        return Batch((), torch.zeros(0, dtype=torch.int64), torch.from_numpy(dense))
    has_lists, has_weights = any(c.is_list for c in columns), any(c.has_weights for c in columns)
    pieces = {}
    for column in columns:
        values, size = ids[column.name], len(ids[column.name])
        weights = random.normal(size=size) if column.has_weights else np.ones(size)
        tensors = map(torch.from_numpy, (values, lengths[column.name], weights.astype(np.float32)))
        pieces[column.name] = tuple(tensors)
    return Batch(dense=torch.from_numpy(dense), **of_features(pieces, has_lists, has_weights))


def request_of(batch: Batch, bundle: Bundle, schema: Schema) -> Request:
    """The samples of an encoded batch as a request of a bundle."""
    batch = batch.expanded()
    columns = {column.name: column for column in SchemaColumns(schema).ids}
    ids: dict[str, np.ndarray] = {}
    offsets: dict[str, np.ndarray | None] = {}
    for name, (values, lengths, weights) in by_feature(vars(batch)).items():
        ids[name] = values.numpy()
        offsets[name] = ends_of(lengths.numpy()) if columns[name].is_list else None
        if columns[name].has_weights and batch.weights is not None:
            ids[weights_of(name)], offsets[weights_of(name)] = weights.numpy(), offsets[name]
    for cross in bundle.crosses:
        ids[cross.name] = bucket_of([ids[name] for name in cross.features], cross.rows)
        offsets[cross.name] = None
    return Request(batch.size, ids, offsets, batch.dense.numpy())
