"""What a disk may hold after a crash: derived from a recording of the calls that changed it.

A write is durable once its file was synced after it; a name (created, renamed, linked, removed) once its
folder was. What is not durable at the crash may have reached the disk or not, each call by itself: POSIX
promises no order between them.
"""

from __future__ import annotations

import random
import shutil
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

_HEADER = struct.Struct("<cIIq")
_SECTOR = 512
_SINGLE = 16  # of the calls that are not durable, the last ones are missing, or alone, one by one


@dataclass(eq=False)
class Node:
    """A file or a folder; `first_bytes` and `first_names` are from before the recording."""

    name: str
    is_folder: bool
    first_bytes: bytes = b""
    first_names: dict[str, Node] = field(default_factory=dict)
    names: dict[str, Node] = field(default_factory=dict)  # while the recording is read


@dataclass(eq=False)
class Change:
    """A call that changes bytes of a file (`data` None: its size, to `offset`) or names of folders."""

    node: Node | None = None
    data: bytes | None = None
    offset: int = 0
    names: list[tuple[Node, str, Node | None]] = field(default_factory=list)  # None: removed
    unsynced: set[Node] = field(default_factory=set)
    durable: int | None = None  # the number of calls after which it is on the disk for certain


@dataclass(frozen=True)
class State:
    """What a crash left: `applied` calls reached the disk; of the call torn[0] only torn[1] bytes.

    crash: the number of calls before it. extended: sizes of files that are not applied did, as zeros.
    """

    crash: int
    applied: tuple[int, ...]
    torn: tuple[int, int] | None = None
    extended: bool = False


class Recording:
    """The calls of a scenario below `root`, which had the files of the folder `before` when it began.

    drop: the syncs to leave out, of "files" or of "folders": what a writer that forgets them would risk.
    """

    def __init__(self, log: bytes, root: Path, before: Path, drop: str = "") -> None:
        self.root, self.top = root, _tree(before)
        self.changes: list[Change] = []
        self.marks: list[tuple[int, str]] = []  # (number of calls before it, what was said)
        self._contents: dict[tuple, bytes] = {}
        waiting: dict[Node, list[Change]] = {}
        for kind, path, data, offset in _entries(log):
            if kind == "M":
                self.marks.append((len(self.changes), data.decode()))
            elif kind == "S":
                node = self._find(path)
                if node and drop != ("folders" if node.is_folder else "files"):
                    for change in waiting.pop(node, ()):
                        change.unsynced.discard(node)
                        if not change.unsynced:
                            change.durable = len(self.changes)
            else:
                for change in self._read(kind, path, data, offset):
                    self.changes.append(change)
                    for node in change.unsynced:
                        waiting.setdefault(node, []).append(change)

    def said(self, crash: int) -> list[str]:
        """What the scenario had said before the crash."""
        return [text for number, text in self.marks if number <= crash]

    def states(self, crash: int, num_drawn: int, seed: int = 0) -> Iterator[State]:
        """States that a crash after so many calls may leave, of those that are not durable: all, none,
        names without bytes, bytes without names, each missing or alone, the last one torn, some drawn."""
        self._contents.clear()  # those of other crashes fill the memory
        chance = random.Random(crash * 1_000_003 + seed)
        sure, unsure = [], []
        for i in range(crash):
            durable = self.changes[i].durable
            (sure if durable is not None and durable <= crash else unsure).append(i)
        writes = [i for i in unsure if self.changes[i].node is not None]
        names = [i for i in unsure if self.changes[i].node is None]
        sets = [unsure, [], names, writes]
        sets += [[i for i in unsure if i != j] for j in unsure[-_SINGLE:]]
        sets += [[j] for j in unsure[-_SINGLE:]]
        for _ in range(num_drawn if len(unsure) > 1 else 0):
            share = chance.random()
            sets.append([i for i in unsure if chance.random() < share])
        found = {State(crash, tuple(sorted(sure + kept))): None for kept in sets}
        if writes:
            found[State(crash, tuple(sorted(sure + names)), extended=True)] = None
            every = tuple(range(crash))
            size = len(self.changes[writes[-1]].data or b"")
            for part in sorted({size // 2 // _SECTOR * _SECTOR, size // 2, size - 1} - {-1, 0}):
                found[State(crash, every, torn=(writes[-1], part))] = None
        yield from found

    def files(self, state: State) -> dict[str, bytes | None]:
        """The files of a state by path below the root, with their bytes; folders have None."""
        folders: dict[Node, dict[str, Node]] = {}
        writes: dict[Node, list[int]] = {}
        for i in state.applied:
            change = self.changes[i]
            if change.node is not None:
                writes.setdefault(change.node, []).append(i)
            for folder, name, node in change.names:
                entries = folders.setdefault(folder, dict(folder.first_names))
                entries.pop(name, None)
                if node is not None:
                    entries[name] = node
        sizes: dict[Node, int] = {}
        for change in self.changes[: state.crash] if state.extended else ():
            if change.node is not None:
                end = change.offset + len(change.data or b"")
                sizes[change.node] = max(sizes.get(change.node, 0), end)
        files: dict[str, bytes | None] = {}

        def walk(folder: Node, path: str) -> None:
            for name, node in folders.get(folder, folder.first_names).items():
                if node.is_folder:
                    files[path + name] = None
                    walk(node, f"{path}{name}/")
                else:
                    data = self._content(node, tuple(writes.get(node, ())), state.torn)
                    files[path + name] = data.ljust(sizes.get(node, 0), b"\0")

        walk(self.top, "")
        return files

    def put(self, files: dict[str, bytes | None]) -> None:
        """Makes the files of a state where the scenario had its own."""
        shutil.rmtree(self.root, ignore_errors=True)
        self.root.mkdir(parents=True)
        for name, data in files.items():
            path = self.root / name
            if data is None:
                path.mkdir()
            else:
                path.write_bytes(data)

    def described(self, i: int) -> str:
        """A call, in words."""
        change = self.changes[i]
        if change.node is not None:
            size = len(change.data) if change.data is not None else "size"
            return f"{i}: write {change.node.name} at {change.offset}: {size} bytes"
        return f"{i}: " + ", ".join(
            f"{'set' if node else 'remove'} {name}" for _, name, node in change.names
        )

    def _content(self, node: Node, writes: tuple[int, ...], torn: tuple[int, int] | None) -> bytes:
        torn = torn if torn and torn[0] in writes else None
        key = (id(node), writes, torn)
        if key not in self._contents:
            data = bytearray(node.first_bytes)
            for i in writes:
                change = self.changes[i]
                if change.data is None:
                    del data[change.offset :]
                    data.extend(bytes(change.offset - len(data)))
                    continue
                part = change.data[: torn[1]] if torn and torn[0] == i else change.data
                data.extend(bytes(max(0, change.offset + len(part) - len(data))))
                data[change.offset : change.offset + len(part)] = part
            self._contents[key] = bytes(data)
        return self._contents[key]

    # ---- reading the recording

    def _read(self, kind: str, path: str, data: bytes, offset: int) -> Iterator[Change]:
        if kind in ("C", "D"):
            yield self._named((path, Node(Path(path).name, kind == "D")))
        elif kind in ("W", "T"):
            node = self._find(path)
            if node is None and not path.endswith(" (deleted)"):
                node = Node(
                    Path(path).name, False
                )  # created by a call that the recorder does not see, such as fopen
                yield self._named((path, node))
            if node is not None:
                yield Change(node, data if kind == "W" else None, offset, unsynced={node})
        elif kind == "R":
            yield self._named((path, None), (data.decode(), self._find(path)))
        elif kind == "L":
            is_inside = Path(path).is_relative_to(self.root)
            yield self._named((data.decode(), self._find(path) if is_inside else _tree(Path(path))))
        else:
            yield self._named((path, None))

    def _named(self, *names: tuple[str, Node | None]) -> Change:
        change = Change()
        for path, node in names:
            folder = self._find(str(Path(path).parent))
            assert folder is not None, f"the recording misses how {path} came to be"
            folder.names.pop(Path(path).name, None)
            if node is not None:
                folder.names[Path(path).name] = node
            change.names.append((folder, Path(path).name, node))
            change.unsynced.add(folder)
        return change

    def _find(self, path: str) -> Node | None:
        node: Node | None = self.top
        for name in Path(path).relative_to(self.root).parts:
            node = node.names.get(name) if node else None
        return node


def _tree(path: Path) -> Node:
    if not path.is_dir():
        return Node(path.name, False, path.read_bytes())
    names = {entry.name: _tree(entry) for entry in path.iterdir()}
    return Node(path.name, True, first_names=names, names=dict(names))


def _entries(log: bytes) -> Iterator[tuple[str, str, bytes, int]]:
    at = 0
    while at < len(log):
        kind, path_size, size, offset = _HEADER.unpack_from(log, at)
        at += _HEADER.size
        path, data = log[at : at + path_size], log[at + path_size : at + path_size + size]
        yield kind.decode(), path.decode(), data, offset
        at += path_size + size
