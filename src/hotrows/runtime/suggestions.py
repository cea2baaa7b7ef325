"""Suggestions: the known name that a misspelt one is closest to, and errors in one line, for messages."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """Returns `; did you mean 'deepfm'?` for depfm or DeepFM, and nothing where no name is close.

    >>> did_you_mean('depfm', ['dcnv2', 'deepfm'])
    "; did you mean 'deepfm'?"
    """
    from difflib import get_close_matches

    by_lower = {name.lower(): name for name in names}
    closest = get_close_matches(word.lower(), by_lower, n=1, cutoff=0.65)
    return f"; did you mean {by_lower[closest[0]]!r}?" if closest else ""


def one_line(error: BaseException, most: int | None = 300) -> str:
    """Returns the text of an error in one line of at most so many characters, or the error's kind."""
    return " ".join(str(error).split())[:most] or type(error).__name__


def refusing_unknown(advice: Callable[[str], str]) -> Callable[[Function], Function]:
    """Decorates a function: a ValueError names a keyword that it does not have, and the one that was
    meant, or what `advice` says of it."""

    def decorate(function: Function) -> Function:
        known = inspect.signature(function).parameters
        name = function.__qualname__.removesuffix(".__init__")

        @functools.wraps(function)
        def checked(*args: Any, **keywords: Any) -> Any:
            for word in keywords:
                if word not in known:
                    hint = did_you_mean(word, known) or advice(word)
                    raise ValueError(f"{name} has no argument {word!r}{hint}")
            return function(*args, **keywords)

        return checked  # type: ignore[return-value]

    return decorate
