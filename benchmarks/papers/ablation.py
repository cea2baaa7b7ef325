"""PICASSO's ablation on ranks with a stated wire and slow memory, and where interleaving pays."""

from __future__ import annotations

from statistics import mean, median

from benchmarks import markdown
from benchmarks.arms.ablation_arm import A_PACK_PER_TABLE
from benchmarks.gpu_parts.part import Findings
from benchmarks.papers.part import Part, Setting, in_a_process

ALL_ON = {"micro_batches": 2, "pack_parts": 2, "cache": 0.10}
ARMS: dict[str, dict] = {
    "all": {},
    "without packing": {"pack_parts": A_PACK_PER_TABLE},
    "without interleaving of data": {"micro_batches": 1},
    "without interleaving of groups": {"pack_parts": 1},
    "without caching": {"cache": 0},
}
INTERLEAVED = ("all", "without interleaving of data", "without interleaving of groups")
MODELS: dict[str, dict] = {
    "wide_deep": {"options": {"hidden": (256, 128)}},
    "can": {"fields": 20, "history": 20, "options": {"hidden": (200, 80)}},
    "mmoe": {
        "labels": 2,
        "options": {"num_experts": 4, "expert_hidden": (128, 64), "tower_hidden": (32,)},
    },
}
WIRE, SLOW, LATENCY = 100e6, 400e6, 50e-6  # bytes a second of each rank, seconds of a message
ROUNDS = 1  # more where other programs run beside
WIRES = (25e6, 50e6, 200e6)
_RATE = " MB/s"
_BUSY = ("cores_busy", "wire_busy", "slow_busy")


def request_of(setting: Setting, model: str, arm: str, wire: float) -> dict:
    """What the arm is asked for."""
    rank = {"ranks": 2, "wire": wire, "slow": SLOW, "latency": LATENCY}
    request = {"model": model, "fields": 60, "rows": 100_000, "dim": 32, "history": 0, "labels": 1}
    request |= {"batch_size": 2_048, "warm_up": 24, "steps": 12} | rank | MODELS[model]
    if setting.small:
        small = {"fields": 4, "rows": 200, "dim": 8, "batch_size": 16, "warm_up": 1, "steps": 2}
        request |= small | {"history": min(request["history"], 2)}
    return request | ALL_ON | ARMS[arm]


def run(findings: Findings, setting: Setting) -> None:
    for model in setting.pick(tuple(MODELS), ("can",)):
        _measure(findings, setting, model, setting.pick(tuple(ARMS), ("without caching",)), model, WIRE)
    for wire in setting.pick(WIRES, ()):
        _measure(findings, setting, f"{wire / 1e6:.0f}{_RATE}", INTERLEAVED, "wide_deep", wire)


def _measure(
    findings: Findings, setting: Setting, name: str, arms: tuple[str, ...], model: str, wire: float
) -> None:
    """Every arm in turn, round after round: a machine that others use slows all of them alike."""
    if findings.has(name):
        return
    rounds: dict[str, list[dict]] = {arm: [] for arm in arms}
    for _ in range(ROUNDS):
        for arm, figures in rounds.items():
            request = request_of(setting, model, arm, wire)
            figures.append(in_a_process("ablation_arm", request, setting))
    wrong = [row["error"] for rows in rounds.values() for row in rows if "error" in row]
    if findings.check(f"{name}: runs", not wrong, "; ".join(wrong), name):
        findings.add(name, {arm: _summary(rows, rounds[arms[0]]) for arm, rows in rounds.items()})


def _summary(rows: list[dict], of_all: list[dict]) -> dict:
    """Means, and the median of the ratios to the first arm in the same round."""
    speeds = [(row["samples_per_s"], one["samples_per_s"]) for row, one in zip(rows, of_all, strict=True)]
    figures = {name: mean(row[name] for row in rows) for name in rows[0]}
    return figures | {"of_all": median(speed / one for speed, one in speeds)}


def table(arms: dict[str, dict]) -> str:
    """The models, then the wires of W&D."""
    head = ["model", "arm", "samples/s", "of all", "MB sent a step", "rows from slow memory a step",
            "cores busy", "wire busy", "slow memory busy", "peak MB"]  # fmt: skip
    lines = [
        [model, arm, f"{f['samples_per_s']:,.0f}", f"{f['of_all']:.2f}x", f"{f['sent_mb']:.2f}",
         f"{f['rows_from_slow']:,.0f}", *(f"{f[name]:.0%}" for name in _BUSY), f"{f['peak_mb']:,.0f}"]
        for model, by_arm in arms.items()
        for arm, f in by_arm.items()
        if model in MODELS
    ]  # fmt: skip
    return "\n\n".join([markdown.table(head, lines), *_by_wire(arms)])


def _by_wire(arms: dict[str, dict]) -> list[str]:
    """W&D by the rate of the wire."""
    rates = {f"{WIRE / 1e6:.0f}{_RATE}": arms.get("wide_deep", {})}
    rates |= {wire: by_arm for wire, by_arm in arms.items() if wire.endswith(_RATE)}
    head = ["wire of each rank", *INTERLEAVED, "wire busy"]
    lines = []
    for wire, by_arm in sorted(rates.items(), key=lambda rate: float(rate[0].split()[0])):
        if by_arm:
            seen = (by_arm[arm] for arm in INTERLEAVED)
            cells = [f"{f['samples_per_s']:,.0f} ({f['of_all']:.2f}x)" for f in seen]
            lines.append([wire, *cells, f"{by_arm['all']['wire_busy']:.0%}"])
    if not lines:
        return []
    return ["W&D, samples a second by the rate of the wire:", markdown.table(head, lines)]


PART = Part("What does each of the four gain, where wire and slow memory take their time?", run, table)
