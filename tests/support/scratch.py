"""Where tests write much that nobody reads again."""

from pathlib import Path


def folder_in_memory() -> str | None:
    """A folder in memory, where there is one: what is written thousands of times needs no disk."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None
