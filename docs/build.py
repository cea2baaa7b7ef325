"""Builds the documentation site: all pages, the files that they link to, the reference of docstrings.

python3 tasks.py docs              into build/docs/site, in an environment of its own
python docs/build.py --out FOLDER  with `pip install '.[docs]'`

Links of pages that leave docs/ (to code, to CONTRIBUTING.md) lead to copies within the site. A link or
an anchor that leads nowhere is an error.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"""(\]\(|src="|srcset=")([^)#\s:"]+)([)#"])""")
DIRECTIVE = re.compile(r"^:::([^\n]*)\n((?: +[^\n]*\n)*)", re.M)
NAV_PAGE = re.compile(r'"([\w/]+\.md)"')
LANGUAGES = {".py": "python", ".cpp": "cpp", ".h": "cpp", ".json": "json"}


def build(
    out: Path, reference: bool = True, repository: str | None = None, versions: bool = False
) -> Path:
    """The folder of the site, built anew in `out`; without the reference it takes a third of the time.

    repository: where pages are edited. versions: whether the header has a menu of them, see `deploy`.
    """
    shutil.rmtree(out, ignore_errors=True)
    stage(out)
    if repository is not None:
        file = out / "zensical.toml"
        links = f'repo_url = "{repository}"\nedit_uri = "edit/main/docs/"\n'
        text = file.read_text().replace("[project]\n", f"[project]\n{links}", 1)
        file.write_text(text.replace("features = [\n", 'features = [\n  "content.action.edit",\n', 1))
    if versions:
        with (out / "zensical.toml").open("a") as config:
            config.write('\n[project.extra.version]\nprovider = "mike"\n')
    if reference:
        give_classes_pages(out)
    for page in () if reference else (out / "pages" / "api").glob("*.md"):
        page.write_text(DIRECTIVE.sub("", page.read_text()))
    return run(out)


def give_classes_pages(out: Path) -> None:
    """Gives each class of the reference a page of its own, which the page of its module lists."""
    import griffe

    root = griffe.load("hotrows", search_paths=[str(ROOT / "src")], resolve_aliases=True)
    config, folder = (out / "zensical.toml").read_text(), out / "pages" / "api"

    def known(name: str) -> Any:
        return root[name.removeprefix("hotrows.")]

    def shown(match: re.Match[str]) -> str:
        """A directive, where it is of classes as links to their pages."""
        path = match[1].strip()
        named = [path]
        if known(path).is_module:
            named = [f"{path}.{name}" for name in known(path).exports or known(path).members]
            named = [name for name in named if name.rpartition(".")[2][0] != "_"]
        classes = [name for name in named if known(name).is_class]
        options = re.sub(r" +(show_root_heading|heading_level): .*\n", "", match[2] or "    options:\n")
        for name in classes:
            (folder / f"{name}.md").write_text(f"::: {name}\n{options}      heading_level: 1\n")
        pages.extend(classes)
        others = [name for name in named if name not in classes]
        others = [f"{n}.{n.rpartition('.')[2]}" if known(n).is_module else n for n in others]
        rest = [f"::: {name}\n" for name in others] if classes else [match[0]]
        return "".join([*(_line(known(name), name) for name in classes), "\n" * bool(classes), *rest])

    for page in sorted(folder.glob("*.md")):
        pages: list[str] = []
        page.write_text(DIRECTIVE.sub(shown, page.read_text()))
        entries = ", ".join(
            f'{{ "{name.removeprefix("hotrows.")}" = "api/{name}.md" }}' for name in pages
        )
        place = f'"api/{page.name}"'
        config = config.replace(f"= {place}", f"= [{place}, {entries}]")
    (out / "zensical.toml").write_text(config)


def _line(known: Any, name: str) -> str:
    """An item of a list of classes: name, link, and the first sentence of the docstring."""
    first = " ".join(known.docstring.value.split("\n\n")[0].split()) if known.docstring else ""
    sentence = re.split(r"(?<=[.]) ", first)[0]
    return f"- [`{name}`]({name}.md): {sentence}\n"


def run(out: Path) -> Path:
    """Builds the pages that are staged in `out`; a broken link raises CalledProcessError."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}  # whose docstrings are read
    command = [sys.executable, "-m", "zensical", "build", "--strict", "-f", str(out / "zensical.toml")]
    subprocess.run(command, cwd=out, env=environment, check=True)
    define_terms(out / "site" / "search.json")
    return out / "site"


def define_terms(index: Path) -> None:
    """Makes each word of the glossary a result of its own of the search, before all others."""
    found, section = json.loads(index.read_text()), ""
    terms = []
    for line in (ROOT / "docs" / "glossary.md").read_text().splitlines():
        section = line[3:].strip() if line.startswith("## ") else section
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if line.startswith("| ") and len(cells) > 1 and cells[0] != "word":
            place = re.sub(r"\W+", "-", section.lower()).strip("-")
            word, *texts = (cell.replace("`", "") for cell in cells)
            text = f"<p>{word}: " + "</p><p>".join(texts) + "</p>"  # a word in its text counts more
            fields = {"title": word, "text": text, "path": ["Glossary", section]}
            terms.append({"location": f"glossary.html#{place}", "level": 1, **fields, "tags": []})
    index.write_text(json.dumps({**found, "items": [*terms, *found["items"]]}))


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


def deploy(site: Path, folder: Path) -> Path:
    """Copies a site to FOLDER/VERSION; the menu of versions in its header lists all that are there."""
    place = folder / version()
    shutil.copytree(site, place, dirs_exist_ok=True)
    there = [path.name for path in folder.iterdir() if (path / "index.html").is_file()]
    versions = [{"version": name, "title": name, "aliases": []} for name in sorted(there)[::-1]]
    (folder / "versions.json").write_text(json.dumps(versions))
    return place


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
    parser.add_argument("--repository", help="its URL: pages get links to edit them there")
    parser.add_argument(
        "--deploy", type=Path, help="copy the site into this folder, next to other versions"
    )
    args = parser.parse_args(arguments)
    try:
        site = build(args.out.resolve(), not args.no_reference, args.repository, args.deploy is not None)
        if args.deploy is not None:
            site = deploy(site, args.deploy)
    except subprocess.CalledProcessError as error:
        print("the site was not built: correct the links named above", file=sys.stderr)
        return error.returncode
    print(f"open {site / 'index.html'}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
