"""Shapes in annotations: `Int64[Tensor, "N"]` is a tensor of N int64 numbers.

The letters are those of docs/architecture.md; "U+1" is one more than U, "_" any size, "{n}" the
argument n. Under pytest jaxtyping checks shapes and dtypes of the packages in tests/support/shapes.py,
whenever they are called. It is not needed otherwise: annotations are not evaluated, and an alias is
the plain tensor.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or sys.modules.get("jaxtyping"):  # pytest has loaded it
    from jaxtyping import Float, Float32, Float64, Int32, Int64, UInt8
else:

    class _Unchecked:
        def __class_getitem__(cls, array_and_shape: tuple[Any, str]) -> Any:
            return array_and_shape[0]

    Float = Float32 = Float64 = Int32 = Int64 = UInt8 = _Unchecked

__all__ = ["Float", "Float32", "Float64", "Int32", "Int64", "UInt8"]
