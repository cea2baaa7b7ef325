"""The raw layout of Amazon's reviews, some lines of it."""

import gzip
import json

from tests.datasets.raw_files import write

REVIEWS = [
    *[("A", "i1", 300), ("B", "i1", 100), ("A", "i2", 100), ("A", "i3", 100), ("A", "i4", 400)],
    *[("B", "i5", 200), ("C", "i6", 50)],
]


def review(user, item, time):
    text = "long, with a 'quote' and a \"quote\""
    return json.dumps(
        {"reviewerID": user, "asin": item, "reviewText": text, "unixReviewTime": time, "helpful": [2, 3]}
    )


def product(item, *categories):
    return repr({"asin": item, "title": "It's", "categories": [["Electronics"], list(categories)]})


def raw(folder):
    folder.mkdir()
    meta = [product(f"i{i}", "Electronics", f"Men's {i % 2}") for i in range(1, 6)]
    meta.append(repr({"asin": "i6", "price": 3.0}))
    text = "".join(review(*fields) + "\n" for fields in REVIEWS)
    (folder / "reviews_Electronics_5.json.gz").write_bytes(gzip.compress(text.encode()))
    return write(folder, {"meta_Electronics.json": meta})
