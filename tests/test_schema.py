"""What the user declares: round trips, and what is refused."""

import pytest

from hotrows import Dense, Schema, Sequence, Sparse, Table

SCHEMA = Schema(
    features=(
        Dense("price", transform="standard"),
        Sparse("user", rows=10, num_unknown=4),
        Sparse("shop", column="shop_id", vocabulary="places", min_count=3, pooling="mean"),
        Sequence("history", vocabulary="places", max_length=50),
    ),
    label="click",
    columns=("click", "price", "user", "shop_id", "history"),
    delimiter=",",
)


def test_a_schema_round_trips_to_json():
    assert Schema.from_json(SCHEMA.to_json()) == SCHEMA


def test_features_are_ordered_by_kind():
    assert [f.name for f in SCHEMA.dense] == ["price"]
    assert [f.name for f in SCHEMA.id_features] == ["user", "shop", "history"]


def test_shared_vocabularies_get_one_size():
    sized = SCHEMA.with_rows({"user": 12, "places": 99})
    assert [sized.rows_of(name) for name in ("user", "shop", "history")] == [12, 99, 99]


def test_sizes_are_asked_for_before_the_data_is_prepared():
    with pytest.raises(ValueError, match="'shop' has no `rows` yet: prepare the data"):
        SCHEMA.rows_of("shop")


def test_an_unknown_kind_is_named():
    with pytest.raises(ValueError, match="kind must be one of .*, not 'image'"):
        Schema.from_json('{"features": [{"kind": "image", "name": "x"}]}')


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Schema((Dense("a"), Sparse("a"))), r"must be unique, twice: \['a'\]"),
        (lambda: Schema((Dense("a"),), columns=("a",)), r"columns \['label'\] are used"),
        (lambda: Dense("a", transform="cube"), "'a': transform must be .* not 'cube'"),
        (lambda: Sparse("a", num_unknown=0), "'a': num_unknown and min_count must be at least 1"),
        (lambda: Sparse("a", pooling="max"), "'a': pooling must be 'sum' or 'mean', not 'max'"),
        (lambda: Table("t", 0, 4, ("a",)), "'t' needs at least one row"),
        (lambda: Table("t", 1, 4, ()), "'t' is read by no feature"),
        (lambda: Table("t", 1, 4, ("a",), dtype="int8"), "'t': dtype must be .* not 'int8'"),
    ],
)
def test_what_cannot_be_is_refused_by_name(make, message):
    with pytest.raises(ValueError, match=message):
        make()
