"""Words that people have for options: what wrong names lead to, and what `--help=WORD` finds them by."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

_EMPTY = frozenset(("num", "n", "use", "no", "max", "min", "the", "model"))


@dataclass(frozen=True)
class Asked:
    """An option, other words for it, and how it is given, if its name does not say that."""

    option: str
    words: str
    answer: str = ""


_ASKED = (
    Asked("--option", "dim embedding dimension width vector size", "--option dim=32"),
    Asked("--option", "hidden layers units mlp dnn", "--option hidden=[64,32]"),
    Asked("--device", "gpu gpus cuda accelerator", "--device cuda"),
    Asked("--device", "cpu", "--device cpu"),
    Asked(
        "--planning-threads",
        "threads workers jobs cores cpus",
        "OMP_NUM_THREADS=4 before the command (threads of the model), --planning-threads 4 (of planning)",
    ),
    Asked("--stop-patience", "early stopping stop patience"),
    Asked("--decay-patience", "reduce plateau scheduler schedule"),
    Asked("--row-option", "weight decay l2 regularization", "--row-option weight_decay=1e-6"),
    Asked("--fast-memory", "cache ram memory limit", "--fast-memory 2GiB"),
    Asked("--run", "output out dir directory folder checkpoint save log name", "--run FOLDER"),
    Asked("--out", "output file save to", "--out FILE"),
    Asked("--seed", "random state"),
    Asked("--epochs", "iterations iter rounds"),
    Asked("--precision", "fp16 bf16 float16 mixed amp half", "--precision bfloat16"),
    Asked("--init-from", "warm start pretrained finetune from", "--init-from RUN"),
    Asked("--strict", "require columns fail missing"),
    Asked("--tracker", "tensorboard wandb mlflow logger", "--tracker mlflow"),
    Asked("--max-rows", "batch candidates limit"),
    Asked("--timeout", "deadline seconds wait"),
)


def answers(name: str, options: Iterable[str]) -> list[str]:
    """How the options that a wrong name may mean are given, of those that a command has.

    >>> answers("--early-stopping", ["--epochs", "--stop-patience"])
    ['--stop-patience']
    """
    words = {word for word in re.findall(r"[a-z0-9]+", name.lower()) if word not in _EMPTY}
    known = set(options)
    likeness = {
        wish.answer or wish.option: len(words & set(wish.words.split()))
        for wish in _ASKED
        if wish.option in known
    }
    best = max(likeness.values(), default=0)
    return [how for how, same in likeness.items() if same == best and 2 * same >= max(len(words), 1)]


def words_of(option: str) -> str:
    """Other words for an option."""
    return " ".join(wish.words for wish in _ASKED if wish.option == option)
