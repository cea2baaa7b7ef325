"""draft_schema: a schema for raw data, from a sample of its rows.

Each column is looked at in this order, and the first that fits decides:

    label       two values, 0 and 1 above all, and a name such as `click` or `target`; of more numbers a
                loss is proposed
    left out    one value in all rows; another value in every row, as row numbers have
    time        the first column of dates or times, or of seconds since 1970 that is called a time; else
                numbers that are seconds since 1970 by their magnitude; none that is known after the label
    dense       numbers; whole ones where they look like amounts; vectors: float lists of one length
    sparse      text; whole numbers that are few, or far from 0, or called an id; lists in cells

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

from hotrows.data.raw.files import BLOCKS
from hotrows.data.raw.kinds import FEW, ID_NAME, TIME_NAME, Column, almost_numbers, quantiles
from hotrows.data.raw.sampled_rows import SampledRows, changed_names, sampled_rows_of
from hotrows.data.raw.suspects import giveaways, neighbours_unlike, times_after
from hotrows.data.raw.typed_names import columns_of_types
from hotrows.data.raw.values import MISSING_WORDS, UNIX
from hotrows.runtime.suggestions import did_you_mean
from hotrows.schema import Dense, Feature, Label, Schema, Sparse, Time, column_of
from hotrows.schema import Sequence as SequenceFeature

_LABELS = (
    *("label", "labels", "target", "y", "click", "clicked", "clicks", "conversion", "converted"),
    *("attributed", "purchase", "purchased", "bought", "buy", "install", "installed", "like", "liked"),
    *("response", "outcome", "churn", "churned", "subscribed", "class", "income"),
)
_RATINGS = ("rating", "ratings", "stars", "score")
_POSITIVE = ("yes", "y", "true", "t", "positive", "pos", "click", "clicked", ">50k", ">50k.", "good")
_PANDAS_INDEX = re.compile(r"__index_level_\d+__")
_NOT_UTF8 = re.compile("[\udc80-\udcff]")  # bytes of text, as `surrogateescape` has them
_GROUP_NAME = re.compile(r"(user|uid|member|customer|visitor|session)(_?id)?", re.IGNORECASE)
_HISTORY_NAME = re.compile(r"hist|seq|clicked|viewed|bought|recent|last|prev", re.IGNORECASE)
_DAY = 86_400


@dataclass(frozen=True)
class Draft:
    """A schema made from a sample of data.

    notes: what is unsure, then what was left out, a line each, first what tells the label.
    split: the split of `prepare` that fits the data, "" where nothing speaks for one.

    >>> rows = {"user": ["a", "b", "a"], "price": [1.5, 2.0, 3.5], "click": [0, 1, 0]}
    >>> draft = draft_schema(rows, label="click")
    >>> [feature.name for feature in draft.schema.features]
    ['user', 'price']
    """

    schema: Schema
    notes: tuple[str, ...]
    split: str = ""

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
    source: Any, label: str | None = None, user: str | None = None, histories: Sequence[str] = ()
) -> Draft:
    """Drafts a schema from raw data: from at most 30,000 rows, in blocks from all of it.

    source: a path, glob, folder or URL, an Arrow table or a frame: what `prepare` reads; of several files
        the first is looked at.
    label: the column of the target (default: the likeliest).
    user: the column of the user, in these rows and in events.
    histories: columns of the events that become histories of the user, such as the item's.

    >>> rows = {"user": ["a", "b", "a"], "click": [0, 1, 0]}
    >>> draft_schema(rows, label="click").schema.labels[0].name
    'click'
    """
    # 1. Sample rows, and guess each column's type.
    rows = sampled_rows_of(source)
    columns, in_file = columns_of_types(rows.columns)
    notes = [*rows.notes, *changed_names(in_file.items())]
    short = {full: name for name, full in in_file.items()}
    # 2. Choose the label, and the features of all other columns.
    target = _label(columns, short.get(label, label) if label else None, rows.name, notes)
    by_name = {column.name: column for column in columns}
    labels = by_name[column_of(target)]
    after = times_after([column for column in columns if column.kind == "time"], target, labels)
    drafting = _Drafting(notes, columns, rows, label is None, after)
    read = [column for column in columns if column.name != column_of(target)]
    features = [feature for column in read for feature in drafting.features(column)]
    if not features:
        raise ValueError(f"{rows.name} has no column to make a feature of, beside the label")
    # 3. Note features that tell the label, check the names, and join features of one vocabulary.
    used = {column_of(feature) for feature in features} | {column_of(target)}
    read_columns = [column for name, column in by_name.items() if name in used]
    notes[:0] = [
        f"{name!r} alone ranks the label with an AUC of {auc:.4f}: is it known before the label? If not, "
        f"leave it out"
        for name, auc in giveaways(read_columns, target, labels)
    ]
    used |= {drafting.time.column} if drafting.time else set()
    counts = Counter(column.name for column in columns)
    if twice := [name for name, num in counts.items() if num > 1 and name in used]:
        raise ValueError(f"{rows.name} names the columns {twice} twice; rename one")
    read = [column for column in columns if column.name in used]
    groups = [f.name for f in features if isinstance(f, Sparse) and _GROUP_NAME.fullmatch(f.name)]
    features = [_named(feature, in_file) for feature in _sharing(features, columns)]
    target = _named(target, in_file)
    schema = Schema(
        features=tuple(features),
        label=target if target != Label(target.name) else target.name,
        columns=None if rows.has_header else tuple(column.name for column in columns),
        delimiter=rows.delimiter or ",",  # of what others write of typed columns as text
        group=in_file.get(groups[0], groups[0]) if groups else None,
        time=drafting.time and _named(drafting.time, in_file),
        missing=tuple(dict.fromkeys(word for column in read for word in column.words)),
        strip=any(column.is_padded for column in read),
    )
    kind = "time" if schema.time else "position" if after else ""
    schema = _with_histories(schema, user, histories, notes)
    notes.sort(key=lambda note: " is left out: " in note)
    return Draft(schema, tuple(notes), kind and f"{kind}:0.8,0.1,0.1")


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


def _label(columns: Sequence[Column], wanted: str | None, source: str, notes: list[str]) -> Label:
    """The label, by its name or by its values; other columns with such a name are noted."""
    names = [column.name for column in columns]
    if wanted is not None:
        if wanted not in names:
            raise ValueError(
                f"{source} has no column {wanted!r} for a label{did_you_mean(wanted, names)}"
            )
        return _label_of(columns[names.index(wanted)], source, notes)
    by_name = {_plain(column.name): column for column in reversed(columns) if _is_target(column)}
    called = sorted(filter(None, map(by_name.get, _LABELS)), key=lambda column: column.missing > 0)
    pairs = sorted(filter(_is_target, columns), key=lambda column: _rank(column, columns))
    bits = [column for column in pairs if set(column.counts) == {0, 1}]
    ratings = [c for c in columns if _plain(c.name) in _RATINGS and c.kind == "number" and not c.missing]
    for candidates in (called, bits, ratings, pairs):
        if candidates:
            break
    else:
        raise ValueError(
            f"no column of {source} looks like a label (two values, such as 0 and 1); say which one is: "
            f"--label COLUMN, or draft_schema(..., label=COLUMN)"
        )
    if candidates is not called:
        others = [column.name for column in candidates[1:]]
        more = f"; {', '.join(map(repr, others[:5]))} could be" if others else ""
        notes.append(f"label: {candidates[0].name!r} is a guess{more}")
    return _label_of(candidates[0], source, notes)


def _rank(column: Column, columns: Sequence[Column]) -> tuple[bool, bool]:
    """Sorts what may be the label: by a value such as `yes`, then the first column, or else the last."""
    positive = {str(word).strip().lower() for word in column.counts} & set(_POSITIVE)
    return not positive, column not in (columns[0], columns[-1])


def _is_target(column: Column) -> bool:
    """True if a column has two values, or 0 or 1 alone; rows may lack it where its name is a label's."""
    if _PANDAS_INDEX.fullmatch(column.name) or _NOT_UTF8.search(column.name):
        return False
    if column.missing and _plain(column.name) not in _LABELS:
        return False
    is_pair = column.kind in ("text", "number") and len(column.counts) == 2
    zero_or_one = column.kind == "number" and set(column.counts) <= {0, 1}
    return bool(column.counts) and (is_pair or zero_or_one)


def _plain(name: str) -> str:
    return re.sub(r"^(is|has|did)_|[^a-z]", "", name.strip().lower())


def _label_of(column: Column, source: str, notes: list[str]) -> Label:
    # 1. A number of two values, or of more.
    name, words = column.name, sorted(column.counts)
    if column.missing:
        notes.append(
            f"label: {name!r} is missing in {column.missing:,} rows, which `prepare` refuses; leave them "
            f"out (of a frame: frame.dropna(subset=[{name!r}]))"
        )
    if column.kind == "number" and set(words) <= {0, 1}:
        if len(words) == 1:
            notes.append(f"label: {name!r} is {words[0]:g} in all rows looked at")
        return Label(name)
    if column.kind == "number" and len(words) == 2:
        notes.append(f"label: {name!r} counts as 1 from {words[1]:g} on (at_least)")
        return Label(name, at_least=float(words[1]))
    if column.kind == "number" and len(words) > 2:
        loss, why = _loss_of(column)
        middle = 4 if 4 < words[-1] <= 5 else quantiles(column.counts, 0.5)[0]
        least = next(x for x in words if x >= max(middle, words[1]))
        notes.append(
            f"label: {name!r} is learned as a number, and loss={loss!r} is a guess ({why}); "
            f"at_least={least:g} instead of a loss would learn whether it is that much"
        )
        return Label(name, loss=loss)
    # 2. A text of two values; anything else is refused.
    if column.kind == "text" and len(words) == 2:
        known = [word for word in words if word.strip().lower() in _POSITIVE]
        positive = known[0] if len(known) == 1 else min(words, key=lambda word: column.counts[word])
        if len(known) != 1:
            notes.append(f"label: {positive.strip()!r} of {name!r} counts as 1, as the rarer value")
        return Label(name, positive=(positive.strip(),))
    raise ValueError(
        f"{source}, column {name!r}: expected a label of two values or of numbers, found "
        f"{column.kind} with {len(words):,} values; write a schema with Label({name!r}, positive=(...))"
    )


def _loss_of(column: Column) -> tuple[str, str]:
    """The loss by which a label of more than two numbers is learned, and why."""
    middle, high = quantiles(column.counts, 0.5, 0.99)
    if column.is_whole and min(column.counts) == 0 and 2 * middle < high:
        return "poisson", "whole numbers from 0 on, small ones above all: counts"
    errors = Counter[float]()
    for x, count in column.counts.items():
        errors[abs(x - middle)] += count
    usual, large = quantiles(errors, 0.5, 0.99)
    if 0 < 10 * usual < large:
        return f"huber:{2 * usual:.2g}", "some are far from all others; beyond this error it is linear"
    return "squared", "none are far from all others"


class _Drafting:
    """Makes features of columns; notes what is unsure, and remembers the time.

    rows: those that were looked at; is_guess: whether the label was guessed, so that other columns with
    names of labels are rather none of the features; after: times that seem to be known only after the
    label, and why.
    """

    def __init__(
        self, notes: list[str], columns: Sequence[Column], rows: SampledRows, is_guess: bool, after: dict
    ) -> None:
        self.notes = notes
        self.time: Time | None = None
        self._names = {column.name for column in columns}
        self._is_all = rows.is_all
        self._where = (
            "every row" if rows.is_all else f"each of {rows.num_rows:,} rows from all of the data"
        )
        self._is_guess = is_guess
        self._after = after
        before = (column for column in columns if column.kind == "time" and column.name not in after)
        times = (column for column in before if not self._left_out(column))
        self._likeliest_time = min(times, key=_is_time_by_magnitude, default=None)

    def features(self, column: Column) -> Iterator[Feature]:
        """The features that a column is read by; none where it is left out."""
        name = column.name
        if almost := almost_numbers(column):
            self.notes.append(f"{name!r}: {almost}")
        if odd := [word for word in column.words if word not in MISSING_WORDS]:
            self.notes.append(f"{name!r}: {', '.join(map(repr, odd))} among numbers means missing")
        if why := self._left_out(column):
            self.notes.append(f"{name!r} is left out: {why}")
        elif column.kind == "time":
            yield from self._of_time(column)
        elif column.kind == "list":
            yield self._of_list(column)
        elif column.kind == "vector":
            yield Dense(name, transform="none", width=next(iter(column.counts)))
        elif column.kind == "number" and not self._is_id(column):
            yield Dense(name, transform=_transform(column))
        else:
            if any(str(x).startswith("[") and str(x).endswith("]") for x in column.counts):
                self.notes.append(f"{name!r}: lists in brackets count as one value; write them as a|b")
            if column.is_unique:
                self.notes.append(
                    f"{name!r} has another value in {self._where}; are there ids that recur?"
                )
            yield Sparse(name)

    def _left_out(self, column: Column) -> str:
        """Why a column is left out; "" if it is not."""
        if column.kind == "other":
            return "values of its type are not read, but lists of numbers as `weights` of another list"
        if _PANDAS_INDEX.fullmatch(column.name):
            return "the index of a pandas frame; `reset_index()` makes it a column"
        if column.is_constant:
            return f"it is empty in {self._where}" if not column.counts else f"one value in {self._where}"
        if not column.name:
            return "it has no name"
        if _NOT_UTF8.search(column.name):
            return "its name is no UTF-8; write the file again, as UTF-8"
        if _plain(column.name) in _LABELS and _is_target(column):
            if self._is_guess:
                return "by its name it is a label too, known only afterwards; add it if it is none"
            what = "is it known before the label? By its name it is one too"
            self.notes.insert(0, f"{column.name!r}: {what}")
        if column.is_unique and self._is_row_number(column):
            return f"another value in {self._where} (a row number?)"
        return ""

    def _is_row_number(self, column: Column) -> bool:
        if column.kind == "text":
            return self._is_all or not ID_NAME.search(column.name)
        steps = Counter(b - a for a, b in zip(column.values, column.values[1:], strict=False))
        between_blocks = 0 if self._is_all else BLOCKS - 1
        is_named = bool(ID_NAME.search(column.name)) and self._is_all
        return column.is_whole and (max(steps.values()) >= steps.total() - between_blocks or is_named)

    def _of_time(self, column: Column) -> Iterator[Feature]:
        if why := self._after.get(column.name):
            time = self._likeliest_time
            instead = f"the time is {time.name!r}" if time else "split by position"
            what = "is left out, it seems to be known only after the label"
            self.notes.insert(0, f"{column.name!r} {what}: {why}; {instead}")
            return
        if self._likeliest_time is not None and column is not self._likeliest_time:
            self.notes.append(f"{column.name!r} is left out: the time is {self._likeliest_time.name!r}")
            return
        self.time = Time(column.name, column.format)
        seconds = [x for x in column.values if x is not None]
        if not column.is_typed:
            self.notes.append(f"{column.name!r} is the time, in the format {column.format!r}")
        if column.format in ("%m/%d/%Y", "%m/%d/%Y %H:%M:%S", "%m/%d/%Y %H:%M"):
            self.notes.append(f"{column.name!r}: month before day is a guess")
        hour, weekday = f"{column.name}_hour", f"{column.name}_weekday"
        if any(x % _DAY for x in seconds) and hour not in self._names:
            yield Sparse(hour, transform="hour")
        is_longer = not self._is_all or max(seconds) - min(seconds) >= _DAY
        if is_longer and weekday not in self._names:
            yield Sparse(weekday, transform="weekday")

    def _of_list(self, column: Column) -> Feature:
        if not column.is_typed:
            self.notes.append(f"{column.name!r} has lists, between {column.separator!r}")
        if _HISTORY_NAME.search(column.name):
            return SequenceFeature(column.name, max_length=100, separator=column.separator)
        return Sparse(column.name, many=True, pooling="mean", separator=column.separator)

    def _is_id(self, column: Column) -> bool:
        """True if numbers are ids: whole, and named so, few, or far from 0 and repeated."""
        if not column.is_whole or column.is_typed:
            return False
        if ID_NAME.search(column.name) or len(column.counts) <= FEW:
            return True
        low, middle, high = quantiles(column.counts, 0.01, 0.5, 0.99)
        repeats = 2 * len(column.counts) < len(column.values) - column.missing
        is_far = (low >= 100 and repeats) or high >= 1 << 31
        if is_far or (repeats and middle > 1000 and neighbours_unlike(column.counts) is None):
            what = "ids, but may be an amount" if is_far else "an amount, but may be ids"
            self.notes.append(f"{column.name!r} is read as {what}: whole numbers, far from 0")
        unlike = None if is_far else neighbours_unlike(column.counts)
        if unlike is not None:
            self.notes.append(
                f"{column.name!r} is read as ids: numbers next to each other are not alike in how often "
                f"they come (correlation {unlike:.2f}), as amounts are"
            )
        return is_far or unlike is not None


def _is_time_by_magnitude(column: Column) -> bool:
    """True if numbers alone, and no name, say that a column is a time."""
    return column.format in UNIX and not TIME_NAME.search(column.name)


def _transform(column: Column) -> str:
    """`log` of amounts with a long tail, else `standard`."""
    low, middle, high = quantiles(column.counts, 0.0, 0.5, 0.99)
    return "log" if low >= 0 and high > 10 * max(middle, 1) else "standard"


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
