"""The stages of training behind a cache, one at a time, in any order that the schedule allows."""

import pytest

from hotrows.engine.pipeline.runner import NoMore
from hotrows.engine.pipeline.schedule import Work, may_run
from hotrows.engine.stages import training_stages
from tests.support.cached import train


class Coming:
    """Batches that come in their own time, one whenever `draw` says so."""

    def __init__(self, batches, draw):
        self.batches, self.draw, self.num_there, self.num_taken = batches, draw, 0, 0

    def __iter__(self):
        for numbered in enumerate(self.batches):
            self.num_taken += 1
            yield numbered

    def has_arrived(self):
        return self.num_there > self.num_taken or self.num_there == len(self.batches)

    def may_come(self, is_needed):
        comes = is_needed or self.draw.random() < 0.2
        self.num_there = min(self.num_there + comes, len(self.batches))


def run_in_some_order(embedding, batches, choose, coming=None):
    """Runs stages one at a time; `choose` picks among all that the schedule allows."""
    arrived = None if coming is None else coming.has_arrived
    stages = training_stages(embedding, coming or enumerate(batches), arrived=arrived)
    done, works, losses = [0] * len(stages), {}, []
    while done[-1] < len(batches):
        ready = []
        for s in range(len(stages)):
            batch = done[s]
            if batch == len(batches):
                continue
            work = works.setdefault(batch, Work(batch))
            if s == 0 and coming is not None and not stages[0].has_input():
                continue
            if may_run(stages, s, batch, work.waits_for, done):
                ready.append(s)
        if coming is not None:
            coming.may_come(is_needed=not ready)
            if not ready:
                continue
        s = choose(ready)
        work = works[done[s]]
        if stages[s].run is None:
            stages[s].begin(work)
            losses.append(train(embedding, work.number, work.item.batch, work.item.plan))
            stages[s].end(work)
        else:
            stages[s].run(work)
        done[s] += 1
    with pytest.raises(NoMore):
        stages[0].run(Work(len(batches)))
    return losses
