"""How many launches a training step has on a GPU, counted without one.

On the pretended GPU each op is one call; how much one of a layer launches is held to its kernels in
`tests.ops.triton`. A call of PyTorch counts as one, though some launch more (a sort); allocations do not
count.
"""

import pytest
from torch.utils._pytree import tree_leaves

from hotrows import data
from hotrows.engine import stages
from hotrows.schema import Dense, Schema, Sequence, Sparse
from hotrows.train.config import TrainConfig
from hotrows.train.loop.recommender import Recommender
from hotrows.train.loop.step import Step, dense_optimizer
from hotrows.train.start.defaults import settle
from tests.nn.launches import Launches
from tests.ops.triton import layer_cases
from tests.support import pretend
from tests.support.clicks import table

NONE = {"empty", "new_empty", "empty_like", "device"}
SCHEMA = Schema(
    label="click",
    features=(
        Dense("price"), Sparse("user"), Sparse("item"),
        Sequence("history", vocabulary="item", max_length=5),
    ),
)  # fmt: skip
SEVERAL = {"update": 2, **layer_cases.LAUNCHES, "recurrent_backward": 4}  # reset after the product


class OnDevice(Launches):
    """Calls that have to do with the pretended GPU."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        number = len(self.names)
        out = super().__torch_dispatch__(function, types, args, kwargs)
        if not any(isinstance(t, pretend.PretendTensor) for t in tree_leaves((args, kwargs, out))):
            del self.names[number:]
        return out


def num_launches(names):
    return sum(SEVERAL.get(name, 1) for name in names if name not in NONE)


@pytest.fixture(scope="module")
def encoded(tmp_path_factory):
    rows = table(160).select(["click", "price", "user", "item", "history"])
    return data.prepare(rows, SCHEMA, tmp_path_factory.mktemp("d") / "enc", split="position:0.8,0.1,0.1")


@pytest.mark.parametrize(
    ("model", "options", "launches"),
    [
        ("din", {"form": "paper"}, 212),
        ("din", {"form": "code"}, 219),
        ("dien", {}, 200),
        ("dien", {"auxiliary": 0.0}, 155),
        ("can", {}, 81),
        ("mmoe", {}, 84),
    ],
)
def test_a_step_has_as_many_launches_as_docs_gpu_says(encoded, model, options, launches):
    config = TrainConfig(model=model, model_options=options, batch_size=32, steps=4, device="cuda")
    with pretend.gpu():
        config = settle(config, encoded)
        recommender = Recommender(config, encoded.schema)
        step = Step(recommender, dense_optimizer(config, recommender.model), config)
        batches = enumerate(data.Loader(encoded.parts["train"], 32, shuffle=True, seed=0).batches(0))
        for work in stages.start(recommender.embedding, batches):
            before = pretend.waits.total()
            with OnDevice() as counted:
                step(work.item.plan, work.item.batch, 1.0)
            assert pretend.waits.total() == before, "the step waits for the device"
    assert num_launches(counted.names) == launches
