"""The examples in docstrings of the source give what stands there."""

import doctest
import importlib
from pathlib import Path

import pytest

import hotrows

SOURCE = Path(hotrows.__file__).parent
WITH_EXAMPLES = sorted(path for path in SOURCE.rglob("*.py") if ">>> " in path.read_text())


@pytest.mark.parametrize("path", WITH_EXAMPLES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_examples_give_what_they_say(path):
    words = path.relative_to(SOURCE.parent).with_suffix("").parts
    module = importlib.import_module(".".join(words).removesuffix(".__init__"))
    result = doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert result.attempted and not result.failed


def test_an_example_that_says_something_else_fails():
    example = doctest.DocTestParser().get_doctest(">>> 1 + 1\n3\n", {}, "wrong", None, None)
    assert doctest.DocTestRunner(verbose=False).run(example, out=lambda text: None).failed == 1
