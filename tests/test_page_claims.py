"""Pages say what is so: figures of the result files, what models need, messages as they are printed."""

import ast
import importlib.util
import json
import re
from pathlib import Path

import pytest
from benchmarks.evidence import records
from benchmarks.evidence.__main__ import PAGES
from benchmarks.markdown import BEGIN, END

from hotrows import Dense, Schema, Sequence, Sparse, models

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
LIBRARIES = ("deepctr", "rechub", "fuxictr")
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


@pytest.mark.parametrize("page", PAGES)
def test_figures_are_those_of_the_results(page):
    """`python -m benchmarks.evidence` writes them."""
    text = (ROOT / "docs" / page).read_text()
    for table in PAGES[page]:
        content = text.split(BEGIN.format(table.name))[1].split(END.format(table.name))[0]
        assert content.strip() == table.text(), f"{page}, {table.name}: run python -m benchmarks.evidence"


def test_a_figure_that_no_file_has_is_noticed(monkeypatch):
    changed = json.loads(json.dumps(result("stall")))
    changed["figures"]["stalled_share"] *= 3
    monkeypatch.setattr(records, "result", lambda name: changed if name == "stall" else result(name))
    (claims,) = PAGES["evidence/index.md"]
    (row,) = (row for row in claims.rows() if "waits for data" in row[0])
    assert " | ".join(row) not in (ROOT / "docs" / "evidence" / "index.md").read_text()


def test_commands_settings_and_data_sets_are_those_of_the_code():
    """`python docs/generated.py` writes them."""
    spec = importlib.util.spec_from_file_location("generated", ROOT / "docs" / "generated.py")
    generated = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generated)
    for name, tables in generated.contents().items():
        page = generated.REFERENCE / name
        assert page.read_text() == generated.put(page, tables), f"{name}: run python docs/generated.py"


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
            rf"\| \[{name}\]\([^|]*\|[^|]*\| ([^|]*) ?\|", (ROOT / "docs/reference/models.md").read_text()
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
