"""What the user declares: round trips, and what is refused."""

import pytest

from hotrows import Dense, Label, Schema, Sequence, Sparse, Table, Time

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


def test_kinds_of_hotrows_are_not_looked_for_in_packages(monkeypatch):
    looked_for = []
    find = "hotrows.runtime.own_kinds.entry_points"
    monkeypatch.setattr(find, lambda **point: looked_for.append(point["name"]) or ())
    Schema.from_json(SCHEMA.to_json())
    assert looked_for == []  # finding them reads the metadata of each package, for each feature


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
        (
            lambda: Schema((Dense("y", column="price"),), missing={"prise": ("NA",)}),
            r"`missing` names \['prise'\], .*name raw columns, .* 'price'\]",
        ),
        (lambda: Schema((Dense("y", column="x"),), missing={"y": ("NA",)}), r"`missing` names \['y'\]"),
        (
            lambda: Schema((Sparse("x", column="click"), Dense("a")), label="click"),
            r"features \['x'\] read a label's column, and would tell it",
        ),
        (lambda: Schema((Dense("a"),), columns=("a",)), r"columns \['label'\] are used"),
        (lambda: Dense("a", transform="cube"), "'a': transform must be .* not 'cube'"),
        (lambda: Sparse("a", num_unknown=-1), "'a': num_unknown must be at least 0"),
        (lambda: Sparse("a", pooling="max"), "'a': pooling must be 'sum' or 'mean', not 'max'"),
        (lambda: Table("t", 0, 4, ("a",)), "'t' needs at least one row"),
        (lambda: Table("t", 1, 4, ()), "'t' is read by no feature"),
        (lambda: Table("t", 1, 4, ("a",), dtype="int2"), "'t': dtype must be .* not 'int2'"),
    ],
)
def test_what_cannot_be_is_refused_by_name(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_every_kind_of_declaration_survives_json():
    schema = Schema(
        label=(Label("liked", "rating", at_least=4), "buy", Label("kind", positive=("a", "b"))),
        columns=("rating", "buy", "kind", "t", "x", "u", "w", "tags", "seen"),
        features=(
            Dense("x"),
            Dense("x_missing", column="x", transform="missing"),
            Sparse("hour", transform="hour"),
            Sparse("tier", column="x", transform="bucket", boundaries=[1, 2.5]),
            Sparse("tags", many=True, separator=";", max_length=3),
            Sequence("seen", max_length=5, separator=" "),
        ),
        time=Time("t", "%Y-%m-%d", utc_offset=8),
        group="u",
        weight="w",
        missing=("NULL",),
        strip=True,
    )
    again = Schema.from_json(schema.to_json())
    assert again == schema
    assert [label.name for label in again.labels] == ["liked", "buy", "kind"]
    assert again.raw_columns == ("x", "t", "tags", "seen", "rating", "buy", "kind", "w", "u")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Schema((Sparse("h", transform="hour"),)), "made of the time; say which column"),
        (lambda: Schema((Sparse("a"),), label=()), "needs at least one label"),
        (lambda: Schema((Sparse("a"),), label=("y", "y")), "label names must be unique"),
        (lambda: Sparse("a", transform="bucket"), "needs boundaries that rise"),
        (lambda: Sparse("a", transform="bucket", boundaries=(2, 1)), "needs boundaries that rise"),
        (lambda: Sparse("a", boundaries=(1,)), "needs boundaries that rise"),
        (lambda: Sparse("a", many=True, transform="hour"), "takes transform 'none' alone"),
        (lambda: Sequence("a", separator="::"), "the separator must be one byte"),
        (lambda: Sequence("a", max_length=0), "max_length must be at least 1"),
        (lambda: Label("y", positive=("a",), at_least=1), "either positive= or at_least="),
        (lambda: Schema((Dense("x"),), columns=("label",)), "do not stand in `columns`"),
    ],
)
def test_declarations_that_contradict_themselves_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
