"""Data: raw rows into encoded shards, and shards into batches."""

from typing import TYPE_CHECKING

from hotrows.runtime.lazy import lazy_names

if TYPE_CHECKING:
    from hotrows.data.description import Description as Description
    from hotrows.data.description import describe
    from hotrows.data.encode.encoder import Encoder
    from hotrows.data.encode.prepare import prepare as prepare
    from hotrows.data.encode.rates import ValueRates as ValueRates
    from hotrows.data.encode.writing import prepare_schema, write_encoded
    from hotrows.data.hot_cold.profile import Profile as Profile
    from hotrows.data.hot_cold.profile import profile as profile
    from hotrows.data.hot_cold.regroup import regroup as regroup
    from hotrows.data.hot_cold.schedule import HotColdLoader as HotColdLoader
    from hotrows.data.load.loader import Loader as Loader
    from hotrows.data.load.parquet import open_parquet
    from hotrows.data.load.parquet import open_source as open_source
    from hotrows.data.raw.draft import Draft, draft_schema
    from hotrows.data.stored.encoded import EncodedData
    from hotrows.data.stored.part import Part

__all__ = [
    "Draft",
    "EncodedData",
    "Encoder",
    "Part",
    "describe",
    "draft_schema",
    "open_parquet",
    "prepare_schema",
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
        "hotrows.data.load.parquet": ["open_parquet", "open_source"],
        "hotrows.data.raw.draft": ["Draft", "draft_schema"],
        "hotrows.data.stored.encoded": ["EncodedData", "Part"],
    },
)
