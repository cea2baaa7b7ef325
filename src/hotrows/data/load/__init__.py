"""Batches: loaders over stored shards and over Parquet files as they are."""
