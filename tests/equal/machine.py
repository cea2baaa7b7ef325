"""The machine: a task, trained piece by piece, each in another way."""

import itertools
from pathlib import Path

from hypothesis import assume
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from tests.equal import arms
from tests.equal.arms import Arm, Task, Watch

TASKS = st.builds(
    Task,
    data=st.sampled_from(arms.DATA),
    optimizer=st.sampled_from(list(arms.OPTIMIZERS)),
    order=st.sampled_from(arms.ORDERS),
    bits=st.sampled_from(arms.BITS),
    place=st.sampled_from(arms.PLACES),
)
ARMS = st.builds(
    Arm,
    memory=st.sampled_from((None, 900, 2_000, 6_000)),
    in_file=st.booleans(),
    policy=st.sampled_from(("lookahead", "lookahead:3", "lru", "frequency:2,3")),
    plan_depth=st.integers(0, 4),
    in_flight=st.integers(1, 3),
    pack_parts=st.integers(1, 2),
    full_every=st.integers(1, 4),
    in_background=st.booleans(),
)
ENDS = st.tuples(st.sampled_from(("interrupt", "kill")), st.integers(1, 9))
MOST_STEPS = 20


class Equalities(RuleBasedStateMachine):
    """folder: of the data, the plain runs and the runs of the machine; given by the test. tasks: that are
    drawn."""

    folder: Path
    tasks = TASKS
    _number = itertools.count()

    @initialize(task=st.runner().flatmap(lambda machine: machine.tasks), arm=ARMS)
    def begin(self, task: Task, arm: Arm) -> None:
        self.task, self.has_ended = task, False
        self.place = self.folder / f"run-{next(self._number)}"
        self.in_file = arm.in_file and arm.memory is not None  # rows stay where they are
        self.plain = arms.plain(task, self.folder)

    @rule(arm=ARMS, ends=ENDS, at=st.integers(1, MOST_STEPS), evaluates=st.booleans())
    def go(self, arm: Arm, ends: tuple[str, int], at: int, evaluates: bool) -> None:
        if not self.has_ended:
            self._go(arm, ends, Watch(at, evaluates))

    def _go(self, arm: Arm, ends: tuple[str, int] | None, watch: Watch | None) -> None:
        assume(not self.in_file or arm.memory is not None)
        arm = arms.dataclasses.replace(arm, in_file=self.in_file)
        data = arms.data_of(self.task.data, self.folder)
        self.has_ended = arms.go(self.task, arm, data, self.place, ends, watch)
        for step, seen in watch.seen.items() if watch else ():
            assert seen == self.plain.seen[step], f"{self.task} has other weights after step {step}"

    def teardown(self) -> None:
        if not hasattr(self, "plain"):
            return
        if not self.has_ended:
            self._go(Arm(memory=2_000 if self.in_file else None), None, None)
        found = arms.contents(self.place / "run", self.place / "merged", self.task)
        other = [name for name, value in found.items() if self.plain.contents.get(name) != value]
        assert not other, f"{self.task} ends with {other}"
        missing = self.plain.contents.keys() - found.keys()
        assert not missing or self.in_file, f"{self.task} ends without {missing}"
