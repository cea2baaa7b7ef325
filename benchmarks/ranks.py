"""How fast do two ranks train on one machine, next to one rank with two threads and to the peers?

    python -m benchmarks.ranks                          # every comparison
    python -m benchmarks.ranks dlrm din --quick

Every arm has the same cores (`--threads`, shared by its ranks), the same global batch, the same samples
in memory. samples/s counts the global batch, MB the processes of an arm together. What goes over the
loopback interface in a step stands beside: bytes, packets, and collectives that PyTorch was asked for.

What two ranks of hotrows should reach, as a multiple of

    hotrows on one rank with two threads           0.9
    torchrec-ranks                                 1.8
    plain-ranks                                    2.2
    tensorflow-ps, DLRM and DeepFM                 1.8
    tensorflow-ps, DIN and DIEN                    3
    tensorflow-ps, 461 fields                      8

TorchRec and plain PyTorch hold each table whole on one rank: TorchRec refuses other shardings of
FBGEMM's tables on CPUs. Both update rows as hotrows does: by `--optimizer`, TorchRec in backward.
TensorFlow has one worker and one parameter server, which take turns on the same cores.
"""

from benchmarks.harness import OURS, Arm, Comparison, main

ARMS = {
    "hotrows-ranks": Arm(OURS, "hotrows_ranks", "--ranks 2"),
    "hotrows": Arm(OURS, "hotrows_arm", note="one rank"),
    "hotrows-histories": Arm(OURS, "sequence_hotrows", note="one rank"),
    "torchrec-ranks": Arm("torchrec", "torchrec_ranks", "--ranks 2", "table-wise"),
    "torchrec-ranks-pipeline": Arm(
        "torchrec", "torchrec_ranks", "--ranks 2 --pipeline sparse-dist", "table-wise"
    ),
    "plain-ranks": Arm(OURS, "plain_ranks", "--ranks 2", "table-wise"),
    "plain-ranks-histories": Arm(OURS, "plain_ranks_sequences", "--ranks 2", "table-wise, padded"),
    "plain-ranks-decomposed": Arm(
        OURS, "plain_ranks_sequences", "--ranks 2 --first decomposed", "no [q, k, q - k, q * k] is made"
    ),
    "tensorflow-ps": Arm("tensorflow", "tensorflow_servers", "--histories padded"),
    "tensorflow-ps-packed": Arm(
        "tensorflow", "tensorflow_servers", "--histories packed", "histories without padding"
    ),
}
FIELDS = ("hotrows-ranks", "hotrows")
HISTORIES = ("hotrows-ranks", "hotrows-histories")
TORCHREC = ("torchrec-ranks", "torchrec-ranks-pipeline")
PADDED = ("plain-ranks-histories", "plain-ranks-decomposed")
TENSORFLOW = ("tensorflow-ps", "tensorflow-ps-packed")

DLRM = "--workload A --model dlrm --batch-size 8192 --optimizer"
DEEPFM = "--workload A --model deepfm --batch-size 8192 --optimizer"
TABLES = "--model mlp --optimizer adagrad --workload"

COMPARISONS = {
    "dlrm": Comparison(f"{DLRM} adagrad", (*TORCHREC, "plain-ranks", "tensorflow-ps"), "hotrows", FIELDS),
    "dlrm-rowwise": Comparison(f"{DLRM} rowwise", TORCHREC, "hotrows", FIELDS),
    "deepfm": Comparison(
        f"{DEEPFM} adagrad", (*TORCHREC, "plain-ranks", "tensorflow-ps"), "hotrows", FIELDS
    ),
    "din": Comparison(
        "--model din --dim 16 --batch-size 8192", (*PADDED, *TENSORFLOW), "hotrows-histories", HISTORIES
    ),
    "dien": Comparison(
        "--model dien --dim 16 --batch-size 8192", (*PADDED, *TENSORFLOW), "hotrows-histories", HISTORIES
    ),
    "din-model-parallel": Comparison(
        "--model din --dim 16 --batch-size 8192", PADDED, "hotrows-ranks", ("hotrows-ranks",)
    ),
    "dien-model-parallel": Comparison(
        "--model dien --dim 16 --batch-size 8192", PADDED, "hotrows-ranks", ("hotrows-ranks",)
    ),
    "461-tables": Comparison(
        f"{TABLES} B461L", (*TORCHREC, "plain-ranks", "tensorflow-ps"), "hotrows", FIELDS
    ),
    "461-tables-small-batch": Comparison(
        f"{TABLES} B461", (*TORCHREC, "plain-ranks", "tensorflow-ps"), "hotrows", FIELDS
    ),
}

if __name__ == "__main__":
    main(__doc__.splitlines()[0], COMPARISONS, ARMS)
