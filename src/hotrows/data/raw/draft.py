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
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hotrows.data.raw.kinds import columns_of_types
from hotrows.data.raw.names import GROUPS, words_of
from hotrows.data.raw.read_as import DraftedColumn, Drafting, examples_of
from hotrows.data.raw.sampled_rows import Column, changed_names, sampled_rows_of
from hotrows.data.raw.suspects import giveaways, outcomes, times_after
from hotrows.data.raw.target import label_of
from hotrows.runtime.pages import notebook
from hotrows.schema import Feature, Label, Schema, Sparse, Time, column_of
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
    drafting.why[column_of(target)] = "label", notebook.settings(target) or "0 and 1"
    features = drafting.features([column for column in columns if column.name != column_of(target)])
    if not features:
        raise ValueError(f"{rows.name} has no column to make a feature of, beside the label")
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
    split = "time:0.8,0.1,0.1" if schema.time else "position:0.8,0.1,0.1" if after else ""
    schema = _with_histories(schema, user, histories, notes)
    drafted = tuple(
        DraftedColumn(raw.name, *drafting.why[column.name], examples_of(raw))
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
            shares = {
                (
                    bool(_words(name) & _words(feature.name)),
                    len(distinct[feature.name] & ids),
                    -len(ids),
                ): name
                for name, ids in known.items()
            }
            best = max(shares, default=(False, 0, 0))
            if 2 * best[1] > len(distinct[feature.name]):
                feature = dataclasses.replace(feature, vocabulary=shares[best])
        yield feature


def _words(name: str) -> set[str]:
    return {word.removesuffix("s") for word in re.findall("[a-z]+", name.lower())} - {"id"}


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
