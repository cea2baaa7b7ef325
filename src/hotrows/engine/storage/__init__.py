"""Holds rows; decides nothing."""
