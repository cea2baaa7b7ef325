"""The proof that nothing changed: a commit trains like itself, and a difference is noticed and named."""

import shutil

import pytest
from benchmarks import same_bits

STEPS = 3


@pytest.mark.slow
@pytest.mark.skipif(
    shutil.which("git") is None or not (same_bits.ROOT / ".git").exists(), reason="needs a git checkout"
)
def test_a_commit_trains_like_itself(capsys):
    with same_bits.worktree("HEAD") as tree:
        assert same_bits.compare(tree, tree, ["in-memory"], STEPS, jobs=2)
    assert not tree.exists()
    assert "yes, all 87" in capsys.readouterr().out


def test_another_seed_is_noticed_and_named(capsys):
    first, other = (same_bits.train("in-memory", STEPS, seed) for seed in (0, 1))
    changed = same_bits.differences(first, other)
    assert {key for key in first if key.endswith("weight")} <= set(changed)
    assert not same_bits.report("in-memory", first, other)
    assert changed[-1] in capsys.readouterr().out


def test_what_only_one_side_has_is_a_difference():
    assert same_bits.differences({"a": "1", "b": "2"}, {"a": "1", "c": "2"}) == ["b", "c"]
