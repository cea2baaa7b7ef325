"""The examples in docstrings of the source give what stands there; every public name has one."""

import doctest
import importlib
import inspect
import pkgutil
from pathlib import Path

import numpy as np
import pytest
import torch

import hotrows
from hotrows import Dense, Schema, Sequence, Sparse
from tests.support.public_names import NAMES

SOURCE = Path(hotrows.__file__).parent
WITH_EXAMPLES = sorted(path for path in SOURCE.rglob("*.py") if ">>> " in path.read_text())
WITHOUT = {
    **dict.fromkeys(["hotrows.data.datasets.BY_NAME", "hotrows.models.BY_NAME"], "a mapping"),
    "hotrows.engine.planning.policy.LRU": "an object",
    "hotrows.data.datasets.download": "reads from the internet",
    "hotrows.tools.tuning.tune.tune": "measures for minutes",
    **dict.fromkeys(
        [f"hotrows.tools.trackers.{name}" for name in ("MLflow", "Tracker", "WandB")], "needs a service"
    ),
    **dict.fromkeys(
        ["hotrows.serving.Scorer", "hotrows.serving.application"], "needs a bundle, and its libraries"
    ),
}


@pytest.fixture(scope="module")
def names(tmp_path_factory):
    """What examples may use, as docs/api/hotrows.md says: `frame`, `data` and `run`."""
    rng, home = np.random.default_rng(0), tmp_path_factory.mktemp("examples")
    items = [f"i{n}" for n in rng.integers(9, size=100)]
    frame = {
        "user": [f"u{n}" for n in rng.integers(9, size=100)],
        "item": items,
        "history": [f"{one}|{other}" for one, other in zip(items[1:] + items[:1], items, strict=True)],
        "price": rng.gamma(2, 5, 100).tolist(),
        "click": rng.integers(2, size=100).tolist(),
    }
    history = Sequence("history", vocabulary="item", max_length=5, separator="|")
    schema = Schema((Sparse("user"), Sparse("item"), history, Dense("price")), label="click")
    data = hotrows.prepare(frame, schema, home / "data", split="position:0.8,0.1,0.1")
    config = hotrows.TrainConfig(model="fm", steps=4)
    hotrows.Trainer(data, config, home / "run").fit()
    return {"hotrows": hotrows, "torch": torch, "frame": frame, "data": data, "run": str(home / "run")}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("path", WITH_EXAMPLES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_examples_give_what_they_say(path, names, tmp_path_factory, one_thread, no_pictures):
    words = path.relative_to(SOURCE.parent).with_suffix("").parts
    module = importlib.import_module(".".join(words).removesuffix(".__init__"))
    attempted = 0
    for example in doctest.DocTestFinder(exclude_empty=True).find(module):
        folder = str(tmp_path_factory.mktemp("example"))
        example.globs |= {"Schema": Schema, "Sparse": Sparse} | names | {"folder": folder}
        runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE, verbose=False)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            result = runner.run(example)
        assert not result.failed
        attempted += result.attempted
    assert attempted


def test_an_example_that_says_something_else_fails():
    example = doctest.DocTestParser().get_doctest(">>> 1 + 1\n3\n", {}, "wrong", None, None)
    assert doctest.DocTestRunner(verbose=False).run(example, out=lambda text: None).failed == 1


@pytest.mark.parametrize("name", NAMES)
def test_every_public_name_has_an_example_and_a_first_line(name):
    """Of 185 none had one, and `help(DeepFM)` began with its parameter `hidden`."""
    if name in WITHOUT:
        return
    public = pkgutil.resolve_name(name)
    text = inspect.cleandoc(
        (vars(public)["__doc__"] if inspect.isclass(public) else public.__doc__) or ""
    )
    first, _, _ = text.partition("\n")
    assert ">>> " in text
    is_error = inspect.isclass(public) and issubclass(public, BaseException)
    parameters = () if is_error else inspect.signature(public).parameters
    assert first.partition(":")[0] not in parameters, f"say first what it is, not {first!r}"
