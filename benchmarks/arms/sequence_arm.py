"""What arms of sequence models share: their arguments."""

import argparse

from benchmarks.sequences import BATCH_SIZE

MODELS = ("din", "dien", "can", "hstu")


def parse(**options: tuple[str, ...]) -> argparse.Namespace:
    """The arguments of all arms, and `options` of one: choices, the first of which is the default."""
    return parser(**options).parse_args()


def parser(**options: tuple[str, ...]) -> argparse.ArgumentParser:
    options_parser = argparse.ArgumentParser()
    options_parser.add_argument("--model", choices=MODELS, default="din")
    options_parser.add_argument("--dim", type=int, default=16)
    options_parser.add_argument("--batch-size", type=int, default=BATCH_SIZE)
    options_parser.add_argument("--threads", type=int, default=2)
    options_parser.add_argument(
        "--windows", type=int, default=5, help="windows of time that are measured"
    )
    options_parser.add_argument("--max-seconds", type=float, default=60, help="to wait for quiet windows")
    options_parser.add_argument(
        "--warmup", type=float, default=5.0, help="seconds before the first window"
    )
    options_parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32")
    for name, choices in options.items():
        options_parser.add_argument(f"--{name}", choices=choices, default=choices[0])
    return options_parser
