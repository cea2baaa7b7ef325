"""Packages that hotrows does without until a user asks for what needs them."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from hotrows.runtime.suggestions import one_line


@contextmanager
def needs(what: str, *packages: str) -> Iterator[None]:
    """Explains an ImportError of the block: `what` needs these packages of pip.

    >>> with needs("a table of Oracle", "oracledb"):
    ...     import oracledb
    Traceback (most recent call last):
    ImportError: a table of Oracle needs oracledb (No module named 'oracledb'): pip install oracledb
    """
    try:
        yield
    except ImportError as error:
        is_there = error.name is not None and find_spec(error.name.partition(".")[0]) is not None
        wrong = f"it cannot be imported: {one_line(error)}" if is_there else one_line(error)
        command = f"pip install {'--upgrade ' if is_there else ''}{' '.join(packages)}"
        raise ImportError(f"{what} needs {' and '.join(packages)} ({wrong}): {command}") from error
