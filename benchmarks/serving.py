"""How long does a request take that a bundle scores: one user, 500 candidates, one core, without PyTorch?

    python -m benchmarks.serving make FOLDER [MODEL ...]        of those below; five minutes
    python -m benchmarks.serving measure FOLDER [MODEL ...]     two minutes, on quiet cores
    python -m benchmarks.serving core FOLDER [MODEL ...]        layers in the core, and in ONNX

Each model is trained for an epoch on rows made here (of Criteo's shape, 13 numbers and 26 ids; for DIN,
DIEN and HSTU a user, an item and a history, of 1,000 items for din-1000), exported with tables of
float32, int8 and int4, and with float32 without a program for what is shared, and scored in a process of
its own, where importing PyTorch fails: time to import and to score first, then 500 requests, or those of
ten seconds. Their AUC on held-out rows says what fewer bits cost. `core` lets all ways through one bundle
score each request in turn: ONNX Runtime, with float32 and with its static int8, OpenVINO where it is
installed, the core in each precision, and for DIEN and HSTU with all users in its cache. Seconds are of
the clock, and of the thread, which other work disturbs less; differences are of predictions.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

REQUESTS, CANDIDATES, WARM, MOST_SECONDS = 500, 500, 5, 10.0
TURNS = 60  # of each way
DTYPES = ("float32", "float32, nothing shared", "int8", "int4")
MODELS = ("deepfm", "dlrm", "din-100", "din-1000", "dien-100", "dien-1000", "hstu-100", "hstu-1000")
ROWS, HELD_OUT = 20_000, 6_000
ROWS_OF_LONG, HELD_OUT_OF_LONG = 2_000, 600  # where histories are of 1,000


def make(folder: Path, models: list[str]) -> None:
    """Trains the models that are not there, and exports all."""
    import torch

    import hotrows
    from hotrows.serving.export.whole import export

    torch.set_num_threads(1)
    for model in models:
        home = folder / model
        if not (home / "run").exists():
            train, enc = table_of(model, rows_of(model)[0], 0), home / "enc"
            data = hotrows.prepare(train, schema_of(model), enc, split="position:0.9")
            config = hotrows.TrainConfig(model=model.split("-")[0], epochs=1, batch_size=256)
            hotrows.Trainer(data, config, home / "run").fit()
        for dtype in (name for name in DTYPES if not (home / name).exists()):
            kind, _, nothing = dtype.partition(",")
            shared = () if nothing else shared_of(model)
            export(home / "run", home / dtype, format="onnx", table_dtype=kind, shared=shared)


def measure(folder: Path, models: list[str]) -> None:
    """Scores by each bundle, in a process of its own."""
    from benchmarks.harness import conditions, stored, write

    figures = stored("serving").get("figures", {})
    for model in models:
        figures[model] = {dtype: measured(model, folder / model / dtype) for dtype in DTYPES}
        print(model, json.dumps(figures[model], indent=1), flush=True)
        sizes = {"requests": REQUESTS, "candidates": CANDIDATES}
        write("serving", {**sizes, "figures": figures, **conditions(1)})


def measured(model: str, bundle: Path) -> dict:
    command = [sys.executable, "-m", "benchmarks.serving", "score", model, str(bundle)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    size = sum(file.stat().st_size for file in (bundle / "tables").iterdir())
    tables = json.loads((bundle / "export.json").read_text())["tables"]
    error = max(table["largest_error"] for table in tables)
    return {"table_bytes": size, "largest_error": error, **json.loads(done.stdout)}


def score(model: str, bundle: str) -> None:
    """In a process of its own: the times and the AUC of a bundle, as JSON."""
    sys.modules["torch"] = None  # type: ignore[assignment]
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    begin = time.perf_counter()
    from hotrows.serving import Scorer

    scorer = Scorer(bundle)
    opened = time.perf_counter() - begin
    requests = [request_of(model, seed) for seed in range(20)]
    rows, shared = requests[0]
    begin = time.perf_counter()
    scorer.score(rows, shared)
    first = opened + time.perf_counter() - begin
    seconds, user_seconds = [], []
    for number in range(REQUESTS):
        rows, shared = requests[number % len(requests)]
        begin, used = time.perf_counter(), time.thread_time()
        scorer.score(rows, shared)
        seconds.append(time.perf_counter() - begin)
        user_seconds.append(time.thread_time() - used)
        if sum(seconds) > MOST_SECONDS and len(seconds) > 2 * WARM:
            break
    held_out = table_of(model, rows_of(model)[1], 1)
    at_once = len(held_out) // 3
    parts = (held_out.slice(first_row, at_once) for first_row in range(0, len(held_out), at_once))
    scores = np.concatenate([scorer.score(part) for part in parts])
    figures = {
        "import_and_first_score_s": round(first, 3),
        **{f"p{q}_ms": round(1e3 * float(np.percentile(seconds[WARM:], q)), 2) for q in (50, 99)},
        "requests": len(seconds) - WARM,
        "p50_cpu_ms": round(1e3 * float(np.median(user_seconds[WARM:])), 2),
        "auc": round(auc_of(scores, held_out["click"].to_numpy()), 6),
        "peak_memory_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
    }
    print(json.dumps(figures))


def core(folder: Path, models: list[str]) -> None:
    """Scores requests by the layers of the core and by ONNX Runtime alone, in turn, by model."""
    from benchmarks.harness import conditions, stored, write

    figures = stored("serving_core").get("figures", {})
    module = [sys.executable, "-m", "benchmarks.serving"]
    for model in models:
        command = [*module, "turns", model, str(folder / model / DTYPES[0])]
        figures[model] = json.loads(subprocess.check_output(command, text=True))
        print(model, json.dumps(figures[model], indent=1), flush=True)
        load = {"load_average": os.getloadavg(), "candidates": CANDIDATES, "turns": TURNS}
        write("serving_core", {**load, "figures": figures, **conditions(1)})


def turns(model: str, bundle: str) -> None:
    """In a process of its own: the times of the ways through a bundle, as JSON."""
    sys.modules["torch"] = None  # type: ignore[assignment]
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    requests = [request_of(model, seed) for seed in range(20)]
    ways = ways_of(Path(bundle), requests)
    outputs = {}
    for way, score in [*ways.items()]:
        try:
            outputs[way] = [score(*r) for r in requests][-1]
        except ValueError as error:  # as of HSTU in 8 bits of ONNX Runtime
            print(f"{way} is left out: {error}", file=sys.stderr)
            del ways[way]
    times: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
    differences = dict.fromkeys(ways, 0.0)
    for number in range(TURNS):
        for way in list(ways)[:: 1 if number % 2 else -1]:
            begin = time.perf_counter(), time.thread_time()
            outputs[way] = ways[way](*requests[number % len(requests)])
            times[way].append((time.perf_counter() - begin[0], time.thread_time() - begin[1]))
        for way in ways:
            largest = float(np.abs(outputs[way] - outputs["onnx"]).max())
            differences[way] = max(differences[way], largest)
    figures = {}
    for way, seconds in times.items():
        clock, thread = (1e3 * np.array(kind) for kind in zip(*seconds, strict=True))
        figures[way] = {
            **{f"p{q}_ms": round(float(np.percentile(clock, q)), 2) for q in (50, 99)},
            **{f"p{q}_cpu_ms": round(float(np.percentile(thread, q)), 2) for q in (50, 99)},
            "largest_difference": float(f"{differences[way]:.2g}"),
        }
    print(json.dumps(figures))


def ways_of(bundle: Path, requests: list) -> dict:
    """Functions that score a request, by name."""
    import dataclasses

    from hotrows.serving import Scorer
    from hotrows.serving.core_layers import open_core
    from hotrows.serving.programs import ProgramFile, _Onnx

    onnx, core = Scorer(bundle, core=False), Scorer(bundle)

    def by(scorer, **changes):
        version = dataclasses.replace(scorer.version, **changes)
        return lambda *r: scorer.predictions(scorer.logits(*r, version), version)

    program, quantized = bundle / onnx.bundle.shared_program, bundle.parent / "model.int8.onnx"
    if not quantized.exists():
        _quantize(onnx, requests[:4], program, quantized)
    ways, of_int8 = {"onnx": by(onnx)}, ProgramFile(quantized, onnx.bundle.shared_inputs)
    ways["onnx int8"] = by(onnx, shared_program=_Onnx(of_int8, 1))
    try:
        ways["openvino"] = by(onnx, shared_program=_openvino(program))
    except ImportError:
        print("OpenVINO is not installed", file=sys.stderr)
    ways["core"] = by(core)
    if any(layer.can_be_narrow for layer in core.bundle.core_layers):
        for precision in ("bfloat16", "int8"):
            of_precision = dataclasses.replace(core.bundle, precision=precision)
            model = open_core(of_precision, core.version.program.content(), 1)
            ways[f"core, {precision}"] = by(core, core=model)
    if bundle.parent.name.startswith(("dien-", "hstu-")):
        ways["core of known users"] = by(Scorer(bundle, user_cache=1 << 30))
    return ways


def _quantize(scorer, requests: list, program: Path, out: Path) -> None:
    """ONNX Runtime's static int8, calibrated on what these requests give the program."""
    import dataclasses

    from onnxruntime import quantization

    seen = []

    class Noted(quantization.CalibrationDataReader):
        """A program that keeps its inputs, and gives them again."""

        def __call__(self, inputs):
            seen.append({name: array[:64] for name, array in inputs.items()})
            return scorer.version.shared_program(inputs)

        def get_next(self):
            return seen.pop() if seen else None

    noted = Noted()
    version = dataclasses.replace(scorer.version, shared_program=noted)
    for rows, shared in requests:
        scorer.logits(rows, shared, version)
    quantization.quantize_static(program, out, noted, per_channel=True)


def _openvino(program: Path):
    import openvino

    compiled = openvino.compile_model(program, "CPU", {"INFERENCE_NUM_THREADS": 1})
    names = [entry.any_name for entry in compiled.inputs]
    return lambda inputs: compiled({name: inputs[name] for name in names})[0]


def past_of(model: str) -> int:
    """Elements of a history; 0 for a model without one."""
    return int(model.partition("-")[2] or 0)


def rows_of(model: str) -> tuple[int, int]:
    """Samples to train from, and to score behind."""
    return (ROWS_OF_LONG, HELD_OUT_OF_LONG) if past_of(model) > 100 else (ROWS, HELD_OUT)


def schema_of(model: str):
    from hotrows import Dense, Schema, Sequence, Sparse

    if num_past := past_of(model):
        past = Sequence("history", vocabulary="item", max_length=num_past)
        return Schema((Dense("age"), Sparse("user"), Sparse("item"), past), label="click")
    features = (*(Dense(f"I{n}") for n in range(13)), *(Sparse(f"C{n}") for n in range(26)))
    return Schema(features, label="click")


def table_of(model: str, rows: int, seed: int):
    """Rows with a click that depends on their first ids, or on what the history has in common."""
    import pyarrow as pa

    random = np.random.default_rng(seed)
    if num_past := past_of(model):
        kind, item = random.integers(0, 20, rows), random.integers(0, 20_000, rows)
        history = random.integers(0, 1000, (rows, num_past)) * 20 + kind[:, None]
        click = random.random(rows) < np.where(item % 20 == kind, 0.8, 0.2)
        offsets = pa.array(np.arange(rows + 1) * num_past, pa.int32())
        return pa.table(
            {
                "click": click.astype(np.int8),
                "age": random.normal(40, 9, rows),
                "user": random.integers(0, 50_000, rows),
                "item": item,
                "history": pa.ListArray.from_arrays(offsets, pa.array(history.reshape(-1))),
            }
        )
    ids = (random.zipf(1.2, (rows, 26)) % 20_000).astype(np.int64)
    signal = ((ids % 7 - 3) * np.linspace(0.4, 0, 26)).sum(1)
    click = random.random(rows) < 1 / (1 + np.exp(-signal))
    columns = {f"I{n}": random.exponential(3, rows) for n in range(13)}
    columns |= {f"C{n}": ids[:, n] for n in range(26)}
    return pa.table({"click": click.astype(np.int8), **columns})


def request_of(model: str, seed: int):
    """Candidates as an Arrow table, and what is shared: of Criteo's shape half of the columns."""
    table = table_of(model, CANDIDATES, 100 + seed).drop_columns(["click"])
    names = shared_of(model)
    shared = {name: table[name][0].as_py() for name in names}
    return table.drop_columns(names), shared


def shared_of(model: str) -> list[str]:
    """The features of the user: of Criteo's shape every other one."""
    names = [feature.name for feature in schema_of(model).features]
    return ["age", "user", "history"] if past_of(model) else names[::2]


def auc_of(scores: np.ndarray, labels: np.ndarray) -> float:
    """The probability that a click is scored above another row; ties count as one half."""
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (counts.cumsum() - (counts - 1) / 2)[place]
    positives = int(labels.sum())
    above = ranks[labels == 1].sum() - positives * (positives + 1) / 2
    return float(above / (positives * (len(labels) - positives)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("make", "measure", "core", "score", "turns"))
    parser.add_argument("where", help="the folder; with score and turns: a model, and its bundle")
    parser.add_argument("models", nargs="*")
    given = parser.parse_args()
    if given.what in ("score", "turns"):
        {"score": score, "turns": turns}[given.what](given.where, *given.models)
    else:
        of_folder = {"make": make, "measure": measure, "core": core}
        of_folder[given.what](Path(given.where), given.models or list(MODELS))
