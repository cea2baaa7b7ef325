"""Bodies of requests as Arrow tables: the rows, and what they share; too large ones are refused.

A body of JSON is a list of rows, an object of columns each, or {"rows": [...], "shared": {...}}; one of
Arrow is an IPC stream.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from typing import Any

from hotrows.data.raw.arrow_arrays import is_list
from hotrows.runtime import json_file
from hotrows.runtime.arrow import pa
from hotrows.runtime.json_file import shown
from hotrows.runtime.suggestions import one_line
from hotrows.serving.arrow_size import decompressed_size, repeated_size
from hotrows.serving.requests import Names, table_of_rows, table_of_shared


class Refused(Exception):
    """A request that is answered by a status and a line."""

    def __init__(self, status: int, line: str) -> None:
        super().__init__(line)
        self.status = status


def json_tables(body: bytes, most_rows: int, names: Names) -> tuple[Any, Any]:
    """The rows of a body of JSON, and what they share, a table of one row."""
    rows, shared = _json_rows(body)
    check_count(len(rows), most_rows)
    return table_of_rows(rows, names), table_of_shared(shared, names)


def arrow_tables(body: bytes, most_bytes: int, most_rows: int, names: Names) -> tuple[Any, None]:
    """The rows of an Arrow stream; most_bytes: of its buffers once they are decompressed."""
    if (size := size_in_memory(body)) > most_bytes:
        raise Refused(413, f"expected at most {most_bytes:,} bytes once decompressed, found {size:,}")
    try:
        table = pa.ipc.open_stream(pa.py_buffer(body)).read_all()
        check_count(len(table), most_rows)
        names.checked(table.column_names)
        table.validate(full=True)  # offsets of a hostile body may point anywhere
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise _no_arrow(error) from None
    if (size := sum(map(repeated_size, table.columns))) > most_bytes:
        raise Refused(413, f"expected at most {most_bytes:,} bytes of text in all rows, found {size:,}")
    return table, None


def words_of(error: ValueError) -> str:
    """What is wrong with a request, in a line for who sent it: fields, not columns and types of Arrow."""
    line = one_line(error, 500)
    for pattern, words in _WORDS:
        line = re.sub(pattern, words, line)
    return line


# What errors of raw rows say, and what a client can do.
_WORDS = (
    (r"^the request row (\d+), column ", r"row \1: field "),
    (r"^(the request, )?column (?=')", "field "),
    (r"mixes text and numbers; .*", 'mixes text and numbers; send all as text, "7" in place of 7'),
    (
        r"is no column of values: (cannot mix list|Expected .*, got a '?list).*",
        "is a list in some rows only",
    ),
    (r"found (large_)?list<.*>; lists of lists.*", "found a list of lists; send a flat list"),
    (r"found struct<.*>(; .*)", "found an object"),
    (r"found (large_|fixed_size_)?list<.*>.*; (?!lists).*", "found a list; send one value"),
    (r"found double; .*", "found a number with decimals; send a whole number or text"),
    (r"; (correct the row, or the schema|convert the column.*|declare .*)$", "; correct the value"),
)


def size_in_memory(body: bytes) -> int:
    """Bytes of an Arrow stream once it is decompressed, and at least its own."""
    try:
        return max(len(body), decompressed_size(body))
    except (pa.ArrowException, OSError, ValueError, struct.error) as error:
        raise _no_arrow(error) from None


def check_count(rows: int, most: int) -> None:
    if not 0 < rows <= most:
        raise Refused(413 if rows else 422, f"expected 1 to {most:,} rows, found {rows:,}")


def check_lists(table: Any, most: int) -> None:
    """Refuses a table whose lists have too many values: they may take next to no bytes in Arrow."""
    lengths = pa.compute.list_value_length
    lists = (chunk for column in table.columns if is_list(column.type) for chunk in column.chunks)
    check_places(sum(pa.compute.sum(lengths(chunk)).as_py() or 0 for chunk in lists), most)


def check_places(places: int, most: int) -> None:
    if places > most:
        raise Refused(
            413,
            f"expected at most {most:,} rows times values of the longest list, {places:,} came; send "
            f"fewer rows, or shorter lists",
        )


def _json_rows(body: bytes) -> tuple[list[Any], Mapping[str, Any]]:
    try:
        content = json_file.parse(body)
    except ValueError as error:
        raise Refused(400, f"the body is no JSON: {error}"[:300]) from None
    shared: Any = None
    if isinstance(content, dict):
        if set(content) - {"rows", "shared"} or "rows" not in content:
            names = ", ".join(map(shown, content)) or "nothing"
            line = f"expected a list of rows, or an object of rows and shared, found {names}"
            raise Refused(422, f"{line[:400]}; GET /schema has an example")
        content, shared = content["rows"], content.get("shared")
    shared = {} if shared is None else shared
    if not isinstance(content, list) or not isinstance(shared, dict):
        line = "expected a list of rows, an object of fields each, and shared as an object"
        raise Refused(422, f"{line}; GET /schema has an example")
    return content, shared


def _no_arrow(error: Exception) -> Refused:
    return Refused(400, f"the body is no Arrow stream: {one_line(error)}")
