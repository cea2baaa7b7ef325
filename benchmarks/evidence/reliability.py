"""Tables of docs/evidence/reliability.md."""

from __future__ import annotations

from tests.model_checker.rules import RULES

from benchmarks.evidence.records import Origin, Table, at
from benchmarks.machines import goodput, seconds_of_10_gb

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


def machines() -> list[list[str]]:
    """Runs at URLs on machines that share no disk: what was wanted, and what was measured."""
    m = at("machines/result")
    job = m["job_seconds_url"] / m["job_seconds_folder"]
    p, n = at("preemptions/result"), at("machines-notices/result")
    assert p["equal_bits"]
    taken = f"{p['checkpoints_lost']} of {p['preemptions']}"
    notices = f"{n['notices_answered_in_time']} of {n['notices']}"
    return [
        ["first step after a loss, 10 GB of rows, extrapolated", "60 s", f"{seconds_of_10_gb(m):.0f} s"],
        ["of an hour with a preemption, the part that is kept, 10 GB", "0.9", f"{goodput(m):.2f}"],
        ["preemptions by a published trace, 4, 3 and 1 ranks: checkpoints lost", "0", taken],
        ["bits at their end, beside an undisturbed run of as many ranks", "equal", "equal"],
        [
            "steps made twice after a notice, with thirty processes on two cores",
            "0",
            str(p["steps_made_twice_after_notice"]),
        ],
        ["notices answered within 25 s while storage fails", "20 of 20", notices],
        ["samples/s that uploads cost", "3 %", f"{max(m['upload_share'], 0):.1%}"],
        ["seconds of a whole job, of one in a shared folder", "1.05", f"{job:.2f}"],
        ["bytes that a rank fetches to resume, of its own", "1.1", f"{max(m['fetched_of_own']):.2f}"],
        [
            f"{m['faults']:,} calls to storage that failed: files lost, or with other bytes",
            "0",
            f"{m['files_lost'] + m['files_with_other_bytes']}",
        ],
    ]


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


TABLES = [
    Table(
        "faults",
        "kind | trials | faults | equal | refused | different | lost, hung, traceback",
        faults,
        (Origin("faults/campaigns/-1", "tests.faults"),),
    ),
    Table(
        "machines",
        "machines without a shared disk | aim | measured",
        machines,
        (
            Origin("machines/conditions", "benchmarks.machines"),
            Origin("preemptions/conditions", "benchmarks.preemptions"),
            Origin("machines-notices/conditions", "benchmarks.machines --parts notices"),
        ),
    ),
    Table("fuzz", "damaged files | inputs", fuzz, (Origin("fuzz/runs/-1", "tests.fuzz"),)),
    Table(
        "families",
        "trainings | cases | states | transitions | longest schedule",
        families,
        (Origin("model_checker/runs/-1", "tests.model_checker"),),
    ),
    Table("rules", "rule | what it says | without it | events of the shortest counter-example", rules),
]
