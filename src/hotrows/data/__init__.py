"""Data: raw rows into encoded shards, and shards into batches."""

from hotrows.data.description import Description, describe
from hotrows.data.encoded import EncodedData, Part
from hotrows.data.encoding import Encoder
from hotrows.data.hot_cold import HotColdLoader
from hotrows.data.loader import Loader
from hotrows.data.parquet_part import open_parquet, open_source
from hotrows.data.prepare import prepare
from hotrows.data.profile import Profile, profile
from hotrows.data.regroup import regroup
from hotrows.data.writing import write_encoded

__all__ = [
    "Description",
    "EncodedData",
    "Encoder",
    "HotColdLoader",
    "Loader",
    "Part",
    "Profile",
    "describe",
    "open_parquet",
    "open_source",
    "prepare",
    "profile",
    "regroup",
    "write_encoded",
]
