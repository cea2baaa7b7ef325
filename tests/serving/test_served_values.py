"""Values of scored rows that differ from those of training are counted, and said at a bounded rate."""

import logging
from dataclasses import replace

import pyarrow as pa
import pytest
from starlette.testclient import TestClient

from hotrows import Dense, Schema, Sparse, prepare
from hotrows.serving import Limits, Scorer, application
from hotrows.serving import served_values as served_values_module
from hotrows.serving.export.whole import export
from hotrows.serving.metrics_page import ServerMetrics
from hotrows.serving.served_values import Served
from tests.support.bundles import trained

pytestmark = pytest.mark.usefixtures("one_thread", "no_pictures")

FRAME = {
    "click": [n % 3 // 2 for n in range(600)],
    "user": [f"u{n * 7 % 60}" for n in range(600)],
    "vip": [n % 5 == 0 for n in range(600)],
    "price": [float(n % 17) for n in range(600)],
}
ROWS = {name: values for name, values in FRAME.items() if name != "click"}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    schema = Schema((Sparse("user"), Sparse("vip"), Dense("price", transform="standard")), label="click")
    home = tmp_path_factory.mktemp("values")
    data = prepare(pa.table(FRAME), schema, home / "enc", split="position:0.8")
    return export(trained(data, home / "run", "lr"), home / "bundle", format="onnx")


@pytest.fixture
def scorer(bundle):
    return Scorer(bundle)


def said(caplog):
    return [message for message in caplog.messages if message.startswith("values differ")]


def test_rows_of_the_training_are_no_reason_to_warn(scorer, caplog):
    for first in range(0, 600, 50):
        scorer.score(pa.table(ROWS).slice(first, 50))
    assert not said(caplog)
    assert scorer.requests.value_counts.by_feature()["price"] == Served(600)


@pytest.mark.parametrize(
    "change, why",
    [
        ({"price": None}, "'price' 100.0% missing, expected 0.0%"),
        ({"vip": [int(vip) for vip in FRAME["vip"]]}, "'vip' 100.0% unknown (such as '1')"),
        ({"user": [name.upper() for name in FRAME["user"]]}, "'user' 100.0% unknown (such as 'U0')"),
        ({"price": [1e4] * 600}, "'price' 100.0% further than 10 deviations from the mean"),
    ],
)
def test_columns_that_are_gone_or_spelled_otherwise_are_said(scorer, caplog, change, why):
    changed = {name: values for name, values in (ROWS | change).items() if values is not None}
    scorer.score(changed)
    (line,) = said(caplog)
    assert why in line and caplog.records[0].levelno == logging.WARNING


def test_few_rows_are_chance_and_many_requests_add_up(scorer, caplog):
    for number in range(40):
        scorer.score([{"user": "u0", "vip": True}])
        assert len(said(caplog)) == (number >= 3), number


def test_a_warning_is_said_again_only_after_a_minute(scorer, caplog, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(served_values_module.time, "monotonic", lambda: now[0])
    for moved, expected in ((0, 1), (30, 1), (29, 1), (2, 2), (0, 2)):
        now[0] += moved
        for _ in range(3):
            scorer.score({"user": FRAME["user"], "vip": FRAME["vip"]})
        assert len(said(caplog)) == expected


def test_what_a_request_shares_counts_as_one_value(scorer, caplog):
    """A number was counted for each of its rows: one user without it was a column that is gone."""
    for price in (None, 1e6):
        scorer.score([{"user": f"u{n}"} for n in range(50)], {"price": price, "vip": "no"})
    assert not said(caplog)
    assert scorer.requests.value_counts.by_feature() == {
        "price": Served(2, missing=1, out_of_range=1), "user": Served(100), "vip": Served(2, unknown=2),
    }  # fmt: skip


def test_metrics_have_the_values_of_each_feature(scorer):
    with TestClient(application(scorer, Limits(seconds=60))) as client:
        rows = [{"user": "u0", "vip": "no", "price": 1e6}, {"user": None, "vip": "1"}]
        assert client.post("/score", json=rows).status_code == 200
        lines = client.get("/metrics").text.splitlines()
    for line in (
        'hotrows_values_total{feature="user"} 2', 'hotrows_missing_total{feature="user"} 1',
        'hotrows_unknown_total{feature="user"} 0', 'hotrows_unknown_total{feature="vip"} 2',
        'hotrows_missing_total{feature="price"} 1', 'hotrows_out_of_range_total{feature="price"} 1',
    ):  # fmt: skip
        assert line in lines, line


def test_counts_go_on_where_rows_are_compared_anew(scorer, monkeypatch):
    monkeypatch.setattr(served_values_module, "_MOST_ROWS", 300)
    for _ in range(3):
        scorer.score(ROWS)
    assert scorer.requests.value_counts.by_feature()["user"] == Served(1800)


def test_names_of_features_are_quoted_in_metrics():
    page = ServerMetrics().page(0, 0, {'a"b\\c\n': replace(Served(), values=3)})
    assert 'hotrows_values_total{feature="a\\"b\\\\c\\n"} 3' in page.splitlines()
