"""Builds the documentation site: all pages, the files that they link to, the reference of docstrings.

python3 tasks.py docs              into build/docs/site, in an environment of its own
python docs/build.py --out FOLDER  with `pip install '.[docs]'`

Links of pages that leave docs/ (to code, to CONTRIBUTING.md) lead to copies within the site. A link or
an anchor that leads nowhere is an error.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"""(\]\(|src="|srcset=")([^)#\s:"]+)([)#"])""")
NAV_PAGE = re.compile(r'"([\w/]+\.md)"')
LANGUAGES = {".py": "python", ".cpp": "cpp", ".h": "cpp", ".json": "json"}


def build(out: Path, reference: bool = True) -> Path:
    """The folder of the site, built anew in `out`; without the reference it takes a third of the time."""
    shutil.rmtree(out, ignore_errors=True)
    stage(out)
    for page in () if reference else (out / "pages" / "api").glob("*.md"):
        page.write_text(re.sub(r"^:::[^\n]*\n( +[^\n]*\n)*", "", page.read_text(), flags=re.M))
    return run(out)


def run(out: Path) -> Path:
    """Builds the pages that are staged in `out`; a broken link raises CalledProcessError."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}  # whose docstrings are read
    command = [sys.executable, "-m", "zensical", "build", "--strict", "-f", str(out / "zensical.toml")]
    subprocess.run(command, cwd=out, env=environment, check=True)
    return out / "site"


def stage(out: Path) -> None:
    """Copies all pages into one tree, with links that lead to each other there."""
    pages = out / "pages"
    shutil.copytree(ROOT / "docs", pages, ignore=shutil.ignore_patterns("*.py", "*.toml", "__pycache__"))
    config = (ROOT / "docs" / "zensical.toml").read_text()
    for name, value in {"DOCSTRINGS": str(ROOT / "docs" / "docstrings.py"), "VERSION": version()}.items():
        config = config.replace(name, value)
    (out / "zensical.toml").write_text(config)
    sources = [ROOT / name for name in top_pages()] + sorted((ROOT / "docs").rglob("*.md"))
    files = set()  # that are no pages, and are linked to
    for source in sources:
        text, linked = relinked(source, set(sources))
        files |= linked
        target = pages / place_of(source)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    for file in files:
        target = pages / place_of(file)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(code_page(file))


def version() -> str:
    """The version of the package, which the header shows."""
    (found,) = re.findall(r'VERSION = "(.+)"', (ROOT / "src" / "hotrows" / "version.py").read_text())
    return found


def top_pages() -> list[str]:
    """README.md and the pages of the navigation that are not in docs/."""
    named = NAV_PAGE.findall((ROOT / "docs" / "zensical.toml").read_text())
    unknown = {name for name in named if not (ROOT / "docs" / name).is_file()}
    return ["README.md", *sorted(name for name in unknown if (ROOT / name).is_file())]


def place_of(file: Path) -> Path:
    """Where a file of the repository is in the site's tree."""
    path = file.relative_to(ROOT)
    if path == Path("README.md"):
        return Path("index.md")
    if path.parts[0] == "docs":
        return path.relative_to("docs")
    return path if path.suffix == ".md" else Path("source", f"{path}.md")


def relinked(page: Path, pages: set[Path]) -> tuple[str, set[Path]]:
    """The text of a page with the links of the site, and the files among them that are no pages."""
    files = set()

    def link(match: re.Match[str]) -> str:
        file = (page.parent / match[2]).resolve()
        if not file.is_file():
            return match[0]  # which the build then names
        if file not in pages and "docs" not in file.relative_to(ROOT).parts[:1]:
            files.add(file)
        path = os.path.relpath(place_of(file), place_of(page).parent)
        return f"{match[1]}{path}{match[3]}"

    return LINK.sub(link, page.read_text()), files


def code_page(file: Path) -> str:
    """A page that shows a file; it is found by links, not by the search."""
    name, language = file.relative_to(ROOT), LANGUAGES.get(file.suffix, "text")
    head = "---\nsearch:\n  exclude: true\n---\n\n"
    if file.suffix == ".md":  # a page that a benchmark writes
        return f"{head}{file.read_text()}"
    return f"{head}# {name}\n\n``````{language}\n{file.read_text()}\n``````\n"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "docs")
    parser.add_argument("--no-reference", action="store_true", help="leave out the reference: faster")
    args = parser.parse_args(arguments)
    try:
        site = build(args.out.resolve(), not args.no_reference)
    except subprocess.CalledProcessError as error:
        print("the site was not built: correct the links named above", file=sys.stderr)
        return error.returncode
    print(f"open {site / 'index.html'}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
