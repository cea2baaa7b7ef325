"""Which tables share a pack, and how a pack numbers its rows."""

import pytest

from hotrows import SGD, Adagrad, Constant, Table
from hotrows.engine.planning.packing import Group, describe, group_packs, pack_tables


def table(name, rows=10, dim=4, features=None, **attributes):
    attributes.setdefault("optimizer", SGD())
    return Table(name, rows, dim, features or (name,), **attributes)


def test_tables_of_equal_attributes_are_laid_end_to_end():
    (pack,) = pack_tables([table("a", 10), table("b", 20), table("c", 5)])
    assert pack.first_rows == (0, 10, 30, 35)
    assert pack.rows == 35
    assert pack.columns == (("a", 0), ("b", 1), ("c", 2))


@pytest.mark.parametrize(
    "attribute",
    [
        {"dim": 8},
        {"dtype": "bfloat16"},
        {"optimizer": Adagrad()},
        {"optimizer": SGD(lr=0.5)},
        {"initializer": Constant(0.0)},
    ],
)
def test_tables_that_differ_in_one_attribute_do_not_share_a_pack(attribute):
    packs = pack_tables([table("a"), table("b", **attribute), table("c")])
    assert [[t.name for t in pack.tables] for pack in packs] == [["a", "c"], ["b"]]


def test_a_shared_table_gives_a_column_to_each_of_its_features():
    (pack,) = pack_tables([table("item", features=("bought", "seen")), table("user")])
    assert pack.columns == (("bought", 0), ("seen", 0), ("user", 1))
    assert pack.column_of["seen", "vector"] == 1


def test_sequences_stand_behind_the_columns():
    (pack,) = pack_tables([table("item", features=("item", "history"))], sequences=["history"])
    assert pack.columns == (("item", 0),)
    assert pack.sequences == (("history", 0),)


def test_packs_that_read_equal_rows_are_one_group():
    """Records of the group hold those of its packs end to end; a rank without the rows has none."""
    wide = [table(f"wide {name}", rows, 1, (name,), role="wide") for name, rows in (("a", 10), ("b", 20))]
    packs = pack_tables([table("a"), table("b", 20), *wide, table("c", 7, 8)])
    groups = (Group((0, 1), 30, (16, 4), lookups=2), Group((2,), 7, (32,), lookups=1))
    assert group_packs(packs) == group_packs(packs, rank=0, num_ranks=2) == groups
    assert groups[0].stride == 20 and groups[0].offsets == (0, 16)
    assert [group.rows for group in group_packs(packs, rank=1, num_ranks=2)] == [0, 0]


def test_rows_are_counted_past_thirty_two_bits():
    (pack,) = pack_tables([table("a", 2**40), table("b", 2**40)])
    assert pack.first_rows == (0, 2**40, 2**41)


def test_the_assignment_can_be_printed():
    text = describe(pack_tables([table("a", 1000), table("b", 20, dim=1)]))
    assert text.splitlines() == [
        "pack-0: 1 tables, 1,000 rows, dim 4, float32, sgd",
        "  a: rows 0 to 999, read by a",
        "pack-1: 1 tables, 20 rows, dim 1, float32, sgd",
        "  b: rows 0 to 19, read by b",
    ]


def test_two_tables_of_one_name_are_refused():
    with pytest.raises(ValueError, match="must be unique, but these stand twice: a"):
        pack_tables([table("a"), table("a", dim=8)])
