"""Arguments for each registered op."""

import torch

from hotrows import SGD
from hotrows.ops.record import RecordLayout
from tests.support.row_rules import hyper_tensor

LAYOUT = RecordLayout(4)


def arguments(device):
    """One call of each op, on a device."""
    ids, rows = torch.tensor([3, 1, 3, 0]), torch.tensor([0, 1, 3])
    order, starts = torch.tensor([3, 1, 0, 2]).int(), torch.tensor([0, 1, 2, 4]).int()
    inverse, records = torch.tensor([2, 1, 2, 0]).int(), torch.zeros(5, 16, dtype=torch.uint8)
    keys = torch.tensor([0, 5]), torch.tensor([[7, 0, 1, 0, 4]])
    layout, first = LAYOUT.as_ints(), torch.tensor([0])
    bag_starts, bags = torch.tensor([0, 1, 4]).int(), torch.tensor([0, 1, 1, 1]).int()
    calls = {
        "resolve": (ids, None, 4, first, first, torch.tensor([5]), 1),
        "unique_padded": (ids,),
        "pool": (records, layout, rows, inverse, bag_starts, torch.ones(4)),
        "sum_gradients": (torch.ones(2, 4), order, starts, bags, None),
        "update": (records, layout, rows, rows, order, starts, bags, None, torch.ones(2, 4), "sgd",
                   hyper_tensor(SGD(), 0), *keys),
        "initialize": (records, layout, torch.arange(5), *keys, "uniform", 0.1, []),
        "copy_rows": (records.clone(), rows, records, None),
        "unique": (ids,),
        **_of_slots(),
    }  # fmt: skip
    return {
        name: tuple(arg.to(device) if isinstance(arg, torch.Tensor) else arg for arg in args)
        for name, args in calls.items()
    }


def _of_slots():
    """Of a cache of two slots, one of them free, in front of five rows."""
    slot_of, coming = torch.tensor([-1, 0, -1, -1, -1]).int(), torch.tensor([-1, 2, -1, 1, -1]).int()
    row_of, last_use = torch.tensor([1, -1]).int(), torch.tensor([0, -(2**31)]).int()
    ranking, progress = torch.tensor([1, 0]).int(), torch.tensor([0, 1, 1])
    rows = torch.tensor([1, 3, -1])
    filled = torch.zeros(3).long(), torch.zeros(4, 3).long(), torch.zeros(4).long()
    return {
        "feed_rows": (coming.clone(), rows, 3),
        "touch_slots": (slot_of.clone(), last_use.clone(), rows, 1),
        "rank_slots": (*(t.clone() for t in (row_of, last_use, coming, ranking, progress)), 1, 1),
        "take_slots": (slot_of, row_of, last_use, coming, ranking, progress, rows, 1, 1, *filled),
    }
