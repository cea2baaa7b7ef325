"""A stream is the batches of its epochs, resumes anywhere, and leaves no thread behind."""

import gc
import json
import signal
import subprocess
import sys
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotrows.data import Loader
from hotrows.data.stored import order
from hotrows.engine.pipeline.prefetch import prefetch
from tests.data.encoded_rows import EVERYTHING, batch_of, samples, write_rows
from tests.support.choice import examples


@pytest.fixture(scope="module")
def part(tmp_path_factory):
    with pytest.MonkeyPatch.context() as monkeypatch:
        batch = batch_of(EVERYTHING, 200)
        folder = tmp_path_factory.mktemp("stream") / "out"
        monkeypatch.setattr(order.pools, "__defaults__", (0, 32, 3))
        yield write_rows(folder, EVERYTHING, batch, 90, monkeypatch).parts["train"]


@pytest.fixture(autouse=True)
def no_thread_stays():
    yield
    gc.collect()
    assert not threads()


def threads():
    return [thread for thread in threading.enumerate() if thread.name == "hotrows-ahead"]


def loader(part, **changed):
    return Loader(part, **{"batch_size": 30, "shuffle": True, "seed": 1, **changed})


@pytest.mark.parametrize("prefetch", [0, 1, 2, 50])
def test_a_stream_runs_on_across_epochs(part, prefetch):
    stream_loader = loader(part)
    expected = [samples(batch) for epoch in range(3) for batch in stream_loader.batches(epoch)]
    assert [samples(batch) for batch in stream_loader.stream(epochs=3, prefetch=prefetch)] == expected
    endless = stream_loader.stream(prefetch=prefetch)
    assert [samples(next(endless)) for _ in range(15)] == expected[:15]


@settings(deadline=None, max_examples=examples(40, 6))
@given(
    taken=st.integers(0, 21),
    prefetch=st.integers(0, 3),
    ranks=st.sampled_from([(0, 1), (1, 3)]),
    reuse=st.booleans(),
)
def test_resuming_anywhere_equals_going_on(part, taken, prefetch, ranks, reuse):
    stream_loader = loader(part, rank=ranks[0], num_ranks=ranks[1])
    stream_of_all = stream_loader.stream(epochs=3, prefetch=prefetch)
    before = [samples(next(stream_of_all)) for _ in range(taken)]
    state = json.loads(json.dumps(stream_of_all.state_dict()))
    assert (state["epoch"], state["batch"]) == divmod(taken, 7)
    remaining = [samples(batch) for batch in stream_of_all]
    if reuse:
        stream_of_all.load_state_dict(state)
        assert [samples(batch) for batch in stream_of_all] == remaining
    resumed = stream_loader.stream(epochs=3, position=state)
    assert [samples(batch) for batch in resumed] == remaining
    assert len(before) + len(remaining) == 21


def test_a_state_of_another_stream_is_refused(part):
    state = loader(part).stream().state_dict()
    for changed in ({"batch_size": 31}, {"seed": 2}, {"shuffle": False}):
        with pytest.raises(ValueError, match=f"the state is of a stream with .'{next(iter(changed))}'"):
            loader(part, **changed).stream(position=state)
    with pytest.raises(ValueError, match="the state is of a stream with {'rows': 7}, this one has"):
        loader(part).stream(position={**state, "rows": 7})
    with pytest.raises(ValueError, match=r"\['batch'\] are missing; pass what state_dict\(\) gave"):
        loader(part).stream(
            position={n: stream_loader for n, stream_loader in state.items() if n != "batch"}
        )
    with pytest.raises(ValueError, match="a batch from 0 to 7, not 0 and 9"):
        loader(part).stream(position={**state, "batch": 9})
    with pytest.raises(ValueError, match="prefetch must be 0"):
        loader(part).stream(prefetch=-1)
    assert loader(part, rank=1, num_ranks=2).stream(position=state)  # ranks may change


def test_closing_and_dropping_end_the_thread(part):
    stream = loader(part).stream()
    next(stream)
    assert len(threads()) == 1
    stream.close()
    assert not threads()
    number = stream.state_dict()["batch"]
    assert samples(next(stream)) == samples(list(loader(part).batches(0))[number])
    with loader(part).stream() as other:
        next(other)
        assert len(threads()) == 2
    assert len(threads()) == 1
    del stream
    gc.collect()
    assert not threads()


def test_an_error_comes_where_its_batch_would(part):
    def items():
        yield 1
        yield 2
        raise ValueError("the disk is gone")

    ahead = prefetch(items(), 5)
    assert [next(ahead), next(ahead)] == [1, 2]
    with pytest.raises(ValueError, match="the disk is gone"):
        next(ahead)
    assert list(ahead) == []


def test_no_more_is_made_than_may_wait():
    items_made = []
    ahead = prefetch((items_made.append(i) or i for i in range(100)), 3)
    time.sleep(0.1)
    assert len(items_made) == 3
    assert next(ahead) == 0
    time.sleep(0.1)
    assert len(items_made) == 4
    ahead.close()
    with pytest.raises(StopIteration):
        next(ahead)


def test_an_empty_part_ends_at_once(tmp_path, monkeypatch):
    data = write_rows(tmp_path / "out", EVERYTHING, batch_of(EVERYTHING, 3), 3, monkeypatch)
    assert list(Loader(data.parts["test"], 3, shuffle=True).stream()) == []


def test_an_interrupted_program_ends(tmp_path, part):
    program = f"""
import signal, time
from pathlib import Path
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever started the tests may ignore it
from hotrows.data import EncodedData, Loader
stream = Loader(EncodedData.open({str(part.folder)!r}).parts["train"], 3, shuffle=True).stream()
next(stream)
print("ready", flush=True)
while True:
    next(stream)
    time.sleep(0.01)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=-1, stderr=-1) as running:
        assert running.stdout.readline() == b"ready\n"
        running.send_signal(signal.SIGINT)
        try:
            _, said = running.communicate(timeout=60)
        finally:
            running.kill()
    assert b"KeyboardInterrupt" in said
    assert b"Fatal" not in said


@pytest.mark.gpu
def test_batches_come_in_pinned_memory(part):
    with loader(part).stream(pin_memory=True) as stream:
        batch = next(stream)
        assert batch.ids.is_pinned()
        assert samples(batch) == samples(next(iter(loader(part).batches(0))))
