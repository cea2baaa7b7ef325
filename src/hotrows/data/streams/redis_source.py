"""RedisSource: the entries of a Redis stream, in their order.

The fields of an entry are the columns of an event; or its only field `event` is an object of JSON.
Positions are ids of entries, in the checkpoints of the run: no consumer group is needed, and nothing is
acknowledged.
"""

from __future__ import annotations

import math
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from hotrows.data.streams.alarms import Outage
from hotrows.data.streams.events import RawEvents, field_events, message_events
from hotrows.runtime.extras import needs

_FIRST = "0-0"
_ATTEMPTS = 3
_TIMEOUT = 5.0  # seconds for an answer; older clients wait without an end


class RedisSource:
    """Reads a stream by `redis`. url: of the server; start: where a new run begins, `earliest` or
    `latest`."""

    def __init__(self, url: str, stream: str, start: str = "earliest") -> None:
        with needs("a Redis stream", "redis"):
            import redis
            from redis.backoff import ExponentialBackoff
            from redis.retry import Retry
        if start not in ("earliest", "latest"):
            raise ValueError(f"start of a Redis stream is earliest or latest, not {start!r}")
        self._error, self._stream = redis.RedisError, stream
        self._passing = redis.ConnectionError, redis.TimeoutError
        self.name = f"{_without_password(url)}/{stream}"
        self._outage = Outage(self.name)
        limits = {"socket_timeout": _TIMEOUT, "socket_connect_timeout": _TIMEOUT}
        self._server = redis.Redis.from_url(url, retry=Retry(ExponentialBackoff(), _ATTEMPTS), **limits)
        known = self._known()
        self._id, self._number = _FIRST, _trimmed(known)  # of the last entry, among all that were added
        if start == "latest" and known:
            self._id, self._number = known["last-generated-id"].decode(), known.get("entries-added", 0)

    @staticmethod
    def of_address(address: str) -> RedisSource:
        """redis://USER:PASSWORD@HOST:PORT/STREAM?start=latest&db=1"""
        parts = urlsplit(address)
        stream, options = parts.path.strip("/"), dict(parse_qsl(parts.query))
        if not parts.netloc or not stream:
            raise ValueError(
                f"a Redis stream is redis://HOST:PORT/STREAM, not {_without_password(address)!r}"
            )
        start = options.pop("start", "earliest")
        url = urlunsplit((parts.scheme, parts.netloc, "", urlencode(options), ""))
        return RedisSource(url, stream, start)

    @property
    def position(self) -> dict[str, Any]:
        return {"id": self._id, "number": self._number}

    def seek(self, position: dict[str, Any]) -> None:
        self._id, known = position["id"], self._known()
        if _number(known.get("last-generated-id", _FIRST)) < _number(self._id):
            raise ValueError(
                f"{self.name} ends before {self._id}, which was read: it was made anew, or the server "
                f"lost it; begin a new run from this one (--init-from)"
            )
        self._number = position["number"]
        self._check_kept(known, [])

    def read(self, limit: int, wait: float) -> RawEvents | None:
        block = max(int(wait * 1000), 1) if wait else None
        try:
            answer = self._server.xread({self._stream: self._id}, count=limit, block=block)
            known = self._server.xinfo_stream(self._stream) if answer else {}
        except self._passing as error:
            self._outage.warn(error)
            return self._events([])
        except self._error as error:
            raise ValueError(f"{self.name} cannot be read: {error}") from None
        streams = answer.items() if isinstance(answer, dict) else answer or ()
        entries = [entry for _, entries in streams for entry in _flat(entries)]
        if entries:
            self._check_kept(known, entries)
        return self._events(entries)

    def read_to(self, position: dict[str, Any], wait: float) -> RawEvents | None:
        between = f"({self._id}", position["id"]
        events = self._events(self._ask("xrange", self._stream, *between, count=1 << 14))
        if not len(events):  # those that are missing were deleted
            self._id, self._number = position["id"], position["number"]
        return events

    def has_reached(self, position: dict[str, Any]) -> bool:
        return _number(self._id) >= _number(position["id"])

    def close(self) -> None:
        self._server.close()

    def _check_kept(self, known: dict[str, Any], entries: list[Any]) -> None:
        """Refuses a stream that has lost entries between the last one that was read and `entries`, the
        next ones. known: what the server said of it after it gave these."""
        first = known.get("first-entry")
        kept = (math.inf, 0) if first is None else _number(first[0])
        num_lost = _trimmed(known) - sum(_number(entry[0]) < kept for entry in entries) - self._number
        if known.get("entries-added", self._number) < self._number:
            raise ValueError(f"{self.name} was made anew; begin a new run from this one (--init-from)")
        if kept <= _number(self._id) or num_lost <= 0:
            return
        if self._id != _FIRST:
            raise ValueError(
                f"{self.name}: {num_lost:,} entries after {self._id} were trimmed: events are lost; keep "
                f"more (MAXLEN), and begin a new run from this one (--init-from)"
            )
        self._number += num_lost  # before a run that has read none yet

    def _known(self) -> dict[str, Any]:
        """Asks the server about the stream; returns an empty dict where there is none yet."""
        if not self._ask("exists", self._stream):
            return {}
        return self._ask("xinfo_stream", self._stream)

    def _ask(self, command: str, *arguments: Any, **how: Any) -> Any:
        try:
            return getattr(self._server, command)(*arguments, **how)
        except self._error as error:
            raise ValueError(f"{self.name} cannot be read: {error}") from None

    def _events(self, entries: list[tuple[bytes, dict[bytes, bytes]]]) -> RawEvents:
        if entries:
            self._id, self._number = entries[-1][0].decode(), self._number + len(entries)
        places = [f"entry {number.decode()}" for number, _ in entries]
        if entries and all(set(fields) == {b"event"} for _, fields in entries):
            return message_events((fields[b"event"] for _, fields in entries), self.name, None, places)
        named = ({name.decode(): value for name, value in fields.items()} for _, fields in entries)
        return field_events(named, self.name, places)


def _flat(entries: Any) -> list[Any]:
    """The entries of a stream; newer protocols answer with a list of lists."""
    return entries[0] if entries and isinstance(entries[0], list) else entries


def _trimmed(known: dict[str, Any]) -> int:
    """How many of the entries that were added the stream has no more; 0 where an old server says
    nothing."""
    return max(known.get("entries-added", 0) - known.get("length", 0), 0)


def _number(entry: bytes | str) -> tuple[int, int]:
    """An id of an entry, as it is compared."""
    text = entry.decode() if isinstance(entry, bytes) else entry
    milliseconds, _, counter = text.partition("-")
    return int(milliseconds), int(counter or 0)


def _without_password(url: str) -> str:
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
