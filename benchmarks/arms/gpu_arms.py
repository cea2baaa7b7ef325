"""The arms of `benchmarks.gpu_parts.cache`, by name: where rows are, and how a step comes by them.

On the device: all rows there; of these the fastest is what a cache is held against. On the host: a
cache on the device in front of records in host memory, driven as hotrows does and as others do.
"""

from dataclasses import dataclass, field

import torch

from hotrows.engine.planning.policy import LRU, Frequency, Hot, Lookahead, Policy

WINDOW = 64  # batches looked ahead: as far as a stream of 170 allows without seeing itself again
_HOT = Hot(torch.empty(0, dtype=torch.int64))  # its rows come from `Caching.hot_ids`


@dataclass(frozen=True)
class Arm:
    """what: in words. share: of the rows that are on the device; None: all.

    step: `eager`, `graph` (as one CUDA graph) or `compiled` (that, of a compiled model). planning: on
    the `host` or `device`; `before`: before the clock runs. overlapped: stages run side by side.
    kind: `hotrows`; `plain`: PyTorch alone; `in-step`: `StepCache`; `hot-cold`: batches of hot
    rows alone and all others. exact: its rows have equal bits, not only equal but for rounding.
    """

    what: str
    share: float | None = None
    step: str = "graph"
    planning: str = "host"
    policy: Policy = field(default_factory=lambda: Lookahead(WINDOW))
    in_flight: int = 4
    overlapped: bool = True
    kind: str = "hotrows"
    exact: bool = True


ON_DEVICE = {
    "whole-graph": Arm("plans of the device, the step a CUDA graph", planning="device"),
    "whole-there": Arm("plans of the device", step="eager", planning="device"),
    "whole": Arm("plans of the host", step="eager"),
    "plain": Arm("PyTorch: one table, index_select, unique, index_add", kind="plain", exact=False),
    "step-alone": Arm("24 batches in turn, planned before: no part of the comparison", planning="before"),
    "whole-compiled": Arm(
        "plans of the device, the model compiled, a graph",
        step="compiled",
        planning="device",
        exact=False,
    ),
    "plain-compiled": Arm(
        "PyTorch as `plain`, its model compiled", step="compiled", kind="plain", exact=False
    ),
}

ON_HOST = {
    "10%": Arm("looks ahead, the device maps slots, stages overlap, a graph", 0.10, planning="device"),
    "straw-man": Arm(
        "ScratchPipe's: a window of two, every stage in turn", 0.10, policy=Lookahead(2), in_flight=1,
        overlapped=False,
    ),
    "in-step": Arm("TorchRec's way: sets of 32 by LRU, filled within the step", 0.10, planning="device",
                   kind="in-step"),
    "10%-eager": Arm("as 10%, kernel by kernel", 0.10, step="eager", planning="device"),
    "10%-host": Arm("as 10%, planned by the host", 0.10),
    "lru": Arm("LRU, stages overlap", 0.10, policy=LRU, planning="device"),
    "5%": Arm("as 10%", 0.05, planning="device"),
    "2%": Arm("as 10%", 0.02, planning="device"),
    "1%": Arm("as 10%", 0.01, planning="device"),
    "hot": Arm("the most popular rows stay", 0.10, policy=_HOT),
    "hybridhash": Arm(
        "after PICASSO's: the rows that most batches used stay; misses cross within the step", 0.10,
        policy=Frequency(16, 16), in_flight=1, overlapped=False,
    ),
    "hot-cold": Arm(
        "FAE's: batches of hot rows alone, and all others", 0.10, policy=_HOT, kind="hot-cold"
    ),
    "uncached": Arm("every row crosses within the step", 0.0, step="eager", policy=LRU),
}  # fmt: skip

ARMS = ON_DEVICE | ON_HOST
REFERENCES = ("whole-compiled", "whole-graph", "whole-there", "whole", "plain-compiled", "plain")
