"""Tables of docs/evidence/reliability.md."""

from __future__ import annotations

from tests.model_checker.rules import RULES

from benchmarks.evidence.records import Origin, Table, at

FAMILIES = {
    "memory": "up to the bounds, rows in memory",
    "file": "up to the bounds, a file, checkpoints, crashes",
    "ranks": "two ranks, up to 4 batches of 3 rows",
    "ranks file": "two ranks with files, up to 3 batches of 3 rows",
}


def faults() -> list[list[str]]:
    counts = ("trials", "faults", "equal", "refused", "different")
    kinds = at("faults/kinds")
    rows = [
        [f"`{kind}`", *(f"{k[name]:,}" for name in counts), f"{k['lost'] + k['hung'] + k['traceback']:,}"]
        for kind, k in kinds.items()
    ]
    sums = [sum(k[name] for k in kinds.values()) for name in counts]
    bad = sum(k["lost"] + k["hung"] + k["traceback"] for k in kinds.values())
    return [*rows, ["**all**", *(f"**{s:,}**" for s in (*sums, bad))]]


def fuzz() -> list[list[str]]:
    return [[kind, f"{count:,}"] for kind, count in at("fuzz/cases").items()]


def families() -> list[list[str]]:
    return [
        [
            FAMILIES.get(name, name.replace("all: ", "every training of ")),
            f"{f['cases']:,}",
            f"{f['states']:,}",
            f"{f['transitions']:,}",
            str(f["longest"]),
        ]
        for name, f in at("model_checker/families").items()
    ]


def rules() -> list[list[str]]:
    """The rules of the model, and how long the shortest schedule is that goes wrong without each."""
    events = at("model_checker/events_without_rule")
    return [[f"`{rule.name}`", rule.text, rule.fault, str(events[rule.name])] for rule in RULES]


def costs() -> list[list[str]]:
    rows = []
    for job, ways in at("durability/jobs").items():
        rows += [[job, way, f"{w['seconds']:.2f}", f"{w['cpu_seconds']:.2f}"] for way, w in ways.items()]
    return rows


TABLES = [
    Table(
        "faults",
        "kind | trials | faults | equal | refused | different | lost, hung, traceback",
        faults,
        (Origin("faults/campaigns/-1", "tests.faults"),),
    ),
    Table("fuzz", "damaged files | inputs", fuzz, (Origin("fuzz/runs/-1", "tests.fuzz"),)),
    Table(
        "families",
        "trainings | cases | states | transitions | longest schedule",
        families,
        (Origin("model_checker/runs/0", "tests.model_checker"),),
    ),
    Table("rules", "rule | what it says | without it | events of the shortest counter-example", rules),
    Table(
        "durability",
        "job | | seconds | CPU seconds",
        costs,
        (Origin("durability", "benchmarks.durability"),),
    ),
]
