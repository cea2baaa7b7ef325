"""prefetch keeps order, raises errors in their place, and leaves no thread behind."""

import subprocess
import sys
import threading
import time
from contextlib import closing

import pytest

from hotrows.engine.pipeline.prefetch import Queue, prefetch


def threads():
    return [t for t in threading.enumerate() if t.name == "hotrows-ahead"]


@pytest.mark.parametrize("depth", [0, 1, 2, 7, 100])
def test_any_depth_gives_the_serial_result(depth):
    assert list(prefetch((i * i for i in range(20)), depth)) == [i * i for i in range(20)]
    assert not threads()


@pytest.mark.parametrize("depth", [0, 2])
def test_an_error_arrives_in_its_place(depth):
    def make(i):
        if i == 3:
            raise ValueError("item 3 is bad")
        return i

    stream = prefetch(map(make, range(10)), depth)
    assert [next(stream) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="item 3 is bad"):
        next(stream)
    assert not threads()


def test_an_error_of_the_items_arrives_too():
    def items():
        yield 1
        raise OSError("the disk is gone")

    stream = prefetch(items(), 2)
    assert next(stream) == 1
    with pytest.raises(OSError, match="the disk is gone"):
        next(stream)


@pytest.mark.parametrize("error", [None, ValueError("the header lacks a column")])
def test_a_queue_whose_error_was_taken_is_not_over(error):
    """The thread that plans had taken it when the one that trains looked: the run ended as if done."""
    queue = Queue(2)
    queue.end(error)
    with pytest.raises(type(error or StopIteration())):
        queue.take()
    assert (queue.may_take, queue.is_over) == (True, error is None)


def test_at_most_depth_items_wait():
    taken = []
    with closing(prefetch(map(taken.append, range(100)), 3)) as stream:
        next(stream)
        time.sleep(0.1)
        assert len(taken) == 4  # one used, three waiting


def test_items_are_made_while_the_caller_works():
    second = threading.Event()
    items = (second.set() if i == 1 else None for i in range(5))
    with closing(prefetch(items, 2)) as stream:
        next(stream)
        assert second.wait(5)


def test_closing_early_ends_the_thread():
    stream = prefetch(iter(int, 1), 2)  # endless
    assert next(stream) == 0
    assert threads()
    stream.close()
    assert not threads()


def test_a_stream_that_is_dropped_has_no_thread():
    prefetch(iter(int, 1), 2)
    assert not threads()


def test_a_keyboard_interrupt_of_the_caller_ends_the_thread():
    with pytest.raises(KeyboardInterrupt), closing(prefetch(iter(int, 1), 2)) as stream:
        next(stream)
        raise KeyboardInterrupt
    assert not threads()


def test_a_thread_that_cannot_start_is_one_error():
    """The finalizer joined a thread that was never started: a traceback followed the one line."""
    script = """
import threading
from hotrows.engine.pipeline.prefetch import Queue, prefetch
def start(*arguments): raise RuntimeError("can't start new thread")
threading.Thread.start = start
try: prefetch([1, 2], 1)
except RuntimeError as error: print(error)
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (ended.stdout, ended.stderr) == ("can't start new thread\n", "")


def test_a_negative_depth_is_refused():
    with pytest.raises(ValueError, match="depth must be 0"):
        prefetch([], -1)
