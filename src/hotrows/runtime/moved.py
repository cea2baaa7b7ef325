"""Module paths of 0.1.0rc1 that name a module by an older place: imports and pickles that have them work.

import hotrows.nn            # is hotrows.models.nn, the same object
from hotrows.nn.mlp import MLP
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType

# The old path below `hotrows`, then where it is now.
MOVED = {
    "checkpoint": "engine.checkpoint",
    "config": "train.config",
    "costs": "train.costs",
    "datasets": "data.datasets",
    "distributed": "engine.distributed",
    "export": "serving.export",
    "json_file": "runtime.json_file",
    "keys": "engine.keys",
    "metrics": "train.metrics",
    "nn.products": "ops.layers.products",
    "nn": "models.nn",
    "nn.shared_lists": "engine.shared_lists",
    "pages": "runtime.pages",
    "pipeline": "engine.pipeline",
    "plan": "ops.plan",
    "planning": "engine.planning",
    "record": "ops.record",
    "report": "tools.report",
    "report.row_sample": "train.telling.row_sample",
    "settings": "runtime.settings",
    "shapes": "runtime.shapes",
    "storage": "engine.storage",
    "streams": "data.streams",
    "trackers": "tools.trackers",
    "train.classifier": "train.estimators",
    "tuning": "tools.tuning",
    **{
        f"train.{name}": f"train.{folder}.{name.removeprefix('run_') if folder == 'run' else name}"
        for folder, names in {
            "loop": "blocks cuda_graph evaluate mode predictor recommender step step_trainer stream_run "
            "trainer vectors within_groups",
            "run": "run_folder run_checkpoints run_state run_data run_trace run_end signals",
            "start": "defaults pretrained wider",
            "telling": "notes reports progress metrics_log pictures result",
        }.items()
        for name in names.split()
    },
}


def present_path(module: str) -> str | None:
    """Where a module is now: "hotrows.nn.mlp" -> "hotrows.models.nn.mlp"; None if it did not move."""
    package, _, path = module.partition(".")
    if package != "hotrows":
        return None
    old = path
    while old and old not in MOVED:
        old = old.rpartition(".")[0]
    return f"hotrows.{MOVED[old]}{path[len(old) :]}" if old else None


class _Moved(MetaPathFinder, Loader):
    """Stands before other finders: they would load a second copy of a module by its old path."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if present_path(fullname) else None

    def exec_module(self, module: ModuleType) -> None:
        # What import returns is taken from here when this ends.
        sys.modules[module.__name__] = import_module(str(present_path(module.__name__)))


def find_moved() -> None:
    """Lets `import` find modules by the paths that they had."""
    if not any(isinstance(finder, _Moved) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Moved())
