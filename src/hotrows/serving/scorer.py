"""Scorer: a bundle that turns raw rows into scores, with NumPy, ONNX Runtime and the native core.

    raw rows -> ids (encoders) -> vectors (mapped tables) -> logits (program) -> predictions

PyTorch is not imported, but for a bundle whose program is a `.pt2`.
"""

from __future__ import annotations

import dataclasses
import itertools
import weakref
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from hotrows.data.encode.encoder import Encoder
from hotrows.data.stored.user_histories import ShortLists
from hotrows.losses import Calibration, Loss
from hotrows.serving.bundle import ENCODERS, Bundle, CoreLayer, ProgramInput
from hotrows.serving.core_layers import KINDS, OF_LISTS, Lists
from hotrows.serving.follower import Follower
from hotrows.serving.requests import Request, RequestEncoder, weights_of
from hotrows.serving.table_rows import TableRows
from hotrows.serving.user_cache import UserCache
from hotrows.serving.version import Version, open_version

_ROWS_AT_ONCE = 4096  # samples that the program computes at a time
_PLACES_AT_ONCE = 1 << 14  # of their sequences, padded: what is computed of them fits into caches
_SHARED_PLACES_AT_ONCE = 1 << 19  # where each piece would compute the shared lists again
_LEAST_PLACES = 2  # of sequences: what programs are written for
_OF_ROWS = ("pooled", "sequence", "layer")  # inputs
_LEAST_SHARED = 16  # rows of a request that is computed by itself, what they share once


class Scorer:
    """Scores raw rows by a bundle.

    bundle: a folder of `hotrows export --format onnx` or pt2, or what follows versions.
    threads: threads for encoding and scoring.
    memory: bytes up to which vocabularies are copied into memory (default: 1 GiB).
    trust: open a program whose reader runs what the file says (pt2).
    verify: compare tables, and vocabularies above 64 MiB, with their checksums, for which they are read
    whole; all other files always are.
    extra_fields: Whether to refuse or to ignore fields of objects that the model does not read, such as
    misspelt ones.
    require_all: refuse a request that lacks a field; null is a value.
    core: let the native core compute the layers over histories that it has; False: ONNX Runtime computes
    all of the model, as it does outside of hotrows, in more time.
    user_cache: bytes to keep what HSTU or DIEN computes of a list that rows share, for the next request
    (default: nothing is kept).
    """

    def __init__(
        self,
        bundle: Path | str | Follower,
        *,
        threads: int = 1,
        memory: int | None = None,
        trust: bool = False,
        verify: bool = False,
        extra_fields: Literal["refuse", "ignore"] = "refuse",
        require_all: bool = False,
        core: bool = True,
        user_cache: int | None = None,
    ) -> None:
        if extra_fields not in ("refuse", "ignore"):
            raise ValueError(f"extra_fields must be 'refuse' or 'ignore', not {extra_fields!r}")
        self._follower = bundle if isinstance(bundle, Follower) else None
        if isinstance(bundle, Follower):
            self._fixed = bundle.version
        else:
            self._fixed = open_version(bundle, threads, trust, verify)
        self.bundle: Bundle = self._fixed.bundle
        self._core = core and bool(self.bundle.core_layers)
        self.user_cache = None if user_cache is None else UserCache(user_cache)
        kinds = [KINDS[layer.kind] for layer in self.bundle.core_layers if self._core]
        if self.user_cache and not any(issubclass(kind, OF_LISTS) for kind in kinds):
            raise ValueError(
                f"user_cache is for HSTU and DIEN in the native core, whose layers make something of a "
                f"user's list alone, not for {self.bundle.path}; leave it out"
            )
        checked = False  # as files of the bundle
        encoder = Encoder.open(self.bundle.path / ENCODERS, threads, memory, checked)
        self.requests = RequestEncoder(
            encoder,
            self.bundle.crosses,
            self.bundle.equal_lengths,
            lambda: self.version.histories,
            extra_fields,
            require_all,
        )
        self.schema, self.short_lists = encoder.schema, ShortLists()
        _check_rows(self._fixed, encoder)
        self._pooling = encoder.schema.pooling
        self._dense_places = encoder.schema.dense_places
        self._sequences = [e.reads[0][0] for e in self.bundle.inputs if e.kind == "lengths"]

    @classmethod
    def watch(
        cls,
        folder: Path | str,
        *,
        every: float | None = 0.03,
        threads: int = 1,
        memory: int | None = None,
        trust: bool = False,
        cache: Path | str | None = None,
        **how: Any,
    ) -> Scorer:
        """A scorer by the newest version in `folder`, to which training publishes; or at a URL.

        every: seconds between looks for a newer one; None: only when `scorer.follower.look()` is called.
        cache: the folder for copies of what is at a URL (default: a temporary one, deleted with the
            scorer). `close` ends the looks, as does deleting the scorer. how: extra_fields, require_all
            and user_cache, see `Scorer`.
        """
        follower = Follower(folder, every=every, threads=threads, trust=trust, cache=cache)
        try:
            scorer = cls(follower, threads=threads, memory=memory, **how)
        except BaseException:
            follower.close()
            raise
        weakref.finalize(scorer, follower.close)
        return scorer

    @property
    def version(self) -> Version:
        """The version that scores are computed from now; see `watch`."""
        return self._fixed if self._follower is None else self._follower.version

    @property
    def follower(self) -> Follower | None:
        """The thread that keeps the version up to date; None of a bundle by itself."""
        return self._follower

    def close(self) -> None:
        """Stays at the present version from here on."""
        if self._follower is not None:
            self._follower.close()

    def warm_up(self) -> None:
        """Computes a row without values, as the first one takes longest; no count knows of it."""
        self.logits([dict.fromkeys(self.requests.names.read)])
        self.requests.value_counts.clear()

    def __repr__(self) -> str:
        return f"Scorer({self.bundle.path}, {self.bundle.format} of {', '.join(self.bundle.losses)})"

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the labels that are predicted, in the order of the scores."""
        return tuple(self.bundle.losses)

    def score(self, rows: Any, shared: Mapping[str, Any] | None = None) -> np.ndarray:
        """Predictions of raw rows, [N] float32, of several labels [N, T]: probabilities, or numbers.

        rows, shared: as `RequestEncoder.encode` takes them. ValueError names a value that is wrong, or
        the first row whose score is no finite number.
        """
        version = self.version
        return self.predictions(self.logits(rows, shared, version), version)

    def contributions(self, rows: Any, shared: Mapping[str, Any] | None = None) -> dict[str, np.ndarray]:
        """What each field of raw rows adds to their scores: by field [N], of several labels [N, T].

        That is the output of the model less its output if the field were left out: log odds, where
        scores are probabilities. All fields together do not add up to the output.
        """
        requests, version = self.explained(self.requests.encode(rows, shared)), self.version
        logits = self.logits_of([r for group in requests.values() for r in group], version)
        return differences(requests, version.calibration.calibrated(np.concatenate(logits)))

    def explained(self, requests: Sequence[Request]) -> dict[str, list[Request]]:
        """Requests by the field that they lack, first, as "", by none, for `differences`."""
        version = self.version
        requests = [request.with_histories(version.histories, self.short_lists) for request in requests]
        return {"": requests, **dict(self.requests.without(requests))}

    def logits(
        self, rows: Any, shared: Mapping[str, Any] | None = None, version: Version | None = None
    ) -> np.ndarray:
        """Outputs of the model for raw rows, [N] or [N, T] float32; version: see `logits_of`."""
        logits = self.logits_of(self.requests.encode(rows, shared), version)
        return np.concatenate(logits) if logits else np.zeros(0, np.float32)

    def predictions(self, outputs: np.ndarray, version: Version | None = None) -> np.ndarray:
        """Turns outputs of the model, [N] or [N, T], into predictions of the labels, in their units.

        version: by which the outputs were computed (default: the present one).
        """
        return predictions(outputs, (version or self.version).calibration.losses.values())

    def logits_of(self, requests: Sequence[Request], version: Version | None = None) -> list[np.ndarray]:
        """The outputs of the model for requests, each by itself; they are computed together.

        version: which is to compute all of them (default: the present one).
        """
        version = version or self.version
        requests = [request.with_histories(version.histories, self.short_lists) for request in requests]
        outputs: list[np.ndarray] = []
        group: list[Request] = []
        for piece in (piece for request in requests for piece in self._cut(request)):
            is_full = sum(r.size for r in group) + piece.size > self._rows_at_once([*group, piece])
            if group and (is_full or self._is_shared(piece) or self._is_shared(group[0])):
                outputs.append(self._run(group, version))
                group = []
            group.append(piece)
        if group:
            outputs.append(self._run(group, version))
        joined = np.concatenate(outputs) if outputs else np.zeros(0, np.float32)
        return np.split(joined, np.cumsum([request.size for request in requests])[:-1])

    def _is_shared(self, request: Request) -> bool:
        """True if it is worth a run of its own, in which what all of its rows share is computed once."""
        shared = self.bundle.shared
        is_worth = bool(shared) and not self._core and request.size >= _LEAST_SHARED
        return is_worth and request.shared.issuperset(shared)

    def places_of(self, request: Request) -> int:
        """The rows of a request times its longest sequence, to which the program pads all, and the values
        of its lists that are pooled."""
        pooled = [o for n, o in request.offsets.items() if o is not None and n not in self._sequences]
        return request.size * self._longest([request]) + sum(int(offsets[-1]) for offsets in pooled)

    def _longest(self, requests: Sequence[Request]) -> int:
        """The length of the longest sequence that the program reads, at least _LEAST_PLACES."""
        longest = [int(r.lengths(name).max(initial=0)) for r in requests for name in self._sequences]
        return max([_LEAST_PLACES, *longest])

    def _rows_at_once(self, requests: Sequence[Request]) -> int:
        if not self._sequences:
            return _ROWS_AT_ONCE
        is_once = self._core or (self.bundle.shared_lists and self._is_shared(requests[0]))
        places = _SHARED_PLACES_AT_ONCE if is_once else _PLACES_AT_ONCE
        return max(1, min(_ROWS_AT_ONCE, places // self._longest(requests)))

    def _cut(self, request: Request) -> Sequence[Request]:
        """A request in pieces that the program computes at once."""
        most = self._rows_at_once([request])
        if request.size <= most:
            return [request]
        firsts = range(0, request.size, most)
        return [_piece(request, first, min(first + most, request.size)) for first in firsts]

    def _run(self, requests: Sequence[Request], version: Version) -> np.ndarray:
        requests = [_with_ids(request, version) for request in requests]
        ends = np.cumsum([0, *(request.size for request in requests)])
        spans = [slice(*span) for span in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)]
        pairs = list(zip(spans, requests, strict=True))
        places, size = self._longest(requests), int(ends[-1])
        program, inputs, tables = version.program, self.bundle.inputs, version.tables
        core, layers = version.core if self._core else None, self.bundle.core_layers
        if core is not None:
            program, inputs = core.program, self.bundle.core_inputs
        elif version.shared_program is not None and self._is_shared(requests[0]):
            program, inputs = version.shared_program, self.bundle.shared_inputs
        reads = dict.fromkeys(read for e in inputs if e.kind in _OF_ROWS for read in e.reads)
        reads |= dict.fromkeys(read for layer in layers for read in layer.sequences)
        for (feature, table), request in itertools.product(reads, requests):
            tables[table].read_ahead(request.ids[feature])
        others = [e for e in inputs if e.kind != "layer"]
        values = {e.name: self._input(e, pairs, size, places, tables) for e in others}
        for layer in layers:
            if core is not None:
                lists = self._lists(layer, pairs, values, tables)
                values[layer.name] = core.output(layer, lists, self.user_cache)
        return program(values)

    def _input(
        self,
        entry: ProgramInput,
        pairs: Sequence[tuple[slice, Request]],
        size: int,
        places: int,
        tables: Mapping[str, TableRows],
    ) -> np.ndarray:
        if entry.shared:
            pairs, size = [(slice(0, 1), first_row(request)) for _, request in pairs], 1
        if entry.kind == "dense":
            dense = np.concatenate([request.dense for _, request in pairs])
            features = dict.fromkeys(feature for feature, _ in entry.reads)
            columns = [dense[:, self._dense_places[feature]] for feature in features]
            return np.concatenate(columns, 1) if columns else dense
        if entry.kind == "lengths":
            lengths = np.empty(size, np.int64)
            for span, request in pairs:
                lengths[span] = request.lengths(entry.reads[0][0])
            return lengths
        dim = tables[entry.reads[0][1]].dim
        if entry.kind == "sequence":
            (feature, table), padded = entry.reads[0], np.zeros((size, places, dim), np.float32)
            for span, request in pairs:
                _pad(padded[span], request.lengths(feature), tables[table][request.ids[feature]])
            return padded
        vectors = np.empty((size, len(entry.reads), dim), np.float32)
        for place, (feature, table) in enumerate(entry.reads):
            for span, request in pairs:
                vectors[span, place] = self._pooled(request, feature, tables[table])
        return vectors

    def _lists(
        self,
        layer: CoreLayer,
        pairs: Sequence[tuple[slice, Request]],
        values: Mapping[str, np.ndarray],
        tables: Mapping[str, TableRows],
    ) -> Lists:
        """What a layer of the core reads: targets among the inputs' values, and lists once."""
        pooled = [e for e in self.bundle.core_inputs if e.kind == "pooled"]
        columns = {read: values[e.name][:, i] for e in pooled for i, read in enumerate(e.reads)}
        keys = [
            np.concatenate([tables[table][request.ids[name]] for name, table in layer.sequences], 1)
            for _, request in pairs
        ]
        lengths = [request.lengths(layer.sequences[0][0]) for _, request in pairs]
        samples = [
            np.full(len(of_lists), request.size // len(of_lists), np.int64)
            for of_lists, (_, request) in zip(lengths, pairs, strict=True)
        ]
        queries = np.concatenate([columns[read] for read in layer.targets], 1)
        return Lists(queries, np.concatenate(keys), np.concatenate(lengths), np.concatenate(samples))

    def _pooled(self, request: Request, feature: str, table: TableRows) -> np.ndarray:
        """[B, D], or [1, D] where all rows have one list: a vector for each row."""
        rows, offsets = table[request.ids[feature]], request.offsets[feature]  # [N, D]
        if offsets is None:
            return rows
        lengths = np.diff(offsets)
        if (weights := request.ids.get(weights_of(feature))) is not None:
            rows = rows * weights[:, None]
        if self._pooling.get(feature) == "mean":
            shares = np.float32(1) / np.maximum(lengths, 1).astype(np.float32)
            rows = rows * np.repeat(shares, lengths)[:, None]
        pooled = np.zeros((len(lengths), table.dim), np.float32)
        if len(rows):
            pooled[lengths > 0] = np.add.reduceat(rows, offsets[:-1][lengths > 0] - offsets[0], axis=0)
        return pooled


def _with_ids(request: Request, version: Version) -> Request:
    """A request with ids in place of keys, those that they have in this version."""
    ids = {
        feature: version.keys[stored.vocabulary][request.ids[feature]]
        for stored in version.bundle.keys
        for feature in stored.features
    }
    return dataclasses.replace(request, ids={**request.ids, **ids}) if ids else request


def _check_rows(version: Version, encoder: Encoder) -> None:
    """Refuses a bundle with a table that has fewer rows than a feature that reads it has ids."""
    bundle = version.bundle
    rows = {feature.name: encoder.schema.rows_of(feature.name) for feature in encoder.schema.id_features}
    rows |= {cross.name: cross.rows for cross in bundle.crosses}
    rows |= {f: version.keys[keys.vocabulary].rows for keys in bundle.keys for f in keys.features}
    stored = {name: table.rows for name, table in version.tables.items()}
    reads = {read for entry in (*bundle.inputs, *bundle.core_inputs) for read in entry.reads}
    for feature, table in sorted(reads.union(*(layer.reads for layer in bundle.core_layers))):
        if feature not in rows or (table and stored[table] < rows[feature]):
            raise ValueError(
                f"{bundle.path} does not fit its encoders: feature {feature!r} has "
                f"{rows.get(feature, 0):,} ids; export again"
            )


def predictions(outputs: np.ndarray, losses: Iterable[Loss]) -> np.ndarray:
    """Turns outputs of the model, [N] or [N, T], into predictions of the labels, in their units.

    losses: of each of the T labels. ValueError names the first row for which an output or a prediction is
    not a finite number.
    """
    calibration = Calibration({str(label): loss for label, loss in enumerate(losses)})
    with np.errstate(over="ignore", invalid="ignore"):  # such rows are refused below
        predicted = calibration.predictions(outputs)
    wrong = np.argwhere(~(np.isfinite(outputs) & np.isfinite(predicted)))
    if len(wrong):
        raise ValueError(
            f"the score of row {int(wrong[0, 0]) + 1:,} is no finite number: training diverged, or the "
            f"row has numbers that training never saw"
        )
    return predicted


def differences(requests: Mapping[str, Sequence[Request]], outputs: np.ndarray) -> dict[str, np.ndarray]:
    """By field, the outputs of requests less those without it; requests: as `Scorer.explained` has them.

    outputs: of all of them, in their order, one after the other.
    """
    first, *without = np.split(outputs, len(requests))
    return {field: first - other for field, other in zip(list(requests)[1:], without, strict=True)}


def first_row(request: Request) -> Request:
    """The first row of a request, of which what all rows share is read."""
    return _piece(request, 0, 1)


def _piece(request: Request, first: int, end: int) -> Request:
    ids: dict[str, np.ndarray] = {}
    offsets: dict[str, np.ndarray | None] = {}
    for name, values in request.ids.items():
        ends = request.offsets[name]
        if len(values if ends is None else ends) == (1 if ends is None else 2):  # of all rows
            ids[name], offsets[name] = values, ends
        elif ends is None:
            ids[name], offsets[name] = values[first:end], None
        else:
            ids[name] = values[ends[first] : ends[end]]
            offsets[name] = ends[first : end + 1] - ends[first]
    return Request(end - first, ids, offsets, request.dense[first:end], request.shared)


def _pad(padded: np.ndarray, lengths: np.ndarray, rows: np.ndarray) -> None:
    """Fills [B, T, D] zeros with the rows [N, D] of lists, one list for all B where there is but one."""
    if len(lengths) == 1:
        padded[:, : len(rows)] = rows
    else:
        padded[np.arange(padded.shape[1]) < lengths[:, None]] = rows
