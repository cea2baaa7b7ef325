"""What a server says it wants: an example of every kind of column is a request that it accepts."""

import datetime

import pytest

from hotrows.data import prepare
from hotrows.data.columns.described import described
from hotrows.data.encode.encoder import Encoder
from hotrows.schema import Dense, Schema, Sequence, Sparse, Time
from hotrows.serving.requests import RequestEncoder

MOMENT = datetime.datetime(2026, 3, 1, 9, 30)
TIMES = {
    "unix": MOMENT.timestamp(),
    "unix_ms": MOMENT.timestamp() * 1000,
    "iso": MOMENT.isoformat(),
    "%Y/%m/%d %H:%M": "2026/03/01 09:30",
}


@pytest.mark.parametrize("format", TIMES)
def test_the_example_of_each_kind_is_accepted_and_known(format, tmp_path):
    schema = Schema(
        features=(
            Dense("price", transform="standard"),
            Dense("no_price", column="price", transform="missing"),
            Dense("picture", width=3),
            Sparse("item"),
            Sparse("hour", transform="hour"),
            Sparse("size", transform="log"),
            Sparse("tags", many=True, weights="tag_weights"),
            Sequence("history", vocabulary="item", max_length=4),
        ),
        label="click",
        time=Time("at", format=format),
    )
    time = TIMES[format]
    columns = {
        "price": [2.0, 4.0, 3.0], "picture": [[0.0, 1.0, 2.0]] * 3, "item": ["b", "b", "a"],
        "at": [time if isinstance(time, str) else int(time)] * 3, "size": [5, 6, 7],
        "tags": [["x"], ["x", "y"], []], "tag_weights": [[1.0], [0.5, 0.5], []],
        "history": [["a"], [], ["b"]], "click": [0, 1, 0],
    }  # fmt: skip
    data = prepare(columns, schema, tmp_path / "enc", split="position:0.99")
    encoder = Encoder.open(data.path)
    requests = RequestEncoder(encoder)
    found = described(encoder.schema, encoder.statistics, encoder.values, requests.names.read)
    kinds = {name: column["kind"] for name, column in found.items()}
    assert kinds == {
        "price": "number", "picture": "numbers", "item": "id", "at": "time", "size": "number",
        "tags": "ids", "tag_weights": "numbers", "history": "ids",
    }  # fmt: skip
    assert found["price"]["features"] == ["price", "no_price"] and found["picture"]["width"] == 3
    row = {name: column["example"] for name, column in found.items()}
    assert (row["price"], row["item"], row["tags"], row["history"]) == (3.0, "b", ["x"], ["b"])
    (request,) = requests.encode([row])
    assert all((ids >= 2).all() for name, ids in request.ids.items() if not name.startswith("\0"))
    without = {field: request for field, (request,) in requests.without([request])}
    assert without.keys() == kinds.keys() - {"tag_weights"}
    assert without["price"].dense.tolist() != request.dense.tolist()
    assert [len(ids) for name, ids in without["tags"].ids.items() if "tags" in name] == [0, 0]
