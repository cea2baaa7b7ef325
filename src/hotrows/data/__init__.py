"""Data: raw rows into encoded shards, and shards into batches."""

from hotrows.data.description import Description, describe
from hotrows.data.encode.encoding import Encoder
from hotrows.data.encode.prepare import prepare
from hotrows.data.encode.rates import ValueRates
from hotrows.data.encode.writing import write_encoded
from hotrows.data.hot_cold.profile import Profile, profile
from hotrows.data.hot_cold.regroup import regroup
from hotrows.data.hot_cold.schedule import HotColdLoader
from hotrows.data.load.loader import Loader
from hotrows.data.load.parquet_part import open_parquet, open_source
from hotrows.data.raw.draft import Draft, draft_schema
from hotrows.data.stored.encoded import EncodedData, Part

__all__ = [
    "Description",
    "Draft",
    "EncodedData",
    "Encoder",
    "HotColdLoader",
    "Loader",
    "Part",
    "Profile",
    "ValueRates",
    "describe",
    "draft_schema",
    "open_parquet",
    "open_source",
    "prepare",
    "profile",
    "regroup",
    "write_encoded",
]
