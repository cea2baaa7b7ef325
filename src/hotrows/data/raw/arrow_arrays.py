"""Arrays of Arrow: their kinds, and their values as NumPy has them."""

from __future__ import annotations

from typing import Any

import numpy as np

from hotrows.data.raw import values
from hotrows.data.raw.values import MISSING_TIME, Bad, RawIds, first_beyond
from hotrows.runtime.arrow import pa
from hotrows.schema import Dense, column_of

_UTC = "UTC", "Etc/UTC", "Z", "+00:00"
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def unnested(array: Any) -> tuple[np.ndarray, Any]:
    """offsets [rows + 1] int64, and the values of all lists; a null is an empty list."""
    if pa.types.is_fixed_size_list(array.type):
        array = array.cast(pa.large_list(array.type.value_type))
    return np.concatenate([[0], lengths_of(array).cumsum()]), array.flatten()


def is_of_vectors(kind: Any) -> bool:
    """True of an Arrow type of lists of numbers, and where all is null."""
    return pa.types.is_null(kind) or (is_list(kind) and is_number(kind.value_type))


def vectors_of(array: Any, feature: Dense) -> tuple[np.ndarray, Bad | None]:
    """[rows, width] float32 of an Arrow array of lists of numbers, NaN where null; and the first row that
    has no such list."""
    column, width = column_of(feature), feature.width or 0
    vectors = np.full((len(array), width), np.nan, np.float32)
    expected = f"list of {width} numbers of {feature.stored}"
    if pa.types.is_null(array.type) or not len(array):
        return vectors, None
    if not is_of_vectors(array.type):
        remedy = f"its column has the type {first_line(array.type)}: convert it"
        return vectors, Bad(0, column, expected, remedy)
    present = array.is_valid().to_numpy(zero_copy_only=False)
    offsets, flat = unnested(array)
    if len(wrong := np.flatnonzero(present & (np.diff(offsets) != width))):
        row = int(wrong[0])
        what = f"it has {offsets[row + 1] - offsets[row]}: correct the row, or the schema's width"
        return vectors, Bad(row, column, expected, what)
    with np.errstate(over="ignore"):
        vectors[present] = flat.to_numpy(zero_copy_only=False).astype(np.float32).reshape(-1, width)
        is_finite = np.isfinite(vectors.astype(feature.stored)).all(1)
    if len(wrong := np.flatnonzero(present & ~is_finite)):
        return vectors, Bad(int(wrong[0]), column, expected)
    return vectors, None


def binary_array(values_: RawIds) -> Any:
    """The values of a column as an Arrow array of bytes."""
    lengths = values_.lengths.astype(np.int64)
    ends = np.concatenate([[0], lengths.cumsum()])
    places = np.arange(ends[-1]) + np.repeat(values_.starts.astype(np.int64) - ends[:-1], lengths)
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(values_.text[places])]
    return pa.Array.from_buffers(pa.large_binary(), len(lengths), buffers)


def text_array(values_: RawIds) -> Any:
    """The values of a column as an Arrow array of text; bytes that are no UTF-8 are replaced."""
    array = binary_array(values_)
    try:
        return array.cast(pa.large_string())
    except pa.ArrowInvalid:
        texts = [value.decode("utf-8", "replace") for value in array.to_pylist()]
        return pa.array(texts, pa.large_string())


def spans_of(array: Any) -> RawIds:
    """The spans of the values of a text array in its buffer."""
    wide = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)
    _, offsets, text = array.buffers()
    n = len(array)
    if not n or text is None:
        return values.no_values(n)
    bounds: np.ndarray = np.frombuffer(offsets, np.int64 if wide else np.int32)
    bounds = bounds[array.offset : array.offset + n + 1]
    first, end = int(bounds[0]), int(bounds[-1])
    if end - first >= 1 << 32:
        raise ValueError(f"{n:,} values hold more than 4 GiB of text; write smaller row groups")
    bounds = bounds - first
    lengths = np.diff(bounds).astype(np.uint32)
    if array.null_count:
        lengths[array.is_null().to_numpy(zero_copy_only=False)] = 0
    return RawIds(np.frombuffer(text, np.uint8)[first:end], bounds[:-1].astype(np.uint32), lengths)


def seconds_of_moments(array: Any) -> tuple[np.ndarray, int | None] | None:
    """Times of an Arrow array of dates or timestamps as `values.parse_times` gives them, and the index of
    the first one that is no time, or None; None: it has values of another type."""
    if pa.types.is_date(array.type):
        array = array.cast(pa.timestamp("s"))
    if not pa.types.is_timestamp(array.type):
        return None
    ticks = array.cast(pa.int64())
    seconds = np.full(len(array), MISSING_TIME)
    present = ticks.is_valid().to_numpy(zero_copy_only=False)
    seconds[present] = ticks.fill_null(0).to_numpy()[present] // _PER_SECOND[array.type.unit]
    bad = first_beyond(seconds)
    zone = None if bad is not None else array.type.tz
    return np.stack([seconds, seconds if zone is None else clocks_of(seconds, zone)]), bad


def clocks_of(seconds: np.ndarray, zone: str) -> np.ndarray:
    """Seconds that the clocks of a zone show at seconds since 1970, MISSING_TIME where missing."""
    present = seconds != MISSING_TIME
    try:
        moments = pa.array(seconds[present]).cast(pa.timestamp("s", zone))
        clocks = pa.compute.local_timestamp(moments).cast(pa.int64())
    except pa.ArrowException as error:
        raise ValueError(
            f"the zone {zone!r} of a time is not known ({first_line(error)}); give one such as "
            f"Europe/Berlin, or utc_offset in its place"
        ) from None
    shown = np.full(len(seconds), MISSING_TIME)
    shown[present] = clocks.to_numpy()
    return shown


def value_at(array: Any, row: int) -> Any:
    """A value for messages; a number where it is a time or duration beyond those of Python."""
    value = array[row]
    try:
        return value.as_py()
    except UnicodeDecodeError:
        text = value.value if isinstance(value, pa.DictionaryScalar) else value
        return bytes(text.as_buffer()).decode(errors="backslashreplace")
    except (ValueError, OverflowError):
        return value.value


def decoded(array: Any) -> Any:
    """The values of an array, without a dictionary; Arrow decodes none of views, which Polars writes."""
    if not pa.types.is_dictionary(array.type):
        return array
    kind, is_view, _ = str(array.type.value_type).partition("_view")
    if is_view:
        words = array.dictionary.cast(pa.type_for_alias(kind))
        array = pa.DictionaryArray.from_arrays(array.indices, words)
    return array.dictionary_decode()


def is_list(kind: Any) -> bool:
    types = pa.types
    return types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)


def is_text(kind: Any) -> bool:
    types = pa.types
    tests = (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)
    return any(test(kind) for test in tests)


def is_of_text(kind: Any) -> bool:
    """True of text, and of dictionaries of it."""
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return is_text(kind) or str(kind) in ("string_view", "binary_view")


def is_number(kind: Any) -> bool:
    types = pa.types
    tests = (types.is_integer, types.is_floating, types.is_decimal, types.is_null)
    return any(test(kind) for test in tests)


def has_many_texts(kind: Any) -> bool:
    """True if programs write values of an Arrow type in several ways, none of which is their id."""
    types = pa.types
    tests = (types.is_nested, types.is_duration)
    has_digits = types.is_decimal(kind) and kind.scale != 0  # 42.0 and 42.00
    is_clock = types.is_time(kind) and kind != pa.time32("s")  # without a fraction there is one way
    is_clock |= types.is_timestamp(kind) and kind.tz not in (None, *_UTC)  # local, or with Z
    is_odd = is_clock or has_digits or isinstance(kind, pa.BaseExtensionType)
    return is_odd or any(test(kind) for test in tests)


def is_pickled(field: Any) -> bool:
    """True of a column of Python objects that Ray Data has pickled, also where Ray is not imported."""
    name = getattr(field.type, "extension_name", None) or (field.metadata or {}).get(_EXTENSION, b"")
    return name in (_PICKLED, _PICKLED.encode())


_EXTENSION, _PICKLED = b"ARROW:extension:name", "ray.data.arrow_pickled_object"


def first_line(of_arrow: Any) -> str:
    """The first line of Arrow's errors and types, short and printable: they repeat bytes of files."""
    lines = str(of_arrow).splitlines() or [type(of_arrow).__name__]
    return "".join(c if c.isprintable() else "?" for c in lines[0][:200])


def lengths_of(lists: Any) -> np.ndarray:
    """The length of each list, [rows] int64; of a null 0."""
    lengths = pa.compute.list_value_length(lists).fill_null(0)
    return lengths.to_numpy(zero_copy_only=False).astype(np.int64)
