"""Preparation: raw columns to ids and numbers, vocabularies, splits, shards."""
