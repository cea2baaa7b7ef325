"""What the figures say to the claims of the papers, one by one: a table for the console and the page."""

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from benchmarks.gpu_parts.gates import LEAST
from benchmarks.markdown import table

NOT_YET = "not measured yet"
Records = Mapping[str, dict]


@dataclass(frozen=True)
class Claim:
    """said: by whom, what. figure: what answers it, of all records; KeyError where there is none. parts:
    that have the figure."""

    said: str
    figure: Callable[[Records], str]
    parts: tuple[str, ...]


def lines(records: Records) -> list[list[str]]:
    """[claim, figure, parts] of each."""
    found = []
    for claim in CLAIMS:
        try:
            figure = claim.figure(records)
        except (KeyError, TypeError):  # no such part, arm or figure
            figure = _why_not(records, claim.parts)
        found.append([claim.said, figure, ", ".join(f"`{part}`" for part in claim.parts)])
    return found


def as_table(records: Records) -> str:
    return table(["claim", "figure", "part"], lines(records))


def in_words(records: Records) -> str:
    """A line for each claim, and one for each part that went wrong."""
    said = [f"{claim}: {figure}" for claim, figure, _ in lines(records)]
    wrong = [f"{name}: {what}" for name, record in records.items() if (what := _wrong(record))]
    return "\n".join(["Claims", *(f"  {line}" for line in said), *wrong])


def _why_not(records: Records, parts: tuple[str, ...]) -> str:
    wrong = [what for part in parts if part in records and (what := _wrong(records[part]))]
    return f"{NOT_YET}: {wrong[0]}" if wrong else NOT_YET


def _wrong(record: dict) -> str:
    red = [name for name, state in record["checks"].items() if state != "passed"]
    if record["error"]:
        return record["error"]
    return f"{len(red)} checks failed, {red[0]} first" if red else ""


def _cache(records: Records) -> dict:
    """The arms of the larger store that was measured."""
    found = (records[part]["arms"] for part in CACHE if part in records)
    return next(filter(None, found), {})


def _of_best(*arms: str) -> Callable[[Records], str]:
    def said(records: Records) -> str:
        found = _cache(records)
        figures = {arm: found[f"zipf-rowwise-{arm}"]["of_best"] for arm in arms if _known(found, arm)}
        if not figures:
            raise KeyError(arms)
        return ", ".join(f"{arm} {share:.0%}" for arm, share in figures.items())

    return said


def _known(found: dict, arm: str) -> bool:
    return "of_best" in found.get(f"zipf-rowwise-{arm}", {})


def _hidden(records: Records) -> str:
    arm = _cache(records)["zipf-rowwise-10%"]
    beside = _of_best("straw-man", "in-step", "lru")
    others = ""
    with contextlib.suppress(KeyError):
        others = f"; beside it {beside(records)}"
    return f"{arm['of_best']:.0%} of the best with all rows there, waits {arm['waited']:.1%}{others}"


def _right(records: Records) -> str:
    tests = records["kernels"]["arms"]["tests"]
    wrong = tests["failed"] + tests["error"]
    return f"{tests['passed']} tests passed, {wrong} not"


def _steps(records: Records) -> str:
    red = [name for name, state in records["sync"]["checks"].items() if state != "passed"]
    steps = records["sync"]["arms"]["cached"]["steps"]
    return f"holds over {steps} steps" if not red else f"{len(red)} checks failed, {red[0]} first"


def _memory_rate(records: Records) -> str:
    arms = records["lookup"]["arms"]
    return "; ".join(
        f"{name}: lookup {arms[name]['forward_share']:.0%}, update {arms[name]['update_share']:.0%}"
        for name in ("rowwise", "adam")
    )


def _packing(records: Records) -> str:
    arms = records["fields"]["arms"]
    return (
        f"{arms['packed-1000']['over_fewest_fields']:.2f}x the step of 26 fields; "
        f"{arms['packed-1000']['launches']} launches, apart {arms['apart-1000']['launches']}"
    )


def _micro(records: Records) -> str:
    arms = records["micro"]["arms"]
    return "; ".join(
        f"{name.split()[0]}: {arm['peak_mb']:,.0f} MB, {arm['over_one']:.2f}x"
        + (" (launches)" if arm.get("is_of_the_host") else "")
        for name, arm in arms.items()
        if "over_one" in arm
    ) or _raise(name="micro")


def _raise(name: str) -> str:
    raise KeyError(name)


def _planning(records: Records) -> str:
    slots = records["planning"]["arms"]["device-slots"]
    return f"{slots['ms']:.1f} ms with slots on the device, {slots['launches_ms']:.1f} of a thread"


def _link(records: Records) -> str:
    arms = records["probe"]["arms"]
    regions = [arm for name, arm in arms.items() if name.endswith("shuffled")]
    beside = arms["beside-24"]
    return (
        f"{regions[-1]['in_gb_s']:.0f} GB/s in, {regions[-1]['out_gb_s']:.0f} out, shuffled over the "
        f"largest region; beside a product {beside['in_gb_s_beside']:.0f}, and the product "
        f"takes {beside['product_slower']:.2f}x"
    )


def _two_lines(records: Records) -> str:
    arms = records["accelerate"]["arms"]
    return "; ".join(
        f"{n}: {a['pytorch_ms']:.2f} -> {a['ms']:.2f} ms" for n, a in arms.items()
    ) or _raise("accelerate")


def _deterministic(records: Records) -> str:
    arms = records["deterministic"]["arms"].values()
    compared = [arm for arm in arms if "of_default" in arm]
    if not compared:
        return f"{len(arms)} cases of ours alone: fbgemm_gpu is not installed" if arms else _raise("arms")
    least = [min(arm[way] for arm in compared) for way in ("of_default", "of_deterministic")]
    return f"at least {least[0]:.2f} of its fastest mode, {least[1]:.2f}x its deterministic one"


def _gate(names: tuple[str, ...], least: float) -> Callable[[Records], str]:
    def said(records: Records) -> str:
        arms = records["gates"]["arms"]
        gains = {name: arms[name]["gain"] for name in names if name in arms}
        if not gains:
            raise KeyError(names)
        verdict = "stays" if max(gains.values()) >= least else "goes"
        words = ", ".join(f"{name} {gain:.2f}x" for name, gain in gains.items())
        return f"{words}: {verdict} (asked {least})"

    return said


def _slots_gate(records: Records) -> str:
    arms, least = _cache(records), LEAST["slots on the device"]
    speeds = [arms[f"zipf-rowwise-{arm}"]["samples_per_s"] for arm in ("10%", "10%-host")]
    gain = speeds[0] / speeds[1]
    return f"{gain:.2f}x the host's: {'stays' if gain >= least else 'goes'} (asked {least})"


CACHE = "cache", "cache-16"
CLAIMS = (
    Claim("kernels are right on this device", _right, ("kernels",)),
    Claim("a step waits for nothing, and as a graph has the same bits", _steps, ("sync",)),
    Claim("ScratchPipe: a cache of 10 % makes training wait for nothing", _hidden, CACHE),
    Claim("how small a cache may be", _of_best("10%", "5%", "2%", "1%"), CACHE),
    Claim("PICASSO: packing, 1,000 fields over 26", _packing, ("fields",)),
    Claim("PICASSO: interleaving in parts, memory and time", _micro, ("micro",)),
    Claim("HybridHash and FAE, as they are described", _of_best("hybridhash", "hot-cold"), CACHE),
    Claim("update and lookup near the memory's rate", _memory_rate, ("lookup",)),
    Claim("planning is hidden", _planning, ("planning",)),
    Claim("the link carries it", _link, ("probe",)),
    Claim("two lines on a GPU", _two_lines, ("accelerate",)),
    Claim("equal bits cost nothing, next to FBGEMM", _deterministic, ("deterministic",)),
    Claim(
        "gate: dense kernels", _gate(("dlrm", "deepfm", "dcnv2", "din", "dien"), LEAST["dense kernels"]),
        ("gates",),
    ),
    Claim("gate: streams of packs", _gate(("streams",), LEAST["streams"]), ("gates",)),
    Claim("gate: slots mapped on the device", _slots_gate, CACHE),
)  # fmt: skip
