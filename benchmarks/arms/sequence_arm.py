"""What arms of sequence models share: their arguments."""

import argparse

from benchmarks.sequences import BATCH_SIZE

MODELS = ("din", "dien", "can")


def parse(**own: tuple[str, ...]) -> argparse.Namespace:
    """The arguments of all arms, and of one: `own` choices, the first of which is the default."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=MODELS, default="din")
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--batch-size", type=int, default=BATCH_SIZE)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--windows", type=int, default=5, help="windows of time that are measured")
    parser.add_argument("--max-seconds", type=float, default=60, help="to wait for quiet windows")
    for name, choices in own.items():
        parser.add_argument(f"--{name}", choices=choices, default=choices[0])
    return parser.parse_args()
