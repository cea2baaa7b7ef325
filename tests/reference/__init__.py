"""Specifications in plain Python of what the native core does; tests compare the two."""
