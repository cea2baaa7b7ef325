"""Small raw folders for the tests, and the samples built of them."""

from pathlib import Path

from pyarrow import parquet

from hotrows.data.datasets import BY_NAME
from hotrows.data.datasets.dataset import build


def write(folder: Path, files: dict[str, list[str]], encoding: str = "utf-8") -> Path:
    """A folder of text files, given by their lines."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, lines in files.items():
        (folder / name).write_bytes("".join(f"{line}\n" for line in lines).encode(encoding))
    return folder


def built(name: str, raw: Path, tmp_path: Path, seed: int = 0) -> dict[str, list[dict]]:
    """The rows of each part that has some."""
    samples = build(BY_NAME[name], raw, tmp_path / "samples", seed)
    parts = {"train": samples.train, "validation": samples.validation, "test": samples.test}
    return {
        part: [row for path in paths for row in parquet.read_table(path).to_pylist()]
        for part, paths in parts.items()
        if paths
    }


def rows_of(parts: dict[str, list[dict]]) -> list[dict]:
    return [row for rows in parts.values() for row in rows]


def lacking(name: str, parts: dict[str, list[dict]]) -> list[str]:
    """The columns that the schema of the set asks for and the samples lack."""
    return [
        column
        for column in BY_NAME[name].schema.raw_columns
        if any(column not in row for row in rows_of(parts))
    ]
