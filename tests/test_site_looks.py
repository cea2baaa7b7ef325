"""The site in a headless Chromium: phone and desktop, light and dark; what its search finds first."""

import functools
import threading
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.support import chromium
from tests.support.site import site

pytestmark = [pytest.mark.slow, pytest.mark.skipif(chromium.PROGRAM is None, reason="needs Chromium")]
FEW = ("index", "serving", "deploying", "api/hotrows", "api/hotrows.Trainer", "evidence/performance")
_FIND = """
(async () => {
  const inputs = (root) => [...root.querySelectorAll('*')].flatMap((element) =>
    element.shadowRoot ? inputs(element.shadowRoot) :
    element.tagName === 'INPUT' && ['text', 'search'].includes(element.type) ? [element] : []);
  document.querySelector('.md-search__button').click();
  for (let tries = 0; tries < 100; tries++) {
    await new Promise((resume) => setTimeout(resume, 100));
    const [input] = inputs(document);
    if (!input) continue;
    if (input.value !== WORD) {
      Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, 'value').set.call(input, WORD);
      input.dispatchEvent(new Event('input', { bubbles: true }));
      await new Promise((resume) => setTimeout(resume, 1500));
    }
    const found = input.getRootNode().querySelectorAll('a');
    if (found.length) return found[0].textContent;
  }
})()
"""


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *words):
        pass


@contextmanager
def at_address(folder):
    """The address at which a folder is served."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    with at_address(site.build(tmp_path_factory.mktemp("site"))) as address:
        yield address


@pytest.fixture(scope="module")
def browser():
    with chromium.browser() as opened:
        yield opened


@pytest.mark.parametrize("size", chromium.SIZES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_cut_and_the_console_is_silent(address, browser, size, scheme):
    faults = {}
    for page in FEW:
        browser.open(f"{address}/{page}.html", size, scheme)
        faults[page] = browser.faults()
        palette = browser.value("document.body.dataset.mdColorScheme")
        assert palette == ("slate" if scheme == "dark" else "default")
    assert not any(faults.values()), faults


@pytest.mark.parametrize("word", ["bag", "slot", "pack", "calibration"])
def test_the_definition_of_a_word_is_found_first(address, browser, word):
    browser.open(f"{address}/index.html", "desktop")
    assert browser.value(_FIND.replace("WORD", repr(word))).startswith(f"{word}Glossary")


def test_examples_are_code_and_classes_have_pages(address, browser):
    browser.open(f"{address}/api/hotrows.Schema.html", "desktop")
    quoted, coded = browser.value(
        "[document.querySelectorAll('blockquote').length, [...document.querySelectorAll('pre')]"
        ".filter((code) => code.textContent.includes('>>>')).length]"
    )
    assert quoted == 0 and coded >= 1
    assert "hotrows.Schema" in browser.value("document.querySelector('h1').textContent")


def test_a_site_has_links_to_edit_pages_and_a_menu_of_versions(browser, tmp_path):
    repository = "https://example.org/hotrows"
    built = site.build(tmp_path / "site", reference=False, repository=repository, versions=True)
    (tmp_path / "all" / "0.0.1").mkdir(parents=True)
    (tmp_path / "all" / "0.0.1" / "index.html").write_text("")
    place = site.deploy(built, tmp_path / "all")
    with at_address(tmp_path / "all") as address:
        browser.open(f"{address}/{place.name}/serving.html", "desktop")
        link = "document.querySelector('a[href*=\"edit/main/docs/serving.md\"]') !== null"
        assert browser.value(link)
        found = "[...document.querySelectorAll('.md-version__link')].map((a) => a.textContent).join()"
        for _ in range(50):
            if versions := browser.value(found):
                break
            threading.Event().wait(0.1)
    assert "".join(versions.split()) == f"{site.version()},0.0.1"


def test_what_is_cut_is_named(browser, tmp_path):
    page = "<body style='margin:0'><p style='width:2000px'>a long line</p><script>boom()</script>"
    (tmp_path / "page.html").write_text(page)
    browser.open((tmp_path / "page.html").as_uri(), "phone")
    faults = " ".join(browser.faults())
    assert "px wider than the window" in faults and "P.: a long line" in faults and "Uncaught" in faults
