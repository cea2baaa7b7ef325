"""Preparation on a cluster: Ray's workers count and encode the blocks of a dataset."""
