"""A damaged file is refused in words: it never crashes, hangs, or gives arrays beyond its end."""

import json
import random
import struct
import zlib

import numpy as np
import pytest

from hotrows.data.columns.of_schema import SchemaColumns
from hotrows.data.rows import lengths_of, measured
from hotrows.data.stored.sections import MAGIC, open_sections, write_sections
from hotrows.data.stored.shards import open_shard
from tests.data.encoded_rows import EVERYTHING, batch_of, write_rows

NONSENSE = [-1, -64, 1, 63, 1 << 40, 1 << 63, 1 << 70, 0.5, 1e300, None, True, "", "x", [], {}, [-1],
            [1 << 40, 1 << 40], [[1]], "<f4", "<O8", "|O", ">i8", "<i16", "|V8", "i4,f4"]  # fmt: skip


@pytest.fixture(scope="module")
def shard(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shards") / "out"
    with pytest.MonkeyPatch.context() as monkeypatch:
        write_rows(folder, EVERYTHING, batch_of(EVERYTHING, 50), 50, monkeypatch)
    return (folder / "train-00000.shard").read_bytes()


def opens(path, content: bytes) -> bool:
    """Whether a file of this content opens and is right; all it may raise is ValueError."""
    path.write_bytes(content)
    try:
        open_sections(path).check()
        rows = open_shard(path, SchemaColumns(EVERYTHING))
        [int(column.sum()) for name, column in rows.arrays.items() if name != "dense"]
    except ValueError as error:
        assert str(path) in str(error)
        return False
    return True


def header_of(content: bytes) -> dict:
    (length,) = struct.unpack("<I", content[12:16])
    return json.loads(content[20 : 20 + length])


def with_header(content: bytes, header) -> bytes:
    """The file with another header, rightly signed and padded, before the same data."""
    (length,) = struct.unpack("<I", content[12:16])
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    start = (20 + length + 63) // 64 * 64
    front = MAGIC + struct.pack("<III", 1, len(text), zlib.crc32(text)) + text
    return front + b"\0" * (-len(front) % 64) + content[start:]


def test_a_whole_file_opens(shard, tmp_path):
    assert opens(tmp_path / "file", shard)
    assert opens(tmp_path / "file", with_header(shard, header_of(shard)))


def test_random_damage_is_refused(shard, tmp_path):
    random_source = random.Random(0)
    for _ in range(300):
        content = bytearray(shard)
        kind = random_source.choice(["flip", "front", "cut", "insert", "repeat"])
        if kind == "flip":
            content[random_source.randrange(len(content))] ^= 1 << random_source.randrange(8)
        if kind == "front":
            content[random_source.randrange(1200)] = random_source.randrange(256)
        if kind == "cut":
            del content[random_source.randrange(len(content)) :]
        if kind == "insert":
            content.insert(random_source.randrange(len(content)), random_source.randrange(256))
        if kind == "repeat":
            content += content[-64:]
        if bytes(content) != shard:
            opens(tmp_path / "file", bytes(content))  # padding between sections may change unseen


def test_headers_of_nonsense_are_refused(shard, tmp_path):
    random_source = random.Random(1)
    for _ in range(300):
        header = header_of(shard)
        section = random_source.choice(header["sections"])
        for _ in range(random_source.choice([1, 1, 2])):
            place = random_source.choice(["size", "sections", "entry", *section])
            value = random_source.choice(NONSENSE)
            if place in ("size", "sections"):
                header[place] = value
            elif place == "entry" and isinstance(header["sections"], list):
                header["sections"].append(value)
            else:
                section[place] = value
        opens(tmp_path / "file", with_header(shard, header))


@pytest.mark.parametrize(
    "header", [b"", b"{", b"[]", b"3", b"null", b"\xff\xfe", b"{}", b'{"size": 0}', b"[" * 100_000]
)
def test_headers_that_are_no_header_are_refused(shard, tmp_path, header):
    assert not opens(tmp_path / "file", with_header(shard, header))


def test_sections_of_one_name_are_refused(shard, tmp_path):
    header = header_of(shard)
    header["sections"].append(header["sections"][0])
    assert not opens(tmp_path / "file", with_header(shard, header))


def test_a_section_that_lacks_is_named(tmp_path):
    write_sections(tmp_path / "file", {}, {"here": np.zeros(3)})
    with pytest.raises(ValueError, match=r"has no section 'there', only \['here'\]"):
        open_sections(tmp_path / "file")["there"]


def test_offsets_that_leave_the_ids_are_refused(shard, tmp_path):
    """A flipped bit within offsets shows only when the rows are read, and reads no memory of others."""
    for section in header_of(shard)["sections"]:
        if section["name"] == "offsets/many":
            (length,) = struct.unpack("<I", shard[12:16])
            start = (20 + length + 63) // 64 * 64 + section["offset"] + 4 * 20
            damaged = bytearray(shard)
            damaged[start : start + 4] = struct.pack("<I", 1 << 31)
            (tmp_path / "train-00000.shard").write_bytes(damaged)
    rows = open_shard(tmp_path / "train-00000.shard", SchemaColumns(EVERYTHING))
    with pytest.raises(ValueError, match="the file is damaged"):
        measured(rows.bounds["many"], len(rows.arrays["ids/many"]), np.arange(50))
    with pytest.raises(ValueError, match="the file is damaged"):
        lengths_of(rows.bounds["many"], len(rows.arrays["ids/many"]))
