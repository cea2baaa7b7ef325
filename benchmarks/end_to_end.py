"""How fast is one whole training step, next to the peers?

    python -m benchmarks.end_to_end [COMPARISON ...] [--arms ARM ...] [--quick]

A comparison holds the algorithm fixed: the same model, optimizer and precision in every arm, except
where an arm's note says otherwise. Overheads show where batches are small, or tables many.
"""

from benchmarks.harness import Comparison, main

PYTORCH = ("plain-torch", "fbgemm", "torchrec")
CTR_LIBRARIES = ("deepctr-torch", "fuxictr", "torch-rechub")

COMPARISONS = {
    "dlrm-adagrad": Comparison(
        "--workload A --model dlrm --optimizer adagrad", peers=(*PYTORCH, "tensorflow", "glued")
    ),
    "dlrm-rowwise": Comparison(
        "--workload A --model dlrm --optimizer rowwise",
        peers=("fbgemm", "torchrec", "glued"),
        baseline="fbgemm",
    ),
    "dlrm-sgd": Comparison(
        "--workload A --model dlrm --optimizer sgd", peers=(*PYTORCH, "tensorflow", "glued")
    ),
    "dlrm-adagrad-bfloat16": Comparison(
        "--workload A --model dlrm --optimizer adagrad --precision bfloat16",
        peers=(*PYTORCH, "tensorflow", "glued"),
    ),
    "dlrm-rowwise-bfloat16": Comparison(
        "--workload A --model dlrm --optimizer rowwise --precision bfloat16",
        peers=("fbgemm", "torchrec", "glued"),
        baseline="fbgemm",
    ),
    "dlrm-adagrad-small-batch": Comparison(
        "--workload A --model dlrm --optimizer adagrad --batch-size 2048",
        peers=(*PYTORCH, "tensorflow", "glued"),
    ),
    "deepfm-adagrad": Comparison(
        "--workload A --model deepfm --optimizer adagrad",
        peers=("plain-torch", "fbgemm", "tensorflow", "glued"),
    ),
    "deepfm-adam": Comparison(
        "--workload A --model deepfm --optimizer adam", peers=("plain-torch", *CTR_LIBRARIES)
    ),
    "461-tables-adagrad": Comparison(
        "--workload B461 --model mlp --optimizer adagrad", peers=("plain-torch", "fbgemm", "tensorflow")
    ),
    "many-tables-adagrad": Comparison(
        "--workload B --model mlp --optimizer adagrad", peers=(*PYTORCH, "tensorflow", "glued")
    ),
    "many-tables-rowwise": Comparison(
        "--workload B --model mlp --optimizer rowwise",
        peers=("fbgemm", "torchrec", "glued"),
        baseline="fbgemm",
    ),
    "many-tables-sgd": Comparison(
        "--workload B --model mlp --optimizer sgd", peers=(*PYTORCH, "tensorflow", "glued")
    ),
}

if __name__ == "__main__":
    main("How fast is one whole training step, next to the peers?", COMPARISONS)
