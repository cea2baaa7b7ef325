"""Programs of bundles: arrays by name in, logits out; and the same with other parameters.

An ONNX file has its parameters as they are, by name, so that others are written over them and the graph
is made ready again, in 2 to 5 ms for layers of 256 to 1,024. As inputs of the graph they would need no
new session, but nothing is prepared ahead then, and each run takes 7 to 11 % longer.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from hotrows.runtime.extras import needs
from hotrows.serving.bundle import CORE_PROGRAM, Bundle, ProgramInput


class Program(Protocol):
    """Computes the logits, [B] or [B, T] float32, of the tensors that a bundle's inputs name."""

    def __call__(self, inputs: Mapping[str, np.ndarray]) -> np.ndarray: ...

    def with_parameters(self, values: Mapping[str, np.ndarray]) -> Program:
        """The program with these values of its parameters, all of which must be there."""
        ...

    def parameter_names(self) -> Iterable[str]: ...

    def content(self) -> bytes:
        """Its file."""
        ...


@dataclass(frozen=True)
class ProgramFile:
    """The file of a program, and the tensors that it takes."""

    path: Path
    inputs: tuple[ProgramInput, ...]


def open_program(bundle: Bundle, threads: int = 1, trust: bool = False) -> Program:
    """Opens the program of a bundle; a pt2 only where it is trusted."""
    return _opened(ProgramFile(bundle.path / bundle.program, bundle.inputs), bundle, threads, trust)


def open_shared_program(bundle: Bundle, threads: int = 1, trust: bool = False) -> Program | None:
    """Opens the program that computes what is shared once; None where the bundle has none."""
    if not bundle.shared:
        return None
    file = ProgramFile(bundle.path / bundle.shared_program, bundle.shared_inputs)
    return _opened(file, bundle, threads, trust)


def open_core_program(bundle: Bundle, threads: int = 1) -> Program:
    """Opens the program behind the layers that the native core computes."""
    return _Onnx(ProgramFile(bundle.path / CORE_PROGRAM, bundle.core_inputs), threads)


def _opened(file: ProgramFile, bundle: Bundle, threads: int, trust: bool) -> Program:
    if bundle.format == "onnx":
        return _Onnx(file, threads)
    if not trust:
        raise ValueError(
            f"{file.path} is read by PyTorch, which evaluates expressions of it: "
            f"code, where somebody else wrote it; trust it (trust=True, --trust-code), or export as onnx"
        )
    return _Torch(file)


class _Onnx:
    def __init__(self, file: ProgramFile, threads: int, content: bytes | None = None) -> None:
        with needs("serving", "onnxruntime"):
            import onnxruntime
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.log_severity_level = 3
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        path = file.path
        self._content = path.read_bytes() if content is None else content
        try:
            self._session = onnxruntime.InferenceSession(
                self._content, options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # its own kinds of error, by status
            raise ValueError(
                f"{path} is no program that ONNX Runtime takes: {str(error)[:300]}"
            ) from None
        self._names = [value.name for value in self._session.get_inputs()]
        if not set(self._names) <= {entry.name for entry in file.inputs}:
            raise ValueError(f"{path} takes other inputs than the bundle has; export again")
        self._file, self._threads = file, threads

    def __call__(self, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
        return self._session.run(None, {name: inputs[name] for name in self._names})[0]

    def with_parameters(self, values: Mapping[str, np.ndarray]) -> Program:
        return _Onnx(self._file, self._threads, replaced(self._content, values))

    def parameter_names(self) -> Iterable[str]:
        return parameters(self._content)

    def content(self) -> bytes:
        return self._content


class _Torch:
    def __init__(
        self,
        file: ProgramFile,
        content: bytes | None = None,
        values: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        import torch

        self._torch, self._names = torch, [entry.name for entry in file.inputs]
        self._file = file
        self._content = file.path.read_bytes() if content is None else content
        self._program = torch.export.load(io.BytesIO(self._content))
        if values is not None:
            for name, tensor in self._program.state_dict.items():
                _check_fits(name, tensor.nbytes, values)
                with torch.no_grad():
                    tensor.copy_(torch.from_numpy(values[name].copy()))
        self._module = self._program.module()

    def __call__(self, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
        torch = self._torch
        with torch.no_grad():
            return self._module(*(torch.from_numpy(inputs[name]) for name in self._names)).numpy()

    def with_parameters(self, values: Mapping[str, np.ndarray]) -> Program:
        return _Torch(self._file, self._content, values)

    def parameter_names(self) -> Iterable[str]:
        return self._program.state_dict

    def content(self) -> bytes:
        buffer = io.BytesIO()
        self._torch.export.save(self._program, buffer)
        return buffer.getvalue()


# ---- the parameters of an ONNX file, in the encoding of Protocol Buffers

_GRAPH, _INITIALIZER, _NAME, _RAW_DATA = 7, 5, 8, 9  # of ModelProto, GraphProto and TensorProto
_OWN_NAME = "model."  # what names of parameters begin with; constants of the graph have others


def replaced(content: bytes, values: Mapping[str, np.ndarray]) -> bytes:
    """An ONNX file with other values of its parameters, byte by byte as if it was exported with them."""
    other = bytearray(content)
    for name, (begin, end) in parameters(content).items():
        _check_fits(name, end - begin, values)
        other[begin:end] = np.ascontiguousarray(values[name]).tobytes()
    return bytes(other)


def parameters(content: bytes) -> dict[str, tuple[int, int]]:
    """Where the values of each parameter are in an ONNX file: the first byte, and the end."""
    places = {}
    try:
        for graph in _fields(content, 0, len(content), _GRAPH):
            for tensor in _fields(content, *graph, _INITIALIZER):
                names = list(_fields(content, *tensor, _NAME))
                name = content[slice(*names[0])].decode() if names else ""
                for place in _fields(content, *tensor, _RAW_DATA):
                    if name.startswith(_OWN_NAME):
                        places[name] = place
    except (IndexError, UnicodeDecodeError):
        raise ValueError("the program is no ONNX file: it ends early; export again") from None
    return places


def values_of(content: bytes) -> dict[str, np.ndarray]:
    """The values of the parameters of an ONNX file, end to end, by name; those of float32 alone count."""
    return {
        name: np.frombuffer(content[begin:end], "<f4")
        for name, (begin, end) in parameters(content).items()
        if (end - begin) % 4 == 0
    }


def _fields(content: bytes, place: int, end: int, number: int) -> Iterator[tuple[int, int]]:
    """Where the fields of this number are in a message, those that have a length."""
    while place < end:
        tag, place = _varint(content, place)
        kind = tag & 7
        if kind == 2:
            size, place = _varint(content, place)
            if tag >> 3 == number:
                yield place, place + size
            place += size
        else:
            place = _varint(content, place)[1] if kind == 0 else place + {1: 8, 5: 4}.get(kind, end)


def _varint(content: bytes, place: int) -> tuple[int, int]:
    """A number of variable length, and the byte after it."""
    number, shift = 0, 0
    while True:
        byte = content[place]
        number, place, shift = number | (byte & 127) << shift, place + 1, shift + 7
        if byte < 128:
            return number, place


def _check_fits(name: str, size: int, values: Mapping[str, np.ndarray]) -> None:
    if name not in values or values[name].nbytes != size:
        stated = f"{values[name].nbytes:,} bytes" if name in values else "none"
        raise ValueError(f"expected {size:,} bytes of parameter {name!r}, found {stated}")
