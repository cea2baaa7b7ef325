"""Limits of the server: what one client may take, so that it does not stop the server for others."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Bounds on what requests and connections may take.

    body: bytes of a body, also once it is decompressed.
    rows: rows of a request.
    seconds: seconds for a header to arrive, from a header to the scores, and for a client to read its
        answer.
    waiting: requests that wait for the program.
    places: rows times values of the longest list, to which the program pads all.
    bodies: bytes of all bodies that are under way, less the first 64 KiB of each.
    connections: connections at once; fewer if the process may not open so many files.
    idle: seconds that a connection may be idle between two requests.
    drain: seconds between SIGTERM and the end, in which /healthz answers 503.

    >>> Limits(rows=500, seconds=1.0).rows
    500
    """

    body: int = 8 << 20
    rows: int = 5000
    seconds: float = 2.0
    waiting: int = 256
    places: int = 1_048_576
    bodies: int = 64 << 20
    connections: int = 1000
    idle: float = 75.0
    drain: float = 3.0
