"""The parts of `benchmarks.gpu`, one file each, and what they share."""
