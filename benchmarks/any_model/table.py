"""The results as a page: benchmarks/results/any_model.md."""

from __future__ import annotations

from pathlib import Path
from typing import Any

OPTIMIZERS = {
    "sgd": "SGD",
    "adagrad": "Adagrad",
    "adam": "Adam",
    "adamw": "AdamW",
    "rmsprop": "RMSprop",
    "sparse_adam": "SparseAdam",
    "rwsadagrad": "RWSAdagrad",
}
HEAD = """# Models of the CTR libraries under `accelerate`

Made by `python -m benchmarks.any_model`; do not edit.

Every model that the libraries export, unmodified, built small and trained twenty steps by the library's
own training step (its loss, its L2 terms, its clipping): plain PyTorch beside the accelerated model, from
equal weights. Compared are the forward of the first batch, the gradients of the dense parameters in the
first step, and all that `state_dict()` returns after the last.

* **ok**: equal in float64 to 1e-9 of each tensor's largest value; in float32 at most twice as far from
  the float64 run as plain float32 itself, plus 4 units in the last place. Where rounding is amplified (a
  bias before BatchNorm has a gradient of pure noise), plain PyTorch also runs from weights changed in
  their last bit, and in float64 ten times the largest change that this makes is allowed.
* **ok 64**: equal in float64; float32 was not run.
* **differs**, **fails**: with what stands below the tables.
* **plain fails**: the library itself does not run so.
* tables taken: of all embedding tables; "dense": those whose gradient came with all rows, by a read of
  the whole table, or of rows where nothing intercepts it; all their rows are updated, as in plain
  PyTorch.
* float64 runs replace the libraries' own `.float()` by `.double()`. Dropout is off.
"""
ON_DEVICE = """## On a pretended GPU

Every third model of each library (`--device`), accelerated on the GPU that this project's tests
pretend: tensors that say they are on `cuda:0` and refuse to be mixed with the host's, with the host's
arithmetic. Held to plain PyTorch on the processor in float64, by the rule above. Lookups are not
captured there (`packing=False`), and no GPU took part. **plain, too**: plain PyTorch fails or differs on
the pretended GPU as well, which so says nothing of `accelerate`.
"""


def write_table(results: dict[str, Any], on_device: dict[str, Any], path: Path) -> None:
    """on_device: the results of `--device`."""
    parts = [HEAD]
    parts.append(_counts(results))
    failing: list[str] = []
    for library, result in results.items():
        versions = ", ".join(f"{name} {version[:12]}" for name, version in result["versions"].items())
        commits = sorted({model["commit"] for model in result["models"].values()})
        parts.append(f"## {library}\n\n{versions}; hotrows at {', '.join(commits)}\n")
        parts.append(_models(library, result["models"], failing))
    if on_device:
        parts += [ON_DEVICE, _counts(on_device)]
        for library, result in on_device.items():
            commits = sorted({model["commit"] for model in result["models"].values()})
            parts.append(f"{library}; hotrows at {', '.join(commits)}\n")
            parts.append(_models(library, result["models"], failing))
    if failing:
        parts.append("## What differs or fails\n\n" + "\n".join(failing) + "\n")
    path.write_text("\n".join(parts))


def _counts(results: dict[str, Any]) -> str:
    lines = ["| library | recipes | built plain | all optimizers ok |", "|---|---|---|---|"]
    for library, result in results.items():
        models = result["models"].values()
        built = [model for model in models if is_built(model)]
        ok = [model for model in built if all(passes(one) for one in model["optimizers"].values())]
        lines.append(f"| {library} | {len(models)} | {len(built)} | {len(ok)} |")
    return "\n".join(lines) + "\n"


def _models(library: str, models: dict[str, Any], failing: list[str]) -> str:
    ran = {one for model in models.values() for one in model.get("optimizers", {})}
    names = [name for name in OPTIMIZERS if name in ran]
    titles = [
        "model",
        "tables taken",
        "lookups packed",
        "alone, and why",
        *(OPTIMIZERS[name] for name in names),
    ]
    lines = ["| " + " | ".join(titles) + " |", "|" + "---|" * len(titles)]
    for model, record in models.items():
        if not is_built(record):
            why = record.get("not_built") or record.get("failed") or "no plain run"
            cells = [_text(model), "", "", f"not checked: {_text(why)}", *("" for _ in names)]
        else:
            cells = [_named(model, record), _taken(record), *_lookups(record.get("explained", {}))]
            for name in names:
                one, too = record["optimizers"].get(name), record.get("plain_on_device", [])
                cells.append(_cell(library, model, name, one, failing, too))
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def is_built(record: dict[str, Any]) -> bool:
    return bool(record.get("optimizers")) and any(
        "plain" not in one for one in record["optimizers"].values()
    )


def passes(one: dict[str, Any]) -> bool:
    return "plain" in one or all(verdict["ok"] for verdict in one.values())


def _named(model: str, record: dict[str, Any]) -> str:
    return _text(model) + (f" ({_text(record['remark'])})" if record.get("remark") else "")


def _taken(record: dict[str, Any]) -> str:
    """How many tables were accelerated, of all; optimizer by optimizer where it differs."""
    said = {}
    for name, one in record.get("accelerated", {}).items():
        dense = len(one.get("dense", ()))
        said[name] = f"{one.get('taken', 0)} of {record['tables']}" + (
            f", {dense} dense" if dense else ""
        )
    if len(set(said.values())) > 1:
        return "; ".join(f"{OPTIMIZERS[name]} {text}" for name, text in said.items())
    return next(iter(said.values()), "")


def _lookups(explained: dict[str, Any]) -> tuple[str, str]:
    """`k of n in p packs`, and the others with their reasons."""
    fields = explained.get("fields")
    if not fields:
        return "", _text(explained.get("error", ""))
    packs = [pack for graph in fields["graphs"] for pack in graph["packs"]]
    alone = [one for graph in fields["graphs"] for one in graph["alone"]]
    packed = sum(len(pack) for pack in packs)
    word = "pack" if len(packs) == 1 else "packs"
    reasons: dict[str, int] = {}
    for one in alone:
        reasons[one["reason"]] = reasons.get(one["reason"], 0) + 1
    said = [f"{count}: {reason}" for reason, count in reasons.items()]
    refused: dict[str, int] = {}
    for why in fields.get("refused", {}).values():
        refused[why] = refused.get(why, 0) + 1
    said += [f"{count} left: {why}" for why, count in refused.items()]
    said += [f"not captured: {note}" for note in fields.get("notes", ())]
    return f"{packed} of {packed + len(alone)} in {len(packs)} {word}", _text("; ".join(said))


def _cell(
    library: str,
    model: str,
    name: str,
    one: dict[str, Any] | None,
    failing: list[str],
    plain_on_device: list[str],
) -> str:
    if one is None:
        return ""
    if "plain" in one:
        why = _text(one["plain"])
        failing.append(f"* {library}, {_text(model)}, {OPTIMIZERS[name]}: plain PyTorch: {why}")
        return "plain fails"
    if passes(one):
        return "ok" if "float32" in one else "ok 64"
    if name in plain_on_device:
        return "plain, too"
    said = "differs"
    for dtype, verdict in one.items():
        if verdict["ok"]:
            continue
        if "error" in verdict:
            said, why = "fails", verdict["error"]
        else:
            why = "; ".join(
                f"{worst['part']} {worst['tensor']}: error {worst['error']:.2g}, plain's own "
                f"{worst['own']:.2g}, {worst['of_allowed']:.3g} of what is allowed"
                for worst in verdict["worst"]
                if not worst["of_allowed"] <= 1
            )
        failing.append(f"* {library}, {_text(model)}, {OPTIMIZERS[name]}, {dtype}: {_text(why)}")
    return said


def _text(value: str) -> str:
    return " ".join(str(value).split()).replace("|", "\\|").replace("<", "&lt;")
