"""A training loop of your own: plan, lookup, backward, update; everything else is plain PyTorch.

    python examples/own_loop.py [FOLDER]

Makes 50,000 synthetic rows in FOLDER (a temporary one by default), trains DLRM on them for an epoch,
and prints AUC and log loss of the rows held out.
"""

import sys
import tempfile
from pathlib import Path

import torch
from torch.nn.functional import binary_cross_entropy_with_logits

import hotrows
from hotrows.data import Loader, prepare, schemas
from hotrows.data.synth import synth_criteo
from hotrows.metrics import measure
from hotrows.models import DLRM
from hotrows.pipeline.stream import ahead


def main(folder: Path) -> None:
    raw = synth_criteo(50_000, folder / "raw")
    data = prepare([raw], schemas.BY_NAME["criteo"], folder / "encoded")

    torch.manual_seed(1)
    model = DLRM(data.schema)
    embedding = hotrows.Embedding.of(model, data.schema, optimizer=hotrows.Adagrad(lr=0.02), seed=1)
    print(embedding.describe().splitlines()[0])  # 26 tables of equal attributes are one pack
    dense = torch.optim.Adam(model.parameters())

    loader = Loader(data.parts["train"], batch_size=128, shuffle=True, seed=1)
    steps = enumerate(loader.batches(epoch=0))
    # Plans need ids alone, so the next ones are made on another thread while this one trains.
    for batch, plan in ahead(steps, lambda item: (item[1], embedding.plan(item[1], item[0])), 2):
        vectors = embedding.lookup(plan)
        loss = binary_cross_entropy_with_logits(model(vectors, batch.dense), batch.labels)
        loss.backward()
        embedding.update(plan, vectors)
        dense.step()
        dense.zero_grad()

    logits, labels = [], []
    with torch.no_grad():
        for batch in Loader(data.parts["test"], batch_size=8192, shuffle=False).batches(epoch=0):
            vectors = embedding.lookup(embedding.plan(batch))
            logits.append(model(vectors, batch.dense))
            labels.append(batch.labels)
    found = measure(torch.cat(logits), torch.cat(labels))
    print(f"test AUC {found.auc:.4f}, log loss {found.log_loss:.4f}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(Path(temporary))
