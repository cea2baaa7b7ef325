"""A training loop of your own: plan, lookup, backward, update; everything else is plain PyTorch.

    python examples/own_loop.py [FOLDER]

Makes 25,000 synthetic rows in FOLDER (a temporary one by default), trains DLRM on them for an epoch,
and prints AUC and log loss of the rows held out.
"""

import sys
import tempfile
from pathlib import Path

import torch
from torch.nn.functional import binary_cross_entropy_with_logits

import hotrows
from hotrows.data.datasets import schemas
from hotrows.data.datasets.synthetic import synth_criteo
from hotrows.models import DLRM
from hotrows.train.metrics import compute_metrics


def main(folder: Path) -> None:
    raw = synth_criteo(25_000, folder / "raw")
    data = hotrows.prepare([raw], schemas.BY_NAME["criteo"], folder / "encoded")

    torch.manual_seed(1)
    model = DLRM(data.schema)
    embedding = hotrows.Embedding.for_model(
        model, data.schema, optimizer=hotrows.Adagrad(lr=0.02), seed=1
    )
    print(embedding.describe().splitlines()[0])  # 26 tables of equal attributes are one pack
    dense = torch.optim.Adam(model.parameters())

    loader = hotrows.Loader(data.parts["train"], batch_size=128, shuffle=True, seed=1)
    steps = enumerate(loader.batches(epoch=0))
    # Plans need ids alone, so the next ones are made on another thread while this one trains.
    planned = ((batch, embedding.plan(batch, step)) for step, batch in steps)
    for batch, plan in hotrows.prefetch(planned, depth=2):
        vectors = embedding.lookup(plan)
        loss = binary_cross_entropy_with_logits(model(vectors, batch.dense), batch.labels)
        loss.backward()
        embedding.update(plan, vectors)
        dense.step()
        dense.zero_grad()

    logits, labels = [], []
    with torch.no_grad():
        test = hotrows.Loader(data.parts["test"], batch_size=8192, shuffle=False)
        for batch in test.batches(epoch=0):
            vectors = embedding.lookup(embedding.plan(batch))
            logits.append(model(vectors, batch.dense))
            labels.append(batch.labels)
    metrics = compute_metrics(torch.cat(logits), torch.cat(labels))
    print(f"test AUC {metrics.auc:.4f}, log loss {metrics.log_loss:.4f}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(Path(temporary))
