"""torchrun goes on by itself, on one host and on two whose network fails."""

import pytest

from tests.faults import cases, jobs, network, torchruns
from tests.faults.inject import Fault


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return cases.tiny_data(tmp_path_factory.mktemp("data"))


@pytest.fixture
def hosts():
    try:
        with torchruns.two_hosts() as hosts:
            yield hosts
    except PermissionError as error:
        pytest.skip(f"needs network namespaces: {error}")


@pytest.mark.slow
def test_torchrun_restarts_a_job_until_it_is_done(data, tmp_path):
    faults = Fault("kill", "forward", 1, 5), Fault("kill", "written", 0, 2, attempt=1)
    code, said = torchruns.on_this_host(data, tmp_path / "run", 2, "--max-restarts", "2", faults=faults)
    assert code == 0, said
    assert jobs.checksums(tmp_path / "run") == cases.undisturbed(data, 2)


@pytest.mark.slow
def test_a_short_cut_is_waited_out(data, tmp_path, hosts):
    network.a_short_cut_is_waited_out(data, tmp_path / "run", hosts)


@pytest.mark.slow
def test_a_short_cut_is_a_restart(data, tmp_path, hosts):
    network.a_short_cut_is_a_restart(data, tmp_path / "run", hosts)


@pytest.mark.slow
def test_a_cut_for_good_ends_the_ranks(data, tmp_path, hosts):
    network.a_cut_for_good_ends_the_ranks(data, tmp_path / "run", hosts)


@pytest.mark.slow
def test_a_slow_cable_is_waited_for(data, tmp_path, hosts):
    network.a_slow_cable_is_waited_for(data, tmp_path / "run", hosts)
