"""Profiles: the hot ids are the best use of a budget, and what they serve is measured fairly."""

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hotrows import models, optim
from hotrows.batch import Batch
from hotrows.data import Profile, profile, write_encoded
from hotrows.data.hot_cold.profile import all_hot, choose, pays, row_bytes
from hotrows.data.hot_cold.sampling import Accesses, Estimate, interval, two_samples
from hotrows.data.rows import Rows
from hotrows.schema import Dense, Schema, Sequence, Sparse
from hotrows.table import Table
from tests.data.encoded_rows import batch_of, samples, write_rows

ROWS = 20_000
BYTES = {"small": 8, "shared": 4, "wide": 16}
SCHEMA = Schema(
    features=(
        Dense("x"),
        Sparse("small", rows=200),
        Sparse("one", vocabulary="shared", rows=300_000),
        Sparse("two", vocabulary="shared", rows=300_000),
        Sparse("wide", rows=1 << 40),
    )
)


def encoded(folder, ids, schema=SCHEMA):
    """Training data of the given ids, [F, rows]."""
    ids = torch.as_tensor(np.asarray(ids, np.int64))
    rows = ids.shape[1]
    batch = Batch(
        features=tuple(feature.name for feature in schema.sparse),
        ids=ids.reshape(-1),
        dense=torch.arange(rows).float()[:, None],
        labels=(torch.arange(rows) % 3 == 0).float(),
    )
    return write_encoded(folder, schema, {"train": [batch]})


def skewed(rows=ROWS, seed=0):
    """[4, rows] ids, low ones far more often than high ones."""
    random = np.random.default_rng(seed)
    ends = np.array([[200], [300_000], [300_000], [1 << 40]])
    return (ends ** random.random((4, rows))).astype(np.int64) % ends


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return encoded(tmp_path_factory.mktemp("profile") / "out", skewed())


def accesses(name, rows, width, counts):
    """Accesses where `counts` says how often each id was read: {id: count}."""
    ids = np.array(sorted(counts), np.int64)
    return Accesses(name, rows, width, ids, np.array([counts[i] for i in sorted(counts)], np.int64))


def chosen(counts, fast_memory):
    return [ids.tolist() for ids in choose(counts, fast_memory)]


BIG = 1 << 20  # rows of a vocabulary that is never hot as a whole


def test_the_most_read_per_byte_are_hot():
    a = accesses("a", BIG, 4, {3: 10, 5: 8, 7: 2})
    b = accesses("b", BIG, 8, {0: 30, 1: 17, 9: 16})
    # per byte: b0 3.75, a3 2.5, b1 2.125, a5 and b9 2, a7 0.5
    assert chosen([a, b], 4) == [[], []]
    assert chosen([a, b], 8) == [[], [0]]
    assert chosen([a, b], 12) == [[3], [0]]
    assert chosen([a, b], 20) == [[3], [0, 1]]
    assert chosen([a, b], 24) == [[3, 5], [0, 1]]
    assert chosen([a, b], 32) == [[3, 5], [0, 1, 9]]
    assert chosen([a, b], 36) == [[3, 5, 7], [0, 1, 9]]


def test_ties_go_by_vocabulary_and_id():
    a = accesses("a", BIG, 4, {9: 5, 2: 5, 4: 5})
    b = accesses("b", BIG, 4, {1: 5})
    assert chosen([b, a], 12) == [[1], [2, 4]]
    assert chosen([a, b], 12) == [[2, 4, 9], []]


def test_an_id_that_was_read_once_is_not_hot():
    assert chosen([accesses("a", BIG, 4, {1: 1, 2: 2, 3: 1})], 1 << 16) == [[2]]
    assert chosen([accesses("a", BIG, 4, {})], 1 << 16) == [[]]


def test_small_vocabularies_are_hot_as_a_whole_while_they_fit():
    small = accesses("small", 4, 4, {0: 1, 1: 9})
    larger = accesses("larger", 8, 4, {0: 10})
    big = accesses("big", BIG, 4, {7: 100, 8: 99})
    assert chosen([small, larger, big], 52) == [[0, 1, 2, 3], [*range(8)], [7]]
    assert chosen([small, larger, big], 40) == [[0, 1, 2, 3], [0], [7, 8]]
    assert chosen([small, larger, big], 8) == [[], [], [7, 8]]


def test_what_is_left_makes_vocabularies_whole():
    a, b = accesses("a", BIG, 4, {3: 10}), accesses("b", BIG, 8, {0: 30})
    hot = choose([a, b], 12 * BIG)
    assert [len(ids) for ids in hot] == [BIG, BIG]
    assert [len(ids) for ids in choose([a, b], 12 * BIG - 1)] == [BIG, 1]


@given(
    sizes=st.lists(
        st.tuples(st.sampled_from([4, 8, 12]), st.dictionaries(st.integers(0, 50), st.integers(1, 6))),
        min_size=1,
        max_size=4,
    ),
    fast_memory=st.integers(1, 600),
)
def test_no_colder_id_stands_in_for_a_hotter_one(sizes, fast_memory):
    vocabularies = [accesses(str(v), BIG, width, counts) for v, (width, counts) in enumerate(sizes)]
    hot = choose(vocabularies, fast_memory)
    assert (
        sum(len(ids) * a.bytes_per_row for a, ids in zip(vocabularies, hot, strict=True)) <= fast_memory
    )
    wanted = sorted(
        (-count / width, v, i, width)
        for v, (width, counts) in enumerate(sizes)
        for i, count in counts.items()
        if count >= 2
    )
    expected, left = [set() for _ in sizes], fast_memory
    for _, v, i, width in wanted:
        if width > left:
            break
        expected[v].add(i)
        left -= width
    assert [ids.tolist() for ids in hot] == [sorted(ids) for ids in expected]


@given(rows=st.integers(2, 50_000), sample=st.floats(1e-6, 0.5), seed=st.integers(-(2**70), 2**70))
def test_two_samples_share_no_row(rows, sample, seed):
    counted, measured = two_samples(rows, sample, seed)
    assert len(counted) == len(measured) > 0
    blocks = np.concatenate([counted, measured])
    blocks = blocks[np.argsort(blocks[:, 0])]
    assert (blocks[:, 0] < blocks[:, 1]).all()
    assert (blocks[1:, 0] >= blocks[:-1, 1]).all()
    assert blocks[-1, 1] <= rows
    for sample_blocks in (counted, measured):
        assert (np.diff(sample_blocks, axis=1) > 0).all()
        assert (
            abs((sample_blocks[:, 1] - sample_blocks[:, 0]).sum() - sample * rows)
            <= 2 + 0.01 * sample * rows
        )


def test_a_sample_is_spread_over_the_whole_part():
    for blocks in two_samples(10_000_000, 0.05, 3):
        assert len(blocks) == 257
        assert blocks[0, 1] - blocks[0, 0] == 500_000 // 256
        stretch = blocks[:, 0] // (10_000_000 / len(blocks))
        assert np.abs(stretch - np.arange(len(blocks))).max() <= 1


def test_shares_hold_over_the_whole_part(data):
    hot_profile = profile(data, bytes_per_row=BYTES, fast_memory=20_000)
    ids = skewed()
    features_by_name = {"small": [0], "shared": [1, 2], "wide": [3]}
    hits = np.stack(
        [
            np.isin(ids[f], hot_profile.hot[name])
            for name, features in features_by_name.items()
            for f in features
        ]
    )
    assert (
        hot_profile.bytes
        == sum(BYTES[name] * len(hot) for name, hot in hot_profile.hot.items())
        <= 20_000
    )
    assert hot_profile.counted == hot_profile.measured == 1002  # whole blocks, of three rows here
    assert hot_profile.samples.low <= hits.all(axis=0).mean() <= hot_profile.samples.high
    assert hot_profile.lookups.low <= hits.mean() <= hot_profile.lookups.high
    for line in hot_profile.vocabularies:
        share = hits[features_by_name[line.name]].mean()
        assert line.lookups.low <= share <= line.lookups.high
        assert line.hot_rows == len(hot_profile.hot[line.name])
    small, shared, _ = hot_profile.vocabularies
    assert (small.hot_rows, small.threshold, small.lookups.value) == (200, 0, 1.0)
    assert shared.features == ("one", "two")
    assert 0 < hot_profile.samples.value < hot_profile.lookups.value < 1


def test_a_profile_is_a_function_of_its_seed(data):
    def json_of(seed):
        return profile(data, bytes_per_row=BYTES, fast_memory=20_000, seed=seed).to_json()

    assert json_of(1) == json_of(1)
    assert json_of(1) != json_of(2)


def test_the_choice_does_not_flatter_itself(tmp_path):
    """Where all ids are equally rare, those chosen are no hotter than others."""
    schema = Schema(features=(Dense("x"), Sparse("id", rows=300_000)))
    ids = np.random.default_rng(0).integers(0, 5000, (1, ROWS))
    data = encoded(tmp_path / "out", ids, schema)
    hot_profile = profile(data, bytes_per_row={"id": 8}, fast_memory=400)
    assert len(hot_profile.hot["id"]) == 50
    of_counted = np.sort(np.bincount(ids[0, :1000]))[-50:].sum() / 1000
    assert hot_profile.lookups.low <= 50 / 5000 <= hot_profile.lookups.high
    assert hot_profile.lookups.high < of_counted / 2


def test_intervals_are_wilsons():
    even = interval(np.array([10] * 10), np.array([100] * 10), 0.95)
    assert (even.value, round(even.low, 4), round(even.high, 4)) == (0.1, 0.0829, 0.1202)
    nothing = interval(np.array([0]), np.array([100]), 0.95)
    assert (nothing.value, nothing.low, round(nothing.high, 4)) == (0.0, 0.0, 0.037)


def test_blocks_that_differ_widen_an_interval_and_a_drift_does_not():
    sizes, drift = np.full(100, 100), np.arange(100)
    shuffled = interval(np.random.default_rng(0).permutation(drift), sizes, 0.95)
    plain, drifting = interval(np.full(100, 50), sizes, 0.95), interval(drift, sizes, 0.95)
    assert shuffled.high - shuffled.low > 4 * (plain.high - plain.low)
    assert drifting.high - drifting.low < 1.01 * (plain.high - plain.low)


def test_intervals_cover_the_truth():
    """Blocks of 20 samples of which half are copies of the first: 95 % means 95 %."""
    random = np.random.default_rng(0)
    covered = 0
    for _ in range(1000):
        copies = random.random((200, 1)) < 0.3
        hits = (random.random((200, 10)) < 0.3).sum(1) + 10 * copies[:, 0]
        hot_profile = interval(hits, np.full(200, 20), 0.95)
        covered += hot_profile.low <= 0.3 <= hot_profile.high
    assert 925 <= covered <= 980


@pytest.mark.parametrize("last", [40, 255, 10**9])
def test_membership_by_table_and_by_search(last):
    rows = 256 if last < 256 else 1 << 40
    schema = Schema(features=(Sparse("a", rows=rows),))
    hot = np.array([0, 7, last])
    dtype = np.uint8 if rows == 256 else np.int64
    ids = np.array([0, 1, 7, 8, last, last - 1, rows - 1]).astype(dtype)
    rows_of = Rows(7, {"ids/a": ids}, {})
    expected = [i in (0, 7, last) for i in ids.tolist()]
    assert all_hot({"a": hot}, schema)(rows_of).tolist() == expected
    none = all_hot({"a": np.zeros(0, np.int64)}, schema)(rows_of)
    assert not none.any()


def test_a_row_is_all_hot_where_every_id_of_its_lists_is():
    schema = Schema((Sparse("a", rows=9), Sparse("many", rows=9, many=True), Sequence("s", rows=9)))
    hot = {"a": np.array([1]), "many": np.array([2, 3]), "s": np.array([4])}
    rows = Rows(
        5,
        {
            "ids/a": np.array([1, 1, 1, 1, 8]),
            "ids/many": np.array([2, 3, 2, 8, 3]),
            "ids/s": np.array([7, 4, 4, 4, 4, 8]),
        },
        {"many": np.array([0, 2, 4, 4, 5, 5]), "s": np.array([1, 1, 2, 4, 6, 6])},
    )
    assert all_hot(hot, schema)(rows).tolist() == [True, False, True, False, False]
    assert all_hot(hot, schema)(rows[1:4]).tolist() == [False, True, False]


def test_every_id_of_a_list_is_a_lookup(tmp_path, monkeypatch):
    shared = {"vocabulary": "v", "rows": 300_000}
    schema = Schema((Dense("x"), Sparse("a", **shared), Sequence("s", **shared)))
    batch = batch_of(schema, 3000)
    batch = dataclasses.replace(batch, ids=torch.where(batch.ids < 300_000 - 1, batch.ids % 40, 7))
    data = write_rows(tmp_path / "out", schema, batch, 700, monkeypatch)
    hot_profile = profile(data, bytes_per_row={"v": 8}, fast_memory=8, sample=0.5)
    assert hot_profile.hot["v"].tolist() == [7]
    rows = samples(batch)
    lookups = [value for ids, *_ in rows for one in ids for value in one]
    share = lookups.count(7) / len(lookups)
    assert hot_profile.lookups.low <= share <= hot_profile.lookups.high
    assert hot_profile.vocabularies[0].lookups == hot_profile.lookups
    all_sevens = sum(set(ids[0] + ids[1]) == {7} for ids, *_ in rows) / len(rows)
    assert hot_profile.samples.low <= all_sevens <= hot_profile.samples.high


def test_lists_that_are_all_empty_leave_their_vocabulary_unknown(tmp_path):
    schema = Schema((Dense("x"), Sparse("a", rows=300_000), Sequence("s", rows=300_000)))
    batch = dataclasses.replace(
        batch_of(schema, 50),
        ids=torch.zeros(50, dtype=torch.int64),
        offsets=torch.arange(101).clamp(max=50),
    )
    data = write_encoded(tmp_path / "out", schema, {"train": [batch]})
    hot_profile = profile(data, bytes_per_row={"a": 8, "s": 8}, fast_memory=8, sample=0.5)
    assert hot_profile.vocabularies[1].lookups == Estimate(0.0, 0.0, 1.0)
    assert hot_profile.samples.value == 1.0


def test_a_profile_comes_back_from_its_file(data, tmp_path):
    hot_profile = profile(data, bytes_per_row=BYTES, fast_memory=20_000)
    hot_profile.save(tmp_path / "hot.ids")
    again = Profile.load(tmp_path / "hot.ids")
    assert again.to_json() == hot_profile.to_json()
    assert again.vocabularies == hot_profile.vocabularies
    assert again.hot.keys() == hot_profile.hot.keys()
    assert all(np.array_equal(again.hot[name], hot_profile.hot[name]) for name in hot_profile.hot)
    assert all(ids.dtype == np.int64 for ids in again.hot.values())
    assert [path.name for path in tmp_path.iterdir()] == ["hot.ids"]


def test_other_files_and_damaged_ones_are_no_profiles(data, tmp_path):
    with pytest.raises(ValueError, match="is not a profile"):
        Profile.load(data.path / "train-00000.shard")
    with pytest.raises(ValueError, match="is not regrouped into hot and cold samples"):
        Profile.from_data(data)
    profile(data, bytes_per_row=BYTES, fast_memory=20_000).save(tmp_path / "hot.ids")
    damaged = bytearray((tmp_path / "hot.ids").read_bytes())
    damaged[-64] ^= 1
    (tmp_path / "hot.ids").write_bytes(damaged)
    with pytest.raises(ValueError, match="is damaged"):
        Profile.load(tmp_path / "hot.ids")


def test_few_all_hot_samples_do_not_pay(data):
    hot_profile = profile(data, bytes_per_row=BYTES, fast_memory=64 << 10)

    def verdict(low, value, high):
        return pays(dataclasses.replace(hot_profile, samples=Estimate(value, low, high)))

    assert verdict(0.009, 0.013, 0.018) == (
        False,
        "regrouping would not pay: 1.3 % (0.9 to 1.8 %) of the samples are all-hot with 64 KiB; "
        "below 20 % nearly every batch is cold; give more fast memory, or train with --policy "
        "lookahead, which needs no regrouping",
    )
    expected = "regrouping pays: 19.0 % (17.0 to 21.0 %) of the samples are all-hot with 64 KiB"
    assert verdict(0.17, 0.19, 0.21) == (True, expected)


def test_tables_that_fit_need_no_regrouping(tmp_path):
    schema = Schema(features=(Dense("x"), Sparse("id", rows=50)))
    data = encoded(tmp_path / "out", np.arange(100)[None] % 50, schema)
    hot_profile = profile(data, bytes_per_row={"id": 8}, fast_memory=400)
    message = "all 50 rows (400 bytes) fit in 400 bytes; train on the data as it is"
    assert pays(hot_profile) == (False, f"regrouping would not pay: {message}")


@pytest.mark.parametrize("rows", [2, 3, 17])
def test_tiny_data_has_a_profile(tmp_path, rows):
    data = encoded(tmp_path / "out", skewed(rows))
    hot_profile = profile(data, bytes_per_row=BYTES, fast_memory=1600, sample=0.5)
    assert hot_profile.counted >= 1
    assert hot_profile.measured >= 1
    assert hot_profile.samples.high - hot_profile.samples.low > 0.2


def test_row_bytes_sums_the_tables_that_read_a_vocabulary():
    tables = [
        Table("v", rows=9, dim=4, features=("one", "two")),
        Table("w", rows=9, dim=1, features=("two",), optimizer=optim.FTRL()),
        Table("s", rows=9, dim=6, features=("small",), dtype="bfloat16"),
    ]
    num_bytes = row_bytes(tables, SCHEMA, optim.Adagrad())
    assert num_bytes == {"small": 12 + 24, "shared": 16 + 16 + 4 + 8, "wide": 0}
    deepfm = models.build("deepfm", SCHEMA, dim=4)
    assert set(row_bytes(deepfm.tables, SCHEMA, optim.SGD()).values()) == {16 + 4}
    crossed = Table("one*two", rows=9, dim=1, features=("one*two",))  # of no vocabulary
    assert row_bytes([*tables, crossed], SCHEMA, optim.Adagrad()) == num_bytes


@pytest.mark.parametrize(
    "message, arguments",
    [
        ("fast_memory must be at least one byte and below", {"fast_memory": 0}),
        ("sample must be above 0 and at most 0.5, not 0.6", {"sample": 0.6}),
        ("sample must be above 0 and at most 0.5, not nan", {"sample": float("nan")}),
        ("confidence must be between 0 and 1, such as 0.999, not 1", {"confidence": 1}),
        (r"\['wide'\] are missing or 0", {"bytes_per_row": {"small": 8, "shared": 4}}),
    ],
)
def test_wrong_arguments_are_refused(data, message, arguments):
    with pytest.raises(ValueError, match=message):
        profile(data, **{"bytes_per_row": BYTES, "fast_memory": 1, **arguments})


def test_data_without_training_rows_is_refused(tmp_path):
    with pytest.raises(ValueError, match="has 0 samples; a profile needs at least one to count"):
        profile(encoded(tmp_path / "o", skewed(0)), bytes_per_row=BYTES, fast_memory=1)
