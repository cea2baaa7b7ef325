"""Reports of captured models: which lookups were packed, which are calls of their own, and why."""

import weakref
from dataclasses import dataclass

from torch import Tensor, nn


@dataclass(frozen=True)
class TableRead:
    """A lookup: its table by its name in the model, its size, and "embedding" or "bag, sum"."""

    table: str
    rows: int
    dim: int
    kind: str


@dataclass(frozen=True)
class SingleLookup:
    """A lookup that is a call of its own, and why."""

    lookup: TableRead
    reason: str


@dataclass(frozen=True)
class CapturedGraph:
    """One graph of a model. `num_linears`: linear layers on other paths than PyTorch's; `break_reason`:
    why it ends before the model does, "" if it does not."""

    packs: tuple[tuple[TableRead, ...], ...] = ()
    alone: tuple[SingleLookup, ...] = ()
    num_linears: int = 0
    break_reason: str = ""


class CaptureReport:
    """Collects the captured graphs of a model, in the order in which dynamo makes them.

    `graphs`: each kind of graph once, however often it is compiled anew for another shape. `notes`: parts
    that run as plain PyTorch, uncaptured, and why. model: its names are used for tables.
    """

    def __init__(self, model: nn.Module | None = None):
        self.graphs: list[CapturedGraph] = []
        self.notes: list[str] = []
        self._model = weakref.ref(model) if model is not None else lambda: None

    def add(self, graph: CapturedGraph) -> None:
        if graph not in self.graphs:
            self.graphs.append(graph)

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def name_of(self, value: object) -> str:
        """The name of a parameter or buffer of the model, or ""."""
        model = self._model()
        if model is None or not isinstance(value, Tensor):
            return ""
        named = (*model.named_parameters(), *model.named_buffers())
        return next((name for name, tensor in named if tensor is value), "")

    def has_nothing_to_pack(self) -> bool:
        """True if the model has one table at most, and its graphs so far read it once and have linear
        layers on PyTorch's own paths alone."""
        model = self._model()
        if model is None or not self.graphs:
            return False
        num_tables = sum(isinstance(module, nn.Embedding | nn.EmbeddingBag) for module in model.modules())
        num_reads = sum(len(graph.alone) + 2 * len(graph.packs) for graph in self.graphs)
        num_linears = sum(graph.num_linears for graph in self.graphs)
        return num_tables <= 1 and num_reads <= 1 and num_linears == 0
