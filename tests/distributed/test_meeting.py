"""Ranks meet those that are there now, whatever an earlier attempt has left in the store."""

import threading
from datetime import timedelta

import pytest
from torch import distributed as dist

from hotrows.engine.distributed import process_group

SECONDS = timedelta(seconds=10)


def meet(store, ranks, num_ranks, timeout=SECONDS):
    """The rooms that these ranks enter, or how they failed."""
    found = {}

    def enter(rank):
        try:
            room = process_group._meet(store, rank, num_ranks, timeout)
            room.set(f"was here {rank}", "yes")
            found[rank] = room
        except RuntimeError as error:
            found[rank] = error

    threads = [threading.Thread(target=enter, args=(rank,)) for rank in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_ranks_meet_in_one_room():
    rooms = meet(dist.HashStore(), [2, 0, 1], 3)
    assert all(rooms[a].check([f"was here {b}"]) for a in range(3) for b in range(3))


def test_ranks_of_an_earlier_attempt_are_not_met_again():
    store = dist.HashStore()
    before = meet(store, [0, 1], 2)
    late = threading.Timer(0.3, lambda: again.update(meet(store, [0], 2)))
    again = {}
    late.start()
    again.update(meet(store, [1], 2))  # finds the old door first
    late.join()
    assert again[1].check(["was here 0"])
    before[0].set("address", "of a rank that is dead")
    assert not again[1].check(["address"])


def test_a_rank_that_does_not_come_is_not_waited_for_longer_than_the_timeout():
    short = timedelta(seconds=0.3)
    assert isinstance(meet(dist.HashStore(), [0], 2, short)[0], RuntimeError)
    assert "timed out" in str(meet(dist.HashStore(), [1], 2, short)[1])


def test_a_step_that_does_not_end_is_given_up(monkeypatch):
    monkeypatch.setattr(process_group, "_GRACE", 0.1)
    forever = threading.Event()
    with pytest.raises(RuntimeError, match="timed out connecting"):
        process_group._within(0.1, forever.wait)
    forever.set()
    assert process_group._within(5, lambda: 3) == 3
