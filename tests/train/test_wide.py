"""Thousands of columns: trained, or refused in words before memory is taken."""

import pytest
import torch

from hotrows.schema import Dense, Schema, Sparse
from hotrows.train.config import TrainConfig
from hotrows.train.loop import recommender
from hotrows.train.loop.recommender import Recommender


def schema_of(num_features):
    ids = (Sparse(f"s{n}", rows=5) for n in range(num_features // 2))
    return Schema(features=(*ids, *(Dense(f"d{n}") for n in range(num_features // 2))))


@pytest.mark.parametrize("model", ["dlrm", "dcnv2"])
def test_a_model_too_large_for_memory_is_refused_before_it_is_built(model, monkeypatch):
    monkeypatch.setattr(recommender, "total_memory", lambda: 24 << 30)
    said = rf"model '{model}' of 5,000 features has [\d,]+ dense weights and needs about \d+ GiB"
    with pytest.raises(ValueError, match=said):
        Recommender(TrainConfig(model=model, batch_size=256), schema_of(5_000))


def test_counting_a_model_changes_no_weight(monkeypatch):
    """A model is counted once more than it is built, with the random state of the seed."""
    config = TrainConfig(model="deepfm", batch_size=16, seed=3)
    counted = Recommender(config, schema_of(300)).model.state_dict()
    monkeypatch.setattr(recommender, "_WIDE", 10**9)
    plain = Recommender(config, schema_of(300)).model.state_dict()
    assert all(torch.equal(counted[name], plain[name]) for name in plain)
