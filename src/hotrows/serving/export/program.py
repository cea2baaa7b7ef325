"""The dense part of a model as a program: PyTorch's own (`.pt2`) or ONNX, of plain tensors alone.

    PlainModel(model, packs, num_dense)     an nn.Module: tensors by `inputs`, in order -> logits
    torch_program(plain)                    torch.export's, with any number of samples and places
    onnx_program(program)                   the bytes of an ONNX file

The program reads, beside dense values, for each pack the vectors of its features side by side, and for
each sequence that the model keeps apart its vectors, padded, with their lengths. Whoever runs it
looks them up.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, cast

import torch
from torch import Tensor, nn

from hotrows.engine.planning.packing import Pack
from hotrows.engine.vectors import Vectors
from hotrows.models.model import Model, logits_and_loss
from hotrows.ops.layers import interaction
from hotrows.ops.layers.padded import PaddedLists
from hotrows.ops.plan import Plan
from hotrows.runtime.extras import needs
from hotrows.serving.bundle import ProgramInput

OPSET = 18
_SAMPLES, _PLACES = 5, 3  # of the tensors that a program is traced with
_KNOWN = "use --format safetensors, or write the model in ops that torch.export takes"


class PlainModel(nn.Module):
    """A model whose forward takes tensors alone, those of `inputs` in order, and returns its logits."""

    def __init__(self, model: Model, packs: Sequence[Pack], num_dense: int) -> None:
        super().__init__()
        self.model, self.packs, self.num_dense = model.eval(), tuple(packs), num_dense
        self.inputs = tuple(_inputs(self.packs, num_dense))
        self._read: set[str] | None = set()
        with torch.no_grad(), suppress(Exception):  # the export says what is wrong with a model
            self(*self.examples())
            unread = {e.name for e in self.inputs if e.kind == "pooled"} - self._read
            self.inputs = tuple(entry for entry in self.inputs if entry.name not in unread)
        self._read = None

    def forward(self, *tensors: Tensor) -> Tensor:
        by_name = {entry.name: tensor for entry, tensor in zip(self.inputs, tensors, strict=True)}
        size, first = tensors[0].shape[0], tensors[0]
        dense = by_name["dense"] if self.num_dense else first.new_zeros(size, 0)
        return logits_and_loss(self.model(self.vectors(by_name, size), dense))[0]

    def vectors(self, tensors: dict[str, Tensor], size: int) -> PlainVectors:
        """The vectors that the model reads, of tensors by the names of inputs."""
        return PlainVectors(self.packs, tensors, size, self._read)

    def examples(self, samples: int = _SAMPLES, places: int = _PLACES) -> tuple[Tensor, ...]:
        """Tensors of these sizes for `forward`, with lengths from 0 to `places`."""
        generator = torch.Generator().manual_seed(0)
        shapes = {"dense": (samples, self.num_dense), "lengths": (samples,)}
        tensors = []
        for entry in self.inputs:
            if entry.kind == "lengths":
                tensors.append(torch.arange(samples) % (places + 1))
                continue
            shape = shapes.get(entry.kind) or self._shape(entry, samples, places)
            tensors.append(torch.randn(shape, generator=generator))
        return tuple(tensors)

    def _shape(self, entry: ProgramInput, samples: int, places: int) -> tuple[int, ...]:
        dims = {table.name: table.dim for pack in self.packs for table in pack.tables}
        if entry.kind == "layer":
            return (samples, sum(dims[table] for _, table in entry.reads))
        return (samples, len(entry.reads) if entry.kind == "pooled" else places, dims[entry.reads[0][1]])


def torch_program(plain: PlainModel) -> torch.export.ExportedProgram:
    """The program of a model, for any number of samples, and of places in its sequences from 2 on."""
    samples, places = torch.export.Dim("samples", min=1), torch.export.Dim("places", min=2)
    dynamic = tuple(
        {0: samples, 1: places} if entry.kind == "sequence" else {0: samples} for entry in plain.inputs
    )
    name = type(plain.model).__name__
    try:
        with _quiet(), torch.no_grad():
            program = torch.export.export(
                plain,
                plain.examples(),
                dynamic_shapes=(dynamic,),
                strict=False,
                prefer_deferred_runtime_asserts_over_guards=True,
            )
            has_own_ops = any(node.target in _PLAIN_OPS for node in program.graph.nodes)
            return program.run_decompositions(_PLAIN_OPS) if has_own_ops else program
    except Exception as error:  # of any kind, as a model of one's own is any code
        raise ValueError(f"{name} is not taken by torch.export: {_line(error)}; {_KNOWN}") from error


def onnx_program(plain: nn.Module, program: torch.export.ExportedProgram) -> Any:
    """The ONNX model of a program of a `PlainModel` or `SharedModel`; its inputs have the names of
    `plain.inputs`."""
    name = type(plain.model).__name__
    with needs("--format onnx", "onnx", "onnxscript"):
        import onnx
        import onnxscript  # by which torch.onnx exports  # noqa: F401

    try:
        with needs("--format onnx", "onnxscript"), _quiet(), torch.no_grad():
            onnx_model = torch.onnx.export(
                program, dynamo=True, verbose=False, opset_version=OPSET, optimize=False
            )
            assert onnx_model is not None
            _optimize(onnx_model, set(program.state_dict))
    except ImportError:
        raise  # of a package, not of the model
    except Exception as error:
        raise ValueError(f"{name} is not taken by torch.onnx: {_line(error)}; {_KNOWN}") from error
    names = [entry.name for entry in cast("Sequence[ProgramInput]", plain.inputs)]
    for value, name in zip(onnx_model.model.graph.inputs, names, strict=True):
        value.name = name
    onnx_model.model.graph.outputs[0].name = "logits"
    proto = onnx_model.model_proto
    for node in proto.graph.node:
        node.ClearField("metadata_props")  # traces, with the paths of this machine
    onnx.checker.check_model(proto)
    return proto


def _optimize(onnx_model: Any, parameters: set[str]) -> None:
    """Optimizes an ONNX program whose parameters stay as they are, by name.

    Folded into others, they could not be replaced as training goes on. Meanwhile they are inputs, whose
    values nobody knows.
    """
    graph = onnx_model.model.graph
    values = {
        name: graph.initializers.pop(name) for name in list(graph.initializers) if name in parameters
    }
    constants = {name: value.const_value for name, value in values.items()}
    for value in values.values():
        value.const_value = None
        graph.inputs.append(value)
    onnx_model.optimize()
    for value in [value for value in graph.inputs if value.name in values]:
        graph.inputs.remove(value)
        if value.uses():
            value.const_value = constants[value.name]
            graph.initializers[value.name] = value


class PlainVectors(Vectors):
    """The vectors of a batch, of tensors by the names of a program's inputs."""

    def __init__(
        self, packs: Sequence[Pack], tensors: dict[str, Tensor], size: int, read: set[str] | None
    ) -> None:
        super().__init__(packs, Plan(packs=(), step=0, batch_size=size), ())
        self._tensors, self._read = tensors, read

    def has_sequence(self, feature: str, role: str) -> bool:
        return _sequence_name(feature, role) in self._tensors

    def sequence(self, feature: str, role: str = "vector") -> tuple[Tensor, PaddedLists]:  # type: ignore[override]
        if not self.has_sequence(feature, role):
            raise LookupError(f"no sequence feature {feature!r} with role {role!r} was looked up")
        padded = self._tensors[_sequence_name(feature, role)]  # [B, T, D]
        return padded.reshape(-1, padded.shape[2]), PaddedLists(self.lengths(feature), padded.shape[1])

    def lengths(self, feature: str) -> Tensor:
        return self._tensors[_lengths_name(feature)]

    def _pooled(self, p: int) -> Tensor:
        if self._read is not None:
            self._read.add(self.packs[p].name)
        return self._tensors[self.packs[p].name]


def _inputs(packs: Sequence[Pack], num_dense: int) -> Iterator[ProgramInput]:
    if num_dense:
        yield ProgramInput("dense", "dense")
    for pack in packs:
        if pack.columns:
            reads = tuple((feature, pack.tables[table].name) for feature, table in pack.columns)
            yield ProgramInput(pack.name, "pooled", reads)
    for pack in packs:
        for feature, t in pack.sequences:
            table = pack.tables[t]
            name = _sequence_name(feature, table.role)
            yield ProgramInput(name, "sequence", ((feature, table.name),))
    for feature in dict.fromkeys(name for pack in packs for name, _ in pack.sequences):
        yield ProgramInput(_lengths_name(feature), "lengths", ((feature, ""),))


def _sequence_name(feature: str, role: str) -> str:
    return f"{feature}.{role}"


def _lengths_name(feature: str) -> str:
    return f"{feature}.lengths"


def _line(error: Exception) -> str:
    """The first line of an error that says something."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:200] if lines else 'without a message'}"


@contextmanager
def _quiet() -> Iterator[None]:
    """Keeps the exporter's own warnings and messages, which are about its future, from the user."""
    loggers = [
        logging.getLogger(name) for name in ("torch.onnx", "torch.export", "onnxscript", "onnx_ir")
    ]
    levels = [log.level for log in loggers]
    try:
        for log in loggers:
            log.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for log, level in zip(loggers, levels, strict=True):
            log.setLevel(level)


_PLAIN_OPS: dict[Any, Any] = {
    torch.ops.hotrows.dot_interaction.default: interaction.dot_interaction_reference,
    torch.ops.hotrows.second_order.default: interaction.second_order_reference,
}
