"""DIN, the Deep Interest Network (Zhou et al., KDD 2018): the past in the light of the item at hand.

    history [N, D] -+-> attention to the target -> interest [B, D] -+
    target  [B, D] -+                                               +-> MLP -> logit
    vectors of all other features, dense values --------------------+

Paper and authors' code (github.com/zhougr1993/DeepInterestNetwork) differ, and `form` says which is
followed in what nothing else is said of:

                             paper                       code
    weights                  raw scores (section 4.3)    softmax of scores / sqrt(D)
    layers of the attention  36, Dice                    80-40, sigmoid
    interest                 as it is                    normalised over the batch, a linear layer
    MLP                      200-80                      80-40, its input normalised
    MLP's further input      none                        interest * target
    bias of the target       none                        one per id

Mini-batch aware regularisation belongs to the rows: `weight_decay` with `decay_by_count` of their
optimizer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hotrows.models.interest_model import InterestModel
from hotrows.models.interests import AttentionInterest
from hotrows.schema import Schema

FORMS: dict[str, dict[str, Any]] = {
    "paper": {
        "attention": (36,),
        "attention_activation": "dice",
        "normalize": False,
        "project": False,
        "hidden": (200, 80),
        "extras": {},
    },
    "code": {
        "attention": (80, 40),
        "attention_activation": "sigmoid",
        "normalize": True,
        "project": True,
        "hidden": (80, 40),
        "extras": {"input_norm": True, "product": True, "target_bias": True},
    },
}


class DIN(InterestModel):
    """DIN (Zhou et al. 2018): attention to the target over each history, and an MLP on top.

    attention, attention_activation, normalize: of `nn.TargetAttention`.
    hidden, activation: of the MLP. None stands for the value of the form.
    histories: the sequences that are compared with the item at hand, several joined in a list of
        their own: [["items", "categories"]]. None: each that shares its vocabulary with a feature.

    >>> model = DIN(data.schema, dim=8)
    >>> sorted({table.name for table in model.tables})
    ['item', 'item.bias', 'user']
    """

    def __init__(
        self,
        schema: Schema,
        dim: int = 16,
        form: str = "code",
        attention: Sequence[int] | None = None,
        attention_activation: str | None = None,
        normalize: bool | None = None,
        hidden: Sequence[int] | None = None,
        activation: str = "dice",
        dropout: float = 0.0,
        histories: Sequence[str | Sequence[str]] | None = None,
    ) -> None:
        super().__init__(schema, dim, histories)
        if form not in FORMS:
            raise ValueError(f"form must be one of {', '.join(FORMS)}, not {form!r}")
        by_form = FORMS[form]
        interests = [
            AttentionInterest(
                dim * len(history.targets),
                by_form["attention"] if attention is None else attention,
                attention_activation or by_form["attention_activation"],
                by_form["normalize"] if normalize is None else normalize,
                by_form["project"],
            )
            for history in self.histories
        ]
        chosen = by_form["hidden"] if hidden is None else hidden
        self.finish(interests, chosen, activation, dropout, **by_form["extras"])
