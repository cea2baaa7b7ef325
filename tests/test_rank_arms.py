"""The PyTorch arms of several ranks hand each rank the vectors of its own samples."""

from argparse import Namespace

import numpy as np
import torch
from benchmarks.arms.plain_ranks_sequences import by_table, ids_of, look_up, shares
from benchmarks.samples import Samples, ends_of
from benchmarks.sequences import FEATURES


def test_every_rank_gets_the_vectors_of_its_samples_and_their_histories():
    lengths = np.array([3, 1, 4, 1, 5, 2])
    samples = Samples(
        np.arange(18).reshape(3, 6),
        np.zeros((6, FEATURES.num_dense), np.float32),
        np.zeros(6, np.float32),
        np.arange(100, 100 + lengths.sum()),
        ends_of(lengths),
    )
    owned = [["item"], ["user", "category"]]
    tables = {  # a vector says its table and its id
        name: lambda ids, number=number: torch.stack([ids, torch.full_like(ids, number)], 1)
        for number, name in enumerate(FEATURES.fields)
    }
    batches = shares(samples, Namespace(batch_size=6, ranks=2))
    for rank, batch in enumerate(batches):
        received = []
        for names in owned:
            ids = [ids_of(of_rank, names) for of_rank in batches]
            sent = look_up({name: tables[name] for name in names}, ids)
            sizes = [sum(map(len, of_rank.values())) for of_rank in ids]
            received.append(sent.split(sizes)[rank])
        vectors = by_table(torch.cat(received), batch, owned)
        for number, name in enumerate(FEATURES.fields):
            ids = ids_of(batch, [name])[name]
            assert vectors[name].tolist() == [[number_of, number] for number_of in ids.tolist()]
        assert batch.lengths.tolist() == sorted(lengths[3 * rank : 3 * rank + 3], reverse=True)
