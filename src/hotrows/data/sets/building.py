"""From the raw folder of a data set to encoded data: samples are built, then prepared.

A folder of samples is put in place whole and says what it was built of, so that it is built once: a
run that is interrupted while it encodes goes on with it.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hotrows import data
from hotrows.data.aside import written_aside
from hotrows.data.sets.dataset import DataSet, Progress, Samples
from hotrows.data.sets.tables import PARTS
from hotrows.schema import Schema

if TYPE_CHECKING:
    from hotrows.data.encoded import EncodedData

_MANIFEST = "samples.json"
_AS_BUILT = "fraction:1,0,0"  # the training files train, all of them


def prepare(
    of: DataSet,
    raw: str | Path | None,
    out: str | Path,
    *,
    samples: str | Path | None = None,
    schema: Schema | None = None,
    split: str | None = None,
    seed: int = 0,
    progress: Progress | None = None,
    **how: Any,
) -> EncodedData:
    """Builds the samples of a data set and encodes them into the new folder `out`.

    raw: the folder of the raw files; None where they come with the package.
    samples: the folder that keeps what the builder wrote; by default OUT.samples, which goes when
        `out` is there, or could not be made; an interruption leaves it for the next call.
    schema: in place of the data set's own. split: where the data set comes as one part.
    seed: of the split, and of what the builder draws. how: further arguments of
        `hotrows.data.prepare`.
    """
    out = Path(out)
    if of.split is None and split is not None:
        raise ValueError(
            f"data set {of.name!r} comes in parts, so split must be None, not {split!r}; see "
            f"docs/datasets/{of.name}.md for how they are cut"
        )
    folder = out.with_name(f"{out.name}.samples") if samples is None else Path(samples)
    found = build(of, raw, folder, seed, progress)
    how |= {"validation": list(found.validation), "test": list(found.test)}
    how["split"] = split or of.split or _AS_BUILT
    try:
        files = list(found.train)
        made = data.prepare(files, schema or of.schema, out, seed=seed, progress=progress, **how)
    except Exception:
        _remove(folder, kept=samples is not None)
        raise
    _remove(folder, kept=samples is not None)
    return made


def build(
    of: DataSet,
    raw: str | Path | None,
    samples: str | Path,
    seed: int = 0,
    progress: Progress | None = None,
) -> Samples:
    """The samples alone, in the folder `samples`: built, or found there, built of the same."""
    samples, raw = Path(samples), None if raw is None else Path(raw)
    built_of = {"name": of.name, "raw": str(raw and raw.resolve()), "seed": seed}
    if (samples / _MANIFEST).exists():
        return _found(samples, built_of)
    with written_aside(samples) as aside:
        made = of.build(raw, aside, seed, progress)
        parts = zip(PARTS, (made.train, made.validation, made.test), strict=True)
        files = {part: [_place(path, aside) for path in paths] for part, paths in parts}
        (aside / _MANIFEST).write_text(json.dumps({**built_of, "files": files}, indent=2) + "\n")
    return _found(samples, built_of)


def _place(path: Path, aside: Path) -> str:
    """A built file by its name in the folder of samples, a raw one by its full path."""
    return path.name if path.parent == aside else str(path.resolve())


def _found(samples: Path, built_of: dict[str, Any]) -> Samples:
    """The files of a folder of samples that was built of the same."""
    manifest = json.loads((samples / _MANIFEST).read_text())
    files = manifest.pop("files")
    if manifest != built_of:
        raise ValueError(
            f"{samples} holds samples of {manifest}, but those of {built_of} were asked for; delete "
            f"it, or choose another folder"
        )
    return Samples(*(tuple(samples / name for name in files[part]) for part in PARTS))


def _remove(folder: Path, kept: bool) -> None:
    if not kept:
        shutil.rmtree(folder, ignore_errors=True)
