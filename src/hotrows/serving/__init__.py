"""Serving: a bundle that `hotrows export` wrote, from raw rows to scores, without PyTorch.

    scorer = hotrows.serving.Scorer("bundle")
    scorer.score([{"user": "17", "item": "a"}, {"user": "17", "item": "b"}])
    scorer.score([{"item": "a"}, {"item": "b"}], shared={"user": "17", "history": ["c", "d"]})

`bundle` is what its files say, `table_rows` how rows are stored and read, `scorer` the way from a row to
a score, and `server` the same over HTTP. As training goes on: `deltas` and `chain` are the versions in a
folder, `version` and `overlay` one of them in memory, `follower` takes up newer ones, `merging` makes one
whole, and `places` are other places than folders.
"""

from typing import TYPE_CHECKING

from hotrows.runtime.lazy import lazy_names

if TYPE_CHECKING:
    from hotrows.serving.scorer import Request as Request
    from hotrows.serving.scorer import Scorer
    from hotrows.serving.server import Limits, application

__all__ = ["Limits", "Scorer", "application"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "hotrows.serving.scorer": ["Request", "Scorer"],
        "hotrows.serving.server": ["Limits", "application"],
    },
)
