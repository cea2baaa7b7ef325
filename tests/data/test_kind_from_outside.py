"""A kind of column from outside is one class and a name in the schema: nothing else changes."""

import dataclasses
import json
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import hotrows
from hotrows import Dense, Schema, Sparse
from hotrows.data import EncodedData, Encoder, Loader, describe, draft_schema, prepare
from hotrows.data.streams import EventStream, StreamConfig, open_source
from hotrows.runtime.own_kinds import KINDS
from hotrows.serving import Scorer
from hotrows.serving.export.whole import export
from tests.support.bundles import expected_logits, furthest, trained

BITS = (8, 16, 24)


@dataclasses.dataclass(frozen=True)
class IPv4(Sparse):
    """An address as three ids: its networks of 8, 16 and 24 bits."""

    bits: int | None = None
    expected = "IPv4 address"

    @property
    def parts(self):
        if self.bits is not None:
            return (self,)
        column = self.column or self.name
        names = {bits: f"{self.name}/{bits}" for bits in BITS}
        return tuple(dataclasses.replace(self, name=names[b], column=column, bits=b) for b in BITS)

    def ids_of(self, texts):
        octets = r"(25[0-5]|2[0-4]\d|1?\d?\d)"
        is_one = pc.match_substring_regex(texts, rf"^{octets}(\.{octets}){{3}}$")
        network = pc.replace_substring_regex(texts, rf"(\.\d+){{{4 - self.bits // 8}}}$", "")
        return pc.if_else(is_one, network, None)

    @classmethod
    def drafted(cls, name, values):
        texts = pa.array([value for value in values if value is not None], pa.large_string())
        return cls(name) if len(texts) and not cls(name).parts[0].ids_of(texts).null_count else None


@pytest.fixture(autouse=True, scope="module")
def known():
    """Other tests of the process do not know the kind."""
    with mock.patch.dict(KINDS, {"ipv4": IPv4}):
        yield


del KINDS["ipv4"]


def rows(num: int, seed: int = 0) -> pa.Table:
    random = np.random.default_rng(seed)
    address = [
        ".".join(map(str, [10 + k % 3, k % 7, k % 11, k % 250])) for k in random.integers(900, size=num)
    ]
    item, price = random.integers(9, size=num), random.normal(size=num).round(2)
    click = [int(text.startswith("11.")) for text in address]
    return pa.table({"ip": address, "item": item, "price": price, "click": click})


SCHEMA = Schema((Dense("price", transform="standard"), IPv4("ip"), Sparse("item")), label="click")


def test_an_address_is_three_ids_wherever_a_column_is_met(tmp_path):
    # 1. The schema has it by name, and makes it again of its JSON.
    assert [feature.name for feature in SCHEMA.sparse] == ["ip/8", "ip/16", "ip/24", "item"]
    short = {"features": [{"kind": "ipv4", "name": "ip"}], "label": "click"}
    assert Schema.from_json(json.dumps(short)).features == Schema((IPv4("ip"),), label="click").features
    assert Schema.from_json(SCHEMA.to_json()) == SCHEMA
    # 2. prepare, load, describe, draft.
    data = prepare(rows(300), SCHEMA, tmp_path / "enc", split="position:0.8,0.1,0.1")
    assert EncodedData.open(data.path).schema == data.schema
    assert data.schema.rows_of("ip/8") == 3 + 3
    (batch,) = Loader(data.parts["validation"], 30).batches(0)
    assert batch.features == ("ip/8", "ip/16", "ip/24", "item")
    assert {use.name for use in describe(data).fields} >= {"ip/8", "ip/24"}
    drafted = draft_schema(rows(300).drop_columns(["price"]))
    assert {type(f) for f in drafted.schema.features if f.name.startswith("ip")} == {IPv4}
    assert Schema.from_json(drafted.to_json()).features == drafted.schema.features
    # 3. train, predict, export, serve.
    run = trained(data, tmp_path / "run", "fm")
    predictor, later = hotrows.load_run(run), rows(40, seed=1)
    scorer = Scorer(export(run, tmp_path / "bundle", format="onnx"))
    features = later.drop_columns(["click"])
    expected = expected_logits(predictor, features)
    assert furthest(scorer.logits(features), expected) < 1e-5
    assert furthest(scorer.logits(features.to_pylist()), expected) < 1e-5
    with pytest.raises(ValueError, match=r"column 'ip': expected an IPv4 address, found '1.2.3'"):
        scorer.score([{"ip": "1.2.3"}])
    # 4. stream.
    (tmp_path / "events").mkdir()
    (tmp_path / "events" / "0.jsonl").write_text("".join(json.dumps(r) + "\n" for r in later.to_pylist()))
    encoder, config = Encoder.open(data.path), StreamConfig(stop_when_idle=0.1)
    source = open_source(f"folder:{tmp_path / 'events'}", data.schema)
    with EventStream(source, encoder, 40, config) as events:
        (streamed,) = events
    (encoded,) = encoder.encode(later)
    assert streamed.ids.tolist() == encoded.ids.tolist()


def encoded(folder, name, schema, *lines):
    (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    data = prepare(folder / f"{name}.jsonl", schema, folder / name, split="fraction:1,0,0")
    (batch,) = Loader(data.parts["train"], 99).batches(0)
    return batch.expanded()


def test_lists_of_addresses_are_lists_of_networks(tmp_path):
    seen, plain = Schema((IPv4("seen", many=True),)), Schema((Sparse("seen", many=True),))
    lists = [["11.1.1.1", "11.2.1.1"], [], ["12.1.1.1", None, "11.1.1.9"], None]
    batch = encoded(tmp_path, "kind", seen, *({"seen": x, "label": 1} for x in lists))
    for place, bits in enumerate(BITS):  # as if a file had the networks
        networks = [x and [a and a.rsplit(".", 4 - bits // 8)[0] for a in x] for x in lists]
        of_bits = encoded(tmp_path, f"of {bits}", plain, *({"seen": x, "label": 1} for x in networks))
        ends = batch.offsets[4 * place : 4 * place + 5]
        assert batch.ids[ends[0] : ends[-1]].tolist() == of_bits.ids.tolist()
        assert (ends - ends[0]).tolist() == of_bits.offsets.tolist() == [0, 2, 2, 5, 5]
    wrong = {"seen": ["11.1.1.1", "11.300.1.1"], "label": 1}
    with pytest.raises(
        ValueError, match=r"line 2, column 'seen': expected an IPv4 address, found .*11\.300"
    ):
        encoded(tmp_path, "wrong", seen, {"seen": [], "label": 1}, wrong)


def test_lists_of_candidates_may_be_addresses(tmp_path):
    schema = Schema(
        (IPv4("ip"), IPv4("seen", many=True), Sparse("user")),
        "click",
        request="r",
        shared=("seen/8", "user"),
    )
    requests = [
        {"r": 1, "user": "a", "seen": ["9.1.1.1"], "ip": ["11.1.1.1", "12.1.1.1"], "click": [0, 1]},
        {"r": 2, "user": "b", "seen": [], "ip": ["11.1.1.1", None, "11.9.1.1"], "click": [1, 0, 0]},
    ]
    rows = [
        {**of_request, "ip": ip, "click": click}
        for of_request in requests
        for ip, click in zip(of_request["ip"], of_request["click"], strict=True)
    ]
    one, other = (
        encoded(tmp_path, "requests", schema, *requests),
        encoded(tmp_path, "rows", schema, *rows),
    )
    assert one.all_features == other.all_features
    assert one.ids.tolist() == other.ids.tolist() and one.offsets.tolist() == other.offsets.tolist()
    assert one.labels.tolist() == [0, 1, 1, 0, 0]
    requests[1]["ip"][2] = "11.9.1"
    with pytest.raises(
        ValueError, match=r"line 2, column 'ip': expected an IPv4 address, found '11\.9\.1'"
    ):
        encoded(tmp_path, "wrong", schema, *requests)
