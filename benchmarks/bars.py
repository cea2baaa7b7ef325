"""Two cores against a V100: how fast is BARS' recipe on the engine, and under `accelerate`?

    python -m benchmarks.peers ctr fuxictr-zoo       # once
    python -m benchmarks.bars                        # every model; results/bars.json
    python -m benchmarks.bars deepfm --quick

FuxiCTR's own models and step (dense Adam 1e-3, L2 of 1e-5 on whole tables, the norm of all gradients
clipped at 10, dim 10, three layers of 400 with batch normalisation and dropout, batches of 4,096), plain
and under `hotrows.accelerate`, beside the engine with `DenseAdam` on models of equal layers; on synthetic
samples of Criteo_x1's shape. Beside them stands what the logs of BARS say of one V100. Each model's loss
curves on all arms, in small, are compared too.
"""

import argparse
import json
import subprocess
import sys
import time

import torch

from benchmarks import harness
from benchmarks.harness import Arm
from benchmarks.peers import python_of

RESULT = harness.RESULTS / "bars.json"
ENVIRONMENT, MODULE = "ctr", "bars_arm"
EPOCH = 50  # steps
FIRST = 8
ARMS = {
    "fuxictr": Arm(ENVIRONMENT, MODULE, f"--library fuxictr --epoch-steps {EPOCH // 10}", "plain"),
    "fuxictr+hotrows": Arm(
        ENVIRONMENT, MODULE, f"--library accelerate --epoch-steps {EPOCH}", "the same under accelerate"
    ),
    "hotrows": Arm(
        ENVIRONMENT, MODULE, f"--library hotrows --epoch-steps {EPOCH}", "the engine, its loader included"
    ),
}
LOGS = "https://github.com/reczoo/BARS, ranking/ctr"


def _log(path: str, begin: str, seconds: int, samples: int = 33_003_326) -> dict:
    """The first epoch of a log, validation included. samples: those that it trains."""
    return {
        "log": f"{LOGS}/{path}", "epoch_begins": begin, "seconds": seconds,
        "samples_per_s": round(samples / seconds), "gpu": "Tesla V100 32G",
    }  # fmt: skip


BARS = {
    "deepfm": _log(
        "DeepFM/DeepFM_criteo_x1/DeepFM_criteo_x1_001_4b788fed.log", "2022-02-08 10:20:23", 1319
    ),
    "widedeep": _log(
        "WideDeep/WideDeep_criteo_x1/WideDeep_criteo_x1_010_3a06c5bc.log", "2022-02-06 13:56:55", 1328
    ),
    "dlrm": _log("DLRM/DLRM_criteo_x1/DLRM_criteo_x1_001_4d897285.log", "2022-05-29 15:06:02", 924),
}
DIN = _log(
    "DIN/DIN_taobaoad_x1/DIN_taobaoad_x1_012_13c23a36.log", "2022-08-12 06:13:36", 1174, 21_929_911
)
CAVEATS = (
    "the logs are of 2022: PyTorch 1.0, CUDA 10.2, a data loader of 3 processes over arrays in memory, "
    "which may be what bounds them; a V100 can do more today",
    "FuxiCTR here is 2.3.10, whose recipe is that of the logs (1.1); its batches are in memory and no "
    "loader is counted for it; the engine's own loader is counted",
    "samples are synthetic, of Criteo_x1's number of rows by field; ids follow Zipf's law (1.05), labels "
    "are random",
    "an epoch is short (epoch_steps, fewer of plain FuxiCTR, whose steps cost alike), the validation "
    "part a quarter as long; all rows catch up at its end, and that counts",
    "DIN on TaobaoAd is not run: its attention of 512 and 256 over histories padded to 50 takes 0.1 "
    "billion floating-point operations a sample; the 18,680 samples/s of the log are 1.9e12 of them a "
    "second, about ten times what two cores can do",
    "what other programs used of the cores stands beside each figure (other_cores); where it is more "
    "than a tenth, what a second of one core's time trains (samples_per_cpu_second, of all threads "
    "together) says more than samples_per_s, and two cores for themselves reach twice that at most",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", metavar="MODEL", help=", ".join(BARS))
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="few steps; nothing is written")
    args = parser.parse_args()
    if unknown := set(args.models) - set(BARS):
        parser.error(f"no model {sorted(unknown)}; there are {', '.join(BARS)}")
    arms = ARMS if not args.quick else {name: _short(arm) for name, arm in ARMS.items()}
    for name in args.models or BARS:
        print(f"\nbars-{name}, {args.threads} threads", flush=True)
        setting = f"--model {name} --optimizer adam --workload criteo-x1 --threads {args.threads}"
        rounds = harness.run(arms, setting, args.rounds, args.threads, arms)
        figures = harness.summarize(rounds, "fuxictr", arms)
        print(harness.table(figures))
        for arm, row in figures.items():
            per_core = [seen["samples_per_cpu_second"] for seen in row["rounds"] if "cpu_time" in seen]
            print(f"{arm:16} {max(per_core, default=0):,.0f} samples per second of one core")
        print(f"{'BARS, V100':14} {BARS[name]['samples_per_s']:11,}  {BARS[name]['log']}")
        facts = {"setting": setting, "num_rounds": args.rounds, **harness.conditions(args.threads)}
        result = facts | {"bars": BARS[name], "arms": figures, "loss_curves": _loss_curves(name)}
        result["products_gflop_per_s"] = _product_rate(args.threads)
        if not args.quick:
            known = json.loads(RESULT.read_text()) if RESULT.exists() else {}
            question = __doc__.splitlines()[0]
            models = {**known.get("models", {}), name: result}
            about = {"question": question, "caveats": CAVEATS, "not_run": {"din": DIN}}
            harness.write_to(RESULT, {**about, "models": models})
    print("\n" + "\n".join(f"- {caveat}" for caveat in CAVEATS))


def _short(arm: Arm) -> Arm:
    return Arm(arm.environment, arm.module, f"{arm.arguments} --epoch-steps 8", arm.note)


def _product_rate(threads: int) -> float:
    """1e9 floating-point operations a second of a layer's product, at best: what bounds every arm."""
    torch.set_num_threads(threads)
    samples, weights, seconds = torch.randn(4096, 400), torch.randn(400, 400), []
    for _ in range(50):
        begin = time.perf_counter()
        samples @ weights
        seconds.append(time.perf_counter() - begin)
    return 2e-9 * samples.numel() * 400 / min(seconds)


def _loss_curves(model: str) -> dict:
    """The distance of each arm's log losses from FuxiCTR's in float64, by batch of a small epoch. Batch
    normalisation and Adam amplify what rounding does, in every arm in float32."""
    command = f"-W ignore -m benchmarks.arms.{MODULE} --model {model} --check".split()
    python = str(python_of(ENVIRONMENT))
    done = subprocess.run([python, *command], cwd=harness.ROOT, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    curves = json.loads(done.stdout.splitlines()[-1])
    exact = curves["fuxictr, float64"]
    away = {
        name: [abs(a - b) for a, b in zip(curve, exact, strict=True)] for name, curve in curves.items()
    }
    print(f"log losses, largest distance from float64: in {FIRST} small batches, and in {len(exact)}")
    for name, distances in away.items():
        print(f"  {name:22} {max(distances[:FIRST]):.1e} {max(distances):.1e}")
    return {"float64": exact, "distance": away}


if __name__ == "__main__":
    main()
