"""Key tables: dynamic ids. Which keys are live, which rows they have, and how both change by batch.

    table = key_table(Dynamic(capacity=1_000_000, admit="after:3", evict="lru"))
    while table.wants():
        table.feed(keys of the next batch)         # where admission or eviction looks forward
    resolved = table.resolve(keys of the next batch)
    ..                                             # the batch is trained
    table.trained()

A key is any int64. The caller passes keys of real values alone, and gives padding and missing values
their ids itself, so that no key is reserved. A batch is resolved as follows, whatever was trained since:

    1. live keys that it reads are noted as read
    2. keys that expired, idle ones, lose their rows
    3. the other keys that it reads are admitted or not
    4. where the capacity has no room for all, keys that the batch does not read lose their rows, as many
       as are needed and there are, in the order of the policy; of equal ones the one read longest ago,
       then the one of the lowest id
    5. new keys get the lowest free ids, in the order of their first occurrence; those for which there is
       no room train unknown ids, and are counted

All is a function of the settings and the batches in order. `keys_reference` is the specification.
"""

from __future__ import annotations

from hotrows.dynamic import Dynamic
from hotrows.planning.key_table import KeyTable, Resolved
from hotrows.planning.keys_reference import ReferenceKeyTable

__all__ = ["KeyTable", "Resolved", "key_table"]


def key_table(dynamic: Dynamic, num_unknown: int = 1) -> KeyTable:
    """An empty `KeyTable`."""
    return ReferenceKeyTable(dynamic, num_unknown)
