"""The explorer: explorer.cpp, compiled on first use, and what it answers."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib.util
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.model_checker.cases import BATCHES, ROWS, SLOTS, Case

HERE = Path(__file__).parent
RANKS, MOST_EVENTS = 2, 512
STAGES = ("plan", "collect", "insert", "train", "write")


class _BatchPlan(ctypes.Structure):
    _fields_ = [
        ("used", ctypes.c_uint8), ("rows_in", ctypes.c_uint8), ("rows_out", ctypes.c_uint8),
        ("bypasses", ctypes.c_uint8), ("waits_for", ctypes.c_int8), ("slot", ctypes.c_int8 * ROWS),
        ("slot_out", ctypes.c_int8 * ROWS),
    ]  # fmt: skip


class _Case(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int32) for name in (
            "batches", "rows", "slots", "ranks", "in_file", "run_ahead", "crashes", "keep_last")),
        ("removed", ctypes.c_uint64),
        ("pause", ctypes.c_uint8 * (BATCHES + 1)),
        ("warm", ctypes.c_int8 * SLOTS * RANKS),
        ("plan", _BatchPlan * BATCHES * (BATCHES + 1) * RANKS),
    ]  # fmt: skip


class _Result(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_uint64) for name in ("states", "transitions", "ends")),
        *((name, ctypes.c_int32) for name in ("complete", "depth", "length")),
        ("violation", ctypes.c_int32 * 6),
        ("trace", ctypes.c_uint16 * MOST_EVENTS),
    ]


FAULTS = (
    "none", "wrong read", "race", "wrong evaluation", "wrong checkpoint", "lost checkpoint", "deadlock",
    "wrong end", "too many generations",
)  # fmt: skip


@dataclass(frozen=True)
class Event:
    """A step of a schedule. number: of a batch, a step or a generation, as the kind has it."""

    kind: str
    rank: int
    number: int
    row: int


@dataclass(frozen=True)
class Fault:
    """What went wrong: a row was found to be (row, version), where another one was expected."""

    kind: str
    rank: int
    number: int
    row: int
    found: tuple[int, int] | None
    expected: tuple[int, int] | None


@dataclass(frozen=True)
class Explored:
    """What exploring a case gave. trace: the shortest way to the fault."""

    states: int
    transitions: int
    ends: int
    is_complete: bool
    depth: int
    fault: Fault | None
    trace: tuple[Event, ...]


@dataclass(frozen=True)
class Walk:
    """A schedule. may_begin: before each event, the (rank, stage) that may begin; empty: not known."""

    events: tuple[Event, ...]
    may_begin: tuple[frozenset[tuple[int, str]], ...]


def missing() -> str | None:
    """Says in words what is missing to compile the explorer; None: nothing is."""
    return None if shutil.which(_build().COMPILER) else f"no C++ compiler ({_build().COMPILER}) was found"


def explore(case: Case, most: int = 1 << 31) -> Explored:
    """Explores every state of a case, up to the first fault, or to about `most` states."""
    result, fields = _Result(), _fields(case)
    _library().hotrows_explore(ctypes.byref(fields), ctypes.c_uint64(most), ctypes.byref(result))
    kind, rank, number, row, seen, wanted = result.violation
    fault = Fault(FAULTS[kind], rank, number, row, _token(seen), _token(wanted)) if kind else None
    if fault is not None and fault.kind == "too many generations":
        raise ValueError(f"{case} has more checkpoints and crashes than the model has generations")
    events = tuple(map(_event, result.trace[: result.length]))
    return Explored(
        result.states, result.transitions, result.ends, bool(result.complete), result.depth, fault, events
    )


def walk(case: Case, seed: int, weights: dict[str, int]) -> Walk:
    """A walk at random. weights: of kinds of events, how likely they are (default 8)."""
    names = _names(1)
    likely = (ctypes.c_uint8 * len(names))(*(weights.get(name, 8) for name in names))
    events, may_begin = (ctypes.c_uint16 * MOST_EVENTS)(), (ctypes.c_uint16 * MOST_EVENTS)()
    fields = _fields(case)
    length = _library().hotrows_walk(
        ctypes.byref(fields), ctypes.c_uint64(seed), likely, MOST_EVENTS, events, may_begin
    )
    assert length >= 0, f"a walk through {case} came to no end, or is longer than {MOST_EVENTS} events"
    stages = [(rank, stage) for rank in range(RANKS) for stage in STAGES]
    allowed = (frozenset(s for i, s in enumerate(stages) if bits >> i & 1) for bits in may_begin[:length])
    return Walk(tuple(map(_event, events[:length])), tuple(allowed))


def rule_names() -> list[str]:
    """The rules that the model has, in its order."""
    return _names(0)


@functools.cache
def _build() -> Any:
    """csrc/build.py."""
    path = HERE.parent.parent / "csrc" / "build.py"
    spec = importlib.util.spec_from_file_location("hotrows_csrc_build", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@functools.cache
def _library() -> ctypes.CDLL:
    sources = sorted(path for path in HERE.iterdir() if path.suffix in (".cpp", ".h"))
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]
    target = HERE / "__pycache__" / f"explorer-{digest}.so"
    if not target.exists():
        target.parent.mkdir(exist_ok=True)
        _build().compile_library([HERE / "explorer.cpp"], target, ["-O2"])  # 3 s; -O3: 9
    library = ctypes.CDLL(str(target))
    library.hotrows_model_names.restype = ctypes.c_char_p
    for what, fields in enumerate((_Case, _Result)):
        assert library.hotrows_model_size(what) == ctypes.sizeof(fields), fields
    return library


@functools.cache
def _names(what: int) -> list[str]:
    return _library().hotrows_model_names(what).decode().split()


def _event(bits: int) -> Event:
    return Event(_names(1)[bits >> 7], bits >> 6 & 1, bits >> 3 & 7, bits & 7)


def _token(value: int) -> tuple[int, int] | None:
    return divmod(value - 1, 8) if value else None


def _fields(case: Case) -> _Case:
    fields = _Case(
        case.num_batches, case.num_rows, case.num_slots, case.num_ranks, case.in_file,
        case.run_ahead + (case.in_flight if case.num_ranks > 1 else 0), case.crashes, case.keep_last,
        sum(1 << rule_names().index(rule) for rule in case.removed),
    )  # fmt: skip
    for step, kind in case.pauses:
        fields.pause[step] = kind
    for rank in range(case.num_ranks):
        fields.warm[rank][:] = case.warm_slots()
        for start in case.starts:
            for number, plan in enumerate(case.plans(rank, start), start):
                fields.plan[rank][start][number] = _batch_plan(plan)
    return fields


def _batch_plan(plan: Any) -> _BatchPlan:
    def bits(rows: Any) -> int:
        return sum(1 << row for row in rows)

    def by_row(slots: dict[int, int]) -> Any:
        return (ctypes.c_int8 * ROWS)(*(slots.get(row, -1) for row in range(ROWS)))

    return _BatchPlan(
        bits(plan.used), bits(plan.rows_in), bits(plan.rows_out), plan.bypasses, plan.waits_for,
        by_row(plan.slots), by_row(plan.rows_out),
    )  # fmt: skip
