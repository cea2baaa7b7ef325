"""DIEN, the Deep Interest Evolution Network (Zhou et al., AAAI 2019): how interests came to be.

    history -> GRU -> interests h_t -> AUGRU, led by attention to the target -> last state -+
                          |                                                                +-> MLP
                          +-> auxiliary loss: what came next?    all other vectors, dense --+

Paper and authors' code (github.com/mouna99/dien) differ, and `form` says which is followed in what
nothing else is said of:

                          paper                           code
    GRU's reset gate      after the product (eq. 4)       before it, biases of gates 1 (TensorFlow)
    attention             bilinear (eq. 5)                DIN's, 80-40, of a projected target
    AUGRU's update gate   a * u of the new (eq. 6)        (1 - a) * u of the old
    auxiliary loss        inner product                   a network 100-50
    MLP                   200-80                          200-80, its input normalised
    MLP's further input   none                            the history's sum, and sum * target

The auxiliary loss takes its negatives from other places of the batch's histories; the authors draw
them from all clicks, which is the same distribution, and prepare them with the data.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hotrows.models.interest_model import InterestModel
from hotrows.models.interests import EvolvingInterest
from hotrows.schema import Schema

FORMS: dict[str, dict[str, Any]] = {
    "paper": {"interest": {}, "extras": {}},
    "code": {
        "interest": {
            "evolution": "augru_code",
            "attention": (80, 40),
            "reset": "before",
            "gate_bias": 1.0,
            "auxiliary_hidden": (100, 50),
            "sums": True,
        },
        "extras": {"input_norm": True},
    },
}


class DIEN(InterestModel):
    """Deep interest evolution network (Zhou et al. 2019).

    A GRU over each history, a second one led by attention, and an MLP on top.

    evolution, attention, auxiliary: of `interests.EvolvingInterest`.
    hidden, activation: of the MLP. None stands for the value of the form.
    histories: as in `DIN`.

    >>> model = DIEN(data.schema, dim=8)
    >>> sorted({table.name for table in model.tables})
    ['item', 'user']
    """

    def __init__(
        self,
        schema: Schema,
        dim: int = 16,
        form: str = "paper",
        evolution: str | None = None,
        attention: Sequence[int] | None = None,
        auxiliary: float = 1.0,
        hidden: Sequence[int] = (200, 80),
        activation: str = "dice",
        dropout: float = 0.0,
        histories: Sequence[str | Sequence[str]] | None = None,
    ) -> None:
        super().__init__(schema, dim, histories)
        if form not in FORMS:
            raise ValueError(f"form must be one of {', '.join(FORMS)}, not {form!r}")
        options = {"evolution": evolution, "attention": attention}
        options = FORMS[form]["interest"] | {n: v for n, v in options.items() if v is not None}
        interests = [
            EvolvingInterest(dim * len(history.targets), auxiliary=auxiliary, **options)
            for history in self.histories
        ]
        self.finish(interests, hidden, activation, dropout, **FORMS[form]["extras"])
