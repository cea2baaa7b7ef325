"""How fast is the embedding alone: lookup, backward and update, next to the peers?

    python -m benchmarks.embedding [COMPARISON ...] [--arms ARM ...] [--quick]

A step of workload A looks up 213,000 ids, 26 for each of 8,192 samples; one of workload B two
million, in a thousand tables. Offsets and jagged tensors are made beforehand, as a loader would.
"""

from benchmarks.harness import Comparison, main

INLINE = "hotrows-inline"
FUSED = ("fbgemm", "torchrec")

COMPARISONS = {
    "sgd": Comparison(
        "--workload A --optimizer sgd --embedding-only",
        peers=(INLINE, "plain-torch", *FUSED, "tensorflow"),
        baseline="fbgemm",
    ),
    "rowwise": Comparison(
        "--workload A --optimizer rowwise --embedding-only", peers=(INLINE, *FUSED), baseline="fbgemm"
    ),
    "adagrad": Comparison(
        "--workload A --optimizer adagrad --embedding-only",
        peers=(INLINE, "plain-torch", *FUSED, "tensorflow"),
        baseline="fbgemm",
    ),
    "adam": Comparison(
        "--workload A --optimizer adam --embedding-only",
        peers=(INLINE, "plain-torch"),  # the others have no sparse Adam on the CPU
    ),
    "many-tables-adagrad": Comparison(
        "--workload B --optimizer adagrad --embedding-only",
        peers=(INLINE, "plain-torch", *FUSED, "tensorflow"),
        baseline="fbgemm",
    ),
    "many-tables-rowwise": Comparison(
        "--workload B --optimizer rowwise --embedding-only", peers=(INLINE, *FUSED), baseline="fbgemm"
    ),
}

if __name__ == "__main__":
    main("How fast is the embedding alone: lookup, backward and update?", COMPARISONS)
