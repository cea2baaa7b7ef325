"""Real faults: processes that die, hang, lag, lose the network or run out of disk; damaged files.

`test_faults.py` and `test_torchrun.py` run the cases of ranks that tell most. `python -m tests.faults`
draws faults of all kinds by seed (`kinds`), for every command; `test_campaign.py` runs a part of it.
"""
