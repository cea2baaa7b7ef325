"""The halves of regrouped data, all-hot and cold rows, as data.json has them."""

from __future__ import annotations

from pathlib import Path

from hotrows.data.stored.encoded import EncodedData, read_manifest, write_signed
from hotrows.data.stored.part import Part
from hotrows.data.stored.shards import Written

HALVES = ("hot", "cold")


def is_regrouped(data: EncodedData) -> bool:
    return bool(data.halves)


def hot_and_cold(data: EncodedData) -> tuple[Part, Part]:
    """The all-hot and the cold rows of the training part; their `missing` counts ids alone."""
    if not is_regrouped(data):
        raise ValueError(
            f"{data.path} is not regrouped into hot and cold samples; do so with "
            f"`hotrows regroup {data.path} --out FOLDER --fast-memory SIZE`"
        )
    if set(data.halves) != set(HALVES):
        raise ValueError(f"{data.path}: expected the halves hot and cold; regroup the data again")
    hot, cold = (data.halves[name] for name in HALVES)
    return hot, cold


def write_regrouped(folder: Path, source: Path, hot: Written, cold: Written) -> None:
    """Writes data.json: that of `source`, with the training part as `hot`, then `cold`."""
    manifest = read_manifest(source)
    halves = {"hot": hot.to_json(), "cold": cold.to_json()}
    for half in halves.values():
        half["missing"] = {name: half["missing"][name] for name in half["unknown"]}
    manifest["parts"]["train"]["shards"] = [s for half in halves.values() for s in half["shards"]]
    write_signed(folder, {**manifest, "halves": halves})
