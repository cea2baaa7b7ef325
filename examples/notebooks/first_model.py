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
# # A first model
#
# A log of a shop becomes a model that says how likely a click is. Runs in less than a minute on any
# laptop.

# %%
import numpy as np
import pandas as pd

import hotrows
from hotrows.data import draft_schema

ROWS = 20_000

# %% [markdown]
# ## A log
#
# Some items are liked, by some users more than by others, and cheap ones more than dear ones.

# %%
rng = np.random.default_rng(0)
user, item = rng.integers(ROWS // 40, size=ROWS), rng.integers(50, size=ROWS)
price = rng.gamma(2, 5, ROWS).round(2)
liking = np.where(item < 12, 0.5, 0.1) * np.where(price < 10, 1, 0.5) * (0.5 + user % 3 / 3)
frame = pd.DataFrame(
    {
        "user": user,
        "item": item,
        "price": price,
        "seen_at": pd.Timestamp("2026-01-01") + pd.to_timedelta(np.arange(ROWS) * 30, "min"),
        "click": (rng.random(ROWS) < liking).astype(int),
    }
)
frame.head()

# %% [markdown]
# ## A schema
#
# `draft_schema` guesses what each column is, and says what it was unsure of.

# %%
draft = draft_schema(frame, label="click")
print(draft.notes)
draft.schema

# %% [markdown]
# ## Data to train on
#
# The first 80 % by time train, the next 10 % choose the best model, the last 10 % only report.

# %%
data = hotrows.prepare(frame, draft.schema, "enc", split="time:0.8,0.1,0.1")
data

# %% [markdown]
# ## Training
#
# DeepFM, with settings that follow from the data. `runs/first` has all that came of it.

# %%
result = hotrows.Trainer(data, run="runs/first", model="deepfm").fit()
result

# %%
history = result.history.to_pandas()
history[history.kind == "evaluation"][["step", "auc", "log_loss", "is_best"]]

# %% [markdown]
# ## Predictions
#
# New rows may contain values that training has not seen.

# %%
predictor = hotrows.load_run("runs/first")
new = pd.DataFrame({"user": [1, 1, 10**9], "item": [1, 40, 1], "price": [5.0, 5.0, 5.0]})
new["seen_at"] = pd.Timestamp("2026-02-01")
probabilities = predictor.predict(new)
new.assign(probability=probabilities)

# %% [markdown]
# Item 1 is one of those that are liked, so the first probability is higher than the second. Next:
# [your own model](own_model.py).
