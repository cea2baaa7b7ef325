"""Small raw files for the tests."""

from pathlib import Path

import numpy as np
import pytest

from hotrows.data import EncodedData, Loader
from hotrows.schema import Dense, Schema, Sparse

SAMPLES = Path(__file__).parents[2].parent / "shared" / "data"

SCHEMA = Schema(
    features=(Dense("price", transform="log"), Sparse("user"), Sparse("item")),
    columns=("label", "price", "user", "item"),
    name="small",
)


def sample(name: str) -> Path:
    """A real file that stands beside the project; the test is skipped where it is absent."""
    path = SAMPLES / name
    if not path.exists():
        pytest.skip(f"the real sample {name} may not be redistributed and is not here")
    return path


def write(path: Path, rows, delimiter: str = "\t") -> Path:
    """Writes rows of strings or bytes as a raw file."""
    lines = (delimiter.encode().join(map(_as_bytes, row)) for row in rows)
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return path


def read(data: EncodedData, part: str = "train") -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """ids [F, rows], dense and labels of a whole part, in its order."""
    stored_part = data.parts[part]
    if not stored_part.rows:
        return (
            np.zeros((len(stored_part.columns.ids), 0)),
            np.zeros((0, len(stored_part.schema.dense))),
            np.zeros(0),
        )
    (batch,) = Loader(stored_part, stored_part.rows, shuffle=False).batches(0)
    ids = batch.ids.reshape(len(stored_part.columns.ids), stored_part.rows)
    return ids.numpy(), batch.dense.numpy(), batch.labels.numpy()


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def _as_bytes(value) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


def shards(data) -> dict[str, bytes]:
    """The files of prepared data, without data.json."""
    return {path.name: path.read_bytes() for path in data.path.iterdir() if path.suffix != ".json"}
