"""The file of a vocabulary: its values by rank, and the index that finds them.

    counts   int64 [V]     by rank
    ends     int64 [V]     where each value ends in `text`
    text     uint8         the bytes of all values, end to end
    index    uint64 [S, 2] word and rank of each slot; csrc/index.h draws it, `plain_index` makes it

The header has `name`, `values` (V) and `num_distinct`. Opening maps the file and, unless
it is to be checked, reads none of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hotrows.data.stored.sections import check_once, open_sections, write_sections
from hotrows.runtime.atomic_files import replaced

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1
_INLINE = 8  # values of at most this many bytes are stored in their slot
_LONGER = 9  # stands for every larger length


@dataclass(frozen=True)
class Values:
    """The values of a vocabulary by falling count, equal counts by their bytes.

    counts: [V] int64; ends: [V] int64, where each value ends in `text`; text: uint8.
    num_distinct: number of distinct values seen, those below min_count too.
    index: [S, 2] uint64, see `plain_index`; None where data was written with ids.
    """

    counts: np.ndarray
    ends: np.ndarray
    text: np.ndarray
    num_distinct: int
    index: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.counts)

    def value(self, rank: int) -> bytes:
        start = int(self.ends[rank - 1]) if rank else 0
        return self.text[start : int(self.ends[rank])].tobytes()


def open_values(path: Path, header_crc32: int | None = None, checked: bool = False) -> Values:
    """Maps the vocabulary of a file.

    header_crc32: the checksum that its header must have; None: any. checked: compare every byte with
    its checksum.
    """
    sections = open_sections(path, header_crc32)
    if checked:
        check_once(path)
    names = {section["name"] for section in sections.header["sections"]}
    values = Values(
        counts=sections["counts"],
        ends=sections["ends"],
        text=sections["text"],
        num_distinct=sections.header.get("num_distinct", len(sections["counts"])),
        index=sections["index"] if "index" in names else None,
    )
    if not _is_legal(values):
        raise ValueError(f"{path}: the sections make no vocabulary; prepare the data again")
    return values


def write_values(path: Path, name: str, values: Values) -> None:
    """Writes a vocabulary, complete or not at all."""
    size = {"values": len(values), "num_distinct": values.num_distinct}
    arrays = {"counts": values.counts, "ends": values.ends, "text": values.text}
    if values.index is not None:
        arrays["index"] = values.index
    with replaced(path) as part:
        write_sections(part, {"kind": "vocabulary", "name": name, **size}, arrays)


def plain_index(values: Sequence[bytes]) -> np.ndarray:
    """Builds the index of values by rank, [S, 2] uint64.

    V values have V * 8 // 5 + 1 homes, that of hash h is h * homes >> 64. In the order of (hash,
    rank), each takes the first slot from its home on that comes after the one before. A slot holds
    the value as a little-endian word, its hash where it is longer than eight bytes, and rank << 8 |
    min(length, 9). Free slots are zero; the last one is always free.
    """
    homes = num_homes(len(values))
    slots: list[tuple[int, int]] = []
    for hashed, rank in sorted((plain_hash(value), rank) for rank, value in enumerate(values)):
        free = home_of(hashed, homes) - len(slots)
        slots.extend([(0, 0)] * free)
        value = values[rank]
        word = int.from_bytes(value, "little") if len(value) <= _INLINE else hashed
        slots.append((word, rank << 8 | min(len(value), _LONGER)))
    slots.extend([(0, 0)] * max(1, homes - len(slots)))
    return np.array(slots, np.uint64)


def plain_hash(value: bytes) -> int:
    """Hashes a value: h = length * golden, then h = mix64(h ^ word) for every eight bytes, the last
    padded with zeros."""
    h = len(value) * _GOLDEN & _MASK
    for i in range(0, len(value), 8):
        h = _mix64(h ^ int.from_bytes(value[i : i + 8], "little"))
    return h


def _is_legal(values: Values) -> bool:
    """Whether sizes and types of the arrays ensure that nothing beyond them is read."""
    dtypes = (values.counts.dtype, values.ends.dtype, values.text.dtype)
    if dtypes != (np.int64, np.int64, np.uint8) or values.counts.ndim != 1 or values.text.ndim != 1:
        return False
    if type(values.num_distinct) is not int or values.num_distinct < 0:
        return False
    if values.index is None:
        return values.ends.ndim == 1
    index = values.index
    legal = index.dtype == np.uint64 and index.ndim == 2 and index.shape[1:] == (2,)
    return legal and len(index) >= num_homes(len(values)) and values.ends.shape == values.counts.shape


def num_homes(num_values: int) -> int:
    return num_values * 8 // 5 + 1


def home_of(hashed: int, homes: int) -> int:
    return hashed * homes >> 64


def _mix64(x: int) -> int:
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & _MASK
    return x ^ (x >> 31)
