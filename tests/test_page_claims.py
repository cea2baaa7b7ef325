"""Pages say what is so: figures of the result files, what models need, messages as they are printed."""

import ast
import json
import re
from pathlib import Path

import pytest

from hotrows import Dense, Schema, Sequence, Sparse, models

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
LIBRARIES = ("deepctr", "rechub", "fuxictr")
ON_IDS = ("lr", "fm", "dnn", "wide_deep", "deepfm", "dlrm", "dcnv2", "mmoe")
ON_HISTORIES = ("din", "dien", "can")
FAE_BASES = ("all rows in slow memory", "static cache")
NAMES = {"TensorFlow": "tensorflow", "TorchRec": "torchrec", "FBGEMM": "fbgemm", "PyTorch": "plain-torch"}


def text(page):
    return re.sub(r"\s+", " ", (ROOT / page).read_text())


def result(name):
    return json.loads((RESULTS / f"{name}.json").read_text())


def numbers(page, pattern):
    """The numbers of the groups of the one place where a page says so."""
    matches = re.findall(pattern, text(page))
    assert len(matches) == 1, f"{page}: {len(matches)} places say {pattern!r}"
    groups = matches[0] if isinstance(matches[0], tuple) else matches
    return [float(number.replace(",", "")) for number in groups]


def test_the_first_page_has_the_figures_of_the_picture():
    arms = result("end_to_end-dlrm-adagrad")["arms"]
    for name, arm in {"DLRM": "hotrows", **NAMES}.items():
        speed = arms[arm]["samples_per_s"] / 1000
        assert numbers("README.md", rf"beside peers:[^>]*?\b{name} (\d+)") == [round(speed)], name
    libraries = [result(f"accelerate-criteo-{name}")["arms"] for name in LIBRARIES]
    gains = [round(max(arm["ratio"] for arm in arms.values())) for arms in libraries]
    said = r"DeepFMs of DeepCTR-Torch, torch-rechub and FuxiCTR train (\d+), (\d+) and (\d+) times"
    assert numbers("README.md", said) == gains
    tiers = result("tiers-dim16")["arms"]
    said = r"DLRM trains at (\d+) % of the speed of all in memory; memory mapping at ([\d.]+) %"
    assert numbers("README.md", said) == [
        round(100 * tiers["file"]["ratio"]),
        round(100 * tiers["file-mapped"]["ratio"], 1),
    ]


@pytest.mark.parametrize("model", [*ON_IDS, *ON_HISTORIES])
def test_the_page_of_a_model_has_the_figures_of_all_models(model):
    floors = result("floors")["models"]
    names = [model] if model in ON_IDS else [f"{model}-dim16", f"{model}-dim64"]
    pattern = " .*?".join(r"([\d,]+) thousand samples/s, ([\d.]+) times its floor" for _ in names)
    said = numbers(f"docs/models/{model}.md", pattern)
    expected = [(round(floors[n]["samples_per_s"] / 1000), round(floors[n]["ratio"], 2)) for n in names]
    assert said == [number for pair in expected for number in pair]
    for name in names:
        row = rf"\| {name} \| [\d,]+ \| ([\d.]+) \| [\d.]+ \| [\d.]+ \| ([\d.]+) \|"
        assert numbers("docs/models.md", row) == [
            round(floors[name]["ms"], 1),
            round(floors[name]["ratio"], 2),
        ]


@pytest.mark.parametrize("model", ON_HISTORIES)
def test_models_of_histories_beside_peers_have_one_figure(model):
    ours = result(f"sequence_step-{model}-dim16")["arms"]["hotrows"]["samples_per_s"]
    said = numbers(f"docs/models/{model}.md", r"beside a padded version ([\d,]+) thousand")
    assert said == [round(ours / 1000)]
    if model == "can":
        assert numbers("docs/models.md", r"CAN at dim 16 makes (\d+) thousand") == [round(ours / 1000)]
    else:
        column = {"din": 0, "dien": 2}[model]
        row = r"\| \*\*hotrows\*\*" + 4 * r" \| \*\*([\d,]+)\*\*"
        assert numbers("docs/models.md", row)[column] == round(ours)


def test_models_need_what_the_page_says():
    ids = (Sparse("user", rows=9), Sparse("item", rows=9))
    history = Sequence("history", vocabulary="item", rows=9)
    features = {
        "dense features": (Dense("price"),),
        "ids": ids,
        "ids, dense features": (Dense("price"), *ids),
        "a history": (*ids, history),
    }
    for name, model in models.BY_NAME.items():
        (needs,) = re.findall(
            rf"\| \[{name}\]\([^|]*\|[^|]*\| ([^|]*) ?\|", (ROOT / "docs/models.md").read_text()
        )
        for kind, given in features.items():
            enough = not needs.strip() or needs.strip() == kind
            try:
                model(Schema(given, label="click"))
            except ValueError as error:
                assert not enough and ("needs" in str(error) or "compares" in str(error)), (
                    name,
                    kind,
                    error,
                )
            else:
                assert enough, (name, kind)


def messages():
    """All texts of the package, with .. for the values in them."""
    for path in (ROOT / "src" / "hotrows").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                yield "".join(v.value if isinstance(v, ast.Constant) else ".." for v in node.values)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


def test_messages_that_a_page_explains_are_messages_of_ours():
    said = re.findall(
        r'^\|[^|]*"([^"|]+)"[^|]*\|', (ROOT / "docs" / "troubleshooting.md").read_text(), re.M
    )
    assert len(said) > 8
    texts = "\n".join(" ".join(text.split()) for text in messages())
    unknown = [s for s in said if not re.search(".*".join(map(re.escape, s.split(".."))), texts)]
    assert not unknown, f"docs/troubleshooting.md explains what nobody prints: {unknown}"


def test_the_first_page_has_a_line_of_each_paper():
    def over(arms, arm, base):
        return arms[arm]["samples_per_s"] / arms[base]["samples_per_s"]

    of_models = [result(f"ranks-{name}")["arms"] for name in ("deepfm", "dlrm", "din", "dien")]
    ratios = [over(arms, "hotrows-ranks", "tensorflow-ps") for arms in of_models]
    fields = result("papers-picasso")["fields"]["arms"]["461"]["hotrows"]["ratio"]
    said = r"here it is ([\d.]+) to ([\d.]+) times, and (\d+) times plain PyTorch at 461 fields"
    assert numbers("README.md", said) == [round(min(ratios), 1), round(max(ratios), 1), round(fields)]
    regimes = result("papers-picasso")["regimes"]["arms"]
    gains = [regimes[f"{name}, embeddings"]["ratio"] for name in ("wide_deep", "can", "mmoe")]
    said = r"Wide & Deep, CAN and MMoE are ([\d.]+) to ([\d.]+) times plain PyTorch"
    assert numbers("README.md", said) == [round(min(gains), 1), round(max(gains), 1)]
    cached = [result("papers-scratchpipe")[name]["arms"] for name in ("uniform", "low", "medium", "high")]
    gains = [over(arms, "10% ours", "10% static cache") for arms in cached]
    said = r"look-ahead is ([\d.]+) to ([\d.]+) times a static cache"
    assert numbers("README.md", said) == [round(min(gains), 1), round(max(gains), 1)]
    links = {name.split(": ")[1]: arm for name, arm in result("papers-fae")["links"]["arms"].items()}
    gains = [links[base]["seconds"] / links["ours"]["seconds"] for base in FAE_BASES]
    said = r"as slow as PCIe it is ([\d.]+) and ([\d.]+) times here"
    assert numbers("README.md", said) == [round(gain, 2) for gain in gains]


def test_the_page_has_the_figures_of_model_parallel_pytorch():
    names = ("hotrows-ranks", "plain-ranks-histories", "plain-ranks-decomposed")
    for model in ("din", "dien"):
        arms = result(f"ranks-{model}-model-parallel")["arms"]
        row = rf"\| {model.upper()} \| \*\*([\d.]+)\*\* \| ([\d.]+) \| ([\d.]+) \|"
        speeds = [round(arms[name]["samples_per_s"] / 1000, 1) for name in names]
        assert numbers("docs/papers/picasso.md", row) == speeds


def test_the_table_of_two_cores_against_a_v100_has_the_figures_of_its_file():
    models, names = (
        result("bars")["models"],
        {"deepfm": "DeepFM", "widedeep": "Wide & Deep", "dlrm": "DLRM"},
    )
    for model, found in models.items():
        cells = [found["bars"]["samples_per_s"]]
        for arm in ("fuxictr", "fuxictr+hotrows", "hotrows"):
            figures = found["arms"][arm]["rounds"][0]
            cells += [figures["samples_per_s"], figures["samples_per_cpu_second"]]
        row = rf"\| {names[model]} \| ([\d.]+)" + 3 * r" \| ([\d.]+) \(([\d.]+)\)"
        assert numbers("docs/speed.md", row) == [round(cell / 1000, 1) for cell in cells]
