"""Which stage of which batch may run when: literal tables, and what every table has in common."""

import pytest

from hotrows.engine.pipeline.schedule import Stage, may_run

STAGES = [
    Stage("plan", "plan"),
    Stage("collect", "move", enters=True),
    Stage("insert", "move"),
    Stage("train", "train"),
    Stage("write", "write"),
]


def cycles(stages, waits):
    """The schedule of a pipeline whose stages take one cycle each: what runs in each cycle.

    waits: which batch each batch waits for. In a lane the stage nearest to the end goes first.
    """
    done, table = [0] * len(stages), []
    while done[-1] < len(waits):
        cycle, lanes = [], set()
        for s in reversed(range(len(stages))):
            batch = done[s]
            free = stages[s].lane not in lanes
            if free and batch < len(waits) and may_run(stages, s, batch, waits[batch], done):
                cycle.append(s)
                lanes.add(stages[s].lane)
        table.append([(stages[s].name, done[s]) for s in reversed(cycle)])
        for s in cycle:
            done[s] += 1
    return table


def waits(batches, in_flight):
    return [max(batch - in_flight, -1) for batch in range(batches)]


def table(batches, in_flight):
    return [" ".join(f"{s}{b}" for s, b in cycle) for cycle in cycles(STAGES, waits(batches, in_flight))]


def test_four_in_flight_fill_every_lane():
    assert table(4, 4) == [
        "plan0",
        "plan1 collect0",
        "plan2 insert0",
        "plan3 collect1 train0",
        "insert1 write0",
        "collect2 train1",
        "insert2 write1",
        "collect3 train2",
        "insert3 write2",
        "train3",
        "write3",
    ]


def test_one_in_flight_is_one_after_the_other():
    assert table(2, 1) == [
        "plan0",
        "plan1 collect0",
        "insert0",
        "train0",
        "write0",
        "collect1",
        "insert1",
        "train1",
        "write1",
    ]


def test_a_batch_that_waits_lets_the_pipeline_drain():
    drained = cycles(STAGES, [-1, -1, 1, 2])  # batch 2 alone
    at = {work: number for number, cycle in enumerate(drained) for work in cycle}
    assert at["collect", 2] > at["write", 1] and at["collect", 3] > at["write", 2]


@pytest.mark.parametrize("in_flight", [1, 2, 3, 5])
def test_every_stage_runs_once_in_both_orders(in_flight):
    ran = [work for cycle in cycles(STAGES, waits(9, in_flight)) for work in cycle]
    names = [stage.name for stage in STAGES]
    assert len(ran) == len(set(ran)) == 9 * len(STAGES)
    for name in names:
        assert [batch for stage, batch in ran if stage == name] == list(range(9))
    for batch in range(9):
        assert [stage for stage, b in ran if b == batch] == names


def test_a_stage_may_not_overtake():
    done = [3, 2, 1, 1, 0]
    assert may_run(STAGES, 0, 3, 0, done)
    assert may_run(STAGES, 1, 2, -1, done)
    assert not may_run(STAGES, 1, 2, 0, done), "batch 0 has not left"
    assert not may_run(STAGES, 2, 2, -1, done), "batch 1 comes first"
    assert not may_run(STAGES, 3, 1, -1, done), "not inserted yet"
