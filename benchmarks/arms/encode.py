"""Raw Criteo text to arrays of ids with polars, and with polars and scikit-learn: what users write.

    python encode.py polars|sklearn RAW OUT THREADS

The work is that of `hotrows prepare`: the first 80 % of the rows train, values seen ten times and more
there get ids by falling count, the others share one id, missing ones have their own; log(1 + x) of
integers; all is written as NumPy files. Everything stands in memory, as such code has it.
"""

import json
import os
import resource
import sys
import time
from pathlib import Path

MIN_COUNT, MISSING, UNKNOWN = 10, 1, 2


def main() -> None:
    kind, raw, out, threads = sys.argv[1:5]
    os.environ["POLARS_MAX_THREADS"] = threads
    import polars as pl

    begin = time.perf_counter()
    integers = [f"I{i}" for i in range(1, 14)]
    categories = [f"C{i}" for i in range(1, 27)]
    types = {"label": pl.UInt8} | dict.fromkeys(integers, pl.Float64)
    types |= dict.fromkeys(categories, pl.String)
    frame = pl.read_csv(raw, separator="\t", has_header=False, schema=types, quote_char=None)
    training = int(0.8 * frame.height)
    encode = with_polars if kind == "polars" else with_sklearn
    ids = encode(frame.select(categories), training)
    dense = frame.select([pl.col(name).clip(0).log1p().fill_null(0) for name in integers])
    folder = Path(out)
    folder.mkdir(parents=True)
    import numpy as np

    np.save(folder / "dense.npy", dense.to_numpy().astype(np.float32))
    np.save(folder / "labels.npy", frame["label"].to_numpy())
    for name, column in ids.items():
        np.save(folder / f"{name}.npy", column)
    seconds = time.perf_counter() - begin
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    figures = {"rows_per_s": frame.height / seconds, "seconds": seconds, "peak_rss_mb": peak}
    print(json.dumps(figures))


def with_polars(columns, training: int) -> dict:
    """Values counted and joined by polars."""
    import polars as pl

    encoded = {}
    for name in columns.columns:
        values = columns[name]
        counts = values.head(training).drop_nulls().value_counts().filter(pl.col("count") >= MIN_COUNT)
        ranked = counts.sort(["count", name], descending=[True, False])[name]
        ids = pl.arange(UNKNOWN + 1, UNKNOWN + 1 + len(ranked), eager=True).cast(pl.UInt32)
        vocabulary = pl.DataFrame({name: ranked, "id": ids})
        joined = columns.select(name).join(vocabulary, on=name, how="left", maintain_order="left")
        known = joined["id"].fill_null(UNKNOWN)
        encoded[name] = known.zip_with(
            values.is_not_null(), pl.repeat(MISSING, len(values), dtype=pl.UInt32, eager=True)
        ).to_numpy()
    return encoded


def with_sklearn(columns, training: int) -> dict:
    """scikit-learn's OrdinalEncoder, as tutorials have it; its ids are not by count."""
    from sklearn.preprocessing import OrdinalEncoder

    encoded = {}
    for name in columns.columns:
        values = columns[name].fill_null("").to_numpy().reshape(-1, 1)
        encoder = OrdinalEncoder(
            min_frequency=MIN_COUNT, handle_unknown="use_encoded_value", unknown_value=-1
        )
        encoder.fit(values[:training])
        encoded[name] = encoder.transform(values)[:, 0].astype("uint32")
    return encoded


if __name__ == "__main__":
    main()
