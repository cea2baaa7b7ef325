"""Embedding tables in training: packed rows, caches in front of stores, and the stages of a step."""
