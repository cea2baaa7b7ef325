"""Whatever a power failure leaves of what was written, the next start finds the old state or the new one.

A scenario runs once under a recorder of its file calls (`record.c`). From the recording all states are
derived that a crash may leave (`disk`): after every call, each of the writes and names that were not
synced yet may be there, missing, or torn, in any combination. In each state the scenario's check starts
again, and says what it found (`scenarios`).

    python -m tests.crash_consistency [SCENARIO ...] [--per-crash N] [--drop files|folders]
"""
