"""The kind that a draft gives each column, by its name and its values, and the table that says why."""

import random

import numpy as np
import pandas as pd
import pytest

from hotrows import cli
from hotrows.data import describe, draft_schema, prepare
from hotrows.data.raw.clues import meaning
from hotrows.data.raw.kinds import column_of_kind
from hotrows.data.raw.list_order import are_newest_first
from hotrows.data.raw.sampled_rows import Column
from hotrows.schema import Dense, Label, Schema, Sequence, Sparse
from tests.data.header_names import kinds

WORDS = ("red", "blue", "big", "small", "shirt", "sock", "hat", "fast", "new", "old", "sale", "shoe")


@pytest.mark.parametrize("half", [0, 1], ids=["chosen on", "judged on"])
def test_names_say_ids_or_amounts_or_nothing_and_rarely_the_wrong_one(half):
    """`user_age` was an id, and `User ID`, `visitor` and `CustomerNo` were amounts."""
    named = {name: (kind, meaning(name)) for name, kind in kinds(half).items()}
    right = [name for name, (kind, said) in named.items() if kind == said]
    wrong = [name for name, (kind, said) in named.items() if said and kind != said]
    assert len(right) >= 0.87 * len(named) and len(wrong) <= 2, wrong


def of_ids(rng, rows=20_000):
    """Ids that are used evenly, the label that they have, and amounts that say as much of it."""
    ids, amounts = rng.integers(1, 500, (2, rows))
    liked = rng.random(500)
    return ids, amounts, (rng.random(rows) < (liked[ids] + amounts / 500) / 2).astype(int)


def test_ids_that_are_used_evenly_are_ids_by_their_labels_and_amounts_are_none():
    ids, amounts, click = of_ids(np.random.default_rng(5))
    even = np.random.default_rng(6).integers(1, 500, len(ids))
    frame = pd.DataFrame({"a": ids, "b": amounts, "c": even, "click": click})
    draft = draft_schema(frame)
    assert {f.name: type(f) for f in draft.schema.features} == {"a": Sparse, "b": Dense, "c": Dense}
    assert "'c': whole numbers are read as amounts, but may be ids" in draft.notes
    number = draft_schema(frame.assign(click=click * 3.5 + even / 1e4), label="click")
    assert {f.name: type(f) for f in number.schema.features} == {"a": Sparse, "b": Dense, "c": Dense}


@pytest.mark.parametrize("special", [0, -1, 99_999])
def test_a_number_that_most_rows_have_does_not_make_amounts_ids(special):
    rng = np.random.default_rng(0)
    amounts = np.where(rng.random(20_000) < 0.6, special, rng.lognormal(4, 1, 20_000).astype(int))
    click = rng.random(20_000) < np.where(amounts == special, 0.1, 0.5)
    draft = draft_schema(pd.DataFrame({"a": amounts, "click": click + 0}))
    assert isinstance(draft.schema.features[0], Dense)
    asks = f"is {special:g} missing? Then missing={{'a': ('{special:g}',)}}"
    assert (asks in draft.columns[0].why) == (special != 0)


LABELS = [
    ("y", [1, 2], Label("y", at_least=2), "2 of 'y' counts as 1 and 1 as 0"),
    ("y", [-1, 1], Label("y", at_least=1), "1 of 'y' counts as 1 and -1 as 0"),
    ("target", [0, 1, 2], Label("target", loss="squared"), "(0, 1, 2), and loss='squared' is a guess"),
    ("click", [0, 1, 2], Label("click", loss="squared"), "if they are classes, Label('click', positive"),
    ("rating", [-1, 1, 2, 3, 4, 5, 6], Label("rating", loss="squared"), "-1 of 'rating' (30 rows"),
    ("click", [-1, 0, 1], "click", "-1 of 'click' (70 rows looked at) lies apart from all others"),
    ("click", [0, 1, 99], "click", "99 of 'click' (70 rows looked at) lies apart from all others"),
]


@pytest.mark.parametrize(("name", "values", "label", "note"), LABELS)
@pytest.mark.parametrize("is_named", [True, False])
def test_of_labels_that_are_not_0_and_1_it_is_said_what_counts(name, values, label, note, is_named):
    """`click` with 0, 1 and 2 was a feature of another column of 0 and 1."""
    frame = pd.DataFrame({"user": np.arange(210) % 11, name: np.resize(values, 210)})
    bits = frame.assign(bit=np.arange(210) // 3 % 2)
    draft = draft_schema(frame if name == "rating" else bits, label=name if is_named else None)
    assert draft.schema.label == label and any(note in said for said in draft.notes)


def test_a_label_by_name_is_no_feature_of_a_label_that_was_guessed():
    frame = pd.DataFrame({"label": list("abc") * 30, "user": np.arange(90) % 7, "bit": np.arange(90) % 2})
    draft = draft_schema(frame)
    assert draft.schema.label == "bit" and draft.schema.features == (Sparse("user"),)


TEXTS = {
    "genres": (lambda r: "|".join(r.sample(WORDS, r.randint(1, 4))), "list"),
    "sorted tags": (lambda r: ";".join(sorted(r.sample(WORDS, r.randint(1, 3)))), "list"),
    "ids": (lambda r: " ".join(f"t{r.randrange(50)}" for _ in range(r.randint(1, 5))), "list"),
    "many ids": (lambda r: ",".join(str(r.randrange(500)) for _ in range(r.randint(0, 9))), "list"),
    "title": (lambda r: " ".join(r.choices(WORDS, k=r.randint(1, 3))), "text"),
    "page": (lambda r: r.choice(WORDS) + r.choice([" | Shop", " | Home | Shop"]), "text"),
    "pair": (lambda r: r.choice(WORDS) + r.choice(["", f" &amp; {r.choice(WORDS)}"]), "text"),
    "place": (lambda r: r.choice(["Boston", "Dallas"]) + r.choice(["", ",MA", ",TX"]), "text"),
    "variant": (lambda r: f"{r.choice(WORDS)}|{r.choice('SML')}" + r.choice(["", "|sale now"]), "text"),
    "agent": (
        lambda r: f"Mozilla ({r.choice(['Win64; x64', 'WOW64'])}) Chrome/{r.randint(60, 99)}",
        "text",
    ),
}


@pytest.mark.parametrize("name", TEXTS)
def test_text_of_few_words_is_no_list(name):
    """Text with a sign that separates lists was drafted as `many`: pieces of a list come in any place."""
    make, kind = TEXTS[name]
    draw = random.Random(0)
    column = column_of_kind(Column(name, "text", [make(draw) or None for _ in range(1000)]))
    assert column.kind == kind


def histories(newest_first, kept=10, users=30, items=40, longest=30, rows=3000):
    """A log in order of time: the history of a user before each row, the last `kept` of its list."""
    draw = random.Random(3)
    lists = {user: [draw.randrange(items) for _ in range(longest)] for user in range(users)}
    for _ in range(rows):
        user = draw.randrange(users)
        new = [draw.randrange(items) for _ in range(draw.randrange(3))]
        lists[user] = (new + lists[user])[:longest]
        yield (lists[user] if newest_first else lists[user][::-1])[-kept:]


@pytest.mark.parametrize("kept", [10, 30])
@pytest.mark.parametrize("newest_first", [True, False])
def test_a_log_in_order_of_time_shows_whether_lists_begin_with_the_newest(newest_first, kept):
    lists = list(histories(newest_first, kept))
    assert are_newest_first(np.concatenate(lists), np.cumsum([0, *map(len, lists)])) == newest_first


@pytest.mark.parametrize("make", [lambda r: r.choices(range(30), k=8), lambda r: [5] * r.randrange(9)])
def test_lists_without_an_order_show_none(make):
    draw = random.Random(0)
    for change in (list, sorted):
        lists = [change(make(draw)) for _ in range(3000)]
        ids = np.array([item for items in lists for item in items])
        assert not are_newest_first(ids, np.cumsum([0, *map(len, lists)]))
    assert not are_newest_first(np.zeros(0, np.int64), np.zeros(1, np.int64))


@pytest.mark.parametrize("newest_first", [True, False])
def test_the_draft_and_prepare_say_that_lists_begin_with_the_newest(tmp_path, caplog, newest_first):
    """`max_length` kept the oldest items of such lists, without a word."""
    lists = [[f"i{item}" for item in items] for items in histories(newest_first, 30)]
    frame = pd.DataFrame({"history": lists, "at": 1_700_000_000 + 60 * np.arange(len(lists))})
    frame["click"] = np.arange(len(lists)) % 2
    draft = draft_schema(frame[::-1])  # the time decides, not the order of rows
    said = [note for note in draft.notes if "begin with the newest item" in note]
    assert bool(said) == newest_first
    schema = Schema((Sequence("history", max_length=10),), label="click")
    data = prepare(frame, schema, tmp_path / "enc", split="position:0.8,0.1,0.1")
    assert ("'history': its lists seem to begin with the newest" in caplog.text) == newest_first
    assert any("newest" in line for line in describe(data).oddities) == newest_first


def test_the_command_prints_every_column_in_80_places_with_three_examples(tmp_path, capsys):
    draw = random.Random(1)
    long = "a_name_that_is_as_long_as_some_names_are_in_the_tables_of_a_shop"
    names = ["User ID", long, "[red]", "x", "const", "click", *(f"f{n}" for n in range(60))]
    lines = [
        f"{draw.randrange(100)},some text that is long,[b],{draw.random()},1,{row % 2}"
        + "".join(f",{draw.randrange(90)}" for _ in range(60))
        for row in range(300)
    ]
    (tmp_path / "rows.csv").write_text("\n".join([",".join(names), *lines, ""]))
    assert cli.main(["schema", str(tmp_path / "rows.csv")]) in (0, None)
    table, _, _ = capsys.readouterr().err.partition("hotrows: ")
    printed = table.splitlines()
    assert printed[0].split() == ["column", "read", "as", "why", "examples"]
    assert max(map(len, printed)) <= 80
    for start in ("User ID", "[red]", "x ", "const", "click", *(f"f{n} " for n in range(60))):
        (line,) = [line for line in printed if line.startswith(start)]
        assert line[len(start) :].strip()
    draft = draft_schema(tmp_path / "rows.csv")
    assert [column.column for column in draft.columns] == names
    by_name = {column.column: column for column in draft.columns}
    assert (by_name["User ID"].read_as, by_name["const"].read_as) == ("ids", "left out")
    assert len(by_name["x"].examples) == 3 and by_name["click"].examples == ("0", "1")
    assert all(column.why for column in draft.columns)
    html = draft._repr_html_()
    assert "f59" in html and "[red]" in html
