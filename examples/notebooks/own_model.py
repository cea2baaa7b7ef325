# ---
# jupyter:
#   jupytext:
#     formats: py:percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # A model of your own
#
# A model is a module of PyTorch that says which tables it needs, and receives vectors that were looked
# up. Here: the user's past clicks, weighted by how well each goes with the item at hand.

# %%
import numpy as np
import pandas as pd
import torch

import hotrows
from hotrows import Schema, Sequence, Sparse, TrainConfig
from hotrows.models import Model, tables
from hotrows.models.nn import MLP, TargetAttention

ROWS = 20_000

# %% [markdown]
# ## Clicks that depend on the last click
#
# There are five kinds of items. A user clicks what is of the kind of the last one.

# %%
rng = np.random.default_rng(0)
history = [rng.integers(50, size=rng.integers(1, 12)).tolist() for _ in range(ROWS)]
item = rng.integers(50, size=ROWS)
alike = item % 5 == np.array([past[-1] % 5 for past in history])
click = (rng.random(ROWS) < np.where(alike, 0.8, 0.1)).astype(int)
frame = pd.DataFrame({"item": item, "history": history, "click": click})

schema = Schema((Sparse("item"), Sequence("history", vocabulary="item")), label="click")
data = hotrows.prepare(frame, schema, "enc", split="fraction:0.8,0.1,0.1")
data

# %% [markdown]
# ## The model
#
# `vectors["item"]` is [B, dim]. `vectors.sequence("history")` is the vectors of all clicks end to end,
# [N, dim], and where those of each sample begin, [B + 1]: nothing is padded.


# %%
class LastClicks(Model):
    """The item, and the past by attention."""

    def __init__(self, schema, dim=16, hidden=(64, 32)):
        super().__init__()
        self.tables = tables.vector_tables(schema, dim)
        self.sequences = ("history",)
        self.attention = TargetAttention(dim, (32,))
        self.mlp = MLP((3 * dim, *hidden, 1))

    def forward(self, vectors, dense):
        item, (clicked, offsets) = vectors["item"], vectors.sequence("history")
        past = self.attention(item, clicked, offsets)
        last = clicked[offsets[1:] - 1]  # no history is empty here
        return self.mlp(torch.cat([item, past, last], 1)).squeeze(1)


# %% [markdown]
# ## Beside a model of the library
#
# `dnn` takes the mean of the history, and so cannot know which click was the last.

# %%
config = TrainConfig(epochs=2, seed=1)
own = hotrows.Trainer(data, config, run="runs/own", model=LastClicks).fit()
own

# %%
pooled = hotrows.Trainer(data, config, run="runs/dnn", model="dnn").fit()
pooled

# %% [markdown]
# ## What it has learned
#
# The vectors of items, by value: those of one kind are close.

# %%
items = hotrows.load_run("runs/own", model=LastClicks).vectors("item").to_pandas()
vectors = np.stack(items["vector"])
vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
kind = items["value"].astype(int).to_numpy() % 5
same = kind[:, None] == kind[None]
alike, others = (vectors @ vectors.T)[same].mean(), (vectors @ vectors.T)[~same].mean()
print(f"mean cosine of one kind {alike:.2f}, of two kinds {others:.2f}")
