"""Every state that a power failure may leave leads on, and a sync that is left out is found."""

import shutil

import pytest

from tests.crash_consistency.campaign import Campaign, record
from tests.crash_consistency.disk import Recording, State
from tests.crash_consistency.recording import recorder, run_with_recorder
from tests.crash_consistency.scenarios import SCENARIOS
from tests.support.choice import everything

QUICK = ["checkpoints", "store", "data", "export"]

pytestmark = pytest.mark.skipif(recorder() is None, reason="needs Linux and a C compiler")


# Of which stores, checkpoints and exports, and the campaign's kills, are a part that is quick.
LONG = ["run behind a cache", "run with dynamic ids", "run on a stream", "publishing"]


@pytest.fixture(scope="module")
def campaign_of(tmp_path_factory):
    """Makes campaigns of scenarios that are recorded once, in one process but for the long ones."""
    folders = {name: tmp_path_factory.mktemp("recorded") / name for name in SCENARIOS}
    record({name: folder for name, folder in folders.items() if name not in LONG})
    shutil.copytree(folders["data"] / "root", folders["data"] / "after")

    def campaign(name, drop=""):
        if not folders[name].exists():
            record({name: folders[name]})
        return Campaign(name, folders[name], drop)

    return campaign


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in LONG)) for name in SCENARIOS]
)
def test_after_a_power_failure_the_next_start_finds_the_old_state_or_the_new_one(campaign_of, name):
    campaign = campaign_of(name)
    whole, few = everything(), {"run": 2, "data": 4, "export": 4}.get(name, 6)
    every = 1 if whole or name == "export" else 29  # an export is fifteen calls
    campaign.run(every=every, seed=5, most=None if whole else few)
    assert not campaign.failures, campaign.summary()
    assert campaign.num_checked >= few


@pytest.mark.few(4)  # each writer, without the syncs of one kind
@pytest.mark.parametrize("name", QUICK)
@pytest.mark.parametrize("what", ["files", "folders"])
def test_without_its_syncs_a_writer_would_lose_something(campaign_of, name, what):
    campaign = campaign_of(name, drop=what)
    campaign.run(every=3)
    assert campaign.failures


def recorded(tmp_path, *entries):
    """A recording of calls in an empty folder: (kind, name, data, offset)."""
    root, before, log = tmp_path / "root", tmp_path / "before", b""
    before.mkdir()
    for kind, name, data, offset in entries:
        path = str(root / name if name else root).encode()
        if kind == "R":
            data = str(root / data.decode()).encode()
        sizes = len(path).to_bytes(4, "little") + len(data).to_bytes(4, "little")
        log += kind.encode() + sizes + offset.to_bytes(8, "little") + path + data
    return Recording(log, root, before)


def all_states(recording, crash):
    return {
        tuple(sorted(recording.files(state).items())) for state in recording.states(crash, num_drawn=50)
    }


def test_a_renamed_file_that_was_not_synced_may_be_empty_or_torn(tmp_path):
    recording = recorded(
        tmp_path, ("C", "a.part", b"", 0), ("W", "a.part", b"new!", 0), ("R", "a.part", b"a", 0)
    )
    left = all_states(recording, 3)
    assert {(), (("a", b""),), (("a", b"new!"),), (("a", b"ne"),), (("a", b"\0\0\0\0"),)} <= left
    assert (("a.part", b"new!"),) in left  # the renaming is lost


def test_what_was_synced_is_there(tmp_path):
    recording = recorded(
        tmp_path,
        ("C", "a.part", b"", 0),
        ("W", "a.part", b"new!", 0),
        ("S", "a.part", b"", 0),
        ("R", "a.part", b"a", 0),
        ("S", "", b"", 0),
        ("U", "a", b"", 0),
    )
    assert all_states(recording, 3) == {(("a", b"new!"),)}
    assert all_states(recording, 4) == {(("a", b"new!"),), ()}


def test_a_folder_takes_its_files_along(tmp_path):
    recording = recorded(
        tmp_path,
        ("D", "x.part", b"", 0),
        ("C", "x.part/f", b"", 0),
        ("W", "x.part/f", b"12", 0),
        ("T", "x.part/f", b"", 1),
        ("R", "x.part", b"x", 0),
    )
    assert (("x", None), ("x/f", b"1")) in all_states(recording, 5)
    assert recording.files(State(5, (0, 4))) == {"x": None}


def test_calls_are_recorded_in_the_order_of_their_effects(campaign_of):
    recording = campaign_of("data").recording
    everything_done = State(len(recording.changes), tuple(range(len(recording.changes))))
    after = recording.root.with_name("after")
    there = {
        str(path.relative_to(after)): None if path.is_dir() else path.read_bytes()
        for path in after.rglob("*")
    }
    assert recording.files(everything_done) == there


def test_what_is_written_to_a_mapped_file_is_recorded(tmp_path):
    """Bases of published models are, and were found with the rows of the base before."""
    root, before = tmp_path / "root", tmp_path / "before"
    root.mkdir()
    before.mkdir()
    code = """
import ctypes, mmap, sys
ctypes.CDLL(None).record_into(*map(str.encode, sys.argv[1:3]))
with open(sys.argv[3], "w+b") as file:
    file.write(b"old!" * 2000)
    file.flush()
    with mmap.mmap(file.fileno(), 0) as mapped:
        mapped[5000:5004] = b"new!"
        mapped.flush()
"""
    run_with_recorder("-c", code, str(root), str(tmp_path / "log"), str(root / "file"))
    recording = Recording((tmp_path / "log").read_bytes(), root, before)
    last = len(recording.changes)
    content = (root / "file").read_bytes()
    assert content[5000:5004] == b"new!" and all_states(recording, last) == {(), (("file", content),)}
