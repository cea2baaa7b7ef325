"""The command of the fuzzer: batches of cases in their own processes; a failure is made smaller."""

from __future__ import annotations

import argparse
import dataclasses
import logging
import multiprocessing
import pprint
import sys
import time
from collections.abc import Iterator
from typing import Any

from tests.acceleration.fuzz import CASE_SECONDS, Case, case_of, check
from tests.fuzz.case import Broken

BATCH = 40  # cases of a process


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--packing", choices=("yes", "no"), help="else, by the seed")
    parser.add_argument("--go-on", action="store_true", help="names every new finding, to the end")
    parser.add_argument("--only", action="store_true", help="the case of --seed alone")
    parser.add_argument("--shrink", type=float, default=60, help="seconds to make a finding smaller")
    args = parser.parse_args()
    packing = {"yes": True, "no": False, None: None}[args.packing]
    end, seed, kinds = time.monotonic() + args.seconds, args.seed, set()
    while time.monotonic() < end or args.only:
        seeds = range(seed, seed + 1 if args.only else seed + BATCH)
        finding = run_batch(((s, case_of(s, packing)) for s in seeds), end)
        if finding is None:
            if args.only:
                break
            seed += BATCH
            continue
        number, why = finding
        kind = "".join(letter for letter in why if not letter.isdigit())[:60]
        if kind not in kinds:
            kinds.add(kind)
            print(f"seed {number}: {why}", flush=True)
            if args.shrink:
                show(smallest(case_of(number, packing), kind, args.shrink))
        if not args.go_on or args.only:
            return 1
        seed = number + 1
    print(f"seeds {args.seed} to {seed - 1}")
    return 1 if kinds else 0


def run_batch(cases: Iterator[tuple[int, Case]], end: float) -> tuple[int, str] | None:
    """The first finding, of cases in a process of its own; one that dies or hangs is a finding, too."""
    fork = multiprocessing.get_context("fork")
    receiver, sender = fork.Pipe()
    process = fork.Process(target=_work, args=(cases, sender, end))
    process.start()
    sender.close()
    seed, finding = -1, None
    try:
        while receiver.poll(CASE_SECONDS * 2):
            kind, what = receiver.recv()
            if kind == "begins":
                seed = what
            else:
                finding = seed, what
        finding = seed, "hangs, and no signal gets through"
    except EOFError:
        process.join()
        if process.exitcode != 0:
            finding = seed, f"the process died with {process.exitcode}"
    process.kill()
    process.join()
    return finding


def _work(cases: Iterator[tuple[int, Case]], to: Any, end: float) -> None:
    for seed, case in cases:
        if time.monotonic() > end:
            break
        to.send(("begins", seed))
        try:
            check(case)
        except Broken as broken:
            to.send(("broken", str(broken)))
            break


def smallest(case: Case, kind: str, seconds: float) -> Case:
    """The case with as much left out as still shows the same."""
    end = time.monotonic() + seconds
    progress = True
    while progress and time.monotonic() < end:
        progress = False
        for smaller in smaller_cases(case):
            if time.monotonic() > end:
                break
            finding = run_batch(iter([(0, smaller)]), end + CASE_SECONDS)
            if (
                finding is not None
                and "".join(c for c in finding[1] if not c.isdigit())[:25] == kind[:25]
            ):
                case, progress = smaller, True
                break
    return case


def smaller_cases(case: Case) -> Iterator[Case]:
    model, loop = case.model, case.loop

    def with_loop(**changes: Any) -> Case:
        return dataclasses.replace(case, loop=dataclasses.replace(loop, **changes))

    steps = loop.steps
    for half in (len(steps) // 2, len(steps) * 3 // 4):
        if 0 < half < len(steps):
            yield with_loop(steps=steps[:half])
    if len(model.parts) > 3:
        for half in (model.parts[: len(model.parts) // 2], model.parts[len(model.parts) // 2 :]):
            yield dataclasses.replace(case, model=dataclasses.replace(model, parts=half))
    for i in range(len(model.parts)):
        parts = model.parts[:i] + model.parts[i + 1 :]
        yield dataclasses.replace(case, model=dataclasses.replace(model, parts=parts))
    used = {name for user in (*model.parts, *model.tables) for name in user.uses}
    for i, table in enumerate(model.tables):
        if table.name not in used and len(model.tables) > 1:
            tables = model.tables[:i] + model.tables[i + 1 :]
            yield dataclasses.replace(case, model=dataclasses.replace(model, tables=tables))
    for i in reversed(range(len(steps))):
        if len(steps) > 1:
            yield with_loop(steps=steps[:i] + steps[i + 1 :])
    if loop.packing:
        yield with_loop(packing=False)
    if loop.scheduler:
        yield with_loop(scheduler="")
    if loop.threads > 1:
        yield with_loop(threads=1)
    for i in range(len(loop.hooks)):
        yield with_loop(hooks=loop.hooks[:i] + loop.hooks[i + 1 :])
    yield from _simpler_optimizers(case)
    for i, step in enumerate(steps):
        for simpler in _simpler_steps(step):
            yield with_loop(steps=(*steps[:i], simpler, *steps[i + 1 :]))


def _simpler_optimizers(case: Case) -> Iterator[Case]:
    def with_optimizer(**changes: Any) -> Case:
        optimizer = dataclasses.replace(case.loop.optimizer, **changes)
        return dataclasses.replace(case, loop=dataclasses.replace(case.loop, optimizer=optimizer))

    settings = case.loop.optimizer
    if settings.apart:
        yield with_optimizer(apart=False)
    if settings.second is not None:
        yield with_optimizer(second=None, apart=False)
    for i, (name, _) in enumerate(settings.options):
        if name not in ("lr", "eps"):
            yield with_optimizer(options=settings.options[:i] + settings.options[i + 1 :])
    if settings.kind != "SGD":
        yield with_optimizer(kind="SGD", options=(("lr", 0.1),), second=None, apart=False)


def _simpler_steps(step: Any) -> Iterator[Any]:
    for name in ("penalty", "after", "then"):
        values = getattr(step, name)
        for i in range(len(values)):
            yield dataclasses.replace(step, **{name: values[:i] + values[i + 1 :]})
    if len(step.sizes) > 1:
        yield dataclasses.replace(step, sizes=step.sizes[:1])
    for name, plain in (("backward", "each"), ("how", "step"), ("zero", "none"), ("sizes", (2,))):
        if getattr(step, name) != plain:
            yield dataclasses.replace(step, **{name: plain})


def show(case: Case) -> None:
    print(case.model.text)
    pprint.pprint(case.loop, width=120)
    sys.stdout.flush()


if __name__ == "__main__":
    logging.getLogger("torch._dynamo").setLevel(logging.ERROR)
    sys.exit(main())
