"""What estimators are given, checked as scikit-learn does: rows as an Arrow table, targets, weights."""

from __future__ import annotations

from typing import Any

import numpy as np

from hotrows.data.raw.tables import as_table, check_order
from hotrows.runtime.arrow import pa
from hotrows.runtime.suggestions import did_you_mean
from hotrows.runtime.user_warnings import warn


def rows_of(X: Any) -> Any:
    """The rows as an Arrow table; columns without names are x0, x1, and so on: those of an array, of a
    list of rows, and of a frame that counts them."""
    if hasattr(X, "toarray"):
        raise TypeError("expected dense rows, found a sparse matrix: give X.toarray(), or columns of ids")
    is_array = hasattr(X, "__array__") and not hasattr(X, "__arrow_c_stream__")
    is_structured = isinstance(X, np.ndarray) and X.dtype.names  # as frame.to_records() has columns
    if isinstance(X, list | tuple) or (is_array and not is_structured):
        X = _array(X)
    table = as_table(X)
    if list(getattr(X, "columns", ())) == [*range(table.num_columns)]:
        table = table.rename_columns([f"x{number}" for number in range(table.num_columns)])
    return table


def _array(X: Any) -> np.ndarray:
    """An array of two dimensions; messages have the words that scikit-learn's own estimators have."""
    array = np.asarray(X)
    if array.ndim == 1 and any(isinstance(row, dict) for row in X):
        raise TypeError("expected columns, found a list of dicts: give pandas.DataFrame(rows)")
    if array.ndim != 2:
        raise ValueError(
            f"Expected 2D array, got {array.ndim}D array instead: rows by columns. Reshape your data "
            f"using array.reshape(-1, 1) if it has a single feature or array.reshape(1, -1) if it "
            f"contains a single sample"
        )
    for number, kind in enumerate(("sample", "feature")):
        if array.shape[number] == 0:
            raise ValueError(
                f"Found array with 0 {kind}(s) (shape={array.shape}) while a minimum of 1 is required."
            )
    if array.dtype.kind == "c":
        raise ValueError("Complex data not supported: give real numbers, such as two columns")
    if array.dtype.kind == "O" and any(isinstance(value, dict | list) for value in array.flat):
        raise TypeError("a cell of X is no value: argument must be a string or a real number")
    return array


def samples(X: Any, y: Any, weights: Any = None) -> tuple[Any, np.ndarray, np.ndarray | None]:
    """The rows as a table without their targets, the targets [N], and the weights, if there are any.

    y: the targets, or the name of their column in X.
    """
    table = rows_of(X)
    check_order("y", y, X)
    check_order("sample weights", weights, X)
    if y is None:
        raise ValueError("this estimator requires y to be passed, but the target y is None")
    if isinstance(y, str):
        if y not in table.column_names:
            raise ValueError(f"X has no column {y!r} for the labels{did_you_mean(y, table.column_names)}")
        table, y = table.drop_columns([y]), table[y].to_numpy()
    labels = np.asarray(y)
    if labels.ndim == 2 and labels.shape[1] == 1:
        warn(
            "A column-vector y was passed when a 1d array was expected: its column is taken",
            _conversion_warning(),
        )
        labels = labels[:, 0]
    if labels.shape != (table.num_rows,):
        raise ValueError(
            f"expected {table.num_rows:,} labels, one for each row, not {labels.shape}: Found input "
            f"variables with inconsistent numbers of samples"
        )
    missing = np.array([value is None or value != value for value in labels.tolist()])
    if missing.any():
        raise ValueError(f"y lacks the label of row {int(missing.argmax()):,} (NaN); leave such rows out")
    if labels.dtype.kind == "f" and not np.isfinite(labels).all():
        row = int((~np.isfinite(labels)).argmax())
        raise ValueError(f"Input y contains infinity, in row {row:,}; leave such rows out")
    return table, labels, None if weights is None else _weights(weights, len(labels))


def _conversion_warning() -> type[Warning]:
    """scikit-learn's, where it is there, so that its filters know it."""
    try:
        from sklearn.exceptions import DataConversionWarning
    except ImportError:
        return UserWarning
    return DataConversionWarning


def _weights(values: Any, num_rows: int) -> np.ndarray:
    """The weights of the rows, [N] float32."""
    try:
        weights = np.asarray(values, np.float32)
    except (TypeError, ValueError):
        raise ValueError(
            f"expected weights, a number for each row, found {type(values).__name__}; of a column of X "
            f"give its values, of classes np.where(y == .., 2, 1)"
        ) from None
    if weights.shape != (num_rows,):
        raise ValueError(f"expected {num_rows:,} weights, one for each row, not {weights.shape}")
    wrong = ~(np.isfinite(weights) & (weights >= 0))
    if wrong.any():
        row = int(wrong.argmax())
        raise ValueError(f"expected weights of at least 0, found {weights[row]} for row {row:,}")
    if not weights.any():
        raise ValueError("all sample weights are zero: no row would be learned from")
    return weights


def followed_by(table: Any, eval_set: Any) -> tuple[Any, np.ndarray, np.ndarray | None]:
    """The rows with those of `eval_set` behind them, and the targets and weights of these."""
    one = eval_set[0] if isinstance(eval_set, list) and len(eval_set) == 1 else eval_set
    if not isinstance(one, tuple) or len(one) not in (2, 3):
        raise ValueError("eval_set must be one tuple (X, y) or (X, y, weights), or a list of one")
    others, labels, weights = samples(*one)
    if missing := [name for name in table.column_names if name not in others.column_names]:
        raise ValueError(f"eval_set has no column {missing[0]!r}, which X has")
    others = others.select(table.column_names).cast(table.schema)
    return pa.concat_tables([table, others]), labels, weights


def with_column(table: Any, name: str, values: np.ndarray) -> tuple[Any, str]:
    """The table with one more column, and the name that it got there."""
    while name in table.column_names:
        name += "_"
    return table.append_column(name, pa.array(values)), name


def check_number(table: Any, num_features: int, kind: str) -> None:
    """Refuses an array of other than so many columns: it has no names that say which one is lacking."""
    names = table.column_names
    if names == [f"x{number}" for number in range(len(names))] and len(names) != num_features:
        raise ValueError(
            f"X has {len(names)} features, but {kind} is expecting {num_features} features as input"
        )
