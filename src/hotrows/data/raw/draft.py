"""draft_schema: a schema for raw data, from a sample of its rows.

Each column is looked at in this order, and the first that fits decides:

    label       two values, 0 and 1 above all, and a name such as `click` or `target`; of more numbers a
                loss is proposed
    left out    one value in all rows; another value in every row, as row numbers have
    time        the first column of dates or times, or of seconds since 1970 that is called a time; else
                numbers that are seconds since 1970 by their magnitude; none that is known after the label
    dense       numbers; whole ones where they look like amounts; vectors: float lists of one length
    sparse      text; whole numbers that are few, called ids, or used as ids are; lists in cells

What could as well be otherwise is said in a note.
"""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hotrows.data.raw.clues import (
    GROUPS,
    HISTORY_NAME,
    TIME_NAME,
    giveaways,
    labels_of_neighbours,
    meaning,
    names_rows,
    neighbours_unlike,
    outcomes,
    times_after,
    words_of,
)
from hotrows.data.raw.files import BLOCKS
from hotrows.data.raw.kinds import FEW, almost_numbers, columns_of_types, quantiles, rounded
from hotrows.data.raw.label import PANDAS_INDEX, is_called_label, label_of, sentinel
from hotrows.data.raw.list_order import NEWEST_FIRST, are_newest_first
from hotrows.data.raw.reading import with_article
from hotrows.data.raw.sampled_rows import Column, SampledRows, changed_names, sampled_rows_of
from hotrows.data.raw.values import MISSING_WORDS, UNIX
from hotrows.runtime.own_kinds import KINDS
from hotrows.runtime.pages import notebook
from hotrows.schema import Dense, Feature, Label, Schema, Sparse, Time, column_of
from hotrows.schema import Sequence as SequenceFeature


@dataclass(frozen=True)
class Draft:
    """A schema made from a sample of data.

    notes: what is unsure, then what was left out, a line each, first what tells the label.
    columns: of every column of the data what it is read as, why, and examples.
    split: the split of `prepare` that fits the data, "" where nothing speaks for one.

    >>> rows = {"user": ["a", "b", "a"], "price": [1.5, 2.0, 3.5], "click": [0, 1, 0]}
    >>> draft = draft_schema(rows, label="click")
    >>> [feature.name for feature in draft.schema.features]
    ['user', 'price']
    """

    schema: Schema
    notes: tuple[str, ...]
    split: str = ""
    columns: tuple[DraftedColumn, ...] = ()
    _repr_html_ = notebook.draft

    def to_json(self) -> str:
        """The schema as JSON, a line per feature, without what has its default."""
        lines = []
        for name, value in _brief(self.schema).items():
            if name == "features":
                value = (
                    json.dumps({"kind": type(f).__name__.lower(), **_brief(f)})
                    for f in self.schema.features
                )
                lines.append('  "features": [\n    ' + ",\n    ".join(value) + "\n  ]")
            else:
                lines.append(f'  "{name}": {json.dumps(value)}')
        return "{\n" + ",\n".join(lines) + "\n}\n"


def draft_schema(
    source: Any,
    label: str | None = None,
    user: str | None = None,
    histories: Sequence[str] = (),
    **of_text: str,
) -> Draft:
    """Drafts a schema from raw data: from at most 30,000 rows, in blocks from all of it.

    source: a path, glob, folder or URL, an Arrow table or a frame: what `prepare` reads; of several files
        the first is looked at.
    label: the column of the target (default: the likeliest).
    user: the column of the user, in these rows and in events.
    histories: columns of the events that become histories of the user, such as the item's.
    of_text: encoding, decimal and thousands of the text, see `Schema`.

    >>> draft_schema({"user": ["a", "b", "a"], "click": [0, 1, 0]}).schema.labels[0].name
    'click'
    """
    rows = sampled_rows_of(source, **of_text)
    columns, in_file = columns_of_types(rows.columns)
    notes = [*rows.notes, *changed_names(in_file.items())]
    wanted = next((name for name, full in in_file.items() if full == label), label)
    target = label_of(columns, wanted, rows.name, notes)
    by_name = {column.name: column for column in columns}
    labels = by_name[column_of(target)]
    after = times_after([c for c in columns if c.kind == "time"], target, labels)
    drafting = Drafting(notes, columns, rows, outcomes(target, labels), label is None, after)
    why = drafting.why
    why[column_of(target)] = "label", notebook.settings(target) or "0 and 1"
    features = drafting.features([column for column in columns if column.name != column_of(target)])
    used = {column_of(feature) for feature in features} | {column_of(target)}
    notes[:0] = giveaways([by_name[name] for name in by_name if name in used], target, labels)
    used |= {drafting.time.column} if drafting.time else set()
    if twice := [n for n, num in Counter(c.name for c in columns).items() if num > 1 and n in used]:
        raise ValueError(f"{rows.name} names the columns {twice} twice; rename one")
    groups = [f.name for f in features if isinstance(f, Sparse) and "".join(words_of(f.name)) in GROUPS]
    target = _named(target, in_file)
    schema = Schema(
        features=tuple(_named(feature, in_file) for feature in _sharing(features, columns)),
        label=target if target != Label(target.name) else target.name,
        columns=None if rows.has_header else tuple(column.name for column in columns),
        delimiter=rows.delimiter or ",",  # of what others write of typed columns as text
        group=in_file.get(groups[0], groups[0]) if groups else None,
        time=drafting.time and _named(drafting.time, in_file),
        missing={in_file.get(n, n): by_name[n].words for n in by_name if by_name[n].words and n in used},
        strip=any(column.is_padded for column in columns if column.name in used),
        **of_text,  # type: ignore[arg-type]
    )
    ids = (raw for column, raw in zip(columns, rows.columns, strict=True) if why[column.name][0] == "ids")
    notes += filter(None, map(rounded, ids))
    split = "time:0.8,0.1,0.1" if schema.time else "position:0.8,0.1,0.1" if after else ""
    schema = _with_histories(schema, user, histories, notes)
    drafted = tuple(
        DraftedColumn(raw.name, *why[column.name], raw.examples)
        for column, raw in zip(columns, rows.columns, strict=True)
    )
    return Draft(schema, tuple(sorted(notes, key=lambda note: " is left out: " in note)), split, drafted)


def _with_histories(schema: Schema, user: str | None, columns: Sequence[str], notes: list[str]) -> Schema:
    """The schema with histories of columns of the events, with the ids of features of the column."""
    if not columns and user is None:
        return schema
    if schema.time is None:
        raise ValueError("no column is a time, before which a history has its events")
    vocabularies = {column_of(f): f.name for f in schema.sparse}
    added = tuple(
        SequenceFeature(f"{column}_history", column, vocabularies.get(column), max_length=100)
        for column in columns
    )
    notes += [f"{f.name!r} is {f.column!r} of the user's events before the sample" for f in added]
    names = tuple(feature.name for feature in added)
    features = (*schema.features, *added)
    return dataclasses.replace(schema, features=features, user=user, histories=names)


def _named(declared: Any, in_file: Mapping[str, str]) -> Any:
    """A feature, a label or a time with the name that its column has in the file."""
    is_time = isinstance(declared, Time)
    column = in_file.get(declared.column if is_time else column_of(declared))
    return declared if column is None else dataclasses.replace(declared, column=column)


def _sharing(features: Sequence[Feature], columns: Sequence[Column]) -> Iterator[Feature]:
    """Histories share the vocabulary of single ids that most of their values are among: of those with
    a word of their name first, then of the most values, then of the smallest vocabulary."""
    single = [f.name for f in features if isinstance(f, Sparse) and not f.many]
    known = {c.name: {_id_text(x) for x in c.counts} for c in columns if c.name in single}
    distinct = {
        column.name: set(map(_id_text, column.counts)) for column in columns if column.kind == "list"
    }
    for feature in features:
        if isinstance(feature, SequenceFeature):
            shares = {}
            for name, ids in known.items():
                is_alike = bool(_meant(name) & _meant(feature.name))
                shares[is_alike, len(distinct[feature.name] & ids), -len(ids)] = name
            best = max(shares, default=(False, 0, 0))
            if 2 * best[1] > len(distinct[feature.name]):
                feature = dataclasses.replace(feature, vocabulary=shares[best])
        yield feature


def _meant(name: str) -> set[str]:
    return {word.removesuffix("s") for word in words_of(name)} - {"id"}


def _id_text(value: Any) -> str:
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _brief(declared: Any) -> dict[str, Any]:
    """The fields of a dataclass that differ from their defaults."""
    brief = {}
    for field in dataclasses.fields(declared):
        value = getattr(declared, field.name)
        if value != field.default:
            brief[field.name] = _brief(value) if isinstance(value, Time | Label) else value
    return brief


_DAY = 86_400
_SAME, _OTHER = 0.75, 0.25  # how alike labels of neighbouring numbers are, of amounts and of ids


@dataclass(frozen=True)
class DraftedColumn:
    """How a draft reads a column.

    column: its name in the data. read_as: the kind of its feature, `label`, `time` or `left out`.
    examples: up to three of its values, as they are written.
    """

    column: str
    read_as: str
    why: str
    examples: tuple[str, ...] = ()


class Drafting:
    """Makes features of columns; notes what is unsure, and remembers the time.

    rows: those that were looked at; labels: of each row, None where they are of few rows; is_guess:
    whether the label was guessed, so that other columns with names of labels are rather none of the
    features; after: times that seem to be known only after the label, and why.
    why: by column, what it is read as and why.
    """

    def __init__(
        self,
        notes: list[str],
        columns: Sequence[Column],
        rows: SampledRows,
        labels: np.ndarray | None,
        is_guess: bool,
        after: dict[str, str],
    ) -> None:
        self.notes = notes
        self.time: Time | None = None
        self.why: dict[str, tuple[str, str]] = {}
        self._may_be_ids: list[str] = []
        self._names = {column.name for column in columns}
        self._labels = labels
        self._name, self._is_all = rows.name, rows.is_all
        rows_looked_at = f"each of {rows.num_rows:,} rows from all of the data"
        self._where = "every row" if rows.is_all else rows_looked_at
        self._is_guess = is_guess
        self._after = after
        before = (column for column in columns if column.kind == "time" and column.name not in after)
        times = (column for column in before if not self._left_out(column))
        self._likeliest_time = min(times, key=_is_time_by_magnitude, default=None)

    def features(self, columns: Sequence[Column]) -> list[Feature]:
        features = [feature for column in columns for feature in self._features_of(column)]
        if not features:
            out = "; ".join(["", *(note for note in self.notes if " is left out" in note)])[:300]
            raise ValueError(f"{self._name} has no column to make a feature of, beside the label{out}")
        if self._may_be_ids:
            listed = ", ".join(map(repr, self._may_be_ids))
            self.notes.append(f"{listed}: whole numbers are read as amounts, but may be ids")
        return features

    def _features_of(self, column: Column) -> Iterator[Feature]:
        name = column.name
        if almost := almost_numbers(column):
            self.notes.append(f"{name!r}: {almost}")
        if odd := [word for word in column.words if word not in MISSING_WORDS]:
            self.notes.append(f"{name!r}: {', '.join(map(repr, odd))} among numbers means missing")
        texts = column.values if column.kind == "text" else ()
        drafts = (kind.drafted(name, texts) for kind in KINDS.values() if texts)
        if (feature := next(filter(None, drafts), None)) is not None:
            self.why[name] = (
                type(feature).__name__.lower(),
                f"every value is {with_article(feature.expected)}",
            )
            yield feature
        elif why := self._left_out(column):
            self._leave_out(name, why)
        elif column.kind == "time":
            yield from self._of_time(column)
        elif column.kind == "list":
            yield self._of_list(column)
        elif column.kind == "vector":
            (width,) = column.counts
            self.why[name] = f"vector of {width}", "lists of numbers, all of one length"
            yield Dense(name, transform="none", width=width)
        elif column.kind == "number" and not self._is_id(column):
            transform = _transform(column)
            self.why[name] = f"number, {transform}", self.why[name][1]
            yield Dense(name, transform=transform)
        else:
            yield self._of_ids(column, almost)

    def _leave_out(self, name: str, why: str) -> None:
        self.why[name] = "left out", why
        self.notes.append(f"{name!r} is left out: {why}")

    def _left_out(self, column: Column) -> str:
        """Why a column is left out; "" if it is not."""
        if column.kind == "other":
            return (
                "values of its type are not read, but lists of numbers as `weights` of another list; of "
                "objects, write the fields as columns"
            )
        if PANDAS_INDEX.fullmatch(column.name):
            return "the index of a pandas frame; `reset_index()` makes it a column"
        if column.is_constant:
            return f"it is empty in {self._where}" if not column.counts else f"one value in {self._where}"
        if not column.name:
            return "it has no name"
        if is_called_label(column):
            if self._is_guess:
                return "by its name it is a label too, known only afterwards; add it if it is none"
            what = "is it known before the label? By its name it is one too"
            self.notes.insert(0, f"{column.name!r}: {what}")
        if column.is_unique and self._is_row_number(column):
            return f"another value in {self._where} (a row number?)"
        return ""

    def _is_row_number(self, column: Column) -> bool:
        is_named = meaning(column.name) == "ids" and not names_rows(column.name)
        if column.kind == "text":
            return self._is_all or not is_named
        steps = Counter(b - a for a, b in zip(column.values, column.values[1:], strict=False))
        between_blocks = 0 if self._is_all else BLOCKS - 1
        is_numbered = max(steps.values()) >= steps.total() - between_blocks
        return column.is_whole and (is_numbered or (is_named and self._is_all))

    def _of_time(self, column: Column) -> Iterator[Feature]:
        name, time = column.name, self._likeliest_time
        if why := self._after.get(name):
            instead = f"the time is {time.name!r}" if time else "split by position"
            what = "it seems to be known only after the label"
            self.why[name] = "left out", f"{what}: {why}"
            self.notes.insert(0, f"{name!r} is left out, {what}: {why}; {instead}")
            return
        if time is not None and column is not time:
            self._leave_out(name, f"the time is {time.name!r}")
            return
        self.time = Time(name, column.format)
        seconds = [x for x in column.values if x is not None]
        if not column.is_typed:
            self.notes.append(f"{name!r} is the time, in the format {column.format!r}")
        if column.format in ("%m/%d/%Y", "%m/%d/%Y %H:%M:%S", "%m/%d/%Y %H:%M"):
            self.notes.append(f"{name!r}: month before day is a guess")
        hour, weekday = f"{name}_hour", f"{name}_weekday"
        is_longer = not self._is_all or max(seconds) - min(seconds) >= _DAY
        features = []
        if any(x % _DAY for x in seconds) and hour not in self._names:
            features.append(Sparse(hour, transform="hour"))
        if is_longer and weekday not in self._names:
            features.append(Sparse(weekday, transform="weekday"))
        listed = " and ".join(feature.transform for feature in features)
        self.why[name] = "time", f"format {column.format!r}" + (f"; makes {listed}" if features else "")
        yield from features

    def _of_list(self, column: Column) -> Feature:
        name, separator = column.name, column.separator
        why = "lists" if column.is_typed else f"lists, between {separator!r}"
        if not column.is_typed:
            self.notes.append(f"{name!r} has {why}")
        if not HISTORY_NAME.search(name):
            self.why[name] = "ids, many", f"{why}; the mean of their vectors"
            return Sparse(name, many=True, pooling="mean", separator=separator)
        if self._is_newest_first(column):
            why = NEWEST_FIRST
            self.notes.insert(0, f"{name!r}: {why}")
        self.why[name] = "history", why
        return SequenceFeature(name, max_length=100, separator=separator)

    def _is_newest_first(self, column: Column) -> bool:
        """True if lists begin with the newest item, by rows in the order of the time if there is one."""
        lists = [x or () for x in column.values]
        if self._likeliest_time is not None:
            times = [x or 0 for x in self._likeliest_time.values]
            lists = [lists[row] for row in np.argsort(times, kind="stable")]
        numbers = {item: number for number, item in enumerate(column.counts)}
        ids = np.array([numbers[item] for items in lists for item in items], np.int64)
        return are_newest_first(ids, np.cumsum([0, *map(len, lists)]))

    def _of_ids(self, column: Column, almost: str) -> Feature:
        name = column.name
        if any(str(x).startswith("[") and str(x).endswith("]") for x in column.counts):
            self.notes.append(f"{name!r}: lists in brackets count as one value; write them as a|b")
        if column.is_unique:
            self.notes.append(f"{name!r} has another value in {self._where}; are there ids that recur?")
        text = almost or f"text, {len(column.counts):,} values"
        self.why[name] = "ids", text if column.kind == "text" else self.why[name][1]
        return Sparse(name)

    def _is_id(self, column: Column) -> bool:
        """True if numbers are ids: whole, and few, or named so, or used as ids are; says why."""
        is_id, why = self._judged(column)
        if not is_id and (odd := sentinel(column)) is not None:
            why += f"; is {odd:g} missing? Then missing={{{column.name!r}: ('{odd:g}',)}}"
        self.why[column.name] = "", why
        return is_id

    def _judged(self, column: Column) -> tuple[bool, str]:
        name, counts = column.name, column.counts
        if column.is_typed:
            return False, "a number by the type in its name"
        if not column.is_whole:
            return False, "numbers with fractions"
        if len(counts) <= FEW:
            return True, f"whole numbers, only {len(counts)} values"
        if named := meaning(name):
            return named == "ids", f"whole numbers, {named} by the name"
        alike = labels_of_neighbours(column, self._labels)
        if alike is not None and alike > _SAME:
            return False, f"whole numbers; numbers near each other have similar labels ({alike:.2f})"
        low, high = quantiles(counts, 0.01, 0.99)
        repeats = 2 * len(counts) < len(column.values) - column.missing
        if (low >= 100 and repeats) or high >= 1 << 31:
            self.notes.append(f"{name!r} is read as ids, but may be an amount: whole numbers, far from 0")
            return True, "whole numbers, far from 0; may be an amount"
        unlike = neighbours_unlike(counts)
        how = "how often they come", unlike
        if unlike is None and repeats and alike is not None and alike < _OTHER:
            how = "their labels", alike
        if how[1] is not None:
            self.notes.append(
                f"{name!r} is read as ids: numbers next to each other are not alike in {how[0]} "
                f"(correlation {how[1]:.2f}), as amounts are"
            )
            return True, f"whole numbers; neighbours are not alike in {how[0]} ({how[1]:.2f})"
        self._may_be_ids.append(name)
        return False, "whole numbers; a guess, they may be ids"


def _is_time_by_magnitude(column: Column) -> bool:
    """True if numbers alone, and no name, say that a column is a time."""
    return column.format in UNIX and not TIME_NAME.search(column.name)


def _transform(column: Column) -> str:
    """`log` of amounts with a long tail, else `standard`."""
    low, middle, high = quantiles(column.counts, 0.0, 0.5, 0.99)
    return "log" if low >= 0 and high > 10 * max(middle, 1) else "standard"
