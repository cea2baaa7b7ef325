"""Models of thirteen papers as models of your own, with lines and test AUC: `python examples/zoo.py`.

They follow the papers in short: their layers, without the variants and the tuning.
"""

import inspect
import tempfile
from itertools import pairwise

import numpy as np
import pyarrow as pa
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits, layer_norm

import hotrows
from hotrows import Adagrad, Dense, Schema, Sequence, Sparse, TrainConfig, Uniform
from hotrows.models import Model, tables
from hotrows.models.nn import MLP


def vectors_of(schema, dim):
    """Tables whose vectors begin larger than by default: products and attention begin with gradients."""
    return tables.tables_of(schema, None, dim, tables.VECTOR, Uniform(0.1))


class Fields(Model):
    """Every feature as a vector: ids and means of lists, and numbers as multiples of a learned vector."""

    def __init__(self, schema, dim):
        super().__init__()
        self.tables = vectors_of(schema, dim)
        self.numbers = nn.Parameter(0.01 * torch.randn(schema.num_dense, dim))
        self.num_fields = len(schema.id_features) + schema.num_dense

    def fields(self, vectors, dense):  # [B, F, D]
        return torch.cat([vectors.stack(), dense[:, :, None] * self.numbers], 1)


class AutoInt(Fields):
    """AutoInt (Song et al. 2019): fields attend to one another, layer after layer."""

    def __init__(self, schema, dim: int = 16, heads: int = 2, layers: int = 2):
        super().__init__(schema, dim)
        attentions = (nn.MultiheadAttention(dim, heads, batch_first=True) for _ in range(layers))
        self.attentions = nn.ModuleList(attentions)
        self.residuals = nn.ModuleList(nn.Linear(dim, dim, bias=False) for _ in range(layers))
        self.last = nn.Linear(self.num_fields * dim, 1)

    def forward(self, vectors, dense):
        x = self.fields(vectors, dense)
        for attention, residual in zip(self.attentions, self.residuals, strict=True):
            x = (attention(x, x, x, need_weights=False)[0] + residual(x)).relu()
        return self.last(x.flatten(1)).squeeze(1)


class XDeepFM(Fields):
    """xDeepFM (Lian et al. 2018): a compressed interaction network, an MLP and single weights."""

    def __init__(self, schema, dim: int = 16, maps=(16, 16), hidden=(64, 64)):
        super().__init__(schema, dim)
        self.tables += tables.linear_tables(schema)
        num = self.num_fields
        self.maps = nn.ModuleList(nn.Linear(h * num, m, bias=False) for h, m in pairwise((num, *maps)))
        self.interactions = nn.Linear(sum(maps), 1, bias=False)
        self.deep = MLP((self.num_fields * dim, *hidden, 1))

    def forward(self, vectors, dense):
        first = self.fields(vectors, dense)
        x, sums = first, []
        for compress in self.maps:
            outer = x[:, :, None] * first[:, None]  # [B, H, F, D]
            x = compress(outer.flatten(1, 2).transpose(1, 2)).transpose(1, 2)
            sums.append(x.sum(2))
        logits = self.interactions(torch.cat(sums, 1)) + self.deep(first.flatten(1))
        return logits.squeeze(1) + vectors.stack(tables.LINEAR).sum((1, 2))


class FiBiNET(Fields):
    """FiBiNET (Huang et al. 2019): fields weighed by a squeeze-and-excitation, and bilinear products."""

    def __init__(self, schema, dim: int = 16, reduction: int = 2, hidden=(64, 64)):
        super().__init__(schema, dim)
        self.pairs = torch.triu_indices(self.num_fields, self.num_fields, 1)
        few = max(1, self.num_fields // reduction)
        self.excite = MLP((self.num_fields, few, self.num_fields), last_activation="relu")
        self.bilinear = nn.ModuleList(nn.Linear(dim, dim, bias=False) for _ in range(2))
        self.deep = MLP((2 * self.pairs.shape[1] * dim, *hidden, 1))

    def forward(self, vectors, dense):
        x = self.fields(vectors, dense)
        weighed = x * self.excite(x.mean(2))[:, :, None]
        products = [
            product(fields)[:, self.pairs[0]] * fields[:, self.pairs[1]]
            for product, fields in zip(self.bilinear, (x, weighed), strict=True)
        ]
        return self.deep(torch.cat(products, 1).flatten(1)).squeeze(1)


class MaskNet(Fields):
    """MaskNet (Wang et al. 2021): blocks that multiply the input by masks made of it."""

    def __init__(self, schema, dim: int = 16, blocks: int = 3, size: int = 32, hidden=(64, 64)):
        super().__init__(schema, dim)
        width = self.num_fields * dim
        self.norm = nn.LayerNorm(dim)
        self.masks = nn.ModuleList(MLP((width, 2 * width, width)) for _ in range(blocks))
        outputs = (nn.Sequential(nn.Linear(width, size), nn.LayerNorm(size)) for _ in range(blocks))
        self.outputs = nn.ModuleList(outputs)
        self.deep = MLP((blocks * size, *hidden, 1))

    def forward(self, vectors, dense):
        x = self.fields(vectors, dense)
        flat, normed = x.flatten(1), self.norm(x).flatten(1)
        blocks = zip(self.masks, self.outputs, strict=True)
        read = [output(normed * mask(flat)).relu() for mask, output in blocks]
        return self.deep(torch.cat(read, 1)).squeeze(1)


class FinalMLP(Fields):
    """FinalMLP (Mao et al. 2023): two MLPs on differently gated fields, fused by bilinear heads."""

    def __init__(self, schema, dim: int = 16, gates=("user", "item"), hidden=(64, 32), heads: int = 4):
        super().__init__(schema, dim)
        width, size = self.num_fields * dim, hidden[-1]
        self.by = gates
        self.gates = nn.ModuleList(MLP((dim, 32, width), last_activation="sigmoid") for _ in gates)
        self.streams = nn.ModuleList(MLP((width, *hidden), last_activation="relu") for _ in gates)
        self.heads = nn.Parameter(torch.randn(heads, size // heads, size // heads) / size)
        self.linear = nn.Linear(2 * size, 1)

    def forward(self, vectors, dense):
        x = self.fields(vectors, dense).flatten(1)
        parts = zip(self.by, self.gates, self.streams, strict=True)
        read = [stream(x * 2 * gate(vectors[feature])) for feature, gate, stream in parts]
        one, other = (stream.unflatten(1, (len(self.heads), -1)) for stream in read)  # [B, K, S / K]
        fused = torch.einsum("bki,kij,bkj->b", one, self.heads, other)
        return fused + self.linear(torch.cat(read, 1)).squeeze(1)


class GDCN(Fields):
    """GDCN (Wang et al. 2023): crosses whose every order passes a gate, beside an MLP."""

    def __init__(self, schema, dim: int = 16, layers: int = 3, hidden=(64, 64)):
        super().__init__(schema, dim)
        width = self.num_fields * dim
        self.products = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.gates = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(layers))
        self.deep = MLP((width, *hidden), last_activation="relu")
        self.last = nn.Linear(width + hidden[-1], 1)

    def forward(self, vectors, dense):
        x = first = self.fields(vectors, dense).flatten(1)
        for cross, gate in zip(self.products, self.gates, strict=True):
            x = first * cross(x) * gate(x).sigmoid() + x
        return self.last(torch.cat([x, self.deep(first)], 1)).squeeze(1)


class EulerNet(Fields):
    """EulerNet (Tian et al. 2023): products of powers of fields by their phases and logs."""

    def __init__(self, schema, dim: int = 16, layers: int = 2):
        super().__init__(schema, dim)
        num, width = self.num_fields, self.num_fields * dim
        self.moduli = nn.Parameter(torch.ones(num, 1))
        self.orders = nn.ParameterList(
            torch.eye(num) + 0.1 * torch.randn(num, num) for _ in range(layers)
        )
        self.shifts = nn.ParameterList(torch.zeros(2, num, dim) for _ in range(layers))
        self.implicit = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.last = nn.Linear(width, 1)

    def forward(self, vectors, dense):
        x = self.fields(vectors, dense)
        real, imaginary = self.moduli * x.cos(), self.moduli * x.sin()
        for orders, shift, implicit in zip(self.orders, self.shifts, self.implicit, strict=True):
            logs = (real.square() + imaginary.square() + 1e-6).log() / 2
            phase = orders @ torch.atan2(imaginary, real) + shift[0]
            modulus = (orders @ logs + shift[1]).clamp(max=5).exp()
            plain = [implicit(part.flatten(1)).relu().view_as(x) for part in (real, imaginary)]
            real, imaginary = modulus * phase.cos() + plain[0], modulus * phase.sin() + plain[1]
        return (self.last(real.flatten(1)) + self.last(imaginary.flatten(1))).squeeze(1)


class Wukong(Fields):
    """Wukong (Zhang et al. 2024): stacked factorization machines beside linear compressions of fields."""

    def __init__(self, schema, dim: int = 16, layers: int = 2, num: int = 8, rank: int = 4, hidden=(64,)):
        super().__init__(schema, dim)
        self.half, sizes = num // 2, [self.num_fields] + [num] * layers
        read = sizes[:-1]
        self.projections = nn.ParameterList(torch.randn(n, rank) / n**0.5 for n in read)
        machines = (
            nn.Sequential(nn.LayerNorm(n * rank), MLP((n * rank, 64, num // 2 * dim))) for n in read
        )
        self.machines = nn.ModuleList(machines)
        self.linear = nn.ParameterList(torch.randn(num - num // 2, n) / n**0.5 for n in read)
        self.residuals = nn.ParameterList(torch.randn(num, n) / n**0.5 for n in read)
        self.top = MLP((num * dim, *hidden, 1))

    def forward(self, vectors, dense):
        x = self.fields(vectors, dense)
        layers = zip(self.projections, self.machines, self.linear, self.residuals, strict=True)
        for projection, machine, linear, residual in layers:
            products = x @ (x.transpose(1, 2) @ projection)  # [B, F, rank] of all pairs' dot products
            pairs = machine(products.flatten(1)).unflatten(1, (self.half, -1))
            x = layer_norm(torch.cat([pairs, linear @ x], 1) + residual @ x, x.shape[2:])
        return self.top(x.flatten(1)).squeeze(1)


class BST(Model):
    """BST (Chen et al. 2019): a transformer over the clicks of the past and the item."""

    def __init__(self, schema, dim: int = 16, length: int = 20, heads: int = 2, hidden=(64, 32)):
        super().__init__()
        self.tables, self.sequences, self.length = vectors_of(schema, dim), ("history",), length
        self.others = [f.name for f in schema.id_features if f.name != "history"]
        self.places = nn.Parameter(0.01 * torch.randn(length + 1, dim))
        self.encoder = nn.TransformerEncoderLayer(dim, heads, 4 * dim, dropout=0.0, batch_first=True)
        width = (length + 1 + len(self.others)) * dim + schema.num_dense
        self.top = MLP((width, *hidden, 1))

    def forward(self, vectors, dense):
        past, is_real = hotrows.models.nn.to_padded(*vectors.sequence("history"), self.length)
        x = torch.cat([vectors["item"][:, None], past], 1) + self.places
        is_real = torch.cat([is_real.new_ones(len(x), 1), is_real], 1)
        x = self.encoder(x, src_key_padding_mask=~is_real) * is_real[:, :, None]
        others = vectors.stack("vector", self.others)
        return self.top(torch.cat([x.flatten(1), others.flatten(1), dense], 1)).squeeze(1)


class FCN(Fields):
    """FCN (Li et al. 2024): crosses of linear and of exponential order, and a loss for each."""

    def __init__(self, schema, dim: int = 16, layers: int = 3):
        super().__init__(schema, dim)
        width = self.num_fields * dim
        halves = [[nn.Linear(width, width // 2) for _ in range(layers)] for _ in range(2)]
        self.layers = nn.ModuleList(map(nn.ModuleList, halves))
        self.last = nn.ModuleList(nn.Linear(width, 1) for _ in range(2))

    def forward(self, vectors, dense):
        first, logits = self.fields(vectors, dense).flatten(1), []
        for is_deep, (layers, last) in enumerate(zip(self.layers, self.last, strict=True)):
            x = first
            for layer in layers:
                half = layer(x)
                masked = half * layer_norm(half, half.shape[1:]).relu()
                x = (x if is_deep else first) * torch.cat([half, masked], 1) + x
            logits.append(last(x).squeeze(1))
        mean = (logits[0] + logits[1]) / 2
        return (mean, lambda *batch: tri_loss(logits, *batch)) if self.training else mean


def tri_loss(streams, logits, labels, weights):
    """The loss of the mean, and those of the two streams as far as they are worse."""
    losses = [binary_cross_entropy_with_logits(z, labels, weights) for z in (logits, *streams)]
    return losses[0] + sum((loss - losses[0]).clamp(min=0).detach() * loss for loss in losses[1:])


class FINAL(Fields):
    """FINAL (Zhu et al. 2023): halves of layers multiplied; two streams learn what both predict."""

    def __init__(self, schema, dim: int = 16, hidden=(64, 64)):
        super().__init__(schema, dim)
        sizes = (self.num_fields * dim, *hidden)
        streams = [[nn.Linear(*pair) for pair in pairwise(sizes)] for _ in range(2)]
        self.streams = nn.ModuleList(map(nn.ModuleList, streams))
        self.norms = nn.ModuleList(
            nn.ModuleList(map(hotrows.models.nn.BatchNorm, hidden)) for _ in range(2)
        )
        self.last = nn.ModuleList(nn.Linear(hidden[-1], 1) for _ in range(2))

    def forward(self, vectors, dense):
        first, logits = self.fields(vectors, dense).flatten(1), []
        for layers, norms, last in zip(self.streams, self.norms, self.last, strict=True):
            x = first
            for layer, norm in zip(layers, norms, strict=True):
                half, factor = layer(x).chunk(2, 1)
                x = norm(torch.cat([half, half * factor], 1))
            logits.append(last(x).squeeze(1))
        mean = (logits[0] + logits[1]) / 2
        both = mean.detach().sigmoid()
        loss = sum(binary_cross_entropy_with_logits(one, both) for one in logits)
        return (mean, loss) if self.training else mean


class DeepFFM(Model):
    """DeepFFM (Zhang et al. 2019): a vector for each other field; an MLP reads the products."""

    def __init__(self, schema, dim: int = 4, hidden=(64, 64)):
        super().__init__()
        self.num_fields = len(schema.id_features)
        vectors = vectors_of(schema, self.num_fields * dim)
        self.tables = vectors + tables.linear_tables(schema)
        self.pairs = torch.triu_indices(self.num_fields, self.num_fields, 1)
        self.deep = MLP((self.pairs.shape[1] * dim + schema.num_dense, *hidden, 1))

    def forward(self, vectors, dense):
        x = vectors.stack().unflatten(2, (self.num_fields, -1))  # [B, F, F, D]: of field i for field j
        one, other = self.pairs
        products = x[:, one, other] * x[:, other, one]
        deep = self.deep(torch.cat([products.flatten(1), dense], 1)).squeeze(1)
        return deep + products.sum((1, 2)) + vectors.stack(tables.LINEAR).sum((1, 2))


class TwoTowers(Model):
    """Two towers (Covington et al. 2016, Yi et al. 2019): the angle of a user's and an item's vector."""

    def __init__(self, schema, dim: int = 16, items=("item", "category"), hidden=(64, 32)):
        super().__init__()
        self.tables = vectors_of(schema, dim)
        self.items = list(items)
        self.users = [f.name for f in schema.id_features if f.name not in items]
        self.user = MLP((len(self.users) * dim + schema.num_dense, *hidden))
        self.item = MLP((len(self.items) * dim, *hidden))
        self.scale = nn.Parameter(torch.tensor(5.0))
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, vectors, dense):
        of_user = vectors.stack("vector", self.users).flatten(1)
        user = self.user(torch.cat([of_user, dense], 1))
        item = self.item(vectors.stack("vector", self.items).flatten(1))
        return self.scale * torch.cosine_similarity(user, item) + self.bias


ZOO = (
    *(AutoInt, XDeepFM, FiBiNET, MaskNet, FinalMLP, GDCN, EulerNet, Wukong, BST, FCN, FINAL, DeepFFM),
    TwoTowers,
)


def clicks(rows):
    """Users who like a kind of item, which their past clicks show, and evenings on one kind of device."""
    rng = np.random.default_rng(0)
    user, item, hour, device = (rng.integers(kinds, size=rows) for kinds in (60, 40, 24, 3))
    history = [5 * rng.integers(8, size=rng.integers(1, 12)) + kind for kind in user % 5]
    likes = (item % 5 == user % 5) * 2.5 + ((hour > 17) == (device == 1)) * 1.0 - 2
    click = (rng.random(rows) < 1 / (1 + np.exp(-likes))).astype(int)
    ids = {"user": user, "item": item, "category": item % 8, "hour": hour, "device": device}
    return pa.table({"click": click, "age": rng.normal(40, 9, rows), **ids, "history": history})


def main(rows=20_000, models=ZOO, **settings):
    """Trains each model on the same rows, and prints a line for it; returns the AUC of each."""
    names, aucs = ("user", "item", "category", "hour", "device"), {}
    history = Sequence("history", vocabulary="item", max_length=20)
    features = (Dense("age", transform="standard"), *map(Sparse, names), history)
    print(f"{'model':<12}{'lines':>6}{'test AUC':>10}")
    with tempfile.TemporaryDirectory() as folder:
        data = hotrows.prepare(clicks(rows), Schema(features, label="click"), f"{folder}/enc")
        for model in models:
            name, lines = model.__name__, len(inspect.getsource(model).splitlines())
            config = TrainConfig(f"{__file__}:{name}", row_optimizer=Adagrad(lr=0.1), **settings)
            result = hotrows.Trainer(data, config, f"{folder}/{name}").fit(verbose=False)
            aucs[name] = result.test.auc
            print(f"{name:<12}{lines:>6}{aucs[name]:>10.4f}")
    return aucs


if __name__ == "__main__":
    main(epochs=4, batch_size=128, dense_lr=0.003)
