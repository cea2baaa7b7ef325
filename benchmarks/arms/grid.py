"""An arm at several batch sizes and precisions, in one process: a line of figures for each.

python -m benchmarks.arms.grid MODULE --model dlrm --threads 1 --batch-sizes 256 --precisions float32 ...
"""

import argparse
import gc
import importlib
import itertools
import sys


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("module", help="in benchmarks/arms; its own arguments follow")
    parser.add_argument("--batch-sizes", type=int, nargs="+", required=True)
    parser.add_argument("--precisions", nargs="+", required=True)
    args, others = parser.parse_known_args()
    module = importlib.import_module(f"benchmarks.arms.{args.module}")
    for batch_size, precision in itertools.product(args.batch_sizes, args.precisions):
        sys.argv = [args.module, *others, "--batch-size", str(batch_size), "--precision", precision]
        module.main()
        gc.collect()
        sys.stdout.flush()


if __name__ == "__main__":
    main()
