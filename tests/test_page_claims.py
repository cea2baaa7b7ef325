"""Pages say what is so: figures of the result files, what models need, messages as they are printed."""

import ast
import importlib.util
import itertools
import json
import re
import warnings
from pathlib import Path

import pytest
from benchmarks import headlines
from benchmarks.evidence import records
from benchmarks.evidence.__main__ import PAGES
from benchmarks.evidence.claims import CLAIMS
from benchmarks.evidence.studies import STUDIES
from benchmarks.harness import git
from benchmarks.markdown import BEGIN, END

from hotrows import Dense, Schema, Sequence, Sparse, models

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
LIBRARIES = ("deepctr", "rechub", "fuxictr")
FAE_BASES = ("all rows in slow memory", "static cache")
MEASURED = {part.source.split("/")[0] for part in headlines.PARTS.values()}
MOST_COMMITS, MOST_CHANGED = 200, 0.2  # since a headline was measured, without a warning
SMALL_TABLES = ("20,000", "100,000", "400,000")  # rows in all
needs_history = pytest.mark.skipif(
    git("rev-parse", "--is-shallow-repository") != "false", reason="not a whole clone"
)
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


def quoted(name):
    """A result that README.md quotes: `benchmarks.headlines` measures it again, or a study did."""
    assert name in MEASURED or name in headlines.STUDIES, f"benchmarks.headlines has no part for {name}"
    return result(name)


def test_the_first_page_has_the_figures_of_the_picture():
    found = quoted("end_to_end-dlrm-adagrad")
    for name, arm in {"hotrows": "hotrows", **NAMES}.items():
        speed = found["arms"][arm]["samples_per_s"] / 1000
        assert numbers("README.md", rf"samples a second:[^>]*?\b{name} (\d+)") == [round(speed)], name
    assert f"{found['date'][:10]}, commit {found['commit'][:8]}." in text("README.md")


def test_the_first_page_has_the_figures_of_models_of_other_libraries():
    for name, library in {
        "DeepCTR-Torch": "deepctr",
        "torch-rechub": "rechub",
        "FuxiCTR": "fuxictr",
    }.items():
        tables = [quoted(f"accelerate-{sizes}-{library}") for sizes in ("criteo", "461")]
        arms = (arm for found in tables for arm in found["arms"].items())
        gains = [arm["ratio"] for name, arm in arms if name.endswith("+hotrows")]
        said = numbers("README.md", rf"\| {name} \| (\d+) \| ([\d.]+) \|")
        assert said == [round(gains[0]), round(gains[1], 1)], name
        dates = list(dict.fromkeys(found["date"][:10] for found in tables))
        assert f"one or two rounds each, {', second column '.join(dates)}." in text("README.md")


def test_the_page_of_any_model_has_the_figures_of_small_tables():
    cells = quoted("break_even")["models"]
    for optimizer, tables in itertools.product(("Adam", "SGD"), (4, 12, 26)):
        said = numbers("docs/any_model.md", rf"\| {optimizer} \| {tables} \|" + r" \*?([\d.]+)\*? \|" * 3)
        names = (
            f"{rows} rows, {optimizer.lower()}, batch 256" for rows in ("20,000", "100,000", "400,000")
        )
        gains = [cells[f"{tables} tables, {name}"]["times_as_fast"] for name in names]
        assert said == [round(gain, 1 if gain < 9.95 else None) for gain in gains]
    slowest = min(cell["times_as_fast"] for cell in cells.values() if not cell["is_left_plain"])
    assert numbers("docs/any_model.md", r"lets through reached ([\d.]+)") == [round(slowest, 2)]


def test_the_page_of_requests_has_the_figures_of_eight_candidates():
    said = r"with eight, HSTU trains ([\d.]+) times as fast, DIEN ([\d.]+) times, DIN ([\d.]+)"
    gains = [quoted("requests")["candidates"]["8"][m]["speedup"] for m in ("hstu", "dien", "din")]
    assert numbers("docs/requests.md", said) == [round(gain, 1) for gain in gains]


@pytest.mark.parametrize("page", ["README.md", "docs/any_model.md"])
def test_configurations_of_other_libraries_are_counted(page):
    from benchmarks.any_model import table

    rows = re.findall(r"\| (\d+) \| \d+ \| (\d+) \|", table._counts(quoted("any_model")))
    total, equal = (sum(map(int, column)) for column in zip(*rows, strict=True))
    assert len(rows) == 5 and numbers(page, r"(\d+) of (\d+) configurations") == [equal, total]


def test_the_first_page_has_the_figures_of_tables_in_a_file():
    tiers = quoted("tiers-dim16")
    said = rf"{tiers['date'][:10]} \| a tenth \| (\d+) %; the same tables memory-mapped: ([\d.]+) %"
    ratios = [tiers["arms"][name]["ratio"] for name in ("file", "file-mapped")]
    assert numbers("README.md", said) == [round(100 * ratios[0]), round(100 * ratios[1], 1)]
    billion = quoted("tiers-billion-criteo")
    said = rf"{billion['date'][:10]} \| 320 MiB \| (\d+) % in the median step; "
    said += r"(\d+) % in the slowest 100 steps"
    ratios = [billion["figures"][name] for name in ("ratio", "ratio_slowest_window_of_100")]
    assert numbers("README.md", said) == [round(100 * ratio) for ratio in ratios]


def test_the_first_page_compares_with_gradient_boosting_on_a_click_log():
    rows = quoted("click_log")["all"]
    large = rows["200000"]
    said = r"200,000 samples hotrows reaches test AUC ([\d.]+) without a setting, "
    said += r"LightGBM ([\d.]+) by default and ([\d.]+) tuned; on 20,000 samples, and on a million, "
    said += "tuned LightGBM is ahead"
    arms = ("hotrows", "LightGBM, default", "LightGBM, tuned")
    assert numbers("README.md", said) == [round(large[arm][0], 4) for arm in arms]
    assert all(rows[n]["LightGBM, tuned"][0] > rows[n]["hotrows"][0] for n in ("20000", "1000000"))
    largest = quoted("click_log_whole")["rows"]["10000000"]
    said = r"On ten million, hotrows reaches ([\d.]+) and LightGBM by default ([\d.]+);"
    arms = ("hotrows", "LightGBM, default")
    assert numbers("README.md", said) == [round(largest[arm]["auc"], 4) for arm in arms]


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", headlines.PARTS)
def test_a_headline_of_old_code_is_warned_of(name):
    """A warning alone: figures are measured on purpose, on a quiet machine, before a release."""
    age = headlines.age(headlines.PARTS[name])
    if age is not None and (age[0] > MOST_COMMITS or age[1] > MOST_CHANGED):
        warnings.warn(
            f"{name} was measured {age[0]} commits ago; {age[1]:.0%} of the lines it measures are new: "
            f"python -m benchmarks.headlines {name}",
            stacklevel=1,
        )


def test_the_age_of_a_headline_counts_commits_and_new_lines(monkeypatch):
    part = headlines.Part("loader", 1, ("loader",), ("data",))
    head, first = git("rev-parse", "HEAD"), git("rev-list", "--max-parents=0", "HEAD")
    if first is None or head is None:
        pytest.skip("not a clone of the repository")
    ages = []
    for commit in (head, first.split()[-1]):
        monkeypatch.setattr(headlines.Origin, "known", lambda self, key, commit=commit: commit)
        ages.append(headlines.age(part))
    assert ages[0][0] == 0 and ages[0][1] < 0.2
    assert ages[1][0] >= 1 or first == head
    monkeypatch.setattr(headlines.Origin, "known", lambda self, key: "0" * 40)
    assert headlines.age(part) is None


@pytest.mark.parametrize("page", PAGES)
def test_figures_are_those_of_the_results(page):
    """`python -m benchmarks.evidence` writes them."""
    text = (ROOT / "docs" / page).read_text()
    for table in PAGES[page]:
        content = text.split(BEGIN.format(table.name))[1].split(END.format(table.name))[0]
        assert content.strip() == table.text(), f"{page}, {table.name}: run python -m benchmarks.evidence"


def test_a_figure_that_no_file_has_is_noticed(monkeypatch):
    changed = json.loads(json.dumps(result("loader")))
    changed["arms"]["ours-shuffled"]["rows_per_s"] *= 3
    monkeypatch.setattr(records, "result", lambda name: changed if name == "loader" else result(name))
    claims, _ = PAGES["evidence/index.md"]
    (row,) = (row for row in claims.rows() if "Shuffled batches" in row[0])
    assert " | ".join(row) not in (ROOT / "docs" / "evidence" / "index.md").read_text()


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.origins[0].source)
def test_a_claim_of_the_index_can_be_measured_again(claim):
    measured = {part.source.split("/")[0] for part in headlines.PARTS.values()} | {
        "misses-zipf",
        "misses-criteo",
    }
    files = {origin.source.split("/")[0] for origin in claim.origins}
    assert files <= measured, f"benchmarks.headlines has no part for {files - measured}"


@needs_history
@pytest.mark.parametrize("study", STUDIES, ids=lambda study: study.origins[0].source)
def test_a_study_of_the_index_names_a_commit_that_has_its_script(study):
    for origin in study.origins:
        module, commit = re.fullmatch(r"`(\S+).*` at `(\w+)`", origin.shown_command).groups()
        path = module.replace(".", "/")
        assert git("ls-tree", "--name-only", commit, path, f"{path}.py"), module


@needs_history
def test_commits_of_results_are_in_the_history():
    commits = {commit[:7] for commit in git("rev-list", "HEAD").split()}
    said = re.search(r"were rebased .*?\. ", text("benchmarks/README.md"))[0]
    lost = set(re.findall(r"`(\w{8})`", said))
    named = {
        (path.stem, commit[:8])
        for path in RESULTS.glob("*.json")
        for commit in re.findall(r'"commit": "(\w+)"', path.read_text())
    }
    unknown = {(name, commit) for name, commit in named if commit[:7] not in commits}
    assert {commit for _, commit in unknown} == lost, sorted(unknown)


@pytest.mark.parametrize(
    "page", sorted((ROOT / "docs" / "evidence").glob("*.md")), ids=lambda page: page.name
)
def test_a_page_of_evidence_begins_with_three_lines_and_names_its_data(page):
    title, empty, *summary, end = page.read_text().splitlines()[:6]
    assert title.startswith("# ") and not empty and not end and all(summary)
    assert summary[2].startswith("Data: ")


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
                model(Schema(given, label=("click", "buy") if name == "esmm" else "click"))
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
    pages = [(ROOT / "docs" / f"{name}.md").read_text() for name in ("troubleshooting", "improving")]
    said = re.findall(r'^\|[^|]*"([^"|]+)"[^|]*\|', "".join(pages), re.M)
    assert len(said) > 8
    texts = "\n".join(" ".join(text.split()) for text in messages())
    unknown = [s for s in said if not re.search(".*".join(map(re.escape, s.split(".."))), texts)]
    assert not unknown, f"a page explains what nobody prints: {unknown}"


def test_the_first_page_has_a_line_of_each_paper():
    def over(arms, arm, base):
        return arms[arm]["samples_per_s"] / arms[base]["samples_per_s"]

    of_models = [
        quoted(f"ranks-{name}")["arms"] for name in ("deepfm", "dlrm", "461-tables", "din", "dien")
    ]
    ratios = [over(arms, "hotrows-ranks", "tensorflow-ps") for arms in of_models]
    said = r"TensorFlow's parameter server \| ([\d.]+) to ([\d.]+) times"
    assert numbers("README.md", said) == [round(min(ratios), 1), round(max(ratios), 1)]
    measured = quoted("papers-scratchpipe")
    cached = [measured[name]["arms"] for name in ("uniform", "low", "medium", "high")]
    ours = [arm for arms in cached for name, arm in arms.items() if name.endswith("ours")]
    assert len(ours) == 12 and not any(arm["rows_absent_at_training"] for arm in ours)
    gains = [over(arms, "10% ours", "10% static cache") for arms in cached]
    said = r"no row was absent; ([\d.]+) to ([\d.]+) times a static cache, with a tenth of the rows"
    assert numbers("README.md", said) == [round(min(gains), 1), round(max(gains), 1)]
    fae = quoted("papers-fae")
    links = {name.split(": ")[1]: arm for name, arm in fae["links"]["arms"].items()}
    gains = [
        arms[base]["seconds"] / arms["ours"]["seconds"]
        for arms in (links, fae["speed"]["arms"])
        for base in FAE_BASES
    ]
    said = r"([\d.]+) and ([\d.]+) times behind a link of 1/57 of the memory's speed; "
    said += r"([\d.]+) and ([\d.]+) behind 1/12"
    assert numbers("README.md", said) == [round(gain, 2) for gain in gains]
