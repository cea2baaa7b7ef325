"""FAE data layout: popularity profiles, hot and cold batches, their schedule. Others import from here."""

from typing import TYPE_CHECKING

from hotrows.runtime.lazy import lazy_names

if TYPE_CHECKING:
    from hotrows.data.hot_cold.profile import Profile, hot_and_cold, is_regrouped, pays, row_bytes
    from hotrows.data.hot_cold.schedule import SEQUENTIAL, HotColdLoader, Position, advance, next_block

__all__ = [
    "SEQUENTIAL",
    "HotColdLoader",
    "Position",
    "Profile",
    "advance",
    "hot_and_cold",
    "is_regrouped",
    "next_block",
    "pays",
    "row_bytes",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "hotrows.data.hot_cold.profile": [
            *("Profile", "hot_and_cold", "is_regrouped", "pays", "row_bytes")
        ],
        "hotrows.data.hot_cold.schedule": [
            *("SEQUENTIAL", "HotColdLoader", "Position", "advance", "next_block")
        ],
    },
)
