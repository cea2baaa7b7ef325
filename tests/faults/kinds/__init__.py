"""The kinds of faults, by name; the share of the time that each gets."""

from __future__ import annotations

from tests.faults.kinds import (
    damage,
    hostile,
    keys,
    live,
    processes,
    publishing,
    ranks,
    resources,
    sharing,
    stores,
)
from tests.faults.trials import Kind

KINDS: dict[str, tuple[Kind, float]] = {
    "kill": (processes.kill, 4),
    "kill keys": (keys.kill, 2),
    "kill ranks": (processes.kill_ranks, 2),
    "interrupt": (processes.interrupt, 2),
    "pause": (processes.pause, 1),
    "full disk": (resources.full_disk, 1),
    "short files": (resources.short_files, 1),
    "slow disk": (resources.slow_disk, 0.5),
    "descriptors": (resources.descriptors, 1),
    "address space": (resources.address_space, 1),
    "memory of a group": (resources.memory_of_a_group, 0.5),
    "clock": (resources.clock, 0.5),
    "two at once": (sharing.two_at_once, 2),
    "readers": (sharing.readers, 1),
    "damaged data": (damage.data, 2),
    "damaged run": (damage.run, 3),
    "damaged resume": (damage.resume, 2),
    "damaged store": (damage.store, 2),
    "hostile folder": (hostile.folder, 1),
    "store": (stores.crash, 2),
    "publishing": (publishing.publishing, 2),
    "live": (live.live, 2),
    "stages of ranks": (ranks.stages, 2),
    "torchrun": (ranks.torchrun, 1),
    "network": (ranks.cut_network, 1),
}
