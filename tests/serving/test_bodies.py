"""Bodies of requests to the server: their types, encodings and sizes, alone and together."""

import gzip
import json
import math
import time

import pyarrow as pa
import pytest
from starlette.testclient import TestClient

from hotrows.serving import Limits, Scorer, application
from hotrows.serving.bodies import Refused, arrow_tables, json_tables
from hotrows.serving.json_process import JsonProcess
from hotrows.serving.requests import Names
from tests.serving.http_client import arrow_bytes, send_arrow, server_of
from tests.support.bundles import raw_rows

pytestmark = [
    pytest.mark.usefixtures("one_thread", "no_pictures"),
    pytest.mark.filterwarnings("ignore:values differ from those"),
]

JSON_ROWS = raw_rows(12).to_pylist()


@pytest.fixture(scope="module")
def scorer(din_bundle):
    return Scorer(din_bundle)


@pytest.fixture
def client(scorer):
    with TestClient(application(scorer, Limits(body=20_000, rows=50, seconds=20))) as client:
        yield client


@pytest.fixture(scope="module")
def patient_client(scorer):
    with TestClient(application(scorer, Limits(rows=50, seconds=60))) as client:
        yield client


def test_pooled_lists_count_before_anything_is_made_of_them(scorer, monkeypatch):
    def lists(values):
        offsets = pa.array([0, len(values)], pa.int32())
        return pa.table({"tags": pa.ListArray.from_arrays(offsets, values)})

    fixed = pa.FixedSizeListArray.from_arrays(pa.nulls(10**8), 10**8)
    with TestClient(application(scorer, Limits(seconds=60, places=1000))) as client:
        assert send_arrow(client, arrow_bytes(lists(pa.array([1] * 900)))).status_code == 200
        shared = {"tags": [1] * 1200}
        assert client.post("/score", json={"shared": shared, "rows": [{}] * 2}).status_code == 413
        monkeypatch.setattr(scorer.requests, "encode", lambda *rows: {}[1])
        tables = lists(pa.nulls(10**8)), lists(pa.array([True] * 9000)), pa.table({"tags": fixed})
        for body in map(arrow_bytes, tables):
            answer = send_arrow(client, body)
            assert (answer.status_code, len(body) < 3000) == (413, True)
            assert "expected at most 1,000 rows times values" in answer.json()["detail"]


def test_a_missing_number_is_null_or_nan_in_arrow_and_only_null_in_json(client, scorer):
    null, nan = (pa.table({"price": pa.array([value], pa.float64())}) for value in (None, math.nan))
    expected = scorer.score([{"price": None}]).tolist()
    assert scorer.score(null).tolist() == scorer.score(nan).tolist() == expected
    for body in map(arrow_bytes, (null, nan)):
        answer = pa.ipc.open_stream(send_arrow(client, body).content).read_all()
        assert answer.to_pydict() == {"click": pytest.approx(expected, rel=1e-6)}
    assert send_arrow(client, arrow_bytes(pa.table({"price": [math.inf]}))).status_code == 422
    assert client.post("/score", content=b'[{"price": NaN}]').status_code == 400


@pytest.mark.parametrize("rows", [[{}] * 3, [{"user": None}] * 3, [{"click": 1}] * 3])
def test_rows_of_no_value_that_is_read_are_as_many_as_came(client, scorer, rows):
    """Beside shared columns an empty row was refused, and one of a label alone scored 65,536 times."""
    shared = {"user": 3, "tags": [1], "item": 4, "price": 2.0, "history": [1, 2]}
    if "user" in rows[0]:
        del shared["user"]
    expected = scorer.score([shared]).tolist() * 3
    answer = client.post("/score", json={"rows": rows, "shared": shared})
    assert answer.json()["scores"] == pytest.approx(expected, rel=1e-6)


def test_numbers_may_be_words_of_a_dictionary_of_views(client, scorer):
    """Arrow takes nothing from an array of views: answered 500, a mistake of ours."""
    for words, status in ((["1.5", None], 200), (["1.5", "much"], 422)):
        views = pa.DictionaryArray.from_arrays([0, 1, 0], pa.array(words, pa.string_view()))
        answer = send_arrow(client, arrow_bytes(pa.table({"price": views})))
        assert answer.status_code == status
    assert "expected a number, found 'much'" in answer.json()["detail"]


def test_names_of_columns_that_are_no_text_or_long_are_refused_in_a_short_line(scorer):
    body = arrow_bytes(pa.table({"price": [1.0]})).replace(b"price", b"pri\xc8\xff")
    with pytest.raises(Refused, match="the body is no Arrow stream: .* codec can't decode byte 0xc8"):
        arrow_tables(body, 1000, 10, scorer.requests.names)
    with pytest.raises(ValueError, match="the model reads no field 'xxx") as refused:
        json_tables(json.dumps([{"x" * 5000: 1}]).encode(), 10, scorer.requests.names)
    assert len(str(refused.value)) < 600


def test_another_type_or_encoding_is_refused(client):
    answer = client.post("/score", content=b"a,b", headers={"content-type": "text/csv"})
    assert answer.status_code == 415
    assert answer.json()["detail"].startswith("expected Content-Type: application/json or ")
    assert answer.json()["detail"].endswith("found 'text/csv'")
    for body in (gzip.compress(b'[{"user": 3}]'), b'[{"user": 3}]'):
        answer = client.post("/score", content=body, headers={"content-encoding": "GZip"})
        assert (answer.status_code, answer.headers["accept-encoding"]) == (415, "identity")
        assert "found 'gzip'" in answer.json()["detail"]
    answer = client.post("/score", content=b'[{"user": 3}]', headers={"content-encoding": "identity"})
    assert answer.status_code == 200
    twice = [("content-encoding", "identity"), ("content-encoding", "gzip")]
    answer = client.post("/score", content=b'[{"user": 3}]', headers=twice)
    assert answer.status_code == 415 and "found 'identity, gzip'" in answer.json()["detail"]


def test_a_body_may_have_as_many_bytes_as_the_limit_says_in_pieces_too(client):
    whole = b'[{"user": 3}]'.ljust(20_000)
    for body, status in ((whole, 200), (whole + b" ", 413)):
        assert client.post("/score", content=body).status_code == status
        answer = client.post("/score", content=iter([body[:15_000], body[15_000:]]))
        assert answer.status_code == status
    assert answer.json()["detail"] == "expected a body of at most 20,000 bytes, found more"


def test_other_methods_and_paths_have_answers_of_the_same_form(client):
    assert client.head("/healthz").status_code == 200
    for answer, status in ((client.options("/score"), 405), (client.get("/scores"), 404)):
        assert (answer.status_code, list(answer.json())) == (status, ["detail"])


LARGE = b" " * 70_000  # a process of its own reads it


@pytest.mark.parametrize(
    "body, status, why",
    [
        (b"{", 400, "the body is no JSON"),
        (b"[null]", 422, "found null as row 1"),
        (b'[{"usr": 3}]', 422, "the model reads no field 'usr'; did you mean 'user'?"),
        (b'{"rows": [{}], "shared": {"usr": 3}}', 422, "the model reads no field 'usr'"),
        (b"[" + b"{}," * 50 + b"{}]", 413, "expected 1 to 50 rows, found 51"),
        (b'[{"price": "much"}]', 422, "expected a number, found 'much'"),
        (b'[{"\xed\xa0\x80": 1}]', 422, "the model reads no field"),
        (b"[" * 400_000, 400, "nested too deeply"),
    ],
)
def test_large_json_is_refused_as_small_json_is(patient_client, body, status, why):
    for content in (body + LARGE, body + 4 * LARGE):
        answer = patient_client.post("/score", content=content)
        assert answer.status_code == status and why in answer.json()["detail"]


def test_large_json_has_the_scores_of_small_json_also_after_its_reader_was_killed(scorer):
    shared = {"user": 3, "tags": None, "history": [1, 2]}
    bodies = [
        json.dumps(rows).encode() for rows in (JSON_ROWS, {"rows": [{"item": 4}], "shared": shared})
    ]
    with TestClient(application(scorer, Limits(seconds=60))) as client:
        server = server_of(client)
        for times in (1, 4):
            for body in bodies:
                small, large = (
                    client.post("/score", content=b + x) for b, x in ((body, b""), (body, times * LARGE))
                )
                assert small.status_code == 200 and large.content == small.content
            server.readers[times == 4]._process.kill()
            server.readers[times == 4]._process.wait()
        assert client.post("/score", content=bodies[0] + LARGE).status_code == 200


@pytest.mark.parametrize(
    "body, found", [(b'[{"a": 1}]', [{"a": 1}]), (b'[{"b": 1}]', "'b'"), (b'[{"a": ' + b"[" * 9999, "")]
)
def test_the_first_body_does_not_wait_for_the_process(body, found):
    """Under `application()` the process began with it: 503, on a busy machine."""
    reader = JsonProcess(50, Names(("a",), ("a",)))
    answer = reader.submit([body], time.monotonic() + 0.2)
    if isinstance(found, list):
        assert answer.result()[0].to_pylist() == found
    else:
        with pytest.raises(Refused, match=found or None) as refused:
            answer.result()
        assert refused.value.status in (400, 422)
    reader.close()


def test_bodies_that_come_while_the_reader_of_json_starts_do_not_keep_it_from_that():
    """Each body ended a process that was not up within --timeout, so that it never was."""
    reader, until = JsonProcess(50, Names(("a",), ("a",))), time.monotonic() + 60
    reader.start()
    while True:
        try:
            rows, _ = reader.submit([b'[{"a": 1}]'], time.monotonic() + 0.2).result()
            break
        except Refused:
            assert time.monotonic() < until
    assert rows.to_pylist() == [{"a": 1}]
    reader.close()
