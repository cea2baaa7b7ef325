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
# # Tables larger than memory
#
# The rows of all tables are in a file; a cache in memory holds those that the next batches need. This
# notebook pretends that there are only some MiB of memory, predicts what a cache of each size would do,
# trains behind one, and looks at what it did.

# %%
from pathlib import Path

from IPython.display import SVG

import hotrows
from hotrows import TrainConfig
from hotrows.data.datasets import schemas
from hotrows.data.datasets.synthetic import synth_criteo
from hotrows.tools.tuning.advice import advise
from hotrows.tools.tuning.cache_simulation import simulate
from hotrows.tools.tuning.pictures import draw_curves

ROWS = 200_000

# %% [markdown]
# ## Data of Criteo's shape
#
# Few ids are read often, and most are seldom read: that is why a cache pays.

# %%
raw = synth_criteo(ROWS, Path("raw"), cardinality_scale=0.02)
data = hotrows.prepare([raw], schemas.with_min_count(schemas.criteo, 1), "enc", split="position:0.8")
data

# %% [markdown]
# ## How much memory is enough?
#
# The order of training is replayed, without training. `lookahead` knows the batches to come; `belady`
# knows all of them, and is what no cache can beat; `lru` knows the past alone.

# %%
options = {"dim": 16, "hidden": (64, 32)}
in_memory = TrainConfig(model="deepfm", model_options=options, batch_size=1024)
simulation = simulate(data, in_memory, batches=150)
advice = advise(simulation)
print(advice.sentence)
SVG(draw_curves(simulation, Path("misses.svg"), advice.knee))

# %% [markdown]
# ## Training behind the cache

# %%
config = TrainConfig(
    model="deepfm",
    model_options=options,
    batch_size=1024,
    fast_memory=advice.fast_memory,
    store="file:tables",
    seed=1,
)
behind = hotrows.Trainer(data, config, run="runs/file").fit()
behind

# %%
SVG("runs/file/report.svg")

# %% [markdown]
# How many of the rows of a batch were in memory already, and which share of the time training waited:

# %%
history = behind.history.to_pandas()
history[history.kind == "train"][["step", "hit_rate", "waited", "samples_per_second"]].tail()

# %% [markdown]
# ## The same bits
#
# With all rows in memory, the same settings give the same model: not about the same, the same.

# %%
memory = TrainConfig(model="deepfm", model_options=options, batch_size=1024, seed=1)
within = hotrows.Trainer(data, memory, run="runs/memory").fit(verbose=False)
print(within.test.log_loss, behind.test.log_loss)
assert within.test == behind.test
