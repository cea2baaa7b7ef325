"""The server over loopback: scores of JSON and Arrow, together and in turn; limits, overload, the end."""

import json
import signal
import threading
import time
import urllib.request
from functools import partial

import pyarrow as pa
import pytest
from starlette.testclient import TestClient

from hotrows.serving import Limits, Scorer, application
from hotrows.serving.metrics_page import ServerMetrics
from hotrows.serving.server import ARROW
from tests.serving.http_client import arrow_bytes, send_arrow, server_of
from tests.support.bundles import raw_rows
from tests.support.server_process import served

pytestmark = [
    pytest.mark.usefixtures("one_thread", "no_pictures"),
    pytest.mark.filterwarnings("ignore:values differ from those"),
]

ROWS = raw_rows(12)
JSON_ROWS = ROWS.to_pylist()


@pytest.fixture(scope="module")
def scorer(din_bundle):
    return Scorer(din_bundle)


@pytest.fixture
def client(scorer):
    with TestClient(application(scorer, Limits(body=20_000, rows=50, seconds=20, waiting=4))) as client:
        yield client


def test_json_and_arrow_have_the_scores_of_the_scorer(client, scorer):
    expected = pytest.approx(scorer.score(ROWS).tolist(), rel=1e-6)
    assert client.post("/score", json=JSON_ROWS).json() == {"labels": ["click"], "scores": expected}
    answer = send_arrow(client, arrow_bytes(ROWS))
    assert answer.headers["content-type"] == ARROW
    assert pa.ipc.open_stream(answer.content).read_all().to_pydict() == {"click": expected}
    shared = {"user": 3, "history": [1, 2]}
    answer = client.post("/score", json={"shared": shared, "rows": [{"item": 4}, {"item": 5}]})
    expected = scorer.score([{"item": 4}, {"item": 5}], shared)
    assert answer.json()["scores"] == pytest.approx(expected.tolist(), rel=1e-6)


@pytest.mark.parametrize(
    "body, status, why",
    [
        (b"", 400, "the body is no JSON"),
        (b"{", 400, "the body is no JSON"),
        (b"\xff\xfe", 400, "the body is no JSON"),
        (b"[" * 5000, 400, "the body is no JSON"),
        (b'[{"price": NaN}]', 400, "expected finite numbers"),
        (b'[{"user": 1' + b"0" * 400 + b"}]", 400, "expected numbers of 64 bits"),
        (b"3", 422, "expected a list of rows"),
        (b'{"row": []}', 422, "expected a list of rows, or an object of rows and shared"),
        (b'{"rows": [], "shared": [1]}', 422, "and shared as an object"),
        (b"[]", 422, "expected 1 to 50 rows, found 0"),
        (b"[1, 2]", 422, "expected rows, an object of columns each, found int as row 1"),
        (b'[{"user": 7}, {"user": "b"}]', 422, "convert it to text (of a pandas frame"),
        (b'[{"user": 7}, {"user": "b"}]', 422, 'in JSON: "7" in place of 7)'),
        (b"[{}, null]", 422, "expected rows, an object of columns each, found null as row 2"),
        (b'[{"user": 1, "user": 2}]', 400, "expected each name of an object once, found 'user' again"),
        (b'{"rows": [{}], "rows": [{}]}', 400, "found 'rows' again"),
        (b'[{"user": 18446744073709551616}]', 400, "expected numbers of 64 bits"),
        (b'[{"user": -18446744073709551616}]', 400, "expected numbers of 64 bits"),
        (b'[{"user": 18446744073709551615}, {"user": -1}]', 422, "whole numbers beyond int64"),
        (b"[" + b"{}," * 50 + b"{}]", 413, "expected 1 to 50 rows, found 51"),
        (b'[{"usr": 3}]', 422, "no column 'usr' is read; did you mean 'user'?"),
        (b'[{"price": "much"}]', 422, "expected a number, found 'much'"),
        (b'[{"user": {"a": [1]}}]', 422, "column 'user': expected ids"),
        (b'[{"user": [1]}]', 422, "expected a single value"),
        (b'[{"history": [[1]]}]', 422, "lists of lists are not read"),
        (b'[{"history": 3}, {"history": [3]}]', 422, "is no column of values"),
        (b'[{"price": 1e39}]', 422, "expected a number"),
        (b" " * 20_001, 413, "expected a body of at most 20,000 bytes, found 20,001"),
    ],
)
def test_hostile_json_gets_one_clear_line(client, body, status, why):
    answer = client.post("/score", content=body, headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["detail"].count("\n")) == (status, 0)
    assert why in answer.json()["detail"]


def test_hostile_arrow_gets_one_clear_line(client):
    good = arrow_bytes(ROWS)
    bodies = [
        b"",
        b"no arrow",
        good[:200],
        good[:-40],
        *(good[:n] + b"\xff" * 8 + good[n + 8 :] for n in (8, 300)),
    ]
    for body in bodies:
        answer = send_arrow(client, body)
        assert answer.status_code in (400, 422) and answer.json()["detail"].count("\n") == 0, body[:20]
    answer = send_arrow(client, arrow_bytes(pa.table({"usr": [1]})))
    assert (answer.status_code, answer.json()["detail"]) == (
        422,
        "no column 'usr' is read; did you mean 'user'?",
    )
    assert client.post("/score", json=JSON_ROWS).status_code == 200


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
def test_a_compressed_body_is_bounded_by_its_size_in_memory(client, codec):
    options = pa.ipc.IpcWriteOptions(compression=codec)
    assert send_arrow(client, arrow_bytes(ROWS, options)).status_code == 200
    word = pa.array(["a" * 30_000])
    for column in (word, word.dictionary_encode(), pa.array([[1] * 4000])):
        body = arrow_bytes(pa.table({"item": column}), options)
        answer = send_arrow(client, body)
        assert (answer.status_code, len(body) < 2000) == (413, True), column.type
        assert "expected at most 20,000 bytes once decompressed" in answer.json()["detail"]


def test_texts_that_rows_share_are_bounded_by_what_they_are_by_themselves(client):
    word = pa.array(["a" * 2000])
    _, view, text = word.cast(pa.string_view()).buffers()

    def columns(rows):
        words = pa.DictionaryArray.from_arrays(pa.array([0] * rows), word)
        yield words
        yield pa.ListArray.from_arrays(pa.array(range(rows + 1), pa.int32()), words)
        views = [None, pa.py_buffer(view.to_pybytes() * rows), text]
        yield pa.Array.from_buffers(pa.string_view(), rows, views)

    for few, many in zip(columns(3), columns(40), strict=True):
        name = "tags" if pa.types.is_list(few.type) else "item"
        assert send_arrow(client, arrow_bytes(pa.table({name: few}))).status_code == 200, few.type
        answer = send_arrow(client, arrow_bytes(pa.table({name: many})))
        assert answer.status_code == 413 and "20,000 bytes of text" in answer.json()["detail"]
    overlapping = pa.array([[1]], pa.list_view(pa.int64())), pa.compute.run_end_encode(pa.array([1, 1]))
    for column in overlapping:
        answer = send_arrow(client, arrow_bytes(pa.table({"item": column})))
        assert answer.status_code == 422 and "send plain values" in answer.json()["detail"]


def test_a_size_that_a_hostile_buffer_states_is_not_believed_in_vain(client, monkeypatch):
    body = arrow_bytes(pa.table({"item": [1] * 50}), pa.ipc.IpcWriteOptions(compression="zstd"))
    for size in (2**40, -5):
        forged = body.replace((400).to_bytes(8, "little"), size.to_bytes(8, "little", signed=True))
        assert forged != body
        assert send_arrow(client, forged).status_code == (413 if size > 0 else 400)


def test_long_lists_of_many_rows_are_refused_before_they_are_padded(scorer):
    with TestClient(application(scorer, Limits(seconds=60, places=20))) as client:
        long = client.post("/score", json={"shared": {"history": [1] * 5}, "rows": [{}] * 5})
        short = client.post("/score", json={"shared": {"history": [1] * 5}, "rows": [{}] * 4})
    assert (long.status_code, short.status_code) == (413, 200)
    assert "expected at most 20 rows times values of the longest list, 25 came" in long.json()["detail"]


class Gate:
    """Stops the scorer's program until it is opened."""

    def __init__(self, scorer, monkeypatch):
        self.began, self.opened, self.sizes = threading.Event(), threading.Event(), []
        compute = scorer.logits_of
        monkeypatch.setattr(scorer, "logits_of", lambda *of: self._wait(compute, *of))

    def _wait(self, compute, requests, version):
        self.sizes.append(len(requests))
        self.began.set()
        assert self.opened.wait(60)
        return compute(requests, version)


def in_threads(calls):
    results = [None] * len(calls)

    def run(number):
        results[number] = calls[number]()

    threads = [threading.Thread(target=run, args=(n,)) for n in range(len(calls))]
    return results, threads


def test_requests_that_wait_are_scored_together_and_others_shed(client, scorer, monkeypatch):
    gate = Gate(scorer, monkeypatch)
    results, threads = in_threads([lambda: client.post("/score", json=JSON_ROWS[:2])] * 5)
    threads[0].start()
    assert gate.began.wait(60)
    for thread in threads[1:]:
        thread.start()
    server = server_of(client)
    for _ in range(6000):
        if server.thread.waiting == 4:
            break
        threading.Event().wait(0.01)
    shed = client.post("/score", json=JSON_ROWS)
    assert (shed.status_code, shed.headers["retry-after"]) == (503, "1")
    assert "more requests than it can answer" in shed.json()["detail"]
    assert client.get("/healthz").json()["status"] == "ok"
    gate.opened.set()
    for thread in threads:
        thread.join(60)
    assert {answer.status_code for answer in results} == {200}
    assert gate.sizes == [1, 4]
    page = client.get("/metrics").text
    for line in (
        'hotrows_requests_total{status="200"} 5', 'hotrows_requests_total{status="503"} 1',
        "hotrows_rows_total 10", "hotrows_program_runs_total 2", "hotrows_requests_waiting 0",
        "hotrows_short_histories_total 0",
        "hotrows_request_seconds_count 5", 'hotrows_request_seconds_bucket{le="+Inf"} 5',
    ):  # fmt: skip
        assert line in page.splitlines(), line


def test_requests_that_take_long_do_not_hold_up_short_ones(scorer, monkeypatch):
    compute, gate = scorer.logits_of, Gate(scorer, monkeypatch)
    gated = scorer.logits_of

    def of_size(requests, version):
        return (gated if requests[0].size > 1024 else compute)(requests, version)

    monkeypatch.setattr(scorer, "logits_of", of_size)
    with TestClient(application(scorer, Limits(seconds=60))) as client:
        results, threads = in_threads([lambda: client.post("/score", json=[{}] * 1025)])
        threads[0].start()
        assert gate.began.wait(60)
        assert client.post("/score", json=[{}] * 1024).status_code == 200
        gate.opened.set()
        threads[0].join(60)
    assert results[0].status_code == 200


def test_every_time_is_in_the_bucket_of_the_next_bound():
    metrics = ServerMetrics()
    for seconds in (0.0005, 0.001, 0.0011, 0.3, 2.5, 2.6):
        metrics.count(200, seconds, 1)
    metrics.count(422, 0.0001, 0)
    lines = metrics.page(0, 0, {}).splitlines()
    name = "hotrows_request_seconds"
    counts = dict(line.rpartition(" ")[::2] for line in lines if line.startswith(name))
    bounds = ("0.001", "0.0025", "0.25", "0.5", "1.0", "2.5", "+Inf")
    of_bounds = [counts[f'{name}_bucket{{le="{bound}"}}'] for bound in bounds]
    assert of_bounds == ["2", "3", "3", "4", "4", "5", "6"]
    assert counts[f"{name}_count"] == "6"
    assert float(counts[f"{name}_sum"]) == pytest.approx(5.4026)


def codes_of_one_group(client, gate, bodies):
    """The status of each request, of those that wait at the gate together."""
    results, threads = in_threads([partial(client.post, "/score", json=body) for body in bodies])
    for thread in threads:
        thread.start()
    gate.opened.set()
    for thread in threads:
        thread.join(60)
    return [answer.status_code for answer in results]


def test_one_bad_request_of_a_group_fails_alone(scorer, monkeypatch):
    gate = Gate(scorer, monkeypatch)
    with TestClient(application(scorer, Limits(seconds=60))) as client:
        bodies = [JSON_ROWS, [{"usr": 1}], JSON_ROWS, [{"price": "much"}]]
        codes = codes_of_one_group(client, gate, bodies)
    assert codes == [200, 422, 200, 422]


def test_a_request_takes_no_longer_than_it_may(scorer, monkeypatch):
    gate = Gate(scorer, monkeypatch)
    with TestClient(application(scorer, Limits(seconds=0.05))) as client:
        late = client.post("/score", json=JSON_ROWS)
        gate.opened.set()
    assert (late.status_code, late.json()["detail"]) == (503, "no score after 0.05 s; come back later")


def test_a_program_that_does_not_return_does_not_hold_up_the_end_of_the_server(
    scorer, monkeypatch, caplog
):
    gate, begun = Gate(scorer, monkeypatch), time.monotonic()
    with TestClient(application(scorer, Limits(seconds=0.2))) as client:
        assert client.post("/score", json=JSON_ROWS).status_code == 503
    gate.opened.set()
    assert time.monotonic() - begun < 30
    assert [m for m in caplog.messages if "not returned" in m] == [
        "the program has not returned for 0.2 s: requests are left unanswered"
    ]


def test_one_request_that_the_program_cannot_compute_fails_alone(scorer, monkeypatch, caplog):
    gate = Gate(scorer, monkeypatch)
    run = scorer._run

    def breaks(requests, version):
        if any(request.size == 3 for request in requests):
            raise RuntimeError("no such\nnode")
        return run(requests, version)

    monkeypatch.setattr(scorer, "_run", breaks)
    with TestClient(application(scorer, Limits(seconds=60))) as client:
        bodies = [JSON_ROWS[:1], JSON_ROWS[:3], JSON_ROWS[:2], JSON_ROWS[:3], JSON_ROWS]
        codes = codes_of_one_group(client, gate, bodies)
    assert codes == [200, 500, 200, 500, 200]
    lines = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert len(lines) == 2 and all("\n" not in line for line in lines)
    assert all("RuntimeError: no such node" in line and "test_server.py:" in line for line in lines)


def test_a_mistake_after_the_logits_is_answered_500_and_the_server_goes_on(client, scorer, monkeypatch):
    with monkeypatch.context() as broken:
        broken.setattr(scorer, "predictions", lambda outputs: {}[1])
        assert client.post("/score", json=JSON_ROWS).status_code == 500
    assert client.post("/score", json=JSON_ROWS).status_code == 200


def test_health_says_when_nothing_scores_any_more(client):
    server = server_of(client)
    server.thread.close()
    assert client.get("/healthz").status_code == 503


def test_a_mistake_of_ours_is_answered_500_and_the_server_goes_on(client, scorer, monkeypatch):
    with monkeypatch.context() as broken:
        broken.setattr(scorer.requests, "encode", lambda *rows: {}[1])
        answer = client.post("/score", json=JSON_ROWS)
    assert answer.status_code == 500 and "server's log says why" in answer.json()["detail"]
    assert client.post("/score", json=JSON_ROWS).status_code == 200


def test_the_command_answers_what_it_took_and_ends(din_bundle, scorer):
    with served(din_bundle, "--timeout", "60", "--drain", "0") as (process, port):
        body = json.dumps([{"user": 3}]).encode()
        url, kind = f"http://127.0.0.1:{port}/score", {"content-type": "application/json"}
        with urllib.request.urlopen(urllib.request.Request(url, body, kind), timeout=60) as answer:
            (score,) = json.load(answer)["scores"]
        assert score == pytest.approx(float(scorer.score([{"user": 3}])[0]), rel=1e-6)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        assert f"click at http://127.0.0.1:{port}/score" in process.stderr.read()
