"""Wrong changes are drawn of every kind, and of two in a small repository one is killed."""

import shutil
from collections import Counter

import pytest

from tests.mutants import draw, mutants, mutants_of
from tests.mutants.nearest import Nearest
from tests.mutants.trial import Trial

PYTHON = '''
def pack(sizes, names, most: int = 2):
    """Says 1 < 2."""
    if not sizes and names:
        raise ValueError(f"expected {len(sizes) + 1} sizes")
    names.sort()
    assert most > 0
    return dict(min(sizes) if most < 7 else call(sizes[:most], names) - 1)
'''
OF_PYTHON = {
    "default": ["2 -> 3", "2 -> (1)"],
    "branch": ["not sizes and names -> (not (not sizes and names))",
               "min(sizes) if most < 7 else call(sizes[:most], names) - 1 -> "
               "(call(sizes[:most], names) - 1 if most < 7 else min(sizes))"],
    "and or": ["not sizes and names -> (not sizes or names)"],
    "not": ["not sizes -> sizes"],
    "statement": ['raise ValueError(f"expected {len(sizes) + 1} sizes") -> pass', "names.sort() -> pass"],
    "min max": ["min -> max"],
    "comparison": ["most < 7 -> most <= 7"],
    "constant": ["7 -> 8", "7 -> (6)", "1 -> 2", "1 -> (0)"],
    "slice": ["most -> (most + 1)"],
    "arithmetic": ["call(sizes[:most], names) - 1 -> (call(sizes[:most], names) + 1)"],
}  # fmt: skip
CORE = """
#define TWICE(x) (x + 1)
void f(std::vector<int> &x) {  // 1 < 2
  for (auto i = x.size(); i < 9; ++i) x[i] = std::min(x[i] - y, z);
  if (is_full(x) && !y) return true;
  x.push_back(y);
}
"""
OF_CORE = {
    "comparison": ["< -> <="],
    "constant": ["9 -> 10", "true -> false"],
    "step": ["++ -> --"],
    "min max": ["min -> max"],
    "arithmetic": ["- -> +"],
    "and or": ["&& -> ||"],
    "not": ["! -> nothing"],
    "branch": ["is_full(x) && !y -> !(is_full(x) && !y)"],
    "statement": ["x.push_back(y); -> ;"],
}
CLIP = "def clip(x, most):\n    return x if x < most else most\n"
FILES = {
    "src/hotrows/__init__.py": "",
    "src/hotrows/clip.py": CLIP,
    "csrc/clip.cpp": 'extern "C" int hotrows_clip(int x, int most) { return x < most ? x : most; }\n',
    "tests/__init__.py": "",
    "tests/test_clip.py": "from hotrows.clip import clip\n\ndef test_it():\n    assert clip(3, 2) == 2\n",
    "tests/test_other.py": "import hotrows.other\n",
}


def changes(path, text):
    found = {}
    for mutant in mutants_of(path, text.encode()):
        found.setdefault(mutant.kind, []).append(str(mutant).partition(f"{mutant.kind}: ")[2])
    return {kind: sorted(texts) for kind, texts in found.items()}


@pytest.mark.parametrize(
    ("path", "text", "expected"), [("a.py", PYTHON, OF_PYTHON), ("a.h", CORE, OF_CORE)]
)
def test_a_place_is_changed_in_every_way_that_it_has(path, text, expected):
    assert changes(path, text) == {kind: sorted(texts) for kind, texts in expected.items()}


def test_names_of_two_arguments_change_their_order():
    assert changes("a.py", "order(first, second, 3.0)")["order"] == ["first, second -> second, first"]


def test_a_seed_draws_the_same_mutants_of_all_kinds():
    choice = list(mutants_of("a.py", PYTHON.encode()))
    drawn = draw(choice, 10, seed=3)
    assert drawn == draw(choice[::-1], 10, seed=3) != draw(choice, 10, seed=4)
    assert len({mutant.kind for mutant in draw(choice, 14, seed=0)}) >= 8
    assert Counter(draw(choice, 100, seed=0)) == Counter(choice)


@pytest.fixture
def repository(tmp_path):
    for path, text in FILES.items():
        (tmp_path / "root" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "root" / path).write_text(text)
    return tmp_path / "root"


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_wrong_change_is_killed_and_an_equivalent_one_survives(repository, tmp_path):
    tests = Nearest(repository).tests("src/hotrows/clip.py")
    assert tests == ["tests/test_clip.py"]
    trial = Trial(repository, tmp_path)
    ends = {mutant.kind: trial.outcome(mutant, tests, 60)[0] for mutant in mutants(repository, ["src"])}
    assert ends == {"comparison": "survived", "branch": "killed"}
    assert (repository / "src/hotrows/clip.py").read_text() == CLIP


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a compiler")
def test_what_compiles_to_the_same_is_equivalent(repository, tmp_path):
    from tests.mutants.__main__ import ROOT

    shutil.copy(ROOT / "csrc" / "build.py", repository / "csrc")
    trial = Trial(repository, tmp_path)
    (mutant,) = mutants(repository, ["csrc/clip.cpp:1"])
    assert trial.outcome(mutant, ["tests"], 60)[0] == "equivalent"
