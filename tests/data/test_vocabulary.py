"""Vocabularies: counted in any memory, by any number of threads, the file is the same; ids are what
plain Python says they are."""

import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotrows.data.encode.vocabulary import Counts, Values, Vocabularies, open_values, write_values
from hotrows.data.raw.values import RawIds
from tests.reference.vocabularies import PlainCounts, PlainVocabularies, home_of, num_homes, plain_hash
from tests.support.choice import examples

UNLIMITED = 1 << 30

# Values that share prefixes, end at a word or just beside it, and hold zeros.
values_of_any_kind = st.one_of(
    st.sampled_from([b"", b"a", b"a\0", b"a\0\0", b"\0", b"12345678", b"12345678\0", b"123456789"]),
    st.binary(max_size=40),
    st.builds(lambda tail: b"a shared prefix " + tail, st.binary(max_size=3)),
    st.builds(
        lambda value, n: (value * 40)[:n], st.sampled_from([b"a", b"\0", b"\xff"]), st.integers(0, 40)
    ),
)


def column(values, lengths=None) -> RawIds:
    """A column of values; lengths: of the lists that the rows hold."""
    sizes = np.array([len(value) for value in values], np.uint32)
    ends = np.cumsum(sizes, dtype=np.int64)
    text = np.frombuffer(b"".join(values), np.uint8)
    offsets = None if lengths is None else np.cumsum([0, *lengths], dtype=np.int64)
    return RawIds(text, (ends - sizes).astype(np.uint32), sizes, offsets)


@st.composite
def batches(draw):
    """A few chunks of three columns, the last one of lists, and how often each row counts."""
    chunks = []
    for _ in range(draw(st.integers(1, 3))):
        rows = draw(st.integers(0, 30))
        plain = [draw(st.lists(values_of_any_kind, min_size=rows, max_size=rows)) for _ in "ab"]
        lengths = draw(st.lists(st.integers(0, 3), min_size=rows, max_size=rows))
        num = sum(lengths)
        listed = draw(st.lists(values_of_any_kind, min_size=num, max_size=num))
        times = np.array(draw(st.lists(st.integers(0, 3), min_size=rows, max_size=rows)), np.int64)
        chunks.append(([*map(column, plain), column(listed, lengths)], times))
    return chunks


OWNERS = [0, 1, 0]  # the first column and that of lists share a vocabulary


def many_values(seed: int = 0, num: int = 3000) -> list:
    """Chunks with many distinct values, some often seen."""
    rng = random.Random(seed)

    def value() -> bytes:
        length = rng.choice([1, 3, 7, 8, 9, 12, 16, 17, 40])
        return bytes(rng.choice(b"ab\0\xff") for _ in range(length))

    def chunk():
        lengths = [rng.randrange(3) for _ in range(num // 4)]
        times = np.array([rng.choice((0, 1, 1, 1, 5)) for _ in lengths])
        plain = [column([value() for _ in lengths]) for _ in "ab"]
        return [*plain, column([value() for _ in range(sum(lengths))], lengths)], times

    return [chunk() for _ in range(4)]


def counted(folder: Path, chunks, memory: int = UNLIMITED, threads: int = 2) -> Counts:
    counts = Counts(OWNERS, folder / "spilled", memory, threads)
    for columns, times in chunks:
        counts.add(columns, times)
    return counts


def plainly_counted(chunks) -> PlainCounts:
    counts = PlainCounts(OWNERS)
    for columns, times in chunks:
        counts.add(columns, times)
    return counts


def written(counts, folder: Path, min_count: int = 1, known=None) -> list:
    """The bytes of both files, and how many distinct values each saw."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"vocabulary-{v}" for v in range(2)]
    seen = [
        counts.write(v, path, f"v{v}", min_count, None if known is None else known[v])
        for v, path in enumerate(paths)
    ]
    return [(path.read_bytes(), num) for path, num in zip(paths, seen, strict=True)]


def listed(values: Values) -> list[tuple[bytes, int]]:
    return [(values.value(rank), int(values.counts[rank])) for rank in range(len(values))]


def stored(path: Path, numbers: dict[bytes, int]) -> Values:
    """A vocabulary of just these values, in this order."""
    counts = PlainCounts([0])
    counts.add(
        [column([value for value, num in numbers.items() for _ in range(num)])],
        np.ones(sum(numbers.values()), int),
    )
    counts.write(0, path, "stored", 1)
    return open_values(path)


def encoded(values, columns, num_unknown: int, *, plain: bool = False, **how) -> list[list[int]]:
    make = PlainVocabularies if plain else Vocabularies
    more = () if plain else (how.get("threads", 2), how.get("memory"))
    encoder = make(values, OWNERS, [num_unknown] * 2, *more)
    return [ids.tolist() for ids in encoder.encode(columns)]


# ---- counting and ranking


def test_values_are_ranked_by_falling_count_and_then_by_their_bytes(tmp_path):
    rows = [b"b", b"a", b"ab", b"a\0", b"longer than eight", b"longer than eighs", b"b", b""]
    counts = Counts([0], tmp_path, UNLIMITED, 1)
    counts.add([column(rows)], np.ones(len(rows), bool))
    assert counts.write(0, tmp_path / "v", "of rows", 1) == 6
    order = [b"b", b"a", b"a\0", b"ab", b"longer than eighs", b"longer than eight"]
    assert listed(open_values(tmp_path / "v")) == [(value, 1 + (value == b"b")) for value in order]


@settings(deadline=None, max_examples=examples(60))
@given(chunks=batches(), min_count=st.integers(1, 3), memory=st.sampled_from([8192, UNLIMITED]))
def test_the_core_writes_the_file_that_plain_python_writes(tmp_path_factory, chunks, min_count, memory):
    folder = tmp_path_factory.mktemp("both")
    expected = written(plainly_counted(chunks), folder / "plain", min_count)
    assert written(counted(folder, chunks, memory), folder, min_count) == expected


@pytest.mark.parametrize("memory", [4 << 10, 10_000, 64 << 10])
def test_a_tiny_memory_gives_the_same_bytes(tmp_path, memory):
    chunks = many_values()
    expected = written(counted(tmp_path / "a", chunks), tmp_path / "a")
    tiny = counted(tmp_path / "b", chunks, memory)
    assert written(tiny, tmp_path / "b") == expected
    assert tiny.peak <= memory
    assert not list((tmp_path / "b" / "spilled").iterdir())  # nothing is left of the runs


def test_many_runs_are_merged_in_several_steps(tmp_path):
    rng = random.Random(1)
    rows = [b"%d" % rng.randrange(1 << 40) for _ in range(20_000)]
    counts = Counts([0], tmp_path / "spilled", 4 << 10, 1)
    counts.add([column(rows + rows[::7])], np.ones(len(rows) + len(rows[::7]), bool))
    assert len(list((tmp_path / "spilled").iterdir())) > 64
    counts.write(0, tmp_path / "v", "many", 1)
    expected = sorted(Counter(rows + rows[::7]).items(), key=lambda item: (-item[1], item[0]))
    assert listed(open_values(tmp_path / "v")) == expected


@pytest.mark.parametrize("memory", [8 << 10, UNLIMITED])
def test_the_number_of_threads_changes_nothing(tmp_path, memory):
    chunks = many_values()
    files = [
        written(counted(tmp_path / str(threads), chunks, memory, threads), tmp_path / str(threads))
        for threads in (1, 2, 3)
    ]
    assert files[0] == files[1] == files[2]


@pytest.mark.parametrize("memory", [8 << 10, UNLIMITED])
def test_vocabularies_may_be_written_at_once(tmp_path, memory):
    chunks = many_values()
    expected = written(plainly_counted(chunks), tmp_path / "plain")
    counts = counted(tmp_path, chunks, memory)
    paths = [tmp_path / f"vocabulary-{v}" for v in range(2)]
    with ThreadPoolExecutor(2) as pool:
        seen = list(pool.map(lambda v: counts.write(v, paths[v], f"v{v}", 1), range(2)))
    assert [(path.read_bytes(), num) for path, num in zip(paths, seen, strict=True)] == expected


@pytest.mark.parametrize("memory", [8 << 10, UNLIMITED])
def test_counting_that_was_killed_goes_on_from_its_state(tmp_path, memory):
    chunks = many_values()
    expected = written(counted(tmp_path / "whole", chunks), tmp_path / "whole")
    begun = counted(tmp_path, chunks[:2], memory)
    begun.spill()
    state = begun.state()
    begun.add(*chunks[3])  # the killed process went on for a while
    begun.spill()
    resumed = Counts(OWNERS, tmp_path / "spilled", memory, 2, state)
    for columns, times in chunks[2:]:
        resumed.add(columns, times)
    assert written(resumed, tmp_path) == expected
    assert not list((tmp_path / "spilled").iterdir())


def test_vocabularies_written_before_the_kill_are_left_as_they_are(tmp_path):
    chunks = many_values()
    expected = written(counted(tmp_path / "whole", chunks), tmp_path / "whole")
    begun = counted(tmp_path, chunks)
    begun.spill()
    state = begun.state()
    begun.write(0, tmp_path / "vocabulary-0", "v0", 1)
    resumed = Counts(OWNERS, tmp_path / "spilled", UNLIMITED, 2, state)
    assert written(resumed, tmp_path) == expected


@settings(deadline=None, max_examples=examples(30))
@given(chunks=batches(), before=batches(), min_count=st.integers(1, 2))
def test_known_values_keep_their_ranks_and_new_ones_follow(tmp_path_factory, chunks, before, min_count):
    folder = tmp_path_factory.mktemp("known")
    written(plainly_counted(before), folder)
    known = [open_values(folder / f"vocabulary-{v}") for v in range(2)]
    expected = written(plainly_counted(chunks), folder / "plain", min_count, known)
    for memory in (8192, UNLIMITED):
        subfolder = folder / str(memory)
        assert written(counted(subfolder, chunks, memory), subfolder, min_count, known) == expected
    grown = open_values(folder / "plain" / "vocabulary-0")
    old = [known[0].value(rank) for rank in range(len(known[0]))]
    assert [value for value, _ in listed(grown)[: len(old)]] == old


def test_many_known_values_are_merged_in_little_memory(tmp_path):
    chunks = many_values()
    known = [stored(tmp_path / f"known-{v}", {b"%d known" % n: 1 for n in range(3000)}) for v in range(2)]
    expected = written(plainly_counted(chunks), tmp_path / "plain", 2, known)
    assert written(counted(tmp_path, chunks, 8 << 10), tmp_path, 2, known) == expected


def test_known_values_that_were_not_seen_again_count_zero(tmp_path):
    known = stored(tmp_path / "known", {b"x": 3, b"a long one, known": 2, b"y": 1})
    counts = Counts([0], tmp_path / "spilled", UNLIMITED, 1)
    counts.add([column([b"y", b"z", b"z", b"y", b"w"])], np.ones(5, bool))
    assert counts.write(0, tmp_path / "v", "grown", 2, known) == 3
    expected = [(b"x", 0), (b"a long one, known", 0), (b"y", 2), (b"z", 2)]
    assert listed(open_values(tmp_path / "v")) == expected


def test_a_vocabulary_of_no_values_is_a_file_like_any(tmp_path):
    nothing = [([column([]), column([]), column([], [])], np.zeros(0, bool))]
    expected = written(plainly_counted(nothing), tmp_path / "plain")
    assert written(counted(tmp_path, nothing), tmp_path) == expected
    values = [open_values(tmp_path / f"vocabulary-{v}") for v in range(2)]
    assert len(values[0]) == 0
    columns = [column([b"a", b""]), column([b"b"]), column([b"longer than eight"], [1])]
    assert encoded(values, columns, 1) == [[2, 1], [2], [2]]


def test_a_schema_without_id_columns_has_nothing_to_count_or_encode(tmp_path):
    Counts([], tmp_path, 4096, 2).add([], np.ones(3, bool))
    assert Vocabularies([], [], [], 2).encode([]) == []


def test_lists_may_begin_anywhere_in_their_values(tmp_path):
    rows = column([b"no", b"a", b"b", b"a", b"no"])
    offsets = np.array([1, 2, 2, 4])
    lists = RawIds(rows.text, rows.starts, rows.lengths, offsets)
    for counts in (Counts([0], tmp_path, UNLIMITED, 1), PlainCounts([0])):
        counts.add([lists], np.array([True, True, True]))
        counts.write(0, tmp_path / "v", "lists", 1)
        assert listed(open_values(tmp_path / "v")) == [(b"a", 2), (b"b", 1)]


# ---- encoding


@pytest.mark.parametrize("num_unknown", [0, 1, 7])
@settings(deadline=None, max_examples=examples(30))
@given(chunks=batches(), others=batches())
def test_the_core_gives_the_ids_that_plain_python_gives(tmp_path_factory, num_unknown, chunks, others):
    folder = tmp_path_factory.mktemp("ids")
    written(plainly_counted(chunks), folder)
    values = [open_values(folder / f"vocabulary-{v}") for v in range(2)]
    for columns, _ in chunks + others:
        expected = encoded(values, columns, num_unknown, plain=True)
        assert encoded(values, columns, num_unknown) == expected
        assert encoded(values, columns, num_unknown, threads=3, memory=0) == expected


def test_the_ids_of_a_large_chunk_do_not_depend_on_threads(tmp_path):
    chunks = many_values(num=40_000)
    written(counted(tmp_path, chunks[:1]), tmp_path)
    values = [open_values(tmp_path / f"vocabulary-{v}") for v in range(2)]
    expected = encoded(values, chunks[1][0], 5, plain=True)
    for threads in (1, 2, 3):
        assert encoded(values, chunks[1][0], 5, threads=threads) == expected


def test_missing_unknown_and_known_values_have_their_ids(tmp_path):
    values = stored(tmp_path / "v", {b"ann": 2, b"a name longer than eight": 1})
    encoder = Vocabularies([values], [0], [3], 1)
    rows = [b"", b"ann", b"a name longer than eight", b"bob", b"a name longer than nine."]
    ids = [1, 5, 6, 2 + plain_hash(b"bob") % 3, 2 + plain_hash(rows[-1]) % 3]
    assert encoder.encode([column(rows)])[0].tolist() == ids


def test_two_values_with_one_hash_keep_their_own_ids(tmp_path):
    """The word of a longer value is its hash alone; a slot is believed only after its text."""
    values = stored(tmp_path / "v", {b"the first value": 2, b"the other value": 1})
    slots = values.index.copy()
    used = np.flatnonzero(slots[:, 1])
    one, other = (plain_hash(values.value(rank)) for rank in range(2))
    slots[used] = 0
    home = home_of(one, num_homes(2))
    slots = np.concatenate([slots, np.zeros((3, 2), np.uint64)])
    slots[home] = one, 1 << 8 | 9  # as if the other value had the hash of the first
    slots[home + 1] = one, 0 << 8 | 9
    forged = Values(values.counts, values.ends, values.text, 2, slots)
    encoder = Vocabularies([forged], [0], [1], 1)
    assert encoder.encode([column([b"the first value"])])[0].tolist() == [3]
    assert one != other


# ---- what can go wrong


@pytest.mark.parametrize("place", [5, 40, 70, -1])
def test_a_damaged_run_is_one_clear_error(tmp_path, place):
    counts = counted(tmp_path, many_values())
    counts.spill()
    run = next(path for path in (tmp_path / "spilled").iterdir() if "00000" in path.name)
    damaged = bytearray(run.read_bytes())
    damaged[place] ^= 4
    run.write_bytes(damaged)
    with pytest.raises(ValueError, match=f"{run.name} is damaged or cut off"):
        counts.write(0, tmp_path / "v", "v", 1)
    assert not list(tmp_path.glob("v*")) and not list((tmp_path / "spilled").glob("write*"))


@pytest.mark.parametrize("size", [0, 10, 32, 1000])
def test_a_run_that_was_cut_off_is_one_clear_error(tmp_path, size):
    counts = counted(tmp_path, many_values())
    counts.spill()
    run = next(path for path in (tmp_path / "spilled").iterdir() if "00000" in path.name)
    run.write_bytes(run.read_bytes()[:size])
    with pytest.raises(ValueError, match="remove the folder and prepare again"):
        counts.write(0, tmp_path / "v", "v", 1)


def test_a_failing_disk_is_an_os_error_that_names_the_file(tmp_path):
    counts = counted(tmp_path, many_values())
    (tmp_path / "spilled").rmdir()
    with pytest.raises(FileNotFoundError) as raised:
        counts.spill()
    assert "spilled/run-0000" in raised.value.filename


def test_a_value_larger_than_the_memory_is_an_error_that_says_so(tmp_path):
    counts = Counts([0, 1], tmp_path, 4096, 1)
    rows = [b"a", b"x" * 10_000, b"b"]
    with pytest.raises(ValueError, match=r"4,096 bytes of memory, .* give more memory"):
        counts.add([column(rows), column(rows)], np.ones(3, bool))


def test_a_vocabulary_without_index_cannot_encode(tmp_path):
    values = Values(np.array([2, 1]), np.zeros(0, np.int64), np.zeros(0, np.uint8), 2)
    write_values(tmp_path / "v", "ids", values)
    values = open_values(tmp_path / "v")
    assert values.counts.tolist() == [2, 1] and values.num_distinct == 2
    with pytest.raises(ValueError, match="found one without"):
        Vocabularies([values], [0], [1], 1)


@settings(deadline=None, max_examples=examples(60))
@given(data=st.data())
def test_a_damaged_vocabulary_gives_wrong_ids_at_worst(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("damaged")
    intact = stored(folder / "v", {b"a value longer than eight %d" % n: 1 for n in range(20)})
    parts = {name: getattr(intact, name).copy() for name in ("ends", "text", "index")}
    for name in parts:
        raw = parts[name].reshape(-1).view(np.uint8)
        for place in data.draw(st.lists(st.integers(0, len(raw) - 1), max_size=20)):
            raw[place] = data.draw(st.integers(0, 255))
    damaged = Values(intact.counts, num_distinct=20, **parts)
    rows = column([intact.value(rank) for rank in range(20)] + [b"", b"short"])
    assert len(Vocabularies([damaged], [0], [1], 1).encode([rows])[0]) == 22
    counts = Counts([0], folder, 4096, 1)
    counts.add([rows], np.ones(22, bool))
    counts.write(0, folder / "grown", "grown", 1, damaged)
