"""Data: raw rows into encoded shards, and shards into batches."""

from typing import TYPE_CHECKING

from hotrows.runtime.lazy import lazy_names

if TYPE_CHECKING:
    from hotrows.data.description import Description, describe
    from hotrows.data.encode.encoder import Encoder
    from hotrows.data.encode.prepare import prepare
    from hotrows.data.encode.rates import ValueRates
    from hotrows.data.encode.writing import prepare_schema, write_encoded
    from hotrows.data.hot_cold.profile import Profile, profile
    from hotrows.data.hot_cold.regroup import regroup
    from hotrows.data.hot_cold.schedule import HotColdLoader
    from hotrows.data.load.loader import Loader
    from hotrows.data.load.parquet_part import open_parquet, open_source
    from hotrows.data.raw.draft import Draft, draft_schema
    from hotrows.data.stored.encoded import EncodedData
    from hotrows.data.stored.part import Part

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
    "prepare_schema",
    "profile",
    "regroup",
    "write_encoded",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "hotrows.data.description": ["Description", "describe"],
        "hotrows.data.encode.encoder": ["Encoder"],
        "hotrows.data.encode.prepare": ["prepare"],
        "hotrows.data.encode.rates": ["ValueRates"],
        "hotrows.data.encode.writing": ["prepare_schema", "write_encoded"],
        "hotrows.data.hot_cold.profile": ["Profile", "profile"],
        "hotrows.data.hot_cold.regroup": ["regroup"],
        "hotrows.data.hot_cold.schedule": ["HotColdLoader"],
        "hotrows.data.load.loader": ["Loader"],
        "hotrows.data.load.parquet_part": ["open_parquet", "open_source"],
        "hotrows.data.raw.draft": ["Draft", "draft_schema"],
        "hotrows.data.stored.encoded": ["EncodedData", "Part"],
    },
)
