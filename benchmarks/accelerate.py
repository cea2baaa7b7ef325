"""How much faster do other libraries' models train under `hotrows.accelerate`, unmodified?

    python -m benchmarks.accelerate                  # every comparison
    python -m benchmarks.accelerate criteo-deepctr --quick

The library's own model and its own training step, plain and accelerated, with the same meaning of the
optimizer. Figures of accelerated arms are of a whole epoch (500 steps at Criteo's sizes, 100 or 200 else;
100 of FuxiCTR, whose every step reads all rows for the norm of gradients with L2 terms) and the catching
up of every row at its end.
"""

from benchmarks.harness import Arm, Comparison, main

SETTINGS = {
    "deepctr-torch": "--library deepctr-torch",  # L2 terms over all tables: its default
    "fuxictr": "--library fuxictr --regularizer 1e-5",  # and the gradient's norm is clipped
    "torch-rechub": "--library torch-rechub",
}
CTR, SEQUENCES = "ctr_libraries", "sequence_libraries"


def _arms() -> dict[str, Arm]:
    arms = {}
    for library, arguments in SETTINGS.items():
        arms[library] = Arm("ctr", CTR, arguments)
        arms[f"{library}+hotrows"] = Arm("ctr", CTR, f"{arguments} --accelerate")
    for library in ("deepctr-torch", "fuxictr"):
        arguments = f"--library {library}"
        arms[f"{library}-din"] = Arm("ctr", SEQUENCES, arguments)
        arms[f"{library}-din+hotrows"] = Arm("ctr", SEQUENCES, f"{arguments} --accelerate")
    return arms


def _comparisons() -> dict[str, Comparison]:
    comparisons = {}

    def compare(name: str, setting: str, arm: str) -> None:
        comparisons[name] = Comparison(setting, peers=(), baseline=arm, ours=(arm, f"{arm}+hotrows"))

    deepfm = "--model deepfm --optimizer adam --workload"
    for library in SETTINGS:
        short = library.split("-")[-1] if library.startswith("torch") else library.split("-")[0]
        epoch = " --epoch-steps 100" if library == "fuxictr" else ""
        compare(f"criteo-{short}", f"{deepfm} criteo{epoch}", library)
        compare(f"tenth-{short}", f"{deepfm} criteo-tenth --epoch-steps 200", library)
        compare(f"cut-{short}", f"{deepfm} criteo-cut --epoch-steps 100", library)
        compare(f"461-{short}", f"{deepfm} B461 --epoch-steps 100", library)
    compare("din-deepctr", "--model din --dim 16 --epoch-steps 100", "deepctr-torch-din")
    compare("din-fuxictr", "--model din --dim 16 --epoch-steps 100", "fuxictr-din")
    return comparisons


if __name__ == "__main__":
    main(__doc__.splitlines()[0], _comparisons(), _arms())
