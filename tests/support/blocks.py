"""Rows in blocks, and a cluster of one process that runs each task when it is submitted."""

import dataclasses
import pickle
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any


@dataclass
class Blocks:
    """What `prepare` uses of a dataset of Ray Data. tables: a list of tables for every execution."""

    executions: list[list[Any]]
    context: Any = field(
        default_factory=lambda: SimpleNamespace(execution_options=SimpleNamespace(preserve_order=False))
    )

    def schema(self):
        return SimpleNamespace(names=self.executions[0][0].schema.names)

    def limit(self, rows):
        table = self.executions[0][0].slice(0, rows)
        return SimpleNamespace(to_pandas=table.to_pandas)

    def count(self):
        return sum(table.num_rows for table in self.executions[0])

    def select_columns(self, names):
        return dataclasses.replace(self, executions=self.executions)  # tasks select what they read

    def materialize(self):
        return dataclasses.replace(self, executions=[self._executed()])

    def _executed(self):
        assert self.context.execution_options.preserve_order
        return self.executions[0] if len(self.executions) == 1 else self.executions.pop(0)

    def iter_internal_ref_bundles(self):
        for table in self._executed():
            # Every second block is a part of a larger one.
            cut = (
                SimpleNamespace(start_offset=0, end_offset=table.num_rows) if table.num_rows % 2 else None
            )
            metadata = SimpleNamespace(num_rows=table.num_rows, size_bytes=table.nbytes)
            yield SimpleNamespace(
                blocks=[SimpleNamespace(ref=Reference(table), metadata=metadata)], slices=[cut]
            )


@dataclass(frozen=True)
class Reference:
    """A result, or the error of the task."""

    value: Any


class InlineCluster:
    num_processors, num_machines = 3, 2

    def __init__(self, twice: bool = False, store_bytes: int = 1 << 20) -> None:
        self._twice = twice
        self.store_bytes = store_bytes

    def share(self, value):
        return Reference(_sent(value))

    def submit(self, task, *arguments, results=1):
        arguments = [some.value if isinstance(some, Reference) else some for some in arguments]
        try:
            for _ in range(1 + self._twice):  # as after a worker was lost at the end of its task
                value = _sent(task(*arguments))
        except ValueError as error:
            return [Reference(error)] * results
        return [Reference(value)] if results == 1 else [Reference(one) for one in value]

    def result(self, reference):
        if isinstance(reference.value, ValueError):
            raise reference.value
        return reference.value

    def stop(self, references):
        list(references)


def _sent(value):
    return pickle.loads(pickle.dumps(value, protocol=5))
