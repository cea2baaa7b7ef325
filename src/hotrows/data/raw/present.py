"""Whether raw rows have the columns that a schema reads."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection

from hotrows.runtime.suggestions import did_you_mean
from hotrows.schema import Schema, column_of

log = logging.getLogger("hotrows")


def check_present(
    schema: Schema,
    where: str,
    names: tuple[str, ...],
    for_training: bool,
    kept: tuple[str, ...] | None = (),
) -> list[str]:
    """Returns the schema's columns that are among `names`, in the schema's order, and those to keep.

    Checks that required ones are there. where: name of the file or table, for messages. kept: columns to
    keep; None: all.
    """
    # 1. Columns to keep must be there.
    for name in kept or ():
        if name not in names:
            raise ValueError(
                f"{where} has no column {name!r} to keep; it has {_shortened(list(names))}"
                f"{did_you_mean(name, names)}"
            )
    # 2. So must those that the schema asks for: all to train, one feature to predict.
    columns = list(schema.raw_columns)
    features = {schema.column_of(feature) for feature in schema.features}
    absent = sorted((set(columns) if for_training else features) - set(names))
    if absent and for_training and schema.columns is not None:
        raise ValueError(
            f"{where.removesuffix(': the header')}: expected {len(schema.columns)} columns, found "
            f"{len(names)}: the column of the label, {absent[0]!r}, is missing"
        )
    if absent and (for_training or not features - set(absent)):
        others = [delimiter for delimiter in ",\t;|" if len(names) == 1 and delimiter in names[0]]
        write = f"Write delimiter={others[0]!r}" if others else "A file without a header needs `columns`"
        hint = f". Is the delimiter {schema.delimiter!r}? {write} in the schema"
        is_unread = "header" in where and not set(columns) & set(names)
        hint = hint if is_unread else "; correct the schema"
        if set(absent) <= {column_of(label) for label in schema.labels}:
            hint = "; training needs the label, and `hotrows predict` does not"
        advice = did_you_mean(absent[0], names) or hint
        raise ValueError(
            f"{where} lacks the columns [{_shortened(absent)}] that schema {schema.name!r} reads; "
            f"it has {_shortened(list(names))}{advice}"
        )
    # 3. A feature that is absent is missing in every row; not a history, which makes predictions.
    if not for_training:
        check_histories(schema, where, names)
    if lost := sorted(features & set(absent)):
        log.warning(f"{where} lacks the columns [{_shortened(lost)}]: their values count as missing")
    # 4. No column that is read may be there twice.
    columns = list(names if kept is None else dict.fromkeys([*columns, *kept]))
    counts = Counter(names)
    twice = sorted(name for name in columns if counts[name] > 1)
    if twice:
        raise ValueError(f"{where} names the columns [{_shortened(twice)}] twice; rename one")
    return [column for column in columns if column in counts]


def check_histories(schema: Schema, where: str, names: Collection[str]) -> None:
    """Raises ValueError if rows to predict have a history of the schema in no column."""
    if absent := [name for name in schema.histories if name not in names]:
        raise ValueError(
            f"{where} lacks the columns {absent}: rows to predict have a history as a list of the user's "
            f"earlier events, since only `prepare` (--vocab-from, --events) reads an events file"
        )


def _shortened(names: list[str]) -> str:
    quoted = [repr(name) for name in names[:12]]  # several letters for one that is not printable
    shown = ", ".join(name if len(name) <= 42 else f"{name[:41]}..." for name in quoted)
    return shown + (f" and {len(names) - 12} more" if len(names) > 12 else "")
