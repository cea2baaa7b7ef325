"""The MLPs of a group one by one, for comparison."""

import torch

from hotrows.models.nn import MLP


def alone(grouped, activation, last_activation):
    """As many MLPs of their own, with the same weights."""
    sizes = [grouped.first.in_features, grouped.first.out_features // grouped.num_groups]
    sizes += [weight.shape[2] for weight in grouped.weights]
    for g in range(grouped.num_groups):
        mlp = MLP(sizes, activation, last_activation=last_activation).to(grouped.first.weight.dtype)
        with torch.no_grad():
            mlp.layers[0].weight.copy_(grouped.first.weight.chunk(grouped.num_groups)[g])
            mlp.layers[0].bias.copy_(grouped.first.bias.chunk(grouped.num_groups)[g])
            for layer, weight, bias in zip(mlp.layers[1:], grouped.weights, grouped.biases, strict=True):
                layer.weight.copy_(weight[g].t())
                layer.bias.copy_(bias[g, 0])
        yield mlp
