"""What arms of sequence models share: their arguments."""

import argparse

from benchmarks.sequences import BATCH_SIZE

MODELS = ("din", "dien", "can")


def parse(**own: tuple[str, ...]) -> argparse.Namespace:
    """The arguments of all arms, and of one: `own` choices, the first of which is the default."""
    return parser(**own).parse_args()


def parser(**own: tuple[str, ...]) -> argparse.ArgumentParser:
    found = argparse.ArgumentParser()
    found.add_argument("--model", choices=MODELS, default="din")
    found.add_argument("--dim", type=int, default=16)
    found.add_argument("--batch-size", type=int, default=BATCH_SIZE)
    found.add_argument("--threads", type=int, default=2)
    found.add_argument("--windows", type=int, default=5, help="windows of time that are measured")
    found.add_argument("--max-seconds", type=float, default=60, help="to wait for quiet windows")
    for name, choices in own.items():
        found.add_argument(f"--{name}", choices=choices, default=choices[0])
    return found
