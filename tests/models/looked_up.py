"""Models to test, small, and looked-up vectors for them, without an engine."""

from dataclasses import replace

import torch
from torch import nn
from torch.nn import functional

from hotrows import Batch, Embedding, models
from hotrows.engine.vectors import Vectors
from hotrows.schema import Dense, Schema, Sequence, Sparse

SPARSE = tuple(Sparse(f"C{n}", rows=10 + n) for n in range(4))
DENSE = tuple(Dense(f"I{n}") for n in range(3))
LABELS = ("click", "buy")
SCHEMA = Schema(features=DENSE + SPARSE, label=LABELS)
HISTORY = Sequence("history", vocabulary="C0", rows=10)
SMALL = {
    "lr": {},
    "fm": {"dim": 8},
    "dnn": {"dim": 8, "hidden": (16, 16)},
    "wide_deep": {"dim": 8, "hidden": (16, 16)},
    "deepfm": {"dim": 8, "hidden": (16, 16)},
    "dlrm": {"dim": 8, "bottom": (16,), "top": (16,)},
    "dcnv2": {"dim": 8, "hidden": (16, 16)},
    "din": {"dim": 8, "attention": (8, 4), "hidden": (16, 16)},
    "dien": {"dim": 8, "hidden": (16, 16)},
    "can": {"dim": 8, "sizes": (4, 3, 2), "orders": 2, "hidden": (16, 16)},
    "tbsm": {"dim": 8, "top": (16, 8), "length": 3, "attention": (6,), "hidden": (16,)},
    "hstu": {"dim": 8, "length": 3, "hidden": (16, 16)},
    "mmoe": {"dim": 8, "num_experts": 3, "expert_hidden": (16, 8), "tower_hidden": (8,)},
    "ple": {"dim": 8, "expert_hidden": (16, 8), "tower_hidden": (8,)},
    "esmm": {"dim": 8, "hidden": (16, 8)},
}
WITH_HISTORY = ("din", "dien", "can", "tbsm", "hstu")


class FakeVectors:
    """Looked-up vectors of a batch, a leaf for each (feature, role): [B, D], or of a sequence that the
    model keeps apart [N, D] with its offsets."""

    def __init__(self, leaves, offsets=None):
        self.leaves, self.offsets = leaves, offsets or {}

    def __getitem__(self, key):
        return self.leaves[(key, "vector") if isinstance(key, str) else key]

    def stack(self, role="vector", features=None):
        if features is None:
            features = [f for f, r in self.leaves if r == role and f not in self.offsets]
        return torch.stack([self[feature, role] for feature in features], 1)

    def sequence(self, feature, role="vector"):
        return self[feature, role], self.offsets[feature]

    def lengths(self, feature):
        return self.offsets[feature].diff()


def build(name, schema=None, **options):
    """The model of that name, small; without a schema for one that it can train on."""
    return models.build(name, schema or schema_of(name), **{**SMALL[name], **options})


def schema_of(name, dense=DENSE):
    more = (HISTORY,) if name in WITH_HISTORY else ()
    return Schema(features=dense + SPARSE + more, label=LABELS)


def lookup(model, size=32, scale=0.1, lengths=None):
    """Random vectors of all that the model reads; lengths: of a sample's sequences, all alike."""
    lengths = (
        torch.randint(0, 5, (size,)) if lengths is None else torch.tensor(lengths, dtype=torch.int64)
    )
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    leaves = {}
    for table in model.tables:
        for feature in table.features:
            count = int(offsets[-1]) if feature in model.sequences else size
            values = torch.randn(count, table.dim) * scale
            leaves[feature, table.role] = values.requires_grad_()
    return FakeVectors(leaves, dict.fromkeys(model.sequences, offsets))


def logits_of(model, vectors, dense):
    return models.logits_and_loss(model(vectors, dense))[0]


def randomize(model):
    for parameter in model.parameters():
        nn.init.normal_(parameter)


def planned(model, device="cpu", size=6):
    """Vectors of a random batch, by a plan on the device, and dense values."""
    embedding = Embedding(model.tables, sequences=model.sequences, crosses=model.crosses)
    lengths = [
        torch.randint(0, 4, (size,)) if name in model.sequences else torch.ones(size).long()
        for name in embedding.features
    ]
    offsets = functional.pad(torch.cat(lengths).cumsum(0), (1, 0))
    ids = torch.randint(0, 9, (int(offsets[-1]),))
    on_host = embedding.plan(Batch(embedding.features, ids, torch.empty(size, 0), offsets=offsets))
    packs = tuple(
        replace(pack, sequence_starts=starts and {k: v.to(device) for k, v in starts.items()})
        for pack in on_host.packs
        for starts in [pack.sequence_starts]
    )
    plan = replace(on_host, packs=packs, on_host=on_host)
    leaves = (leaf.detach().to(device) for leaf in embedding.lookup(on_host).leaves)
    vectors = Vectors(embedding.packs, plan, tuple(leaf.requires_grad_() for leaf in leaves))
    return vectors, torch.randn(size, len(DENSE)).to(device)
