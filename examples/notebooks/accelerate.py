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
# # A library's model, made faster
#
# DeepFM of torch-rechub, as it is installed (`pip install torch-rechub`), and a loop of PyTorch. Two
# lines change how its tables are looked up and updated, and not what it learns.

# %%
import copy
import time

import pandas as pd
import torch
from torch.nn.functional import binary_cross_entropy
from torch_rechub.basic.features import SparseFeature
from torch_rechub.models.ranking import DeepFM

import hotrows

TABLES = [1_000_000, 500_000, 200_000, 50_000, 1_000]
BATCH, STEPS = 1024, 20

# %% [markdown]
# ## The model
#
# Five features, the largest with a million values. Adam moves every row of every table in each step,
# whether a batch reads it or not: that is what takes the time.

# %%
torch.set_default_dtype(torch.float64)  # rounding then hides no difference
torch.manual_seed(0)
features = [SparseFeature(f"f{n}", rows, 16) for n, rows in enumerate(TABLES)]
plain = DeepFM(features, features, {"dims": [64, 32], "activation": "relu"})
fast = copy.deepcopy(plain)


def batches(number, seed=1):
    draw = torch.Generator().manual_seed(seed)
    for _ in range(number):
        ids = [(torch.rand(BATCH, generator=draw) ** 4 * rows).long() for rows in TABLES]
        yield {f"f{n}": column for n, column in enumerate(ids)}, (ids[0] % 2).double()


def train(model, optimizer):
    """The loop as it was. Returns milliseconds a step, of the second half."""
    for step, (columns, labels) in enumerate(batches(STEPS)):
        if step == STEPS // 2:
            begin = time.perf_counter()
        loss = binary_cross_entropy(model(columns), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return (time.perf_counter() - begin) / (STEPS // 2) * 1e3


# %% [markdown]
# ## As it is

# %%
slow_ms = train(plain, torch.optim.Adam(plain.parameters(), 1e-3))

# %% [markdown]
# ## With two lines more

# %%
optimizer = torch.optim.Adam(fast.parameters(), 1e-3)
fast, optimizer = hotrows.accelerate(fast, optimizer, always=True)
fast_ms = train(fast, optimizer)

example, _ = next(batches(1))
print(hotrows.explain(fast, example))

# %% [markdown]
# ## What came of it

# %%
weights, expected = fast.state_dict(), plain.state_dict()
apart = max(float((weights[name] - expected[name]).abs().max()) for name in expected)
pd.DataFrame(
    {"ms a step": [slow_ms, fast_ms], "largest difference of weights": [0.0, apart]},
    index=["plain", "accelerated"],
)

# %%
assert apart < 1e-4
