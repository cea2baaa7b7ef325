"""Headers of safetensors files, after which tensors larger than memory are written in chunks; and the
kind of JSON file that describes an export."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hotrows.runtime.json_file import JsonFile

_SIZES = {"F64": 8, "F32": 4, "BF16": 2, "F16": 2, "I64": 8, "I32": 4, "U8": 1, "BOOL": 1}
EXPORT_FILE = JsonFile("export again", number=2, editable=False)
DTYPES = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}


@dataclass(frozen=True)
class Stored:
    """A tensor of a file: the dtype, as safetensors names it, and the shape."""

    dtype: str
    shape: Sequence[int]

    @property
    def num_bytes(self) -> int:
        return _SIZES[self.dtype] * math.prod(self.shape)


def entries(tensors: Mapping[str, Stored]) -> dict[str, Any]:
    """Describes the tensors of a file, in their order."""
    fields, end = {}, 0
    for name, tensor in tensors.items():
        begin, end = end, end + tensor.num_bytes
        form = {"dtype": tensor.dtype, "shape": list(tensor.shape)}
        fields[name] = {**form, "data_offsets": [begin, end]}
    return fields


def header(fields: Mapping[str, Any]) -> bytes:
    """The first bytes of a file: the length of the JSON of its fields, then this, padded to 8 bytes."""
    text = json.dumps(fields).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text
