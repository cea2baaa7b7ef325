"""The walk of `Embedding.update`: through few packages, and downwards."""

import sys
from pathlib import Path

import pytest
import torch

import hotrows
from hotrows.engine import stages
from hotrows.engine.caching import Caching

SOURCE = Path(hotrows.__file__).parent
FLOORS = ("runtime", "optim", "ops", "ops.rows", "engine.planning", "engine.storage", "engine")


def walked(embedding, plan, vectors):
    """The packages that the calls of an update go through, in order, each with that of its caller."""
    edges, inside = [], []

    def note(frame, event, argument):
        path = Path(frame.f_code.co_filename)
        if SOURCE not in path.parents:
            return
        package = ".".join(path.relative_to(SOURCE).parts[:-1]) or path.stem
        if event == "call":
            edges.append((inside[-1] if inside else package, package))
            inside.append(package)
        elif event == "return":
            inside.pop()

    sys.setprofile(note)
    try:
        embedding.update(plan, vectors)
    finally:
        sys.setprofile(None)
    return edges


@pytest.mark.parametrize("fast_memory", [None, 8 << 10])
def test_an_update_goes_through_few_packages_and_never_up(fast_memory):
    caching = None if fast_memory is None else Caching(fast_memory)
    table = hotrows.Table("user", rows=100, dim=8, features=("user",))
    batch = hotrows.Batch(("user",), torch.tensor([3, 4, 3]), dense=torch.zeros(3, 0))
    embedding = hotrows.Embedding([table], caching=caching)
    work = next(iter(stages.start(embedding, [(0, batch)], plan_depth=0)))
    vectors = embedding.lookup(work.item.plan)
    vectors.stack().sum().backward()
    edges = walked(embedding, work.item.plan, vectors)
    assert len(edges) > 50 and {package for _, package in edges} <= set(FLOORS)
    assert len({package for _, package in edges}) <= 6
    is_up = [FLOORS.index(package) > FLOORS.index(caller) for caller, package in edges]
    up = {edge for edge, climbs in zip(edges, is_up, strict=True) if climbs}
    assert up <= {("ops", "ops.rows")}  # of one floor: PyTorch's dispatcher is between them
