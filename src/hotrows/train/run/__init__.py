"""The folder of a run: its files, checkpoints, state, signals."""
