"""Each model beside plain PyTorch on one rank: where products decide, and where embeddings do."""

from __future__ import annotations

from benchmarks import markdown
from benchmarks.arms.plain_models import SEQUENCE_MODELS
from benchmarks.gpu_parts.part import Findings
from benchmarks.papers.part import Part, Setting, in_a_process
from benchmarks.workload import CRITEO_X1

ARMS = ("hotrows", "plain")
REGIMES = {
    "products": {"rows": CRITEO_X1, "dim": 16, "batch_size": 4_096},
    "embeddings": {"rows": (100_000,) * 60, "dim": 64, "batch_size": 2_048},
}
MODELS: dict[str, dict[str, dict]] = {
    "wide_deep": {"products": {"hidden": (400, 400, 400)}, "embeddings": {"hidden": (64, 32)}},
    "mmoe": {
        "products": {"num_experts": 8, "expert_hidden": (256, 128), "tower_hidden": (64,)},
        "embeddings": {"num_experts": 4, "expert_hidden": (32,), "tower_hidden": (16,)},
    },
    "can": {"products": {"hidden": (200, 80)}, "embeddings": {"hidden": (64, 32)}},
    "dlrm": {"embeddings": {"bottom": (64,), "top": (64, 32)}},  # the others: `benchmarks.ranks`
    "deepfm": {"embeddings": {"hidden": (64, 32)}},
    "din": {"embeddings": {"attention": (16,), "hidden": (64, 32)}},
    "dien": {"embeddings": {"attention": (16,), "hidden": (64, 32)}},
}
LAYERS_OF = {  # what makes layers equal
    ("din", "hotrows"): {
        "activation": "relu", "form": "paper", "attention_activation": "sigmoid", "normalize": True
    },
    ("dien", "hotrows"): {"activation": "relu", "auxiliary": 0.0},
    ("din", "plain"): {"first": "decomposed"},
    ("dien", "plain"): {"first": "decomposed"},
}  # fmt: skip
HISTORY = 40  # clicks on average
ON_ONE_THREAD = {("can", "plain")}  # its many small products take several times as long on two


def request_of(setting: Setting, model: str, regime: str, arm: str) -> dict:
    """What an arm is asked for."""
    request = {
        **REGIMES[regime],
        "arm": arm,
        "model": model,
        "options": MODELS[model][regime] | LAYERS_OF.get((model, arm), {}),
        "history": HISTORY if model in SEQUENCE_MODELS else 0,
        "labels": 2 if model == "mmoe" else 1,
        "threads": setting.pick(1 if (model, arm) in ON_ONE_THREAD else 2, 1),
        "windows": setting.pick(4, 1),
        "warmup": setting.pick(1.5, 0.0),
        "max_seconds": setting.pick(15.0, 0.0),  # to wait for quiet windows
    }
    if setting.small:
        request |= {"rows": (50,) * 3, "dim": 8, "batch_size": 16, "history": request["history"] // 20}
    return request


def run(findings: Findings, setting: Setting) -> None:
    for model in setting.pick(tuple(MODELS), ("mmoe", "din", "can")):
        for regime in setting.pick(tuple(MODELS[model]), ("embeddings",)):
            name = f"{model}, {regime}"
            if findings.has(name):
                continue
            figures = {
                arm: in_a_process("model_arm", request_of(setting, model, regime, arm), setting)
                for arm in ARMS
            }
            wrong = [row["error"] for row in figures.values() if "error" in row]
            if findings.check(f"{name}: runs", not wrong, "; ".join(wrong), name):
                ratio = figures["hotrows"]["samples_per_s"] / figures["plain"]["samples_per_s"]
                findings.add(name, {"model": model, "regime": regime, "ratio": ratio, **figures})


def table(arms: dict[str, dict]) -> str:
    lines = [
        [arm["model"], arm["regime"], *(f"{arm[name]['samples_per_s'] / 1e3:.1f}" for name in ARMS),
         f"**{arm['ratio']:.1f}x**", " / ".join(f"{arm[name]['peak_rss_mb']:,.0f}" for name in ARMS)]
        for arm in sorted(arms.values(), key=lambda arm: [*MODELS].index(arm["model"]))
    ]  # fmt: skip
    head = ["model", "what decides", "hotrows", "plain PyTorch", "hotrows over plain", "MB"]
    used = max(arm[name]["other_cores"] for arm in arms.values() for name in ARMS)
    note = f"Other programs used up to {used:.2f} of the cores meanwhile."
    return f"{markdown.table(head, lines)}\n\n{note}"


PART = Part("How much faster than plain PyTorch is each model, where embeddings decide?", run, table)
