"""A cluster of Ray: tasks are submitted, and their results are awaited or stay where they are."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

_RETRIES = 10  # of a task whose worker or machine was killed; an error of its own is not retried


class RayCluster:
    """The cluster that this process is connected to."""

    def __init__(self) -> None:
        import ray

        self._ray = ray
        resources = ray.cluster_resources()
        self.num_processors = max(1, int(resources.get("CPU", 1)))
        self.num_machines = max(1, sum(node["Alive"] for node in ray.nodes()))
        self.store_bytes = int(resources.get("object_store_memory", 1 << 30))

    def share(self, value: Any) -> Any:
        """A reference to a value, for tasks."""
        return self._ray.put(value)

    def submit(self, task: Callable[..., Any], *arguments: Any, results: int = 1) -> list[Any]:
        """Starts a task; returns references to its results. References among the arguments stand for what
        they refer to."""
        options = {
            "num_cpus": 1,
            "num_returns": results,
            "max_retries": _RETRIES,
            "name": f"hotrows {task.__name__}",
        }
        submitted = self._ray.remote(task).options(**options).remote(*arguments)
        return [submitted] if results == 1 else submitted

    def result(self, reference: Any) -> Any:
        """Waits for a result; raises what the task raised."""
        try:
            return self._ray.get(reference)
        except self._ray.exceptions.RayTaskError as failure:
            raise failure.cause from None

    def stop(self, references: Iterable[Any]) -> None:
        """Stops tasks whose results are not wanted, and waits until they have ended."""
        left = list(references)
        for reference in left:
            self._ray.cancel(reference)
        if left:
            self._ray.wait(left, num_returns=len(left), timeout=60, fetch_local=False)
