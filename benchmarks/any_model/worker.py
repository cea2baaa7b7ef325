"""Checks models of one library, in that library's environment; a line of JSON for each that is done.

python -m benchmarks.any_model.worker LIBRARY OUT --models M ... --optimizers O ...
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import time
import warnings
from pathlib import Path
from typing import Any

os.environ.setdefault("TQDM_DISABLE", "1")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

MODULES = {
    "deepctr-torch": "deepctr",
    "fuxictr": "fuxictr_zoo",
    "torch-rechub": "rechub",
    "pytorch-widedeep": "widedeep",
    "dlrm": "dlrm",
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("library", choices=MODULES)
    parser.add_argument("out", type=Path)
    parser.add_argument("--models", nargs="*")
    parser.add_argument("--optimizers", nargs="*")
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--device", action="store_true")
    parser.add_argument("--list", action="store_true")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    module = importlib.import_module(f"benchmarks.any_model.{MODULES[args.library]}")
    library = module.library()
    import torch

    torch.set_num_threads(1)
    with args.out.open("a") as out:

        def say(**line: Any) -> None:
            out.write(json.dumps(line) + "\n")
            out.flush()

        if args.list:
            say(models=list(library.recipes), versions=library.versions() | {"torch": torch.__version__})
            return
        accelerate = None
        if not args.plain:
            accelerate = Accelerate(packing=not args.device)
        for name in args.models or library.recipes:
            start = time.perf_counter()
            record = of_model(library.recipes[name], accelerate, args)
            say(model=name, seconds=round(time.perf_counter() - start, 1), **record)


def of_model(recipe: Any, accelerate: Any, args: argparse.Namespace) -> dict[str, Any]:
    from benchmarks.any_model import check

    if isinstance(recipe, str):
        return {"not_built": recipe}
    try:
        weights = check.starting_weights(recipe)
        chosen = args.optimizers or recipe.optimizers
        names = [name for name in recipe.optimizers if name in chosen]
        if not names:
            return {"not_built": f"takes none of {', '.join(chosen)}"}
        record: dict[str, Any] = {
            "remark": recipe.remark,
            "repeats": check.repeats(recipe, names[0], weights),
            "tables": tables_of(recipe),
            "of": recipe.optimizers,
        }
    except Exception as error:
        return {"not_built": f"fails plain: {check.described(error)}"}
    if accelerate is not None and not args.device:
        record["explained"] = explained(recipe, names[0], weights)
    record["optimizers"] = {}
    for name in names:
        try:
            verdicts = check.check(recipe, name, weights, accelerate, args.quick, args.device)
            if accelerate is not None:
                said = accelerate.tables | {"dense": sorted(accelerate.tables.get("dense", ()))}
                record.setdefault("accelerated", {})[name] = said
            record["optimizers"][name] = verdicts
            if args.device and not all(verdict["ok"] for verdict in verdicts.values()):
                beside = check.check(recipe, name, weights, None, args.quick, on_device=True)
                if not any(verdict["ok"] for verdict in beside.values()):
                    record.setdefault("plain_on_device", []).append(name)
        except Exception as error:
            record["optimizers"][name] = {"plain": check.described(error)}
    return record


def tables_of(recipe: Any) -> int:
    from torch import nn

    kinds = (nn.Embedding, nn.EmbeddingBag)
    modules = [module for module in recipe.build().modules() if isinstance(module, kinds)]
    return len({id(module.weight) for module in modules})


class Accelerate:
    """`hotrows.accelerate`, which notes how many tables it took, and why it left the others."""

    def __init__(self, packing: bool) -> None:
        self._packing = packing  # a pretended tensor is none that the front end of `torch.compile` knows
        self.tables: dict[str, Any] = {}

    def __call__(self, model: Any, optimizer: Any) -> None:
        import hotrows
        from hotrows.acceleration.accelerate import acceleration_of

        dense: set[str] = set()
        self.tables = {"dense": dense}
        optimizer.register_step_pre_hook(lambda *_: dense.update(self._dense(embeddings)))
        hotrows.accelerate(model, optimizer, packing=self._packing, always=True)
        embeddings = acceleration_of(model).embeddings
        left = {one.names[0]: one.rule for one in embeddings if isinstance(one.rule, str)}
        self.tables |= {"taken": len(embeddings) - len(left), "left": left}

    def _dense(self, embeddings: Any) -> set[str]:
        """The tables that were taken, whose gradient has all rows all the same: right, and slow."""
        from hotrows.acceleration.gradient import RowGradient

        taken = {one.names[0]: one.weight.grad for one in embeddings if not isinstance(one.rule, str)}
        return {
            name
            for name, grad in taken.items()
            if grad is not None and (not isinstance(grad, RowGradient) or grad.dense is not None)
        }


def explained(recipe: Any, optimizer: str, weights: dict[str, Any]) -> dict[str, Any]:
    """What `hotrows.explain` says of the accelerated model: its text, and its fields."""
    import torch

    import hotrows
    from benchmarks.any_model import check

    torch.manual_seed(check.SEED)
    model = recipe.build()
    model.load_state_dict(weights)
    hotrows.accelerate(model, recipe.training(model, optimizer).optimizer, always=True)
    model.train()
    try:
        batch = recipe.batches(torch.float32)[0]
        said = hotrows.explain(model, *recipe.arguments(model, batch))
    except Exception as error:
        return {"error": check.described(error)}
    return fields_of(said) | {"text": str(said)}


def fields_of(said: Any) -> dict[str, Any]:
    from dataclasses import asdict, is_dataclass

    return {"fields": asdict(said)} if is_dataclass(said) else {}


if __name__ == "__main__":
    main()
