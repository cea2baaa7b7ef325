"""The items nearest to each item, by their vectors: `python examples/retrieval.py VECTORS.npy [COUNT]`.

VECTORS.npy is what `hotrows export runs/a --vectors item --out items.npy` writes, with the items' values
in items.values.json beside it. Needs `pip install faiss-cpu`.
"""

import json
import sys
from pathlib import Path

import faiss
import numpy as np


def nearest(path: str, count: int = 3) -> dict[str, list[str]]:
    """The values of the `count` nearest vectors of each value, by the cosine, itself left out."""
    vectors = np.load(path)
    values = json.loads(Path(path).with_suffix(".values.json").read_text())
    faiss.normalize_L2(vectors)  # the inner product is then the cosine
    index = faiss.IndexFlatIP(vectors.shape[1])  # exact; IndexHNSWFlat is for millions
    index.add(vectors)
    _, places = index.search(vectors, count + 1)
    return {
        value: [values[other] for other in row if other != number][:count]
        for number, (value, row) in enumerate(zip(values, places, strict=True))
    }


if __name__ == "__main__":
    for value, others in nearest(sys.argv[1], *map(int, sys.argv[2:3])).items():
        print(value, *others, sep="\t")
