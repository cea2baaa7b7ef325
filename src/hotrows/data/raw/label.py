"""Which column of a draft is the label, and what of it counts as 1 or is learned as a number."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from hotrows.data.raw.clues import LABELS, RATINGS, plain
from hotrows.data.raw.kinds import quantiles
from hotrows.data.raw.reading import shortened
from hotrows.data.raw.sampled_rows import Column
from hotrows.runtime.suggestions import did_you_mean
from hotrows.schema import Label

PANDAS_INDEX = re.compile(r"__index_level_\d+__")
_CERTAIN = ("label", "labels", "target")  # names of labels, of whatever values
_OFTEN_FEATURES = ("y", "like", "buy", "class", "income")  # are labels if they have two values
_POSITIVE = ("yes", "y", "true", "t", "positive", "pos", "click", "clicked", ">50k", ">50k.", "good")
_SENTINELS = (-1, -9, -99, -999, -9999, -99999, -999999)
_FEW_CLASSES = 5  # numbers of a label that may be classes


def label_of(columns: Sequence[Column], wanted: str | None, source: str, notes: list[str]) -> Label:
    """The label, by its name or by its values; other columns with such a name are noted."""
    names = [column.name for column in columns]
    if wanted is not None:
        if wanted not in names:
            seen = "; ".join([f"; it has {shortened(names)}", *notes])
            raise ValueError(
                f"{source} has no column {wanted!r} for a label{did_you_mean(wanted, names) or seen}"
            )
        return _declared(columns[names.index(wanted)], source, notes)
    by_name = {plain(column.name): column for column in reversed(columns) if is_target(column)}
    called = sorted(filter(None, map(by_name.get, LABELS)), key=lambda column: column.missing > 0)
    pairs = sorted(filter(is_target, columns), key=lambda column: _rank(column, columns))
    bits = [column for column in pairs if set(column.counts) == {0, 1}]
    numbers = [c for c in columns if c.kind == "number" and len(c.counts) > 1 and not c.missing]
    counts = [c for c in numbers if plain(c.name) in set(LABELS) - set(_OFTEN_FEATURES)]
    ratings = [c for c in numbers if plain(c.name) in (*RATINGS, "y")]
    for candidates in (called, counts, bits, ratings, pairs):
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
    return _declared(candidates[0], source, notes)


def _rank(column: Column, columns: Sequence[Column]) -> tuple[bool, bool]:
    """Sorts what may be the label: by a value such as `yes`, then the first column, or else the last."""
    positive = {str(word).strip().lower() for word in column.counts} & set(_POSITIVE)
    return not positive, column not in (columns[0], columns[-1])


def is_target(column: Column) -> bool:
    """True if a column has two values, or 0 or 1 alone; rows may lack it where its name is a label's."""
    if PANDAS_INDEX.fullmatch(column.name):
        return False
    if column.missing and plain(column.name) not in LABELS:
        return False
    is_pair = column.kind in ("text", "number") and len(column.counts) == 2
    zero_or_one = column.kind == "number" and set(column.counts) <= {0, 1}
    return bool(column.counts) and (is_pair or zero_or_one)


def is_called_label(column: Column) -> bool:
    """True if by its name a column is a label, known only afterwards."""
    name = plain(column.name)
    return name in _CERTAIN or (name in LABELS and is_target(column))


def sentinel(column: Column) -> float | None:
    """The one number of a column, such as -1 or 9999, that lies apart from all others: it may mean
    missing. Above the others, it has a hundredth of the rows, and is four times the next."""
    if len(column.counts) < 3:
        return None
    below = [x for x in column.counts if x < 0]
    *_, second, top = sorted(column.counts)
    is_apart = top > max(4 * second, 9) and -top in _SENTINELS
    if is_apart and column.counts[top] * 100 >= column.counts.total():
        below.append(top)
    return below[0] if len(below) == 1 and -abs(below[0]) in _SENTINELS else None


def _declared(column: Column, source: str, notes: list[str]) -> Label:
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
        low, high = words
        notes.append(
            f"label: {high:g} of {name!r} counts as 1 and {low:g} as 0, as all from {high:g} on, and all "
            f"below (at_least)"
        )
        return Label(name, at_least=float(high))
    if column.kind == "number" and len(words) > 2:
        if (odd := sentinel(column)) is not None:
            notes.append(
                f"label: {odd:g} of {name!r} ({column.counts[odd]:,} rows looked at) lies apart from all "
                f"others: if it means that there is no label, leave these rows out"
            )
            words.remove(odd)
            if words == [0, 1]:
                return Label(name)
        return _of_numbers(column, words, notes)
    # A text of two values; anything else is refused.
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


def _of_numbers(column: Column, words: Sequence[float], notes: list[str]) -> Label:
    """The label of more than two numbers; words: without one that means missing."""
    name, counts = column.name, Counter({x: column.counts[x] for x in words})
    loss, why = _loss_of(counts)
    middle = 4 if 4 < words[-1] <= 5 else quantiles(counts, 0.5)[0]
    least = next(x for x in words if x >= max(middle, words[1]))
    listed, classes = "", ""
    if len(words) <= _FEW_CLASSES:
        listed = f" ({', '.join(f'{x:g}' for x in words)})"
        classes = (
            f"; if they are classes, Label({name!r}, positive=('{words[-1]:g}',)) learns one of them"
        )
    notes.append(
        f"label: {name!r} is learned as a number{listed}, and loss={loss!r} is a guess ({why}); "
        f"at_least={least:g} instead of a loss would learn whether it is that much{classes}"
    )
    return Label(name, loss=loss)


def _loss_of(counts: Counter[float]) -> tuple[str, str]:
    """The loss by which a label of more than two numbers is learned, and why."""
    middle, high = quantiles(counts, 0.5, 0.99)
    if all(x % 1 == 0 for x in counts) and min(counts) == 0 and 2 * middle < high:
        return "poisson", "whole numbers from 0 on, small ones above all: counts"
    errors = Counter[float]()
    for x, count in counts.items():
        errors[abs(x - middle)] += count
    usual, large = quantiles(errors, 0.5, 0.99)
    if 0 < 10 * usual < large:
        return f"huber:{2 * usual:.2g}", "some are far from all others; beyond this error it is linear"
    return "squared", "none are far from all others"
