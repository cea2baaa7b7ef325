"""Which kinds of work does a training step of each model consist of, here and at another commit?

    python -m benchmarks.shares --tree TREE         of a built tree of that commit; some minutes

The cases of `benchmarks.floors`, with tables of a tenth of the rows, and HSTU; one thread. Times are of
the processor for the thread, which other work disturbs less than the clock's: of a step, and of each
operation of PyTorch and function of the core in it. Planning, which training does on another thread, is
left out, and so is what measuring an operation costs. Medians of five steps. Where attention is not one
function, its products are among products.
"""

import argparse
import dataclasses
import inspect
import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import median

QUESTION = (__doc__ or "").split("\n")[0]
CASES = ("din-dim16", "dien-dim16", "can-dim16", "hstu-dim16", "deepfm", "dcnv2")
STEPS, WARM = 5, 3
KINDS = {  # by a part of an operation's name, the first that fits
    "layers over lists": ("target", "pointwise_attention", "co_action", "gru", "recurrent", "jagged",
                          "weighted", "last_state"),
    "products": ("mkldnn", "addmm", "aten.mm.", "bmm", "row_products"),
    "interactions": ("second_order", "dot_interaction"),
    "element by element": ("norm", "silu", "sigmoid", "relu", "tanh", "dice", "softmax", "aten.mul",
                           "aten.add.", "aten.add_.", "aten.addcmul", "aten.sub", "aten.div"),
}  # fmt: skip
WHOLE = {"lookup": "embedding", "update": "embedding", "dense": "optimizer"}  # phases of a step
SHARES = (*KINDS, "embedding", "optimizer", "rest")


def main() -> None:
    from benchmarks.harness import ROOT, add, conditions

    parser = argparse.ArgumentParser(description=QUESTION)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--tree", type=Path, required=True, help="of another commit, with a built core")
    args = parser.parse_args()
    commit = subprocess.check_output(["git", "-C", str(args.tree), "rev-parse", "HEAD"], text=True)
    for case in args.cases or CASES:
        figures = {}
        for name, tree in {"then": args.tree, "now": ROOT}.items():
            code = os.environ | {"PYTHONPATH": f"{tree / 'src'}:{tree}", "OMP_NUM_THREADS": "1"}
            command = [sys.executable, str(Path(__file__)), case]
            figures[name] = json.loads(subprocess.check_output(command, env=code, cwd=tree, text=True))
            print(case, name, figures[name], flush=True)
        facts = {"question": QUESTION, "commit_then": commit.strip(), **conditions(1)}
        add("shares", ["models", case], figures, facts)


def shares_of(case: str) -> dict[str, float]:
    """Milliseconds of a step in all, and of each kind of work."""
    step, core, spent = step_of(case)
    plain = []
    for k in range(WARM + STEPS):
        spent.clear()
        step(k)
        plain.append(1e3 * sum(spent.values()))
    for name in [name for name in vars(core) if name.startswith("hotrows")]:
        core.__dict__[name] = _timed(name, core.__dict__[name], spent)
    seen: list[dict[tuple[str, str], float]] = []
    for k in range(STEPS):
        spent.clear()
        with _operations(spent):
            step(k)
        seen.append(dict(spent))
    ms, found = median(plain[WARM:]), dict.fromkeys(SHARES, 0.0)
    for phase, name in {place for one in seen for place in one}:
        part = 1e3 * median(one.get((phase, name), 0.0) for one in seen)
        if phase in WHOLE:
            found[WHOLE[phase]] += part if name == "all" else 0.0
        elif name != "all":
            fitting = (
                kind for kind, parts in KINDS.items() if any(text in name.lower() for text in parts)
            )
            found[next(fitting, "rest")] += part
    found["rest"] = ms - sum(part for kind, part in found.items() if kind != "rest")
    return {"ms": ms, **found}


def step_of(case: str) -> tuple[Callable[[int], None], object, dict]:
    """The step, the core that it calls, and where its parts write their seconds, by phase and name."""
    import torch
    from torch.nn.functional import binary_cross_entropy_with_logits

    from benchmarks import floors, workload
    from hotrows import models

    torch.set_num_threads(1)
    torch.manual_seed(0)
    tenth = {"num_rows": workload.CRITEO_TENTH, "num_batches": 4}
    floors.WORKLOADS["A"] = dataclasses.replace(workload.WORKLOADS["A"], **tenth)
    floors.SEQUENCES["hstu"] = {"layers": 2, "heads": 2}
    kind, _, dim = case.partition("-dim")
    made = floors._sequence_case(kind, int(dim)) if dim else floors._criteo_case(kind)
    model, embedding, data = made
    choose = floors.choose_linear_paths
    size = (data[0].size,) if "batch_size" in inspect.signature(choose).parameters else ()
    floors.use_linear_paths(model, choose(model, *size))
    core = floors.native.load()
    core.hotrows_keep_freed_memory()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3, fused=True)
    spent: dict[tuple[str, str], float] = defaultdict(float)

    def phase(name: str, work: Callable):
        _PHASE[0], begin = name, time.thread_time()
        out = work()
        spent[name, "all"] += time.thread_time() - begin
        _PHASE[0] = ""
        return out

    def step(k: int) -> None:
        batch = data[k % 4]
        plan = embedding.plan(batch, k)
        vectors = phase("lookup", lambda: embedding.lookup(plan))

        def loss():
            logits, own = models.logits_and_loss(model(vectors, batch.dense))
            loss = binary_cross_entropy_with_logits(logits.float(), batch.labels)
            return loss if own is None else loss + own

        phase("backward", phase("forward", loss).backward)
        phase("update", lambda: embedding.update(plan, vectors))
        phase("dense", lambda: (optimizer.step(), optimizer.zero_grad()))

    return step, core, spent


_PHASE = [""]


def _timed(name: str, function: Callable, spent: dict) -> Callable:
    def call(*inputs):
        begin = time.thread_time()
        try:
            return function(*inputs)
        finally:
            if _PHASE[0]:
                spent[_PHASE[0], name] += time.thread_time() - begin

    return call


def _operations(spent: dict):
    """Within it, PyTorch's own operations write their seconds."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Operations(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, inputs=(), options=None):
            begin = time.thread_time()
            out = function(*inputs, **(options or {}))
            own = not str(function).startswith("hotrows.")  # its function of the core is timed itself
            if own and _PHASE[0]:
                spent[_PHASE[0], str(function)] += time.thread_time() - begin
            return out

    return Operations()


if __name__ == "__main__":
    if len(sys.argv) == 2 and sys.argv[1] in CASES:
        print(json.dumps(shares_of(sys.argv[1])))
    else:
        main()
