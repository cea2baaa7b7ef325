"""A model of your own, from data to predictions: `python examples/own_model.py`."""

import numpy as np
import pyarrow as pa
import torch

import hotrows
from hotrows import Dense, Schema, Sequence, Sparse, TrainConfig
from hotrows.models import Model, tables
from hotrows.nn import MLP, TargetAttention


class TwoTowers(Model):
    """A user, made of an id and of what was clicked before, and an item: how well do they go together?"""

    def __init__(self, schema, dim=16, hidden=(64, 32)):
        super().__init__()
        self.tables = tables.vector_tables(schema, dim)  # one vector per id of every feature
        self.sequences = ("history",)  # its vectors stay apart, [N, dim] with offsets [B + 1]
        self.attention = TargetAttention(dim)
        self.user = MLP((2 * dim + len(schema.dense), *hidden))
        self.item = MLP((dim, *hidden))

    def forward(self, vectors, dense):  # [B] logits
        past = self.attention(vectors["item"], *vectors.sequence("history"))
        user = self.user(torch.cat([vectors["user"], past, dense], 1))
        return (user * self.item(vectors["item"])).sum(1)


if __name__ == "__main__":
    rng = np.random.default_rng(0)
    clicked = [rng.integers(50, size=n) for n in rng.integers(1, 20, 20_000)]
    item = rng.integers(50, size=20_000)
    taste = np.array([np.mean(past % 5 == new % 5) for past, new in zip(clicked, item, strict=True)])
    click = (rng.random(20_000) < taste).astype(int)  # like is clicked after like
    columns = {"click": click, "user": rng.integers(900, size=20_000), "item": item}
    rows = pa.table({**columns, "age": rng.normal(40, 9, 20_000), "history": list(clicked)})
    history = Sequence("history", vocabulary="item", max_length=20)
    features = (Dense("age", transform="standard"), Sparse("user"), Sparse("item"), history)
    schema = Schema(label="click", features=features)
    data = hotrows.prepare(rows, schema, "enc", split="position:0.8,0.1,0.1")
    config = TrainConfig(model=f"{__file__}:TwoTowers", epochs=4, model_options={"dim": 8})
    print("test AUC", hotrows.Trainer(data, config, "runs/two-towers").fit().test.auc)
