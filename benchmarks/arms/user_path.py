"""A whole training as a user starts it, one arm a process: `user_path ARM FOLDER MODEL BATCH_SIZE`.

Arms of this library read the prepared data, the others the same rows as arrays (see
`benchmarks.user_path`). All train one epoch on shuffled samples, evaluate on the validation and the
test part, and save their weights. The last line is JSON with the wall clock at each turn.
"""

import argparse
import contextlib
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.workload import DIM, LEARNING_RATE, Workload

SEED = 0
STEP_SECONDS = 8.0  # that the step alone is timed


def main() -> None:
    begin = time.time()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("arm", choices=ARMS)
    parser.add_argument("folder", type=Path)
    parser.add_argument("model")
    parser.add_argument("batch_size", type=int, help="0: the default")
    args = parser.parse_args()
    figures = ARMS[args.arm](args)
    print(json.dumps({"begin": begin, "end": time.time(), **figures}))


def hotrows(args: argparse.Namespace) -> dict[str, Any]:
    """The command `hotrows train` in this process, with the times of its turns noted."""
    from hotrows.cli import main as command
    from hotrows.train.loop import trainer

    turns: dict[str, Any] = {"evaluations": []}
    step, evaluate = trainer.Trainer._train_step, trainer.evaluate

    def noted_step(self, runner) -> None:
        turns.setdefault("first_step", time.time())
        step(self, runner)
        turns["last_step"] = time.time()

    def noted_evaluate(*arguments, **settings):
        begin = time.time()
        metrics = evaluate(*arguments, **settings)
        turns["evaluations"].append((begin, time.time()))
        return metrics

    trainer.Trainer._train_step, trainer.evaluate = noted_step, noted_evaluate
    run = Path(tempfile.mkdtemp(dir=args.folder)) / "run"
    sizes = ["--batch-size", str(args.batch_size)] if args.batch_size else []
    sys.argv = ["hotrows", "train", str(args.folder / "data"), "--model", args.model, *sizes]
    sys.argv += ["--run", str(run)]
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(sys.stderr):
        command()
    result = json.loads((run / "result.json").read_text())
    config = json.loads((run / "config.json").read_text())
    return turns | {
        "auc": result["test"]["auc"],
        "samples": config["epochs"] * _rows(args.folder, "train"),
        "batch_size": config["batch_size"],
    }


def step(args: argparse.Namespace) -> dict[str, Any]:
    """This library's loader and step with the settings of the command, without a run around them."""
    from hotrows.data import EncodedData
    from hotrows.train.config import TrainConfig
    from hotrows.train.loop.step_trainer import StepTrainer, keep_freed_memory

    keep_freed_memory()
    config = TrainConfig(model=args.model, batch_size=args.batch_size or None)
    trained = StepTrainer(EncodedData.open(args.folder / "data"), config)
    trained.choose_linear_paths()
    runner = trained.start()
    assert trained.config.batch_size is not None
    for _ in range(20):
        trained.train(next(runner))
    begin, steps = time.time(), 0
    while time.time() - begin < STEP_SECONDS and trained.state.step < trained.batches.total_steps - 1:
        trained.train(next(runner))
        steps += 1
    seconds = time.time() - begin
    runner.close()
    samples = steps * trained.config.batch_size
    return {"first_step": begin, "last_step": begin + seconds, "samples": samples, "evaluations": []}


def plain(args: argparse.Namespace) -> dict[str, Any]:
    """A careful loop in PyTorch: sparse gradients for tables, fused Adam for the rest."""
    import torch
    from torch.nn.functional import binary_cross_entropy_with_logits

    from benchmarks.arms.malloc import keep_freed_memory
    from benchmarks.arms.plain_torch import Bags
    from benchmarks.arms.torch_models import dense_model

    keep_freed_memory()
    torch.manual_seed(SEED)
    parts = {name: tuple(map(torch.from_numpy, part)) for name, part in _parts(args.folder).items()}
    dense, ids, labels = parts["train"]
    workload = _workload(args, dense.shape[1])
    tables = Bags(workload.num_rows, DIM, args.batch_size) if args.model == "deepfm" else None
    first = Bags(workload.num_rows, 1, args.batch_size)
    layers = dense_model(args.model, workload)
    rows = [*first.parameters(), *(tables.parameters() if tables else ())]
    optimizers = (
        torch.optim.Adagrad(rows, LEARNING_RATE),
        torch.optim.Adam(layers.parameters(), 1e-3, fused=True),
    )

    def logits(dense: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        columns = ids.long().t().contiguous()
        return layers(dense, tables and tables(columns), first(columns).sum((1, 2)))

    def auc_of(part: str) -> float:
        pieces = [piece.split(args.batch_size) for piece in parts[part][:2]]
        with torch.no_grad():
            scores = torch.cat([logits(*piece) for piece in zip(*pieces, strict=True)])
        return _auc(scores.numpy(), parts[part][2].numpy())

    turns: dict[str, Any] = {"first_step": time.time(), "evaluations": []}
    for places in torch.randperm(len(labels)).split(args.batch_size):
        loss = binary_cross_entropy_with_logits(logits(dense[places], ids[places]), labels[places])
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        loss.item()
    turns["last_step"] = time.time()
    auc_of("validation")
    turns["auc"] = auc_of("test")
    turns["evaluations"].append((turns["last_step"], time.time()))
    with tempfile.NamedTemporaryFile(dir=args.folder) as file:
        torch.save([layers.state_dict(), first.state_dict(), tables and tables.state_dict()], file.name)
    return turns | {"samples": len(labels), "batch_size": args.batch_size}


def deepctr(args: argparse.Namespace) -> dict[str, Any]:
    """DeepCTR-Torch's DeepFM, and its `fit`."""
    import torch
    from sklearn.metrics import roc_auc_score

    from benchmarks.arms import ctr_libraries

    parts = _parts(args.folder)
    asked = argparse.Namespace(workload=_workload(args, 13), batch_size=args.batch_size)
    _, model, _ = ctr_libraries.deepctr(asked, [])
    dense, sparse = ctr_libraries._names(asked)

    def columns(part: str) -> tuple[dict[str, np.ndarray], np.ndarray]:
        values, ids, labels = parts[part]
        named = {name: ids[:, n] for n, name in enumerate(sparse)}
        return named | {name: values[:, n] for n, name in enumerate(dense)}, labels

    model.metrics = {"auc": roc_auc_score}
    first = time.time()
    model.fit(
        *columns("train"),
        batch_size=args.batch_size,
        epochs=1,
        verbose=0,
        validation_data=columns("validation"),
    )
    last = time.time()
    inputs, labels = columns("test")
    auc = roc_auc_score(labels, model.predict(inputs, args.batch_size))
    with tempfile.NamedTemporaryFile(dir=args.folder) as file:
        torch.save(model.state_dict(), file.name)
    turns = {"first_step": first, "last_step": last, "evaluations": [], "auc": auc}
    return turns | {"samples": len(parts["train"][2]), "batch_size": args.batch_size}


def fuxictr(args: argparse.Namespace) -> dict[str, Any]:
    """FuxiCTR's DeepFM, its loader of arrays, and its `fit`."""
    from fuxictr.pytorch.dataloaders.npz_dataloader import NpzDataLoader

    from benchmarks.arms import ctr_libraries

    parts = _parts(args.folder)
    asked = argparse.Namespace(workload=_workload(args, 13), batch_size=args.batch_size, regularizer=0.0)
    _, model, _ = ctr_libraries.fuxictr(asked, [])
    dense, sparse = ctr_libraries._names(asked)
    loaders = {}
    for part, (values, ids, labels) in parts.items():
        path = args.folder / f"fuxictr-{part}.npz"
        if not path.exists():
            columns = {name: values[:, n] for n, name in enumerate(dense)}
            columns |= {name: ids[:, n] for n, name in enumerate(sparse)}
            np.savez(path, **columns, label=labels)
        loaders[part] = NpzDataLoader(
            model.feature_map, str(path), args.batch_size, shuffle=part == "train", num_workers=1
        )
    Path(model.checkpoint).parent.mkdir(parents=True, exist_ok=True)
    first = time.time()
    model.fit(loaders["train"], epochs=1, validation_data=loaders["validation"])
    last = time.time()
    auc = float(model.evaluate(loaders["test"])["AUC"])
    turns = {"first_step": first, "last_step": last, "evaluations": [], "auc": auc}
    return turns | {"samples": len(parts["train"][2]), "batch_size": args.batch_size}


ARMS = {"hotrows": hotrows, "step": step, "plain": plain, "deepctr": deepctr, "fuxictr": fuxictr}


def _parts(folder: Path) -> dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """dense [N, 13] float32, ids [N, 26] int32 and labels [N] float32 of each part."""
    with np.load(folder / "arrays.npz") as file:
        return {
            part: (file[f"{part}_dense"], file[f"{part}_ids"], file[f"{part}_labels"])
            for part in ("train", "validation", "test")
        }


def _rows(folder: Path, part: str) -> int:
    return int(json.loads((folder / "about.json").read_text())["samples"][part])


def _workload(args: argparse.Namespace, num_dense: int) -> Workload:
    rows = json.loads((args.folder / "about.json").read_text())["rows"]
    return Workload(tuple(rows), num_dense, args.batch_size, 0)


def _auc(scores: np.ndarray, labels: np.ndarray) -> float:
    """The chance that a positive sample's score is above a negative one's; ties count as half."""
    _, places, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[places]
    positive = labels > 0
    num = int(positive.sum())
    return float((ranks[positive].sum() - num * (num + 1) / 2) / (num * (len(labels) - num)))


if __name__ == "__main__":
    main()
