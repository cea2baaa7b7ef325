"""Serving: a bundle that `hotrows export` wrote, from raw rows to scores, without PyTorch.

    scorer = hotrows.serving.Scorer("bundle")
    scorer.score([{"user": "17", "item": "a"}, {"user": "17", "item": "b"}])
    scorer.score([{"item": "a"}, {"item": "b"}], shared={"user": "17", "history": ["c", "d"]})

`bundle` is what its files say, `table_rows` how rows are stored and read, `scorer` the way from a row to
a score, and `server` the same over HTTP.
"""

from typing import TYPE_CHECKING

from hotrows.runtime.lazy import lazy_names

if TYPE_CHECKING:
    from hotrows.serving.scorer import Request, Scorer
    from hotrows.serving.server import Limits, application

__all__ = ["Limits", "Request", "Scorer", "application"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "hotrows.serving.scorer": ["Request", "Scorer"],
        "hotrows.serving.server": ["Limits", "application"],
    },
)
