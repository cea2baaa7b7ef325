"""The documentation site: built strictly, all pages in its navigation, all names in its reference."""

import importlib.util
import re
import subprocess
from types import SimpleNamespace

import pytest

from tests.support.page_code import PAGES, ROOT
from tests.support.public_names import PUBLIC
from tests.support.site import site


def test_every_page_is_in_the_navigation():
    named = set(site.NAV_PAGE.findall((ROOT / "docs" / "zensical.toml").read_text()))
    places = {str(site.place_of(page)) for page in PAGES}
    indexed = ("decisions/0", "good_first_issues/0", "good_first_issues/1")
    records = {place for place in places if place.startswith(indexed)}  # their index leads to them
    assert places - named - records == set()


def test_the_site_is_built_without_a_broken_link(tmp_path):
    built = site.build(tmp_path / "site", reference=False)
    home = (built / "index.html").read_text()
    assert 'href="tutorials/first_model.html"' in home and 'src="pictures/beside-peers-light.png"' in home
    assert "frozen" in (built / "source/src/hotrows/ops/plan.py.html").read_text()
    assert list(built.glob("search*")) or list(built.glob("assets/**/search*"))


@pytest.mark.slow
def test_the_reference_has_every_public_name(tmp_path):
    built = site.build(tmp_path / "site") / "api"
    pages = "".join(page.read_text() for page in built.glob("*.html"))
    names = set(re.findall(r'id="(hotrows[\w.]*)"', pages)) | set(
        re.findall(r"<code>(hotrows[\w.]*)<", pages)
    )
    assert len(names) > 300
    for module, text in PUBLIC.items():
        missing = {n for n in text.split() if not {f"{module}.{n}", f"{module}.{n}.{n}"} & names}
        assert not missing, f"docs/api lacks {missing} of {module}"


@pytest.mark.slow
@pytest.mark.parametrize("link", ["nowhere.md", "glossary.md#nowhere"])
def test_a_broken_link_fails_the_build(link, tmp_path):
    site.stage(tmp_path)
    page = tmp_path / "pages" / "tuning.md"
    page.write_text(f"{page.read_text()}\n[broken]({link})\n")
    with pytest.raises(subprocess.CalledProcessError):
        site.run(tmp_path)


def test_parameters_of_docstrings_are_lists():
    spec = importlib.util.spec_from_file_location("docstrings", ROOT / "docs" / "docstrings.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    text = "Reads.\n\npath: of the file. rows,\n    columns: sizes; the rest: nothing.\n\n    path: code"
    assert module.as_list(text, {"path", "rows", "columns"}) == (
        "Reads.\n\n- `path`: of the file.\n- `rows, columns`: sizes; the rest: nothing.\n\n    path: code"
    )
    parameter = SimpleNamespace(default="setting(None, 'Size of it' 'self', least=1)")
    assert module.as_default(parameter) == "Size of itself" and parameter.default == "None"
