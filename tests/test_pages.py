"""The pages name what is there: modules, files and linked pages."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "hotrows"
FOLDERS = ("src", "csrc", "tests", "benchmarks", "examples", "docs")
FILES = {str(path.relative_to(ROOT)) for top in FOLDERS for path in (ROOT / top).rglob("*.*")}
PLACEHOLDERS = ("NAME", "*", "{", "<")  # in the recipes, and where a page means several files
WORDS = ("data", "metrics", "models", "nn", "report", "train")  # of PyTorch, and of names of files, too
TOP = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "benchmarks/README.md")
OURS = {path.name for path in PACKAGE.iterdir() if path.is_dir()} - {*WORDS}
PAGES = [*(ROOT / name for name in TOP), *sorted((ROOT / "docs").rglob("*.md"))]


def spans(page: Path) -> list[str]:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    return re.findall(r"`([^`\n]+)`", text)


def is_there(dotted: str) -> bool:
    """Whether a.b.c is a module of the package, or a name that module a or a.b says."""
    place, names = PACKAGE, dotted.split(".")
    while names and ((place / names[0]).is_dir() or (place / f"{names[0]}.py").exists()):
        place = place / names.pop(0)
    module = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    return all(re.search(rf"\b{name}\b", module.read_text()) for name in names)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_page_names_what_is_there(page):
    missing = []
    for link in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
        if "://" not in link and not (page.parent / link).exists():
            missing.append(link)
    for span in () if page.name == "CHANGELOG.md" else spans(page):  # it has names of the past
        if any(mark in span for mark in PLACEHOLDERS):
            continue
        dotted = re.fullmatch(
            r"(hotrows\.)?((\w+)(?:\.(?!(?:py|json|safetensors)\b)\w+)*)(?:\(.*\))?", span
        )
        if dotted and (dotted[1] or dotted[3] in OURS) and not is_there(dotted[2]):
            missing.append(span)
        file = re.fullmatch(r"[\w.]+(?:/[\w.]+)+\.(?:py|cpp|h|md)", span)
        others = "taken-from" in page.name  # whose files are those of other projects, too
        if file and not others and not any(f == span or f.endswith(f"/{span}") for f in FILES):
            missing.append(span)
    assert not missing, f"{page.name} names what is not there: {missing}"


def test_the_first_page_is_short():
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 150 and text.count("](") <= 30
    assert "```python" in "\n".join(text.splitlines()[:60])
