"""What a server answers: scores that are the run's, calibrated, or a status and one line that says why.

A case is a request to one of BUNDLES, which are trained and exported once beside the folders of the
cases: whole numbers of users that are keys, words for missing values, vectors, several labels, a focal
loss, histories of events. Its body may have fields that no feature reads, times before a user's newest
events, NaN, more rows or bytes than the limits, pieces of any size, damage.
"""

from __future__ import annotations

import asyncio
import io
import json
import logging
import math
import random
import signal
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa

from hotrows.data import prepare
from hotrows.dynamic import Dynamic
from hotrows.optim import Adagrad
from hotrows.schema import Dense, Label, Schema, Sequence, Sparse, Time
from hotrows.serving.export.whole import export
from hotrows.serving.limits import Limits
from hotrows.serving.scorer import Scorer
from hotrows.serving.server import ARROW, application
from hotrows.train import Trainer
from hotrows.train.config import TrainConfig
from hotrows.train.loop.predictor import Predictor, load_run
from tests.fuzz.case import Broken, Case
from tests.fuzz.damage import TOKENS, damaged

BODY, ROWS, NEAR, EVENTS = 150_000, 64, 1e-4, 6
LIMITS = Limits(body=BODY, rows=ROWS, seconds=120.0)
LISTS = {"tags": pa.list_(pa.string()), "v": pa.list_(pa.float64()), "history": pa.list_(pa.string())}
TYPES = {"key": pa.int64(), "at": pa.int64(), "x": pa.float64(), "z": pa.float64(), **LISTS}


@dataclass(frozen=True)
class Kind:
    """A bundle: its schema, model, and what a request may have in each column, mostly known values."""

    schema: Schema
    model: str
    values: dict[str, Callable[[random.Random], Any]]


def _word(letter: str, most: int) -> Callable[[random.Random], Any]:
    odd = [None, "", "NA", "007", "é", "\u2028", "x" * 300, f"{letter}99999"]
    return lambda r: r.choice(odd) if r.random() < 0.15 else f"{letter}{r.randrange(most)}"


def _number(r: random.Random) -> Any:
    return r.choice([None, 0.0, -0.0, 1e6, -7.5, 1e-300]) if r.random() < 0.15 else round(r.random(), 4)


def _key(r: random.Random) -> Any:
    return r.choice([None, -1, 2**53 + 1, 2**63 - 1, -(2**63)]) if r.random() < 0.15 else r.randrange(80)


def _tags(r: random.Random) -> Any:
    return r.choice(
        [None, [], [f"t{r.randrange(9)}", None, "NA"], [f"t{r.randrange(9)}"] * r.randint(1, 40)]
    )


USER, ITEM = Sparse("user"), Sparse("item")
BUNDLES = {
    "clicks": Kind(
        Schema(
            (USER, Sparse("key", dynamic=Dynamic(capacity=500)), Sparse("tags", many=True, max_length=5),
             Dense("x"), Dense("z", transform="standard"), Dense("v", width=2)),
            label="click", missing={"user": ("NA",), "tags": ("NA",)},
        ),
        "deepfm",
        {"user": _word("u", 90), "key": _key, "x": _number, "z": _number, "tags": _tags,
         "v": lambda r: [round(r.random(), 3), -1.5]},
    ),
    "tasks": Kind(
        Schema((USER, ITEM, Dense("x")), label=("click", Label("buy", loss="focal:2"))),
        "mmoe",
        {"user": _word("u", 90), "item": _word("i", 30), "x": _number},
    ),
    "users": Kind(
        Schema(
            (USER, ITEM, Sequence("history", column="item", vocabulary="item", max_length=EVENTS)),
            label="click", time=Time("at"), user="user", histories=("history",),
        ),
        "din",
        {"user": _word("u", 9), "item": _word("i", 30),
         "at": lambda r: None if r.random() < 0.1 else r.randrange(-5, 2100)},
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Base:
    """A run and what serves its bundle. applications: those that refuse and that ignore other fields."""

    predictor: Predictor
    applications: dict[str, Any]
    events: list[tuple[str, int, str]]


# ---- a case


def make_answers(choose: random.Random) -> Case:
    name = choose.choice(list(BUNDLES))
    kind = BUNDLES[name]
    size = choose.choice([1, 1, 2, 5, 20, ROWS, ROWS + 1, 0])
    columns = [column for column in kind.values if choose.random() < 0.9] or list(kind.values)[:1]
    shared = {c: kind.values[c](choose) for c in columns if choose.random() < 0.3}
    own = [column for column in columns if column not in shared]
    rows = [{column: kind.values[column](choose) for column in own} for _ in range(size)]
    how: dict[str, Any] = {"bundle": name, "size": size, "rows": [row | shared for row in rows]}
    how |= {"extra": "", "nan": False, "harmed": False, "explained": choose.random() < 0.1}
    how |= {"extra_fields": choose.choice(["refuse", "ignore"]), "pieces": choose.choice([1, 7, 4096])}
    how["is_arrow"] = choose.random() < 0.3 and bool(size)
    if rows and choose.random() < 0.1:
        how["extra"] = choose.choice(["User", "extra", "x ", "\u2028", "y" * 400, "rows"])
        choose.choice(rows)[how["extra"]] = choose.choice([1, None, "a", [1], {"a": 1}])
    if own and rows and choose.random() < 0.05 and not how["is_arrow"]:
        how["nan"] = True
        choose.choice(rows)[own[0]] = choose.choice([math.nan, math.inf])
    if how["is_arrow"]:
        body, how["extra"] = _arrow(how["rows"], columns), ""
    else:
        body = json.dumps({"rows": rows, "shared": shared} if shared else rows).encode()
    if choose.random() < 0.1 and not how["is_arrow"]:  # of several processes, or too large
        body += b" " * choose.choice([70_000, BODY + 1 - len(body), 2 * BODY])
    if choose.random() < 0.1:
        body, how["harmed"] = damaged(body, choose, TOKENS), True
    return Case({"body": body}, "", how)


def _arrow(rows: list[dict[str, Any]], columns: list[str]) -> bytes:
    table = pa.table({c: pa.array([row[c] for row in rows], TYPES.get(c, pa.string())) for c in columns})
    with pa.ipc.new_stream(sink := io.BytesIO(), table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


# ---- what is answered


@lru_cache(len(BUNDLES))
def base_of(folder: Path) -> Base:
    """The run and the bundle of a kind, made in a folder."""
    seconds = signal.setitimer(signal.ITIMER_REAL, 0)  # which are those of a case
    kind, r = BUNDLES[folder.name], random.Random(folder.name)
    n = 3000
    columns: dict[str, Any] = {c: [make(r) for _ in range(n)] for c, make in kind.values.items()}
    taste = [hash_of(str(user)) % 5 for user in columns["user"]]
    columns["click"] = [int(r.random() < 1 / (1 + math.exp(3 - t))) for t in taste]
    columns["buy"] = [click if r.random() < 0.5 else None for click in columns["click"]]
    events = [(f"u{r.randrange(9)}", at, f"i{r.randrange(30)}") for at in range(2000)]
    past: Any = ()
    if kind.schema.histories:
        columns["at"] = [at or 0 for at in columns["at"]]
        past = {name: [event[k] for event in events] for k, name in enumerate(("user", "at", "item"))}
    types = {c: TYPES.get(c, pa.string()) for c in kind.values}
    table = pa.table({c: pa.array(values, types.get(c)) for c, values in columns.items()})
    config = TrainConfig(kind.model, epochs=4, batch_size=64, row_optimizer=Adagrad(0.05))
    with mock.patch("hotrows.train.telling.pictures.draw_run", lambda run: None):
        data = prepare(table, kind.schema, folder / "data", split="position:0.8,0.2,0", events=past)
        Trainer(data, config, folder / "run").fit(verbose=False)
    export(folder / "run", folder / "bundle", format="onnx")
    scorers = {fields: Scorer(folder / "bundle", extra_fields=fields) for fields in ("refuse", "ignore")}
    served = {fields: application(scorer, LIMITS) for fields, scorer in scorers.items()}
    base = Base(load_run(folder / "run"), served, events)
    signal.setitimer(signal.ITIMER_REAL, *seconds)
    return base


def hash_of(word: str) -> int:
    return sum(word.encode())


def run_answers(case: Case) -> None:
    logging.getLogger("hotrows").setLevel(logging.CRITICAL)
    how = case.how
    base = base_of(Path.cwd().parent / "served" / how["bundle"])
    sent = case.files["body"], ARROW if how["is_arrow"] else "application/json", how["pieces"]
    query = b"contributions=true" if how["explained"] else b""
    status, body = asyncio.run(answer(base.applications[how["extra_fields"]], query, *sent))
    if status not in (200, 400, 413, 415, 422):
        raise Broken(f"status {status}: {body[:300]!r}")
    if status != 200:
        (detail,) = json.loads(body).values()
        if not detail.isprintable() or len(detail) > 600:
            raise Broken(f"message is not one short line: {detail[:1000]!r}")
    right = expected_status(case)
    if right and status not in right:
        raise Broken(f"expected {right}, found {status}: {body[:300]!r}")
    if status == 200 and not how["harmed"]:
        compare(base, how, scores_of(body, how))


def expected_status(case: Case) -> set[int]:
    """The statuses that a case may have; none: any."""
    how = case.how
    if how["harmed"]:
        return set()
    if len(case.files["body"]) > BODY:
        return {413}
    if how["nan"]:
        return {400}
    if not how["size"]:
        return {422}
    if how["extra"] and how["extra_fields"] == "refuse":
        return {422, 413} if how["size"] > ROWS else {422}
    if how["bundle"] == "users" and "user" not in how["rows"][0]:
        return {422, 413} if how["size"] > ROWS else {422}  # whose history it is, nobody knows
    if how["explained"]:
        return {200, 413}  # rows times fields
    return {413} if how["size"] > ROWS else {200}


def scores_of(body: bytes, how: dict[str, Any]) -> np.ndarray:
    if how["is_arrow"] and not how["explained"]:
        table = pa.ipc.open_stream(body).read_all()
        return np.stack([column.to_numpy() for column in table.columns], 1)
    content = json.loads(body, parse_constant=lambda word: (_ for _ in ()).throw(Broken(word)))
    if how["explained"] and len(content["contributions"]) != how["size"]:
        raise Broken("contributions are not as many as rows")
    return np.asarray(content["scores"], np.float64).reshape(how["size"], -1)


def compare(base: Base, how: dict[str, Any], scores: np.ndarray) -> None:
    """Compares scores with what the run itself predicts of these rows."""
    kind = BUNDLES[how["bundle"]]
    rows = [dict(row) for row in how["rows"]]
    if kind.schema.histories:
        rows = [row | {"history": past(base.events, row)} for row in rows]
    names = [*kind.values, *(("history",) if kind.schema.histories else ())]
    cells = {c: pa.array([row.get(c) for row in rows], TYPES.get(c, pa.string())) for c in names}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of values that training never saw
        expected = base.predictor.predict(pa.table(cells)).reshape(how["size"], -1)
    if not (scores.shape == expected.shape and np.isfinite(scores).all()):
        raise Broken(f"scores {scores.shape} of {expected.shape}, or not finite")
    if (gap := np.abs(scores - expected).max()) > NEAR:
        worst = int(np.abs(scores - expected).max(1).argmax())
        raise Broken(f"scores differ from predictions by {gap:.2g} in {how['rows'][worst]}"[:900])


def past(events: list[tuple[str, int, str]], row: dict[str, Any]) -> list[str]:
    """The last events of a row's user before its time, found one by one."""
    at = row.get("at")
    of_user = [
        item for user, time, item in events if user == row.get("user") and (at is None or time < at)
    ]
    return of_user[-EVENTS:]


async def answer(app: Any, query: bytes, body: bytes, kind: str, piece: int) -> tuple[int, bytes]:
    """The status and the body of an answer of an ASGI application."""
    size = len(body) if piece == 1 else piece * max(1, len(body) // (50 * piece))
    pieces = [body[k : k + size] for k in range(0, len(body), size)] or [b""]
    sent: list[dict[str, Any]] = [
        {"type": "http.request", "body": part, "more_body": True} for part in pieces
    ]
    sent[-1]["more_body"] = False
    came: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return sent.pop(0) if sent else {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        came.append(message)

    scope = {"type": "http", "method": "POST", "path": "/score", "query_string": query}
    scope |= {"headers": [(b"content-type", kind.encode()), (b"host", b"localhost")]}
    await app(scope, receive, send)
    return came[0]["status"], b"".join(message.get("body", b"") for message in came)
