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


def test_the_server_describes_its_requests(client, scorer):
    start = client.get("/").json()
    assert (start["schema"], start["openapi"]) == ("GET /schema", "GET /openapi.json")
    described = client.get("/schema").json()
    kinds = {column["name"]: column["kind"] for column in described["columns"]}
    assert kinds == {"price": "number", "user": "id", "item": "id", "tags": "ids", "history": "ids"}
    assert described["labels"] == [{"name": "click", "score": "probability"}]
    (row,) = described["example"]["rows"]
    assert row.keys() == kinds.keys() and None not in row.values()
    assert client.post("/score", json=described["example"]).status_code == 200
    api = client.get("/openapi.json").json()
    routes = {route.path for route in client.app.routes}
    assert api["openapi"] == "3.1.0" and {*api["paths"], "/", "/openapi.json"} == routes
    row = api["components"]["schemas"]["Row"]
    assert (row["properties"].keys(), row["additionalProperties"]) == (kinds.keys(), False)
    content = api["paths"]["/score"]["post"]["requestBody"]["content"]["application/json"]
    assert content["example"] == described["example"]


def test_a_contribution_is_what_the_score_loses_without_the_field(client, scorer):
    answer = client.post("/score?contributions=true", json=JSON_ROWS[:8]).json()
    assert answer["scores"] == pytest.approx(scorer.score(ROWS)[:8].tolist(), rel=1e-6)
    assert answer["units"] == ["log odds"]
    for field in ROWS.column_names:
        without = [{**row, field: None} for row in JSON_ROWS[:8]]
        expected = scorer.logits(JSON_ROWS[:8]) - scorer.logits(without)
        if field == "history":
            assert abs(expected).max() > 0.001
        added = [row[field] for row in answer["contributions"]]
        assert added == pytest.approx(expected.tolist(), abs=1e-5), field
        assert scorer.contributions(ROWS.slice(0, 8))[field] == pytest.approx(expected, abs=1e-5)
    plain = client.post("/score?contributions=false", json=JSON_ROWS[:8]).json()
    assert plain == {"labels": ["click"], "scores": pytest.approx(answer["scores"])}
    of_arrow = client.post(
        "/score?contributions=1", content=arrow_bytes(ROWS.slice(0, 8)), headers={"content-type": ARROW}
    )
    assert of_arrow.json() == answer


@pytest.mark.parametrize(
    "query, rows, status, why",
    [
        ("contributions=yes", 1, 422, "expected ?contributions=true or false, found 'contributions=yes'"),
        ("contribution=true", 1, 422, "found 'contribution=true'"),
        ("contributions=true", 9, 413, "50 rows times fields with contributions, found 54"),
    ],
)
def test_a_query_that_cannot_be_answered_is_refused(client, query, rows, status, why):
    answer = client.post(f"/score?{query}", json=[{"user": 3}] * rows)
    assert (answer.status_code, why in answer.json()["detail"]) == (status, True)


@pytest.mark.parametrize("body_is", ["small JSON", "JSON of its own process", "Arrow"])
def test_extra_fields_are_ignored_where_that_is_set(din_bundle, body_is):
    rows = [{**row, "ad_slot": 3} for row in JSON_ROWS]
    rows[0]["page"] = "x" * (70_000 if body_is == "JSON of its own process" else 1)
    with TestClient(application(Scorer(din_bundle, extra_fields="ignore"), Limits(seconds=60))) as client:
        scorer = server_of(client)._scorer
        if body_is == "Arrow":
            answer = send_arrow(client, arrow_bytes(pa.Table.from_pylist(rows)))
            scores = pa.ipc.open_stream(answer.content).read_all()["click"].to_pylist()
        else:
            for _ in range(2):  # the first one is read in the server's own process
                answer = client.post("/score", json={"rows": rows, "shared": {"country": "de"}})
            scores = answer.json()["scores"]
        assert client.get("/openapi.json").json()["components"]["schemas"]["Row"]["additionalProperties"]
    assert scores == pytest.approx(scorer.score(ROWS).tolist(), rel=1e-6)


def test_all_fields_are_required_where_that_is_set(din_bundle):
    scorer = Scorer(din_bundle, require_all=True)
    scorer.warm_up()
    shared = {"user": 3, "history": None}
    assert len(scorer.score([{"price": 1, "item": 4, "tags": []}], shared)) == 1
    for rows, why in [
        ([{"price": 1, "item": 4}], "the request lacks the field 'tags'; all fields are required here"),
        ([{"price": 1, "item": 4, "tags": []}, {"item": 4, "tags": []}], "row 2 lacks the field 'price'"),
        (pa.table({"price": [1.0], "item": [4]}), "lacks the field 'tags'"),
    ]:
        with pytest.raises(ValueError, match=why):
            scorer.score(rows, shared)
    with pytest.raises(ValueError, match="extra_fields must be 'refuse' or 'ignore', not 'keep'"):
        Scorer(din_bundle, extra_fields="keep")


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
        (b'{"rows": [{}], "shared": []}', 422, "and shared as an object"),
        (b"[]", 422, "expected 1 to 50 rows, found 0"),
        (b"[1, 2]", 422, "expected rows, an object of fields each, found int as row 1"),
        (b'[{"user": 7}, {"user": "b"}]', 422, "field 'user' mixes text and numbers"),
        (b'[{"user": 7}, {"user": "b"}]', 422, 'send all as text, "7" in place of 7'),
        (b"[{}, null]", 422, "expected rows, an object of fields each, found null as row 2"),
        (b'[{"user": 1, "user": 2}]', 400, "expected each name of an object once, found 'user' again"),
        (b'{"rows": [{}], "rows": [{}]}', 400, "found 'rows' again"),
        (b'[{"user": 18446744073709551616}]', 400, "expected numbers of 64 bits"),
        (b'[{"user": -18446744073709551616}]', 400, "expected numbers of 64 bits"),
        (b'[{"user": 18446744073709551615}, {"user": -1}]', 422, "whole numbers beyond int64"),
        (b"[" + b"{}," * 50 + b"{}]", 413, "expected 1 to 50 rows, found 51"),
        (b'[{"usr": 3}]', 422, "the model reads no field 'usr'; did you mean 'user'?"),
        (b'[{"price": "much"}]', 422, "expected a number, found 'much'"),
        (
            b'[{"user": {"a": [1]}}]',
            422,
            "field 'user': expected ids (text or whole numbers), found an object",
        ),
        (b'[{"user": [1]}]', 422, "expected a single value"),
        (b'[{"history": [[1]]}]', 422, "found a list of lists; send a flat list"),
        (b'[{"history": 3}, {"history": [3]}]', 422, "is a list in some rows only"),
        (b'[{"history": "a"}, {"history": ["a"]}]', 422, "is a list in some rows only"),
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
        "the model reads no field 'usr'; did you mean 'user'?",
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
