"""Advice on fast memory: expected speeds, and the knee."""

import math
import re

import pytest

from hotrows.tools.tuning.advice import SlowMemory, advise
from tests.support.simulations import curve


def test_speed_is_bound_by_the_slowest_part_of_a_step():
    simulation = curve((1 << 20, 800), (1 << 24, 100))  # a step in memory takes 1 ms
    advice = advise(simulation, samples_per_second=100_000, slow=SlowMemory(reads_per_second=200_000))
    assert advice.speeds == {1 << 20: pytest.approx(0.25), 1 << 24: 1.0}
    slow = SlowMemory(reads_per_second=1e9, bytes_per_second=51.2e6)
    assert advise(simulation, samples_per_second=100_000, slow=slow).speeds[1 << 20] == 0.5
    slow = SlowMemory(reads_per_second=1e9, writes_per_second=400_000)
    assert advise(simulation, samples_per_second=100_000, slow=slow).speeds[1 << 20] == 0.5


def test_the_knee_is_where_doubling_stops_to_gain_five_percent():
    steep = [(1 << (20 + n), 1000 * 2.0**-n) for n in range(8)]  # halves with each doubling
    advice = advise(curve(*steep))
    last_paying = math.log2(steep[3][0]) + math.log2(125 / 100)  # 125 rows less 62.5; 100 less 50
    assert math.log2(advice.knee) == pytest.approx(last_paying, abs=0.5)
    assert advice.fast_memory == 1 << 24
    assert advice.sentence.startswith(
        "With 16 MiB of fast memory 62 of the 1,000 rows of a batch come from slow memory; twice as "
        "much gains less than 5 % of the rows."
    )


def test_where_no_doubling_gains_the_knee_is_below_the_sizes():
    advice = advise(curve((1 << 28, 10), (1 << 29, 9)), samples_per_second=1000)
    assert advice.knee is None
    assert advice.sentence == (
        "With 256 MiB of fast memory training reaches 100 % of the speed with all rows in memory; twice "
        "as much gains less than 5 % of the speed."
    )


def test_where_no_size_is_enough_the_advice_says_up_to_which_more_gains():
    advice = advise(curve((1 << 20, 900), (1 << 21, 700)), samples_per_second=100_000)
    assert advice.knee > advice.fast_memory == 1 << 21
    assert re.search(
        r"; twice as much gains 5 % of the speed or more, up to [\d.]+ MiB\.$", advice.sentence
    )


def test_the_cheapest_memory_for_a_wanted_speed():
    simulation = curve((1 << 20, 800), (1 << 22, 400), (1 << 24, 100))
    advice = advise(simulation, samples_per_second=100_000, slow=SlowMemory(reads_per_second=200_000))
    assert advice.cheapest(40_000) == (
        "40,000 samples/s take 4 MiB of fast memory, the smallest of these sizes that does: expect 50,000"
    )
    assert advice.cheapest(200_000) == (
        "200,000 samples/s are not reached by any of these sizes; expect 100,000"
    )
