"""Ops on embedding rows: reference, native core, CUDA, and shapes for tracing."""
