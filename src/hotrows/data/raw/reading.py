"""How raw rows are read: by which schema, and which columns must be there."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

from hotrows.data.raw import values
from hotrows.data.raw.values import Marks, RawIds, canonical, canonical_words
from hotrows.runtime.suggestions import did_you_mean
from hotrows.schema import Schema, column_of

log = logging.getLogger("hotrows")


@dataclass(frozen=True)
class Reading:
    """Settings for reading rows.

    for_training: whether every column of the schema is required; otherwise absent ones are left out.
    kept: columns to keep as they are, beside those of the schema; None: all.
    by: another column to read, whose values split or join the rows. optional: columns that may be
        absent though rows train. requires_features: whether the columns of
    features are required in any case.
    histories: what rows have of the schema's histories: `lists` of earlier events, or the user alone,
        whose `references` into the events are stored, or `either`, or, as `lines` of a stream, the user
        and the values that each line adds.
    """

    schema: Schema
    threads: int
    for_training: bool = True
    kept: tuple[str, ...] | None = ()
    by: str | None = None
    requires_features: bool = False
    histories: str = "lists"
    optional: tuple[str, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """The raw columns that are read, each once, without those to keep."""
        schema, columns = self.schema, list(self.schema.raw_columns)
        if self.histories in ("references", "lines"):
            unread = [feature for feature in schema.features if feature.name in schema.histories]
            others = {schema.column_of(f) for f in schema.features if f not in unread}
            columns = [c for c in columns if c in others or c not in {f.name for f in unread}]
            columns += map(column_of, unread if self.histories == "lines" else ())
        return tuple(dict.fromkeys([*columns, *([self.by] if self.by else [])]))

    @property
    def marks(self) -> Marks:
        """The marks in numbers that are written as text."""
        return Marks(self.schema.decimal, self.schema.thousands)

    def text(self, raw: RawIds, *columns: str) -> RawIds:
        """Values as they are counted and looked up, empty where missing. columns: see `blank`."""
        raw = canonical(raw, self.threads)
        self.blank(raw, *columns)
        return raw

    def blank(self, raw: RawIds, *columns: str) -> None:
        """Empties the values that mean missing, in place. columns: whose values they are, of one column
        after the other, equally many of each."""
        if not self.schema.missing or not columns:
            return
        missing = [self.schema.missing_of(column) for column in columns]
        words = [(*some, *canonical_words(some)) for some in missing]
        words = words if len(set(words)) > 1 else words[:1]
        size = len(raw) // len(words)
        for first, some in zip(range(0, size * len(words), size or 1), words, strict=False):
            span = slice(first, first + size)
            column = RawIds(raw.text, raw.starts[span], raw.lengths[span])
            values.blank(column, False, some, self.threads)


def show(value: bytes) -> str:
    """Formats a value for a message, shortened to 60 bytes."""
    text = value[:60].decode("utf-8", "backslashreplace")
    return repr(text + ("..." if len(value) > 60 else "")) if value else "nothing"


def with_article(words: str) -> str:
    """What is expected, for a message: a number, an IPv4 address."""
    return f"{'an' if words[:1] in tuple('aeioAEIO') else 'a'} {words}"


QUOTED_BETWEEN_TABS = (
    "double quotes between tabs are part of names and values: write the file without, or with commas"
)


def check_present(how: Reading, where: str, names: tuple[str, ...]) -> list[str]:
    """Returns the columns to read that are among `names`, in the schema's order, and those to keep.

    Checks that required ones are there. where: name of the file or table, for messages.
    """
    schema, for_training, kept = how.schema, how.for_training, how.kept
    # Columns to keep, or to split by, must be there.
    for name in (*(kept or ()), *([how.by] if how.by else ())):
        if name not in names:
            what = "keep"
            if name == how.by:
                what = "join by" if how.histories == "lines" else "split by"
            raise ValueError(
                f"{where} has no column {name!r} to {what}; it has {shortened(list(names))}"
                f"{did_you_mean(name, names)}"
            )
    # So must those that the schema asks for: all to train, one feature to predict.
    columns = list(how.columns)
    features = {schema.column_of(feature) for feature in schema.features} & set(columns)
    absent = sorted((set(columns) - {*how.optional} if for_training else features) - set(names))
    declared = schema.columns or ()
    if absent and for_training and len(names) < len(declared):
        raise ValueError(
            f"{where.removesuffix(': the header')}: expected {len(declared)} columns, found "
            f"{len(names)}: the column of the label, {absent[0]!r}, is missing"
        )
    if absent and (for_training or how.requires_features or not features - set(absent)):
        others = [delimiter for delimiter in ",\t;|" if len(names) == 1 and delimiter in names[0]]
        write = f"Write delimiter={others[0]!r}" if others else "A file without a header needs `columns`"
        hint = f". Is the delimiter {schema.delimiter!r}? {write} in the schema"
        if names[:1] and names[0].startswith(("#", "sep=")):
            hint = "; leave out the lines before the one that names the columns"
        is_unread = "header" in where and not set(columns) & set(names)
        remedy = "; correct the schema" if for_training else "; rename or add them"
        hint = hint if is_unread else remedy
        if set(absent) <= {column_of(label) for label in schema.labels}:
            hint = "; training needs the label, and `hotrows predict` does not"
        is_quoted = names[:1] and names[0].startswith('"')
        advice = f"; {QUOTED_BETWEEN_TABS}" if is_quoted else did_you_mean(absent[0], names) or hint
        raise ValueError(
            f"{where} lacks the columns [{shortened(absent)}] that schema {schema.name!r} reads; "
            f"it has {shortened(list(names))}{advice}"
        )
    # A feature that is absent is missing in every row; not a history, which makes predictions.
    if not for_training and how.histories == "lists":
        check_histories(schema, where, names)
    if lost := sorted(features & set(absent)):
        log.warning(f"{where} lacks the columns [{shortened(lost)}]: their values count as missing")
    # No column that is read may be there twice.
    columns = list(names if kept is None else dict.fromkeys([*columns, *kept]))
    counts = Counter(names)
    twice = sorted(name for name in columns if counts[name] > 1)
    if twice:
        raise ValueError(f"{where} names the columns [{shortened(twice)}] twice; rename one")
    return [column for column in columns if column in counts]


def check_histories(schema: Schema, where: str, names: Collection[str]) -> None:
    """Raises ValueError if rows to predict have a history of the schema in no column."""
    if absent := [name for name in schema.histories if name not in names]:
        raise ValueError(
            f"{where} lacks the columns {absent}: rows to predict have a history as a list of the user's "
            f"earlier events, since only `prepare` (--vocab-from, --events) reads an events file; a "
            f"server knows those of the user, column {schema.user!r}, for rows without any such list"
        )


def shortened(names: list[str]) -> str:
    quoted = [repr(name) for name in names[:12]]  # several letters for one that is not printable
    shown = ", ".join(name if len(name) <= 42 else f"{name[:41]}..." for name in quoted)
    return shown + (f" and {len(names) - 12} more" if len(names) > 12 else "")
