"""Encoded data on disk: shards, their sections, parts and the order in which they are read."""
