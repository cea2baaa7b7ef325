"""Pages of runs and data: what is on them, what is escaped, and what is refused in one line."""

import json
import re
import shutil
import threading
from html.parser import HTMLParser

import pytest

from hotrows.data import EncodedData, describe, prepare
from hotrows.runtime.locks import Lock, holder_of
from hotrows.runtime.pages.markup import compared, element
from hotrows.schema import Dense, Schema, Sparse
from hotrows.tools.report import Scope, write_description, write_report
from hotrows.tools.report.facts import Facts
from hotrows.train.config import TrainConfig
from hotrows.train.costs.placement import ShardingPlan
from hotrows.train.loop.trainer import Trainer
from hotrows.train.run import folder as run_folder
from tests.support.runs import CONFIG

HOSTILE = '<script>alert("x")</script>'
VOID = {"meta", "path", "line", "circle", "rect"}


class Page(HTMLParser):
    """The elements of a page, which must nest; texts and titles of sections."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.texts = [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append((self.open[-1] if self.open else "", data))

    def of(self, tag):
        return [text for place, text in self.texts if place == tag]


@pytest.fixture(scope="module")
def folder(tmp_path_factory, one_thread):
    """enc, whose names and values are hostile, and the runs a and b."""
    folder = tmp_path_factory.mktemp("report")
    lines = [f"{(i * 7 % 10) < i % 10},{i % 13 or ''},{HOSTILE if i % 3 else i % 5}" for i in range(600)]
    raw = folder / "raw.csv"
    raw.write_text("\n".join(["label,n,c", *lines]).replace("True", "1").replace("False", "0") + "\n")
    features = (Dense("n"), Sparse(f"<b>{HOSTILE}", column="c"))
    prepare([raw], Schema(features, delimiter=","), folder / "enc", split="position:0.5,0.2,0.3")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hotrows.train.telling.pictures.draw_run", lambda run: None)
        for name, seed in (("a", 1), ("b", 2)):
            config = TrainConfig(**{**vars(CONFIG), "seed": seed, "epochs": 1})
            Trainer(EncodedData.open(folder / "enc"), config, folder / name).fit()
    return folder


def page_of(folder, *runs, **how):
    write_report([folder / run for run in runs], folder / "page.html", **how)
    return Page((folder / "page.html").read_text())


def test_a_page_says_all_of_a_run_and_needs_nothing_else(folder):
    page = page_of(folder, "a")
    titles = page.of("h2")
    assert titles[:5] == ["Training", "Results", "Curves", "Predictions", "Slices"]
    assert {"Importance of features", "Values and vocabularies", "Speed", "Settings", "Repeat it"} < set(
        titles
    )
    tags = [tag for tag, _ in page.tags]
    assert not {"script", "link", "img", "iframe", "object"} & set(tags) and tags.count("svg") > 8
    links = [value for _, known in page.tags for name, value in known.items() if name in ("href", "src")]
    assert links and all(link.startswith("#") for link in links)
    test = json.loads((folder / "a" / "result.json").read_text())["test"]
    assert any(text.startswith(f"{test['auc']:.4f} ± ") for text in page.of("td"))
    assert any("hotrows train enc --config a/config.json" in text for text in page.of("pre"))


@pytest.mark.parametrize("inside", [True, False])
def test_a_page_that_is_mailed_names_no_folder_of_its_machine(folder, tmp_path, monkeypatch, inside):
    """It had the path of the data from the root on."""
    monkeypatch.chdir(folder if inside else tmp_path)
    page_of(folder, "a", "b")
    data = EncodedData.open(folder / "enc")
    write_description(data, describe(data, 8), folder / "data.html")
    for name in ("page.html", "data.html"):
        assert str(folder) not in (folder / name).read_text()


def test_where_nothing_is_missing_or_unknown_the_page_says_so(tmp_path):
    """A heading stood there above no table."""
    rows = {"label": [0, 1] * 100, "user": [i % 5 for i in range(200)]}
    data = prepare(rows, Schema((Sparse("user"),)), tmp_path / "enc", split="position:0.5,0.2,0.3")
    Trainer(data, TrainConfig(**{**vars(CONFIG), "epochs": 1}), tmp_path / "run").fit()
    page = page_of(tmp_path, "run", scope=Scope(rows=0))
    assert "Values and vocabularies" in page.of("h2")
    assert "No value of the test part is missing, and training has seen them all." in page.of("p")


def test_hostile_names_and_values_stay_text(folder):
    page = page_of(folder, "a", scope=Scope(slices=(f"<b>{HOSTILE}",)))
    assert "b" in {tag for tag, _ in page.tags}  # of cards alone
    assert not [known for tag, known in page.tags if tag == "script"]
    assert {HOSTILE, f"<b>{HOSTILE}"} <= {text for _, text in page.texts}
    assert element("a", "<&", kind='"') == '<a class="&quot;">&lt;&amp;</a>'


def test_the_same_runs_give_the_same_page(folder):
    page_of(folder, "a")
    first = (folder / "page.html").read_bytes()
    page_of(folder, "a")
    assert (folder / "page.html").read_bytes() == first


def test_runs_side_by_side_have_their_differences_marked(folder):
    page = page_of(folder, "a", "b", scope=Scope(rows=100))
    assert "Of 100 random samples of the 180 samples of the test part." in " ".join(page.of("p"))
    assert "b than a" in page.of("th")
    (verdict,) = [text for text in page.of("p") if " in AUC" in text]
    assert re.match(r"(a|b) (is better by 0\.\d{4} than (a|b)|and a are equal) in AUC", verdict)
    assert not any(re.search(r"better by -|worse by -", text) for _, text in page.texts)
    assert "Contributions" in page.of("h2") and "log odds" in page.of("th")
    assert any(text.startswith("The highest prediction: ") for text in page.of("h3"))
    assert any("; line at 0." in text for _, text in page.texts)  # the axis of slices
    html = compared(["x", "y"], [{"lr": "1", "seed": "2"}, {"lr": "1", "seed": "3"}])
    assert html.count("differs") == 1 and re.search(r'differs">3<', html)


def test_thresholds_have_precision_recall_and_lift_of_every_run(folder):
    """One run has a table; of several, such as one of logistic regression beside, each has its own."""
    texts = page_of(folder, "a", scope=Scope(rows=100)).texts
    header = ["samples", "score from", "precision", "recall", "lift"]
    cells = [text for place, text in texts if place in ("th", "td")]
    first = cells.index("samples")
    assert cells[first : first + 5] == header and cells[first + 5].startswith("top ")
    assert cells[cells.index("top 100.0%") + 2 :][:3][1:] == ["100.0%", "1.00"]
    two = page_of(folder, "a", "b", scope=Scope(rows=100))
    assert {"Thresholds of a", "Thresholds of b"} <= set(two.of("summary"))
    assert "Gains" in {text for _, text in two.texts}


def test_reasons_of_a_sharding_are_folded(folder, tmp_path, monkeypatch):
    run = tmp_path / "ranks"
    shutil.copytree(folder / "a", run)
    run_folder.write_placing(run, 2, ShardingPlan({}, reasons=("small", "as large as a rank holds")))
    monkeypatch.setattr(Facts, "num_ranks", 2)
    text = page_of(tmp_path, run, scope=Scope(rows=0)) and (tmp_path / "page.html").read_text()
    (folded,) = re.findall(
        r"<details><summary>Why tables are dealt so</summary>(.*?)</details>", text, re.S
    )
    assert "small" in folded and "as large as a rank holds" in folded
    assert text.count("as large as a rank holds") == 1 and "Sharding</h2>" in text


def test_what_no_report_can_be_made_of_is_refused_in_a_line(folder, tmp_path):
    with pytest.raises(ValueError, match="is not a run folder: it has no config.json"):
        page_of(folder, "enc")
    with pytest.raises(ValueError, match="of 1 to 6 different runs, not of"):
        page_of(folder, "a", "a")
    with pytest.raises(ValueError, match="--slice takes a column of n, .*unknown, not 'm'"):
        page_of(folder, "a", scope=Scope(slices=("m",)))
    (folder / "a" / "checkpoints.json").rename(folder / "kept.json")
    try:
        with pytest.raises(ValueError, match="has no checkpoint yet: train it first"):
            page_of(folder, "a")
        assert "Results" not in page_of(folder, "a", scope=Scope(rows=0)).of("h2")
    finally:
        (folder / "kept.json").rename(folder / "a" / "checkpoints.json")


def test_runs_of_other_labels_are_not_compared(folder, monkeypatch):
    from hotrows.tools.report import facts

    labels = property(lambda run: (run.name,))
    monkeypatch.setattr(facts.Facts, "labels", labels)
    with pytest.raises(ValueError, match=r"a learns a and \S+/b b, which are not comparable"):
        page_of(folder, "a", "b")


def test_a_run_that_is_written_is_refused_or_followed_to_its_end(folder, monkeypatch):
    lock, pages = Lock(folder / "a"), []
    assert holder_of(folder / "a").startswith("process ") and holder_of(folder / "b") is None
    with pytest.raises(ValueError, match=r"is being written by process \d+ .*; wait .*--follow"):
        page_of(folder, "a")

    def sleep(seconds):
        pages.append((folder / "page.html").read_text())
        lock.release()

    monkeypatch.setattr("hotrows.tools.report.page.time.sleep", sleep)
    end = page_of(folder, "a", every=3.0)
    live = Page(pages[0])
    assert {"http-equiv": "refresh", "content": "3"} in [known for _, known in live.tags]
    assert "Results" not in live.of("h2") and "Curves" in live.of("h2") and "Results" in end.of("h2")
    assert "http-equiv" not in (folder / "page.html").read_text()
    assert threading.active_count() < 50


def test_data_is_described_with_its_numbers(folder):
    data = EncodedData.open(folder / "enc")
    description = describe(data)
    (used,) = description.dense
    raw = [i % 13 for i in range(300) if i % 13]
    assert used.count == len(raw) and used.mean == pytest.approx(sum(raw) / len(raw), rel=1e-5)
    assert (used.quantiles[0.0], used.quantiles[0.5], used.quantiles[1.0]) == pytest.approx(
        (1, 6.5, 12), rel=1e-5
    )
    assert sum(used.histogram[1]) == pytest.approx(1)
    write_description(data, description, folder / "data.html")
    page = Page((folder / "data.html").read_text())
    assert {"Parts", "Numbers", "Vocabularies"} <= set(page.of("h2"))
    assert f"<b>{HOSTILE}" in page.of("th") and "script" not in {tag for tag, _ in page.tags}


def test_the_commands_write_pages(hotrows, folder, monkeypatch):
    monkeypatch.chdir(folder)
    told = hotrows("report", "a", "--rows", "0")
    assert (told.code, told.out) == (0, "a/report.html\n") and (folder / "a/report.html").exists()
    told = hotrows("describe", "enc", "--html", "enc.html")
    assert re.search(r"^n +276 +8\.0% +6\.5 ", told.out, re.MULTILINE)
    assert told.out.endswith("page       enc.html\n") and (folder / "enc.html").exists()
    assert hotrows("report").code == 2
