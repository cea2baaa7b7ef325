"""Real faults on real ranks: processes that die, hang, lag, lose the network or run out of disk.

`test_faults.py` and `test_torchrun.py` run the cases that tell most; `python -m tests.faults` runs all.
"""
