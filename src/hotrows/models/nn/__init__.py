"""Layers: ordinary modules on dense tensors and looked-up vectors; they never see an id."""

from hotrows.engine.shared_lists import SharedLists as SharedLists
from hotrows.models.nn.batch_norm import BatchNorm as BatchNorm
from hotrows.models.nn.bilinear_attention import BilinearAttention as BilinearAttention
from hotrows.models.nn.co_action import CoAction as CoAction
from hotrows.models.nn.cross_network import CrossNetwork
from hotrows.models.nn.cross_network_mixture import CrossNetworkMixture as CrossNetworkMixture
from hotrows.models.nn.dice import Dice as Dice
from hotrows.models.nn.dot_interaction import DotInteraction
from hotrows.models.nn.dropout import Dropout as Dropout
from hotrows.models.nn.expert_mixture import ExpertMixture
from hotrows.models.nn.factorization_machine import FactorizationMachine
from hotrows.models.nn.grouped_mlp import GroupedMLP as GroupedMLP
from hotrows.models.nn.jagged import last_of
from hotrows.models.nn.jagged import pool_jagged as pool_jagged
from hotrows.models.nn.jagged import pool_padded as pool_padded
from hotrows.models.nn.jagged import to_padded as to_padded
from hotrows.models.nn.jagged_products import jagged_dot as jagged_dot
from hotrows.models.nn.jagged_products import softmax_jagged as softmax_jagged
from hotrows.models.nn.jagged_products import weighted_sum as weighted_sum
from hotrows.models.nn.linear import PathLinear as PathLinear
from hotrows.models.nn.linear_paths import choose_linear_paths as choose_linear_paths
from hotrows.models.nn.linear_paths import use_linear_paths as use_linear_paths
from hotrows.models.nn.mlp import MLP
from hotrows.models.nn.mlp import linear_from_zero as linear_from_zero
from hotrows.models.nn.prelu import PReLU as PReLU
from hotrows.models.nn.recurrent import GRU
from hotrows.models.nn.recurrent import AttentionalGRU as AttentionalGRU
from hotrows.models.nn.statistics import share_statistics as share_statistics
from hotrows.models.nn.target_attention import TargetAttention
from hotrows.models.nn.target_attention import TargetProjection as TargetProjection
from hotrows.ops.layers.jagged import samples_of as samples_of

__all__ = [
    "GRU",
    "MLP",
    "CrossNetwork",
    "DotInteraction",
    "ExpertMixture",
    "FactorizationMachine",
    "TargetAttention",
    "last_of",
]
