"""Whatever happens to a rank: none hangs, the checkpoint is whole, and going on gives the same bits."""

import pytest

from tests.faults import cases
from tests.faults.inject import Fault

SLOW = pytest.mark.slow


def slow(*faults):
    return [pytest.param(fault, marks=SLOW) for fault in faults]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return cases.tiny_data(tmp_path_factory.mktemp("data"))


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "fault",
    [
        Fault("kill", "planning", 1, 8),
        Fault("kill", "backward", 0, 8),
        Fault("kill", "pointed", 0, 3),
        *slow(
            Fault("kill", "forward", 1, 1),
            Fault("kill", "rows on their way", 0, 8),
            Fault("kill", "forward", 1, 8),
            Fault("kill", "update", 1, 8),
            Fault("kill", "evaluation", 1, 3),
            Fault("kill", "snapshot", 1, 3),
            Fault("kill", "half written", 1, 5),
            Fault("kill", "written", 0, 3),
            Fault("kill", "published", 0, 3),
        ),
    ],
    ids=str,
)
def test_a_rank_is_killed(data, tmp_path, fault):
    cases.a_rank_is_killed(data, tmp_path / "run", 2, fault)


@SLOW
@pytest.mark.parametrize(
    "fault",
    [Fault("kill", "planning", 2, 8), Fault("kill", "backward", 0, 8), Fault("kill", "writing", 3, 3)],
    ids=str,
)
def test_one_of_four_ranks_is_killed(data, tmp_path, fault):
    cases.a_rank_is_killed(data, tmp_path / "run", 4, fault)


@pytest.mark.parametrize("stage", ["planned", *slow("forward")])
def test_a_rank_raises(data, tmp_path, stage):
    cases.a_rank_raises(data, tmp_path / "run", 2, Fault("raise", stage, 1, 8))


@SLOW
@pytest.mark.parametrize("stage", ["update", "writing"])
def test_a_rank_hangs(data, tmp_path, stage):
    cases.a_rank_hangs(data, tmp_path / "run", 2, Fault("stop", stage, 1, 3))


@SLOW
def test_a_rank_lags(data, tmp_path):
    cases.a_rank_lags(data, tmp_path / "run", 2, Fault("lag", "forward", 1, 1))


def test_the_disk_of_one_rank_is_full(data, tmp_path):
    cases.a_disk_is_full(data, tmp_path / "run", 2, Fault("full", "writing", 1, 3))


@SLOW
def test_the_disk_of_all_ranks_is_full(data, tmp_path):
    try:
        with cases.small_disk(tmp_path / "disk") as disk:
            fault = Fault("fill", "writing", 1, 3, path=str(disk / "ballast"))
            cases.a_disk_is_full(data, disk / "run", 2, fault)
    except PermissionError as error:
        pytest.skip(f"needs to mount a small file system: {error}")
