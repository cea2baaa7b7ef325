"""Embedding tables in training: packed rows, caches in front of stores, and the stages of a step."""

from hotrows.runtime.lazy import lazy_names

__getattr__, __dir__ = lazy_names(__name__)
