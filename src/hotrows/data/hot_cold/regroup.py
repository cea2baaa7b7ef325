"""regroup: a training part rewritten with its all-hot rows before the cold ones.

A row is all-hot if every lookup of it, also of its lists, is hot by a profile; a batch of such rows
trains without slow memory. As in FAE (Adnan et al., VLDB 2022) the layout is written once and read by
every later run. Ids, vocabularies and fingerprint do not change, so a model trains on either layout.

    train-00000: h c c h   train-00001: c h h h     ->    hot-00000: h h h h h   cold-00000: c c c
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import numpy as np

from hotrows.data.encode.passes import Progress
from hotrows.data.hot_cold.profile import HOT_FILE, Profile, all_hot, hot_and_cold, is_regrouped, pays
from hotrows.data.rows import Rows
from hotrows.data.stored.encoded import EncodedData, read_manifest, write_signed
from hotrows.data.stored.histories import check_no_histories
from hotrows.data.stored.part import Part
from hotrows.data.stored.shards import ShardWriter
from hotrows.runtime.atomic_files import link_or_copy, new_folder

_CHUNK_ROWS = 1 << 14  # columns of this length fit into the processor's cache


def regroup(
    data: EncodedData,
    profile: Profile,
    out: Path | str,
    *,
    force: bool = False,
    progress: Progress = lambda stage, done, total: None,
) -> EncodedData:
    """Writes the data into the new folder `out`, all-hot training rows first, each kind in order.

    out: a new folder for the regrouped data. force: regroup even if it would not pay.

    progress: called with "regrouping", rows done, and rows in all.
    Unchanged files are linked, or copied across file systems.
    """
    _check(data, profile, force)
    with new_folder(Path(out)) as folder:
        hot, cold = (ShardWriter(folder, kind, data.parts["train"].columns) for kind in ("hot", "cold"))
        is_hot = all_hot(profile.hot, data.schema)
        for rows in _chunks(data.parts["train"], progress):
            hot_rows = is_hot(rows)
            hot.append(rows.take(np.flatnonzero(hot_rows)))  # missing dense values are not stored,
            cold.append(rows.take(np.flatnonzero(~hot_rows)))  # and therefore not counted
        others = [part for name, part in data.parts.items() if name != "train"]
        shards = (path for part in others for path in part.paths())
        for path in chain(shards, (data.path / stored.file for stored in data.vocabularies.values())):
            link_or_copy(path, folder / path.name)
        profile.save(folder / HOT_FILE)
        # data.json has the training part as `hot`, then `cold`.
        manifest = read_manifest(data.path)
        halves = {"hot": hot.close().to_json(), "cold": cold.close().to_json()}
        for half in halves.values():
            half["missing"] = {name: half["missing"][name] for name in half["unknown"]}
        manifest["parts"]["train"]["shards"] = [s for half in halves.values() for s in half["shards"]]
        write_signed(folder, {**manifest, "halves": halves})
    return EncodedData.open(out)


def _check(data: EncodedData, profile: Profile, force: bool) -> None:
    check_no_histories(data.schema, "regroup")
    if is_regrouped(data):
        raise ValueError(
            f"{data.path} is regrouped already ({hot_and_cold(data)[0].rows:,} of "
            f"{data.parts['train'].rows:,} training samples are all-hot); regroup the data that it was "
            f"made from"
        )
    if profile.fingerprint != data.fingerprint:
        raise ValueError(f"the profile is of other data than {data.path}; profile this data")
    worthwhile, reason = pays(profile)
    if not (worthwhile or force):
        raise ValueError(f"{reason}; or regroup anyway with force (--force)")


def _chunks(part: Part, progress: Progress) -> Iterator[Rows]:
    done = 0
    for index in range(len(part.shards)):
        rows = part.shard(index)
        for first in range(0, len(rows), _CHUNK_ROWS):
            yield rows[first : first + _CHUNK_ROWS]
            progress("regrouping", done + min(first + _CHUNK_ROWS, len(rows)), part.rows)
        done += len(rows)
