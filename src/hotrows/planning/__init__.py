"""Decides: sees row numbers, never row values."""
