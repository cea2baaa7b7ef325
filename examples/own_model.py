"""A model of your own, from data to a measured result: `python examples/own_model.py`."""

import tempfile

import numpy as np
import pyarrow as pa
import torch

import hotrows
from hotrows import Adagrad, Dense, Schema, Sequence, Sparse, TrainConfig
from hotrows.models import Model, tables
from hotrows.models.nn import GRU, MLP, last_of


class TwoTowers(Model):
    """A user, by id, age and past clicks in their order, and an item: how well do they go together?"""

    def __init__(self, schema, dim=16, hidden=(64, 32)):
        super().__init__()
        self.tables = tables.vector_tables(schema, dim)  # a vector for each id of every feature
        self.sequences = ("history",)  # its vectors stay apart: [N, dim], with offsets [B + 1]
        self.past = GRU(dim, dim)
        self.user = MLP((2 * dim + schema.num_dense, *hidden))
        self.item = MLP((dim, *hidden))

    def forward(self, vectors, dense):  # looked-up vectors, [B, num_dense] -> logits [B]
        clicked, offsets = vectors.sequence("history")
        past = last_of(self.past(clicked, offsets), offsets)
        user = self.user(torch.cat([vectors["user"], past, dense], 1))
        return (user * self.item(vectors["item"])).sum(1)


if __name__ == "__main__":
    rng, n = np.random.default_rng(0), 20_000
    taste, user, item = (rng.integers(kinds, size=n) for kinds in (5, 900, 50))
    history = [5 * rng.integers(10, size=rng.integers(1, 20)) + kind for kind in taste]
    click = (rng.random(n) < np.where(item % 5 == taste, 0.9, 0.1)).astype(int)  # like likes like
    columns = {"click": click, "age": rng.normal(40, 9, n), "user": user, "item": item}
    past = Sequence("history", vocabulary="item", max_length=20)
    age = Dense("age", transform="standard")
    schema = Schema((age, Sparse("user"), Sparse("item"), past), label="click")
    with tempfile.TemporaryDirectory() as folder:
        data = hotrows.prepare(pa.table({**columns, "history": history}), schema, f"{folder}/enc")
        config = TrainConfig(f"{__file__}:TwoTowers", epochs=2, row_optimizer=Adagrad(lr=0.1))
        print("test AUC", hotrows.Trainer(data, config, f"{folder}/run").fit().test.auc)
