"""Places: where versions go from the folder that training publishes to, and come from to one that serves.

    s3://bucket/model, gs://.., memory://..     any URL of fsspec, whose package for it must be there
    redis://host:6379/0?name=model              a hash of Redis: a field for each file

A `Mirror` keeps the versions of a folder and of a place equal. A version is in a place once all of it
is: the head of a base is written last and deleted first, and what comes is verified before it gets its
name in the folder. A place has the versions of one run: the manifest of a base, its first file, and the
head are written only where there are none. Files that belong to no version of that run stay as they are.
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import parse_qs, urlsplit, urlunsplit

from hotrows.runtime.atomic_files import address, part_of, publish, replaced
from hotrows.runtime.extras import needs
from hotrows.runtime.remote.copies import is_url
from hotrows.runtime.remote.files import RemoteFiles
from hotrows.runtime.suggestions import one_line
from hotrows.serving import chain
from hotrows.serving.bundle import MANIFEST, open_bundle
from hotrows.serving.deltas import VersionHead, read_delta, read_head

_MOST_IN_REDIS = 512 << 20  # bytes of a value
_OTHER_RUN = (
    "the place has {}, which is not of this run, or is damaged: publish each run to a URL of its own, or "
    "delete it, if nobody needs it"
)
_PATIENCE = 10.0  # seconds; what could not be published goes with the next version
_TIMEOUT = 30.0  # seconds for an answer of Redis; older clients wait without an end


class RemotePlace(Protocol):
    """Files by name, such as base-0000000001/export.json, in another place than a folder."""

    def names(self) -> set[str]: ...

    def put(self, name: str, file: Path) -> None: ...

    def put_new(self, name: str, file: Path) -> bool:
        """Puts a small file, unless there is one of that name; returns whether it did."""
        ...

    def get(self, name: str, file: Path) -> None: ...

    def remove(self, name: str) -> None: ...


class Mirror:
    """A folder and a place with the same versions.

    folder: where they are on this machine; made where it is not there.
    """

    def __init__(self, place: RemotePlace, folder: Path) -> None:
        self.place, self.folder = place, folder
        self._own: set[str] = set()  # names of versions of the place that are known to be of this chain
        folder.mkdir(parents=True, exist_ok=True)

    @staticmethod
    def open(to: Path | str, folder: Path | str | None = None) -> Mirror | None:
        """The mirror of a place in `folder`; None where `to` is one itself.

        folder: by default a temporary one, which is deleted with the mirror.
        """
        if not is_url(to):
            return None
        place = open_place(address(to))
        if folder is not None:
            return Mirror(place, Path(folder))
        mirror = Mirror(place, Path(tempfile.mkdtemp(prefix="hotrows-")))
        weakref.finalize(mirror, shutil.rmtree, mirror.folder, ignore_errors=True)
        return mirror

    def push(self) -> None:
        """Makes the place have the versions that the folder has, and no others. ValueError where it has
        versions of another run; nothing is changed then."""
        names, local = self.place.names(), chain.look(self.folder)
        begins, kept = not self._own, local.names
        self._check_own(names, local)
        if begins:  # a process that was killed may have written a part of the last one
            names -= {max((name for name in names & kept.keys() if "/" not in name), default="")}
        bases = [chain.base_path(self.folder, number) for number in local.bases]
        bases = [base for base in bases if f"{base.name}/{chain.HEAD}" not in names]
        for base in bases:
            self._put_first(base, MANIFEST, names)
        for number in local.deltas:
            path = chain.delta_path(self.folder, number)
            if path.name not in names:
                self.place.put(path.name, path)
        for base in bases:
            for file in (file for file in base.rglob("*") if file.is_file()):
                if file not in (base / MANIFEST, base / chain.HEAD):
                    self.place.put(file.relative_to(self.folder).as_posix(), file)
            self._put_first(base, chain.HEAD)
        gone = chain.listed(self.folder, _top(names)).names.keys() - kept.keys()
        # Another team's folder may have such a name; a base that is half deleted has its manifest.
        gone = {top for top in gone if top in self._own or f"{top}/{MANIFEST}" in names}
        for name in sorted(names, key=lambda n: (not n.endswith(chain.HEAD), n.endswith(MANIFEST))):
            if name.partition("/")[0] in gone:
                self.place.remove(name)
        self._own = {*kept}

    def pull(self) -> None:
        """Makes the folder have what the place has. ValueError where something came damaged; it is tried
        again by the next call; and where the folder has versions of another run, which stay."""
        names, local = self.place.names(), chain.look(self.folder)
        if local.newest and not self._own:
            self._check_folder(names, local)
        self.pull_pin(names)
        remote = chain.listed(self.folder, _top(names))
        heads = {n: f"{chain.base_path(self.folder, n).name}/{chain.HEAD}" for n in remote.bases}
        goals = (remote.newest, remote.pin or 0)
        needed = {max((n for n in heads if n <= goal and heads[n] in names), default=0) for goal in goals}
        if local.bases:  # a newer one comes only where there are no deltas to it
            reached = {n for n in needed if {*range(local.newest + 1, n + 1)} <= {*remote.deltas}}
            needed -= {n for n in reached if n > local.newest}
        for number in sorted(needed - {0, *local.bases}):
            self._get_base(number, names)
        first = min({*local.bases, *needed} - {0}, default=remote.newest)
        for number in remote.deltas:
            if number > first and number not in local.deltas:
                self._get_delta(number)
        for number in set(local.bases) - set(remote.bases):
            shutil.rmtree(chain.base_path(self.folder, number), ignore_errors=True)
        for number in set(local.deltas) - set(remote.deltas):
            chain.delta_path(self.folder, number).unlink(missing_ok=True)

    def pull_pin(self, names: Iterable[str] | None = None) -> None:
        """Makes the folder have the pin of the place, or none."""
        if chain.PIN in (self.place.names() if names is None else names):
            with replaced(self.folder / chain.PIN) as part:
                self.place.get(chain.PIN, part)
        else:
            (self.folder / chain.PIN).unlink(missing_ok=True)

    def pin(self, number: int | None) -> None:
        """Pins a version of the place; see `chain.pin`."""
        if number is None:
            self.place.remove(chain.PIN)
        else:
            chain.listed(self.folder, _top(self.place.names())).way(0, number)
            chain.write_pin(self.folder, number)
            self.place.put(chain.PIN, self.folder / chain.PIN)
        self.pull()

    def _check_own(self, names: set[str], local: chain.Chain) -> None:
        """Refuses a place with versions of another run, or later ones than the folder has."""
        remote, newest = chain.listed(self.folder, _top(names)), chain.head_of(local, local.newest)
        complete = _complete(remote, names)
        for top, number in complete.items():  # bases first: if they are this run's, its deltas are
            is_here, is_base = top in local.names, top == chain.base_path(self.folder, number).name
            if top in self._own or (self._own and is_here and not is_base):
                continue
            head = self._head(top, names)
            if head is None or head.chain != newest.chain:
                raise ValueError(_OTHER_RUN.format(top))
            if number > local.newest or (is_here and head != chain.head_of(local, number)):
                raise ValueError(
                    f"the place has {top} of this run, and {self.folder} does not have it: bring that "
                    f"folder back from a copy, or publish to another URL"
                )
            self._own.add(top)
        for top in remote.names.keys() - complete.keys() - local.names.keys():
            if not self._own:  # else what is left of a base that was being deleted
                raise ValueError(_OTHER_RUN.format(top))

    def _check_folder(self, names: set[str], local: chain.Chain) -> None:
        """Refuses a folder with versions of another run than those of the place."""
        complete = _complete(chain.listed(self.folder, _top(names)), names)
        head = next((self._head(top, names) for top in complete), None)
        if head is None or head.chain != chain.head_of(local, local.newest).chain:
            raise ValueError(
                f"{self.folder} has versions of another run than the place; choose an empty folder"
            )
        self._own = {*complete}

    def _put_first(self, base: Path, inner: str, names: Iterable[str] = ()) -> None:
        """Puts a file that tells whose a base is; refuses another one in its place, or, among the `names`
        that are there, files of the base without it."""
        name, path = f"{base.name}/{inner}", base / inner
        is_other = name not in names and any(other.startswith(f"{base.name}/") for other in names)
        if not is_other and not self.place.put_new(name, path):
            with tempfile.TemporaryDirectory(prefix="hotrows-") as folder:
                self.place.get(name, stored := Path(folder, inner))
                is_other = stored.read_bytes() != path.read_bytes()
        if is_other:
            raise ValueError(_OTHER_RUN.format(base.name))

    def _head(self, top: str, names: Iterable[str]) -> VersionHead | None:
        """The head of a version of the place; None where it cannot be read."""
        name = min(_heads(top) & {*names})
        with tempfile.TemporaryDirectory(prefix="hotrows-") as folder:
            path = Path(folder, name)
            path.parent.mkdir(exist_ok=True)
            self.place.get(name, path)
            try:
                return read_head(path) if name == top else chain.base_head(path.parent)
            except ValueError:
                return None

    def _get_base(self, number: int, names: Iterable[str]) -> None:
        path = chain.base_path(self.folder, number)
        part = part_of(path)
        shutil.rmtree(part, ignore_errors=True)
        for name in names:
            top, _, inner = name.partition("/")
            if top == path.name and inner:
                target = part / inner
                if ".." in target.parts or part not in target.parents:
                    raise ValueError(f"{name!r} is no name of a file of a version")
                target.parent.mkdir(parents=True, exist_ok=True)
                self.place.get(name, target)
        bundle = open_bundle(part)
        for name in bundle.files:
            bundle.verify(name)
        chain.base_head(part)
        publish(part, path)

    def _get_delta(self, number: int) -> None:
        with replaced(chain.delta_path(self.folder, number)) as part:
            self.place.get(chain.delta_path(self.folder, number).name, part)
            read_delta(part)


def open_place(url: str) -> RemotePlace:
    """The place of a URL; ValueError where a package for it is missing."""
    return (
        _Redis(url)
        if url.startswith(("redis://", "rediss://", "unix://"))
        else RemoteFiles(url, _PATIENCE)
    )


def _complete(remote: chain.Chain, names: set[str]) -> dict[str, int]:
    """The numbers of versions whose heads are among the `names` of a place, by name; bases first."""
    return {top: n for top, n in remote.names.items() if not names.isdisjoint(_heads(top))}


def _heads(top: str) -> set[str]:
    """The names that the head of a version may have: of the delta itself, or of a file of the base."""
    return {top, f"{top}/{chain.HEAD}"}


def _top(names: Iterable[str]) -> list[str]:
    """The first part of each name, sorted."""
    return sorted({name.partition("/")[0] for name in names})


class _Redis:
    """A hash of a Redis server, whose fields are files."""

    def __init__(self, url: str) -> None:
        with needs(url, "redis"):
            import redis
        parts = urlsplit(url)
        self._key = "hotrows:" + parse_qs(parts.query).get("name", ["model"])[0]
        url, limits = urlunsplit(parts._replace(query="")), {"socket_timeout": _TIMEOUT}
        self._redis: Any = redis.Redis.from_url(url, **limits, socket_connect_timeout=_TIMEOUT)
        self._unavailable = redis.RedisError

    def names(self) -> set[str]:
        return {name.decode() for name in self._call("hkeys", self._key)}

    def put(self, name: str, file: Path) -> None:
        content = file.read_bytes()
        if len(content) >= _MOST_IN_REDIS:
            raise ValueError(
                f"{name} has {len(content):,} bytes, and Redis stores values below {_MOST_IN_REDIS:,}: "
                f"publish to files, or use --publish-dtype int8"
            )
        self._call("hset", self._key, name, content)

    def put_new(self, name: str, file: Path) -> bool:
        return bool(self._call("hsetnx", self._key, name, file.read_bytes()))

    def get(self, name: str, file: Path) -> None:
        content = self._call("hget", self._key, name)
        if content is None:
            raise FileNotFoundError(f"{name} is no longer in Redis")
        file.write_bytes(content)

    def remove(self, name: str) -> None:
        self._call("hdel", self._key, name)

    def _call(self, command: str, *arguments: Any) -> Any:
        try:
            return getattr(self._redis, command)(*arguments)
        except self._unavailable as error:
            raise OSError(f"Redis does not answer: {one_line(error)}") from error
