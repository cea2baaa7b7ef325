"""What was captured of a model: which lookups became one, which stayed alone, and why."""

import weakref
from dataclasses import dataclass

from torch import Tensor, nn


@dataclass(frozen=True)
class Read:
    """A lookup: the table by its name in the model, its size, and "embedding" or "bag, sum"."""

    table: str
    rows: int
    dim: int
    kind: str


@dataclass(frozen=True)
class Alone:
    """A lookup that is a call of its own, and why."""

    lookup: Read
    reason: str


@dataclass(frozen=True)
class Captured:
    """One graph of a model. `break_reason`: why it ends before the model does, "" if it does not."""

    packs: tuple[tuple[Read, ...], ...] = ()
    alone: tuple[Alone, ...] = ()
    break_reason: str = ""


class Report:
    """Collects what is captured of a model, graph by graph as dynamo finds them.

    `graphs`: each kind of graph once, however often it is compiled anew for another shape. `notes`: what
    runs as plain PyTorch, uncaptured, and why. `model` gives tables the names they have there.
    """

    def __init__(self, model: nn.Module | None = None):
        self.graphs: list[Captured] = []
        self.notes: list[str] = []
        self._model = weakref.ref(model) if model is not None else lambda: None

    def add(self, graph: Captured) -> None:
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
        return next((name for name, each in named if each is value), "")

    def has_nothing_to_pack(self) -> bool:
        """Whether the model has one table at most, and what was seen of it reads it once."""
        model = self._model()
        if model is None or not self.graphs:
            return False
        num_tables = sum(
            isinstance(each, nn.Embedding | nn.EmbeddingBag) for each in model.modules()
        )
        num_reads = sum(len(graph.alone) + 2 * len(graph.packs) for graph in self.graphs)
        return num_tables <= 1 and num_reads <= 1
