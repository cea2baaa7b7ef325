"""What a step takes in memory on processors, by the number of micro-batches: for a part of a page."""

from __future__ import annotations

import ctypes
import itertools
import json
import sys
import time
from pathlib import Path
from statistics import median

import torch

from benchmarks.gpu_parts.workloads import Training, batches_of, dlrm, embedding_of, ready, zipf_stream
from hotrows.runtime.machine import peak_memory


def measure(request: dict) -> dict:
    """The most memory that steps take beyond what is there before the first, and their median time.

    request: parts, rows of each of 26 tables, dim, batch_size, steps, small: a small dense part.
    """
    torch.set_num_threads(2)
    num_rows, batch_size = [request["rows"]] * 26, request["batch_size"]
    model = dlrm(num_rows, request["dim"], "cpu", request["small"])
    parts = request["parts"]
    embedding = embedding_of(model.tables, "rowwise", "cpu", micro_batches=parts)
    training = Training(model, embedding, "cpu")
    stream = zipf_stream(num_rows, 2 * batch_size, "cpu")
    works = itertools.cycle(ready(embedding, batches_of(stream, batch_size)))
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # the peak is now what is there
    before, seconds = peak_memory(), []
    for _ in range(request["steps"]):
        begin = time.perf_counter()
        training.step(next(works))
        seconds.append(time.perf_counter() - begin)
    return {"peak_mb": (peak_memory() - before) / 1e6, "ms": median(seconds) * 1e3}


if __name__ == "__main__":
    print(json.dumps(measure(json.loads(sys.argv[1]))))
