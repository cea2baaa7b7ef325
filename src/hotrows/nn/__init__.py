"""Layers: ordinary modules on dense tensors and looked-up vectors; they never see an id."""

from hotrows.nn.batch_norm import BatchNorm
from hotrows.nn.bilinear_attention import BilinearAttention
from hotrows.nn.co_action import CoAction
from hotrows.nn.cross_network import CrossNetwork
from hotrows.nn.cross_network_mixture import CrossNetworkMixture
from hotrows.nn.dice import Dice
from hotrows.nn.dot_interaction import DotInteraction
from hotrows.nn.dropout import Dropout
from hotrows.nn.expert_mixture import ExpertMixture
from hotrows.nn.factorization_machine import FactorizationMachine
from hotrows.nn.grouped_mlp import GroupedMLP
from hotrows.nn.jagged import last_of, pool_jagged, pool_padded, to_padded
from hotrows.nn.jagged_products import jagged_dot, softmax_jagged, weighted_sum
from hotrows.nn.linear import PathLinear
from hotrows.nn.linear_paths import choose_linear_paths, products_per_sample, use_linear_paths
from hotrows.nn.mlp import MLP, linear_from_zero
from hotrows.nn.prelu import PReLU
from hotrows.nn.recurrent import GRU, AttentionalGRU
from hotrows.nn.shared_lists import SharedLists
from hotrows.nn.statistics import share_statistics
from hotrows.nn.target_attention import TargetAttention, TargetProjection
from hotrows.ops.layers.jagged import samples_of

__all__ = [
    "GRU",
    "MLP",
    "AttentionalGRU",
    "BatchNorm",
    "BilinearAttention",
    "CoAction",
    "CrossNetwork",
    "CrossNetworkMixture",
    "Dice",
    "DotInteraction",
    "Dropout",
    "ExpertMixture",
    "FactorizationMachine",
    "GroupedMLP",
    "PReLU",
    "PathLinear",
    "SharedLists",
    "TargetAttention",
    "TargetProjection",
    "choose_linear_paths",
    "jagged_dot",
    "last_of",
    "linear_from_zero",
    "pool_jagged",
    "pool_padded",
    "products_per_sample",
    "samples_of",
    "share_statistics",
    "softmax_jagged",
    "to_padded",
    "use_linear_paths",
    "weighted_sum",
]
