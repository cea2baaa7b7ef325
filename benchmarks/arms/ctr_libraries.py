"""The DeepFM of three CTR libraries, with their own defaults and what their own loops do in a step.

All three train with dense Adam: every step touches every row of every table. With --accelerate the
same model and the same step run under `hotrows.accelerate`.
"""

import tempfile
from argparse import Namespace
from collections import OrderedDict
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy
from torch.optim import Optimizer

from benchmarks.arms import accelerated, arm
from benchmarks.workload import DEEPFM_DEEP, DIM, Batch, batches

HIDDEN = DEEPFM_DEEP[:-1]
Trained = tuple[Callable[[int], float], nn.Module, Optimizer | list[Optimizer]]


def main() -> None:
    parser = arm.parser(library=("deepctr-torch", "fuxictr", "torch-rechub"))
    accelerated.add_arguments(parser)
    parser.add_argument("--regularizer", type=float, default=0.0, help="of FuxiCTR's embeddings")
    args = arm.finish(parser.parse_args())
    if (args.model, args.optimizer) != ("deepfm", "adam"):
        raise ValueError("the CTR libraries are measured with --model deepfm --optimizer adam only")
    torch.set_num_threads(args.threads)
    data = batches(args.workload, args.batch_size)
    make_step = {"deepctr-torch": deepctr, "fuxictr": fuxictr, "torch-rechub": rechub}[args.library]
    accelerated.report(args, *make_step(args, data), "torch", args.library)


def deepctr(args: Namespace, data: list[Batch]) -> Trained:
    from deepctr_torch.inputs import DenseFeat, SparseFeat
    from deepctr_torch.models import DeepFM

    dense, sparse = _names(args)
    tables = zip(sparse, args.workload.num_rows, strict=True)
    columns = [SparseFeat(name, num_rows, DIM) for name, num_rows in tables]
    columns += [DenseFeat(name, 1) for name in dense]
    model = DeepFM(columns, columns, dnn_hidden_units=HIDDEN, device="cpu")
    model.compile("adam", "binary_crossentropy")
    model.train()
    # Its fit() makes one float32 matrix of all inputs, ids included.
    inputs = [np.concatenate([batch.ids.T, batch.dense], 1, dtype=np.float32) for batch in data]
    inputs = list(map(torch.from_numpy, inputs))
    labels = [torch.from_numpy(batch.labels) for batch in data]

    def step(k: int) -> float:
        k %= len(data)
        loss = model.loss_func(model(inputs[k]).squeeze(), labels[k], reduction="sum")
        model.optim.zero_grad()
        (loss + model.get_regularization_loss() + model.aux_loss).backward()
        model.optim.step()
        return loss.item() / args.batch_size

    return step, model, model.optim


def fuxictr(args: Namespace, data: list[Batch]) -> Trained:
    from fuxictr.features import FeatureMap
    from fuxictr.pytorch.layers import FactorizationMachine, FeatureEmbedding, MLP_Block
    from fuxictr.pytorch.models import BaseModel

    dense, sparse = _names(args)
    features = FeatureMap("criteo", tempfile.mkdtemp())
    features.features = OrderedDict((name, {"source": "", "type": "numeric"}) for name in dense)
    for name, num_rows in zip(sparse, args.workload.num_rows, strict=True):
        features.features[name] = {"source": "", "type": "categorical", "vocab_size": num_rows}
    features.labels = ["label"]
    features.num_fields = len(features.features)
    features.total_features = len(dense) + sum(args.workload.num_rows)
    features.input_length = len(features.features) + 1
    features.set_column_index()

    class DeepFM(BaseModel):
        """FuxiCTR ships its layers in the package, and its models beside it."""

        def __init__(self) -> None:
            super().__init__(
                features,
                model_id="DeepFM",
                gpu=-1,
                metrics=["AUC"],
                embedding_regularizer=args.regularizer or None,
                verbose=0,
                model_root=tempfile.mkdtemp(),
            )
            self.embedding = FeatureEmbedding(features, DIM)
            self.fm = FactorizationMachine(features)
            self.deep = MLP_Block(features.num_fields * DIM, list(HIDDEN), output_dim=1)
            self.compile("adam", "binary_crossentropy", 1e-3)
            self.reset_parameters()

        def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
            columns = self.get_inputs(inputs)
            vectors = self.embedding(columns)
            logits = self.fm(columns, vectors) + self.deep(vectors.flatten(1))
            return {"y_pred": self.output_activation(logits)}

    model = DeepFM()
    model.train()
    model._max_gradient_norm = 10.0  # what its fit() sets
    inputs = [_columns(args, batch) | {"label": torch.from_numpy(batch.labels)} for batch in data]
    return lambda k: model.train_step(inputs[k % len(inputs)]).item(), model, model.optimizer


def rechub(args: Namespace, data: list[Batch]) -> Trained:
    from torch_rechub.basic.features import DenseFeature, SparseFeature
    from torch_rechub.models.ranking import DeepFM

    dense, sparse = _names(args)
    tables = zip(sparse, args.workload.num_rows, strict=True)
    fields = [SparseFeature(name, num_rows, DIM) for name, num_rows in tables]
    deep = fields + [DenseFeature(name) for name in dense]
    mlp = {"dims": list(HIDDEN), "dropout": 0, "activation": "relu"}
    model = DeepFM(deep_features=deep, fm_features=fields, mlp_params=mlp)
    optimizers = [torch.optim.Adam(model.parameters(), 1e-3)]
    inputs = [_columns(args, batch) for batch in data]
    labels = [torch.from_numpy(batch.labels) for batch in data]

    def step(k: int) -> float:
        k %= len(data)
        loss = binary_cross_entropy(model(inputs[k]), labels[k])
        model.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        return loss.item()

    return step, model, optimizers


def _names(args: Namespace) -> tuple[list[str], list[str]]:
    dense = [f"dense{n}" for n in range(args.workload.num_dense)]
    return dense, [f"sparse{n}" for n in range(len(args.workload.num_rows))]


def _columns(args: Namespace, batch: Batch) -> dict[str, Tensor]:
    dense, sparse = _names(args)
    columns = dict(zip(dense, torch.from_numpy(np.ascontiguousarray(batch.dense.T)), strict=True))
    return columns | dict(zip(sparse, torch.from_numpy(batch.ids), strict=True))


if __name__ == "__main__":
    main()
