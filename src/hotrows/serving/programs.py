"""Programs of bundles: arrays by name in, logits out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np

from hotrows.serving.bundle import Bundle


class Program(Protocol):
    """Computes the logits, [B] or [B, T] float32, of the tensors that a bundle's inputs name."""

    def __call__(self, inputs: Mapping[str, np.ndarray]) -> np.ndarray: ...


def open_program(bundle: Bundle, threads: int = 1, trust: bool = False) -> Program:
    """Opens the program of a bundle; a pt2 only where it is trusted."""
    if bundle.format == "onnx":
        return _Onnx(bundle, threads)
    if not trust:
        raise ValueError(
            f"{bundle.path / bundle.program} is read by PyTorch, which evaluates expressions of it: "
            f"code, where somebody else wrote it; trust it (trust=True, --trust), or export as onnx"
        )
    return _Torch(bundle)


class _Onnx:
    def __init__(self, bundle: Bundle, threads: int) -> None:
        try:
            import onnxruntime
        except ImportError:
            raise ValueError("serving needs ONNX Runtime: pip install 'hotrows[serving]'") from None
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.log_severity_level = 3
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        path = bundle.path / bundle.program
        try:
            self._session = onnxruntime.InferenceSession(
                path.read_bytes(), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # its own kinds of error, by status
            raise ValueError(
                f"{path} is no program that ONNX Runtime takes: {str(error)[:300]}"
            ) from None
        self._names = [value.name for value in self._session.get_inputs()]
        if not set(self._names) <= {entry.name for entry in bundle.inputs}:
            raise ValueError(f"{path} takes other inputs than the bundle has; export again")

    def __call__(self, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
        return self._session.run(None, {name: inputs[name] for name in self._names})[0]


class _Torch:
    def __init__(self, bundle: Bundle) -> None:
        import torch

        self._torch, self._names = torch, [entry.name for entry in bundle.inputs]
        self._module = torch.export.load(bundle.path / bundle.program).module()

    def __call__(self, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
        torch = self._torch
        with torch.no_grad():
            return self._module(*(torch.from_numpy(inputs[name]) for name in self._names)).numpy()
