"""prepare on a real cluster of Ray, by the public API alone; workers are killed while they work."""

import importlib.util
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest

from hotrows import Dense, Schema, Sequence, Sparse, Time
from hotrows.data import prepare
from hotrows.data.encode.cluster import on_ray
from hotrows.data.raw.inputs import inputs_of, zones_of
from tests.data.raw import files_of
from tests.support.histories import events_and_samples, schema
from tests.support.ray_rows import table_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("ray") is None, reason="needs Ray: pip install 'ray[data]'"
    ),
    pytest.mark.filterwarnings("ignore"),  # of Ray itself
]
SCHEMA = Schema(
    features=(
        Dense("x", transform="standard"),
        Dense("y", transform="log"),
        Sparse("user", min_count=2, num_unknown=3),
        Sequence("seen", vocabulary="item", max_length=3),
        Sparse("item"),
        Sparse("hour", transform="hour"),
    ),
    label="click",
    time=Time("when", format="unix"),
    group="user",
)
SPLITS = [
    "fraction:0.7,0.2,0.1",
    "stratified:0.8,0.1,0.1",
    "position:0.8",
    "time:0.7,0.1,0.2",
    "group:user:0.7,0.2,0.1",
]
MARK = "HOTROWS_TEST_OF_RAY"  # in the environment of the processes of our cluster, and of no other


@pytest.fixture(scope="module")
def ray():
    import ray

    os.environ |= {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0", MARK: str(os.getpid())}
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    yield ray
    ray.shutdown()


def write_files(folder: Path, table: pa.Table) -> Path:
    """Files of different sizes, one of which has no rows."""
    folder.mkdir()
    cuts = [0, 100, 100, 7_000, 20_000, 20_001, table.num_rows]
    for number, (a, b) in enumerate(itertools.pairwise(cuts)):
        pyarrow.parquet.write_table(table.slice(a, b - a), folder / f"part-{number:05d}.parquet")
    return folder


def test_the_zone_of_a_time_is_that_of_its_column(ray):
    moments = pa.array([0, 3600], pa.timestamp("s", "Europe/Berlin"))
    table = pa.table({"when": moments, "click": [0, 1]})
    for dataset in (ray.data.from_arrow(table), ray.data.from_pandas(table.to_pandas())):
        assert zones_of(inputs_of(dataset), Time("when")) == ["Europe/Berlin"]


def test_every_split_gives_the_bytes_of_one_machine(ray, tmp_path):
    table = table_of(30_000)
    folder = write_files(tmp_path / "raw", table)
    for number, split in enumerate(SPLITS):
        prepare(folder, SCHEMA, tmp_path / f"here-{number}", split=split, seed=3)
        dataset = ray.data.read_parquet(str(folder))
        prepare(dataset, SCHEMA, tmp_path / f"ray-{number}", split=split, seed=3)
        assert files_of(tmp_path / f"ray-{number}") == files_of(tmp_path / f"here-{number}"), split


def test_transformed_rows_frames_and_parts_of_their_own(ray, tmp_path):
    table, other = table_of(9_000), table_of(2_000, seed=1)

    def slower_first(rows: pa.Table) -> pa.Table:  # blocks overtake one another
        time.sleep(1.5 if rows["when"][0].as_py() == table["when"][0].as_py() else 0)
        return rows

    blocks = ray.data.from_arrow([table.slice(n, 1_000) for n in range(0, 9_000, 1_000)])
    moved = blocks.map_batches(slower_first, batch_format="pyarrow", batch_size=None)
    moved = moved.map(lambda row: row)  # which makes tensors of lists
    frames = ray.data.from_pandas([other.slice(0, 700).to_pandas(), other.slice(700).to_pandas()])
    prepare(table, SCHEMA, tmp_path / "here", test=other.to_pandas())
    prepare(moved, SCHEMA, tmp_path / "ray", test=frames)
    assert files_of(tmp_path / "ray") == files_of(tmp_path / "here")
    pickled = blocks.map_batches(lambda batch: batch)  # of NumPy: which pickles lists of texts
    prepare(pickled, SCHEMA, tmp_path / "pickled", test=frames)
    assert files_of(tmp_path / "pickled") == files_of(tmp_path / "here")
    prepare(other, None, tmp_path / "more here", extend=tmp_path / "here")
    prepare(frames, None, tmp_path / "more on ray", extend=tmp_path / "ray")
    assert files_of(tmp_path / "more on ray") == files_of(tmp_path / "more here")


def test_more_than_a_shard_and_killed_workers_change_nothing(ray, tmp_path):
    """Processes that count, merge, encode and write are killed while they do."""
    folder = write_files(tmp_path / "raw", table_of(900_000))
    prepare(folder, SCHEMA, tmp_path / "here", split="fraction:0.8,0.1,0.1")
    with workers_killed():
        dataset = ray.data.read_parquet(str(folder), override_num_blocks=12)
        prepare(dataset, SCHEMA, tmp_path / "ray", split="fraction:0.8,0.1,0.1")
    files = files_of(tmp_path / "here")
    assert sum(name.startswith("train") for name in files) == 2
    assert files_of(tmp_path / "ray") == files


def test_histories_from_events_are_those_of_one_machine_while_workers_are_killed(ray, tmp_path):
    """Events in a dataset, and in files beside one."""
    events, samples = events_and_samples(events=100_000, samples=400_000, users=3_000, moments=10_000)
    pyarrow.parquet.write_table(pa.Table.from_pandas(events), tmp_path / "events.parquet")
    folder = write_files(tmp_path / "raw", pa.Table.from_pandas(samples))
    split, of_events = "time:0.8,0.1,0.1", {"file": tmp_path / "events.parquet"}
    prepare(folder, schema(), tmp_path / "here", events=of_events["file"], split=split)
    of_events["dataset"] = ray.data.read_parquet(str(tmp_path / "events.parquet"))
    for name, some in of_events.items():
        with workers_killed():
            dataset = ray.data.read_parquet(str(folder), override_num_blocks=12)
            prepare(dataset, schema(), tmp_path / name, events=some, split=split)
        assert files_of(tmp_path / name) == files_of(tmp_path / "here")


@contextmanager
def workers_killed() -> Iterator[None]:
    """Kills two processes of each kind of task while they do it."""
    killed: dict[str, int] = {}
    done = threading.Event()

    def kill() -> None:
        while not done.wait(0.02):
            for pid, task in tasks_of_cluster():
                if killed.get(task, 0) < 2:
                    os.kill(pid, signal.SIGKILL)
                    killed[task] = killed.get(task, 0) + 1
                    break

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        yield
    finally:
        done.set()
        killer.join()
    assert killed.get("count") == 2 and killed.get("encode") == 2, killed


def tasks_of_cluster() -> list[tuple[int, str]]:
    """Processes of our cluster that do a task of ours now, and its name."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            name = (process / "cmdline").read_bytes().rstrip(b"\0 ").decode()
            if name.startswith("ray::hotrows ") and f"{MARK}={os.getpid()}".encode() in (
                process / "environ"
            ).read_bytes().split(b"\0"):
                found.append((int(process.name), name.removeprefix("ray::hotrows ")))
        except (OSError, UnicodeDecodeError):
            continue  # it has ended
    return found


def test_errors_are_one_line(ray, tmp_path, monkeypatch):
    table = table_of(3_000).to_pandas()
    table.loc[2_000, "click"] = 7
    with pytest.raises(ValueError, match="the Ray dataset row 2,000, column 'click'") as failed:
        prepare(ray.data.from_pandas(table), SCHEMA, tmp_path / "out")
    assert "\n" not in str(failed.value)
    shuffled = ray.data.from_arrow(table_of(3_000)).random_shuffle()
    with monkeypatch.context() as patched:
        patched.setattr(on_ray, "_KEPT_SHARE", 1 << 60)
        with pytest.raises(ValueError, match="when it was executed a second time"):
            prepare(shuffled, SCHEMA, tmp_path / "out")
    with pytest.raises(ValueError, match="lacks the columns"):
        prepare(ray.data.range(10), SCHEMA, tmp_path / "out")
    assert not list(tmp_path.iterdir())
    prepare(shuffled, SCHEMA, tmp_path / "out")


def test_without_a_dataset_ray_is_not_imported():
    code = "import sys, hotrows.data.encode.prepare; assert 'ray' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
