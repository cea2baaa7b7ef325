"""Makes the virtual environments in which the peers are measured, under `benchmarks/.envs/`.

    python -m benchmarks.peers [NAME ...]

The peers cannot share one environment with each other or with us, so each gets its own. A finished
environment is left alone; one whose recipe has changed is made anew.
"""

import argparse
import json
import shutil
import subprocess
import sys
import venv
from dataclasses import asdict, dataclass
from pathlib import Path

ENVIRONMENTS = Path(__file__).parent / ".envs"
TORCH = "torch==2.13.0"
OUR_OWN = ("safetensors", "rich", "click", "pyarrow")  # where the peers' models run with our tables


@dataclass(frozen=True)
class Recipe:
    installs: tuple[tuple[str, ...], ...]  # the arguments of each `pip install`, in order
    imports: str  # what must be importable in the end


# torch comes first, and stands in every install that follows dependencies: none replaces it.
# What stands after --no-deps would pull CUDA builds of torch or FBGEMM, or pins old packages.
RECIPES = {
    "torchrec": Recipe(
        installs=(
            (TORCH, "numpy"),
            (TORCH, "tensordict", "pyre-extensions", "tqdm", "orjson", "pyvers", "cloudpickle"),
            (TORCH, "torchmetrics"),
            ("--no-deps", "fbgemm-gpu-cpu==1.8.0", "torchrec==1.8.0"),
        ),
        imports="torchrec, fbgemm_gpu",
    ),
    "tensorflow": Recipe(
        installs=(("tensorflow-cpu==2.21.0", "numpy"), ("--no-deps", "tf-keras==2.21.0")),
        imports="tensorflow, tf_keras",
    ),
    "ctr": Recipe(
        installs=(
            (TORCH, "numpy", "requests", "scikit-learn", "tqdm"),
            (TORCH, "fuxictr==2.3.10", "ray[data]>=2.52"),
            ("--no-deps", "deepctr-torch==0.3.0", "torch-rechub==0.9.0"),
            (TORCH, *OUR_OWN),
        ),
        imports="deepctr_torch.models, fuxictr.pytorch.models, torch_rechub.models.ranking",
    ),
    # What its text and image parts need (torchvision, spacy, gensim, transformers, OpenCV) stays
    # out: torchvision on PyPI is a CUDA build, which does not load beside a CPU build of torch.
    "widedeep": Recipe(
        installs=(
            (TORCH, "numpy", "pandas", "scikit-learn", "scipy", "tqdm"),
            (TORCH, "einops", "wrapt", "torchmetrics", "fastparquet", *OUR_OWN),
            ("--no-deps", "pytorch-widedeep==1.7.0"),
        ),
        imports="einops, torchmetrics, fastparquet",
    ),
    "boosting": Recipe(
        installs=(
            ("lightgbm==4.7.0", "catboost==1.2.10", "numpy", "pandas", "pyarrow", "scikit-learn==1.9.1"),
        ),
        imports="lightgbm, catboost",
    ),
    "encode": Recipe(
        installs=(("polars==2.1.0", "numpy", "scikit-learn==1.9.1"),), imports="polars, sklearn"
    ),
}


@dataclass(frozen=True)
class Source:
    """Code that is on no package index: a commit of a repository, read from a clone of it."""

    repository: str
    commit: str


SOURCES = {
    # The package, also as sdist, has the models of LongCTR alone. This commit says version 2.3.10.
    "fuxictr-zoo": Source(
        "https://github.com/reczoo/FuxiCTR", "0245987fdc1d43c36164ea496a02324885a8557a"
    ),
    "dlrm": Source(
        "https://github.com/facebookresearch/dlrm", "090956ee2319ddd349a42232958aefccfe3f7b0a"
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the environments of the peers.")
    known = [*RECIPES, *SOURCES]
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(known)}")
    parser.add_argument("--torch-index", help="package index that has CPU builds of torch")
    parser.add_argument("--clone-of", help="a clone of the source's repository, instead of its address")
    args = parser.parse_args()
    for name in args.names or known:
        if name in SOURCES:
            clone(name, args.clone_of)
        else:
            make(name, args.torch_index)


def python_of(name: str) -> Path:
    """The interpreter of one environment."""
    return ENVIRONMENTS / name / "bin" / "python"


def source_of(name: str) -> Path:
    """Where the code of one source lies."""
    return ENVIRONMENTS / name


def clone(name: str, repository: str | None = None) -> None:
    """Brings one source, unless it is there."""
    source, folder = SOURCES[name], source_of(name)
    if folder.exists():
        print(f"{name}: already there")
        return
    print(f"{name}: cloning {source.repository}")
    subprocess.run(["git", "clone", "--quiet", repository or source.repository, folder], check=True)
    subprocess.run(["git", "-C", folder, "checkout", "--quiet", source.commit], check=True)


def make(name: str, torch_index: str | None = None) -> None:
    """Makes one environment, unless it is there, made by the same recipe."""
    recipe = RECIPES[name]
    folder = ENVIRONMENTS / name
    made_by = folder / "recipe.json"
    if made_by.exists() and made_by.read_text() == json.dumps(asdict(recipe)):
        print(f"{name}: already made")
        return
    print(f"{name}: making the environment")
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, with_pip=True)
    for packages in recipe.installs:
        index = ["--extra-index-url", torch_index] if torch_index else []
        _run(name, "-m", "pip", "install", "--quiet", *index, *packages)
    _run(name, "-W", "ignore", "-c", f"import {recipe.imports}")
    made_by.write_text(json.dumps(asdict(recipe)))
    print(f"{name}: done")


def _run(name: str, *arguments: str) -> None:
    command = [str(python_of(name)), *arguments]
    print("  python", *arguments)
    if subprocess.run(command, check=False).returncode:
        sys.exit(f"{name}: the command above failed; the environment is not usable")


if __name__ == "__main__":
    main()
