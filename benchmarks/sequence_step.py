"""How fast is a training step of a model that reads histories, next to the peers?

    python -m benchmarks.sequence_step                      # every comparison
    python -m benchmarks.sequence_step dien-dim16 --quick

Batches of 2,048 samples with 40 clicks on average and 100 at most; four million items. All have the
same shapes: attention 80-40 with sigmoid and softmax, MLP 256-128-64; DIEN a GRU, that attention over
its states, and AUGRU. hotrows and padded-torch train their rows with Adagrad, the rest with Adam.
"""

from benchmarks.harness import OURS, Arm, Comparison, main

ARMS = {
    "hotrows": Arm(OURS, "sequence_hotrows"),
    "hotrows-auxiliary": Arm(OURS, "sequence_hotrows", "--auxiliary on", "learns the auxiliary loss too"),
    "padded-torch": Arm(
        OURS, "sequence_padded", "--first decomposed", "attention's first layer in parts"
    ),
    "padded-torch-concat": Arm(OURS, "sequence_padded", "--first concat"),
    "deepctr-torch": Arm(
        "ctr", "sequence_libraries", "--library deepctr-torch", "dense Adam; padded to 100"
    ),
    "fuxictr": Arm("ctr", "sequence_libraries", "--library fuxictr", "dense Adam"),
}
OTHERS = ("padded-torch", "padded-torch-concat", "deepctr-torch", "fuxictr")


def comparisons() -> dict[str, Comparison]:
    comparisons = {}
    for dim in (16, 64):
        comparisons[f"din-dim{dim}"] = Comparison(f"--model din --dim {dim}", OTHERS, "padded-torch")
        comparisons[f"dien-dim{dim}"] = Comparison(
            f"--model dien --dim {dim}", ("hotrows-auxiliary", *OTHERS), "padded-torch"
        )
    comparisons["hstu-dim16"] = Comparison("--model hstu --dim 16", ("padded-torch",), "padded-torch")
    comparisons["can-dim16"] = Comparison("--model can --dim 16", ("padded-torch",), "padded-torch")
    return comparisons


if __name__ == "__main__":
    main(__doc__.splitlines()[0], comparisons(), ARMS)
