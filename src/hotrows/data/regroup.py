"""regroup: a training part laid out anew, the all-hot rows before the cold ones.

A row is all-hot where every lookup of it is hot by a profile, also every id of its lists; a batch
of such rows trains without slow memory. As FAE (Adnan et al., VLDB 2022) does, the layout is
written once and read by every later run. Ids, vocabularies and fingerprint stay, so a model trains
on either layout.

    train-00000: h c c h   train-00001: c h h h     ->    hot-00000: h h h h h   cold-00000: c c c
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from hotrows.data.aside import link_or_copy, written_aside
from hotrows.data.encoded import EncodedData, Part, write_regrouped
from hotrows.data.prepare import Progress
from hotrows.data.profile import HOT_FILE, Profile, all_hot, pays
from hotrows.data.shards import Rows, ShardWriter

_CHUNK_ROWS = 1 << 14  # its columns stay in the processor's cache


def regroup(
    data: EncodedData,
    profile: Profile,
    out: Path | str,
    *,
    force: bool = False,
    progress: Progress = lambda stage, done, total: None,
) -> EncodedData:
    """Writes the data into the new folder `out`, all-hot training rows first, each kind in order.

    Refused where it would not pay; `force` does it anyway. What does not change is linked, or
    copied across file systems. progress: told "regrouping", and how many rows of how many are done.
    """
    _check(data, profile, force)
    with written_aside(Path(out)) as folder:
        hot, cold = (ShardWriter(folder, kind, data.schema) for kind in ("hot", "cold"))
        is_hot = all_hot(profile.hot, data.schema)
        for rows in _chunks(data.parts["train"], progress):
            found = is_hot(rows)
            hot.append(rows.take(np.flatnonzero(found)))  # of dense values what is missing
            cold.append(rows.take(np.flatnonzero(~found)))  # is not stored, and not counted
        for file in _kept(data):
            link_or_copy(data.path / file, folder / file)
        profile.save(folder / HOT_FILE)
        write_regrouped(folder, data.path, hot.close(), cold.close())
    return EncodedData.open(out)


def _check(data: EncodedData, profile: Profile, force: bool) -> None:
    if data.hot_rows is not None:
        raise ValueError(
            f"{data.path} is regrouped already ({data.hot_rows:,} of "
            f"{data.parts['train'].rows:,} training rows are all-hot); regroup the data that it "
            f"was made from"
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


def _kept(data: EncodedData) -> Iterator[str]:
    """The files that stay as they are."""
    for name, part in data.parts.items():
        if name != "train":
            yield from (file for file, _ in part.shards)
    yield from (vocabulary.file for vocabulary in data.vocabularies.values())
