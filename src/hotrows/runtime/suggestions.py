"""Suggestions: the known name that a misspelt one is closest to, for messages."""

from __future__ import annotations

from collections.abc import Iterable


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """Returns `; did you mean 'deepfm'?` for depfm or DeepFM, and nothing where no name is close."""
    from difflib import get_close_matches

    by_lower = {name.lower(): name for name in names}
    closest = get_close_matches(word.lower(), by_lower, n=1)
    return f"; did you mean {by_lower[closest[0]]!r}?" if closest else ""
