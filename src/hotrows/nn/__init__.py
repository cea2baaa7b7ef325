"""Layers: ordinary modules on dense tensors and looked-up vectors; they never see an id."""

from hotrows.nn.co_action import CoAction
from hotrows.nn.cross_network import CrossNetwork
from hotrows.nn.dot_interaction import DotInteraction
from hotrows.nn.dropout import Dropout
from hotrows.nn.factorization_machine import FactorizationMachine
from hotrows.nn.jagged import last_of, pool_jagged, pool_padded, samples_of, to_padded
from hotrows.nn.linear import PathLinear
from hotrows.nn.linear_paths import choose_linear_paths, products_per_sample, use_linear_paths
from hotrows.nn.mlp import MLP, linear_from_zero
from hotrows.nn.recurrent import GRU, AttentionalGRU

__all__ = [
    "GRU",
    "MLP",
    "AttentionalGRU",
    "CoAction",
    "CrossNetwork",
    "DotInteraction",
    "Dropout",
    "FactorizationMachine",
    "PathLinear",
    "choose_linear_paths",
    "last_of",
    "linear_from_zero",
    "pool_jagged",
    "pool_padded",
    "products_per_sample",
    "samples_of",
    "to_padded",
    "use_linear_paths",
]
