"""The numbers of a server, in the text format that Prometheus reads."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping

from hotrows.serving.follower import Follower
from hotrows.serving.served_values import Served
from hotrows.serving.user_cache import UserCache

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)

_VALUES = {
    "values": "Values of the rows that were encoded, by feature.",
    "missing": "Those that were missing.",
    "unknown": "Those that training never saw.",
    "out_of_range": "Numbers further than 10 deviations from the mean in training.",
}


class ServerMetrics:
    """Counts of one process since its start; written by one thread, the server's event loop."""

    def __init__(self) -> None:
        self._answers: Counter[int] = Counter()
        self._buckets = [0] * (len(_SECONDS) + 1)
        self._seconds, self._rows = 0.0, 0

    def count(self, status: int, seconds: float, rows: int) -> None:
        """An answer: its HTTP status, how long the request took, and the rows that were scored."""
        self._answers[status] += 1
        self._rows += rows
        if status == 200:
            self._seconds += seconds
            self._buckets[bisect_left(_SECONDS, seconds)] += 1

    def page(
        self,
        waiting: int,
        groups: int,
        values: Mapping[str, Served],
        short: int = 0,
        follower: Follower | None = None,
        cache: UserCache | None = None,
    ) -> str:
        """waiting: requests that wait now; groups: how often the program has run; values: by feature;
        short: histories that may lack events; follower: what keeps the version up to date, where
        something does; cache: of users, where there is one."""
        lines = [*self._lines(waiting, groups), *_of_values(values)]
        text = "Histories that may lack events which are no longer kept."
        lines += _single("short_histories_total", "counter", text, short)
        lines += _of_version(follower) if follower else ()
        lines += _of_cache(cache) if cache else ()
        return "\n".join(lines) + "\n"

    def _lines(self, waiting: int, groups: int) -> Iterator[str]:
        yield from _head("requests_total", "counter", "Requests to /score by the status of their answer.")
        for status, count in sorted(self._answers.items()):
            yield f'hotrows_requests_total{{status="{status}"}} {count}'
        yield from _single("rows_total", "counter", "Rows that were scored.", self._rows)
        yield from _single(
            "program_runs_total", "counter", "Runs of the program, of one or more requests.", groups
        )
        yield from _single("requests_waiting", "gauge", "Requests that wait for the program.", waiting)
        name, total = "request_seconds", 0
        yield from _head(name, "histogram", "Time from a request's arrival to its scores.")
        for bound, count in zip((*_SECONDS, "+Inf"), self._buckets, strict=True):
            total += count
            yield f'hotrows_{name}_bucket{{le="{bound}"}} {total}'
        yield f"hotrows_{name}_sum {self._seconds:.6f}"
        yield f"hotrows_{name}_count {total}"


def _of_values(values: Mapping[str, Served]) -> Iterator[str]:
    for kind, text in _VALUES.items():
        yield from _head(f"{kind}_total", "counter", text)
        for feature, counts in values.items():
            name = feature.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
            yield f'hotrows_{kind}_total{{feature="{name}"}} {getattr(counts, kind)}'


def _of_version(follower: Follower) -> Iterator[str]:
    version = follower.version
    assert version.head is not None
    yield from _single("version", "gauge", "The version that is served.", version.number)
    yield from _single("version_step", "gauge", "Batches that it was trained on.", version.head.step)
    staleness = round(follower.staleness, 3)
    text = "Seconds since training had the state that is served."
    yield from _single("staleness_seconds", "gauge", text, staleness)
    yield from _single("versions_applied_total", "counter", "Versions gone through.", follower.applied)
    text = "Looks for a version that failed."
    yield from _single("follow_errors_total", "counter", text, follower.errors)
    text = "Memory of rows that changed since the last base."
    yield from _single("overlay_bytes", "gauge", text, version.overlay_bytes)


def _of_cache(cache: UserCache) -> Iterator[str]:
    text = "Users' lists whose layer outputs were in the cache."
    yield from _single("user_cache_hits_total", "counter", text, cache.hits)
    text = "Users' lists whose layer outputs were computed."
    yield from _single("user_cache_misses_total", "counter", text, cache.misses)
    yield from _single("user_cache_bytes", "gauge", "Memory of what is kept.", cache.num_bytes)
    age, idle = cache.ages()
    text = "Seconds since what is kept was computed, in the mean."
    yield from _single("user_cache_age_seconds", "gauge", text, round(age, 3))
    text = "Seconds since what goes next was read: how long users may stay away."
    yield from _single("user_cache_idle_seconds", "gauge", text, round(idle, 3))


def _head(name: str, kind: str, text: str) -> Iterator[str]:
    yield f"# HELP hotrows_{name} {text}"
    yield f"# TYPE hotrows_{name} {kind}"


def _single(name: str, kind: str, text: str, value: float) -> Iterator[str]:
    yield from _head(name, kind, text)
    yield f"hotrows_{name} {value}"
