"""A counter-example as text: the plans of the batches, the schedule step by step, and what is wrong."""

from __future__ import annotations

from collections.abc import Iterable

from tests.model_checker.cases import Case, PlannedBatch
from tests.model_checker.explorer import STAGES, Event, Explored, Fault

_STEPS = {
    "exchange": "ranks exchange rows and gradients of batch {n}",
    "pause": "a pause is requested after {n} batches",
    "evaluate": "the pause reads all rows through the cache",
    "flush": "the checkpoint of step {n} flushes: transfers end, changed slots are written to the log",
    "close-log": "the store syncs its log and names it in store.json",
    "publish": "the run points at the checkpoint of step {n}",
    "retain": "the store retains the checkpoints that the run points at",
    "resume": "the pause ends",
    "name-base": "store.json names base-{n}",
    "merge-row": "merging log-{n} writes row {r} into base-{n}",
    "merged": "store.json names base-{n}; what it replaces goes, unless a checkpoint needs it",
    "switch": "reads look into base-{n}",
    "delete-log": "log-{n} is deleted",
    "crash": "CRASH: all processes are gone",
    "restore": "a restart goes back to generation {n} in store.json",
    "open-logs": "the logs are opened",
    "start": "training begins with batch {n}",
}


def explained(case: Case, explored: Explored) -> str:
    """The text of a counter-example."""
    assert explored.fault is not None
    lines = [_settings(case)]
    for rank in range(case.num_ranks):
        for number, plan in enumerate(case.plans(rank, 0)):
            lines.append(f"  {_of_rank(case, rank)}batch {number} {_plan(plan)}")
    start = 0
    for number, event in enumerate(explored.trace, 1):
        if event.kind == "start":
            start = event.number
        lines.append(f"{number:4}  {_of_rank(case, event.rank)}{_step(case, event, start)}")
    return "\n".join([*lines, f"WRONG {_fault(case, explored.fault)}"])


def _settings(case: Case) -> str:
    parts = [
        f"{case.num_slots} slot{'s' * (case.num_slots > 1)}",
        f"{case.in_flight} in flight",
        "rows in a file" if case.in_file else "rows in memory",
    ]
    if case.num_ranks > 1:
        parts.append(f"{case.num_ranks} ranks")
    return ", ".join(parts)


def _of_rank(case: Case, rank: int) -> str:
    return f"rank {rank}: " if case.num_ranks > 1 else ""


def _rows(rows: Iterable[int]) -> str:
    numbers = list(map(str, rows))
    if not numbers:
        return "no row"
    return f"row{'s' * (len(numbers) > 1)} {', '.join(numbers)}"


def _placed(slots: dict[int, int]) -> str:
    return ", ".join(f"row {row} in slot {slot}" for row, slot in slots.items())


def _plan(plan: PlannedBatch) -> str:
    parts = [f"uses {_rows(plan.used)}"]
    if plan.bypasses:
        parts.append("bypasses the cache")
    if plan.rows_out:
        parts.append(f"evicts {_placed(plan.rows_out)}")
    if plan.rows_in:
        parts.append(f"brings in {_placed({row: plan.slots[row] for row in plan.rows_in})}")
    if plan.waits_for >= 0:
        parts.append(f"waits until batch {plan.waits_for} has left")
    return "; ".join(parts)


def _step(case: Case, event: Event, start: int) -> str:
    name, _, edge = event.kind.rpartition("-")
    if edge not in ("begins", "ends"):
        return _STEPS[event.kind].format(n=event.number, r=event.row)
    plan, title = case.plans(event.rank, start)[event.number - start], name.replace("write", "write back")
    if name == "plan" and case.num_ranks == 1:
        return f"plan {event.number}"
    return f"{title} {event.number} {edge}{_effect(name, edge, plan)}"


def _effect(name: str, edge: str, plan: PlannedBatch) -> str:
    texts = {
        ("collect", "begins"): [
            f"reads {_rows(plan.rows_in)} from the store" if plan.rows_in else "",
            f"copies {_placed(plan.rows_out).replace(' in ', ' out of ')}" if plan.rows_out else "",
        ],
        ("insert", "ends"): [
            f"{_placed({row: plan.slots[row] for row in plan.rows_in})}" if plan.rows_in else ""
        ],
        ("train", "begins"): [f"looks up {_rows(plan.used)}"],
        ("train", "ends"): [f"updates {_rows(plan.used)}"],
        ("write", "ends"): [f"stores {_rows(plan.rows_out)}, if changed" if plan.rows_out else ""],
    }
    effects = [text for text in texts.get((name, edge), []) if text]
    return f": {', '.join(effects)}" if effects else ""


def _fault(case: Case, fault: Fault) -> str:
    where = _of_rank(case, fault.rank)
    if fault.kind == "deadlock":
        return "no stage may begin or end any more, and training is not at its end"
    if fault.kind == "race":
        stage, batch = divmod(fault.number, 8)
        return f"{where}meanwhile {STAGES[stage]} {batch} is at the same slot or row; one of them writes"
    what = {
        "wrong read": f"training on batch {fault.number}",
        "wrong evaluation": f"the evaluation after {fault.number} batches",
        "wrong checkpoint": f"the checkpoint of step {fault.number}",
        "lost checkpoint": f"the checkpoint of step {fault.number}, should a crash come now,",
        "wrong end": "what reads all rows at the end",
    }[fault.kind]
    if fault.expected is None:
        return f"{where}{what} cannot be read: files that it needs are gone"
    found, expected = _value(fault.found), _value(fault.expected)
    return f"{where}{what} finds {found}, where serial training has {expected}"


def _value(token: tuple[int, int] | None) -> str:
    if token is None:
        return "no value"
    row, version = token
    return f"row {row} as batch {version - 1} left it" if version else f"row {row} as it was at first"
