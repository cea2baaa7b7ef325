"""The dense part of each model for the arms built on PyTorch: from looked-up vectors to logits.

All call it as `model(dense, vectors, first)`: `vectors` [B, F, D] are the fields' rows, which LR has
not; `first` [B] is the sum of the first-order weights, which only DeepFM and LR have.
"""

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn

from benchmarks.workload import CROSSES, DEEPFM_DEEP, DIM, DLRM_BOTTOM, DLRM_TOP, MLP, Workload

Layer = Callable[[int, int, bool], nn.Module]  # (inputs, outputs, whether a ReLU follows)


def linear(inputs: int, outputs: int, relu: bool) -> nn.Module:
    layer = nn.Linear(inputs, outputs)
    return nn.Sequential(layer, nn.ReLU()) if relu else layer


def dense_model(name: str, workload: Workload, layer: Layer = linear) -> nn.Module:
    model = {"dlrm": Dlrm, "deepfm": DeepFm, "dcnv2": DcnV2, "lr": Lr, "mlp": Mlp}[name]
    return model(workload.num_dense, len(workload.num_rows), layer)


class Dlrm(nn.Module):
    def __init__(self, num_dense: int, num_fields: int, layer: Layer) -> None:
        super().__init__()
        num_pairs = num_fields * (num_fields + 1) // 2
        self.bottom = _layers((num_dense, *DLRM_BOTTOM), layer, last_relu=True)
        self.top = _layers((num_pairs + DIM, *DLRM_TOP), layer)
        left, right = torch.tril_indices(num_fields + 1, num_fields + 1, offset=-1)
        self.register_buffer("pairs", left * (num_fields + 1) + right)

    def forward(self, dense: Tensor, vectors: Tensor, first: None = None) -> Tensor:
        return self.interact(self.bottom(dense), vectors)

    def interact(self, bottom: Tensor, vectors: Tensor) -> Tensor:
        all_vectors = torch.cat([bottom.unsqueeze(1), vectors], 1)
        dots = torch.bmm(all_vectors, all_vectors.transpose(1, 2)).flatten(1)
        return self.top(torch.cat([bottom, dots.index_select(1, self.pairs)], 1)).squeeze(1)


class DeepFm(nn.Module):
    def __init__(self, num_dense: int, num_fields: int, layer: Layer) -> None:
        super().__init__()
        self.deep = _layers((num_fields * DIM + num_dense, *DEEPFM_DEEP), layer)
        self.first = nn.Linear(num_dense, 1)

    def forward(self, dense: Tensor, vectors: Tensor, first: Tensor) -> Tensor:
        pairs = 0.5 * (vectors.sum(1).square() - vectors.square().sum(1)).sum(1)
        deep = self.deep(torch.cat([vectors.flatten(1), dense], 1))
        return (deep + self.first(dense)).squeeze(1) + pairs + first


class DcnV2(nn.Module):
    """Full crosses beside a deep part; one linear layer reads both."""

    def __init__(self, num_dense: int, num_fields: int, layer: Layer) -> None:
        super().__init__()
        width = num_fields * DIM + num_dense
        self.crosses = nn.ModuleList(layer(width, width, False) for _ in range(CROSSES))
        self.deep = _layers((width, *DEEPFM_DEEP[:-1]), layer, last_relu=True)
        self.last = layer(width + DEEPFM_DEEP[-2], 1, False)

    def forward(self, dense: Tensor, vectors: Tensor, first: None = None) -> Tensor:
        inputs = crossed = torch.cat([vectors.flatten(1), dense], 1)
        for layer in self.crosses:
            crossed = torch.addcmul(crossed, inputs, layer(crossed).to(inputs.dtype))
        deep = self.deep(inputs)
        return self.last(torch.cat([crossed.to(deep.dtype), deep], 1)).squeeze(1)


class Lr(nn.Module):
    def __init__(self, num_dense: int, num_fields: int, layer: Layer) -> None:
        super().__init__()
        self.first = nn.Linear(num_dense, 1)

    def forward(self, dense: Tensor, vectors: None, first: Tensor) -> Tensor:
        return self.first(dense).squeeze(1) + first


class Mlp(nn.Module):
    def __init__(self, num_dense: int, num_fields: int, layer: Layer) -> None:
        super().__init__()
        assert num_dense == 0
        self.layers = _layers((num_fields * DIM, *MLP), layer)

    def forward(self, dense: Tensor, vectors: Tensor, first: None = None) -> Tensor:
        return self.layers(vectors.flatten(1)).squeeze(1)


def _layers(sizes: tuple[int, ...], layer: Layer, last_relu: bool = False) -> nn.Module:
    last = len(sizes) - 2
    pairs = enumerate(pairwise(sizes))
    return nn.Sequential(*[layer(i, o, n < last or last_relu) for n, (i, o) in pairs])
