"""The cross network against its formula."""

import pytest
import torch
from torch.testing import assert_close

from hotrows.nn import CrossNetwork


@pytest.mark.parametrize("rank", [None, 2])
def test_each_layer_multiplies_with_the_input_and_adds_what_came(rank):
    cross = CrossNetwork(6, num_layers=2, rank=rank)
    x0 = torch.randn(4, 6)
    x = x0
    for place in range(2):
        weight = cross.layers[place].weight
        if rank is not None:
            weight = weight @ cross.narrow[place].weight
        x = x0 * (x @ weight.t() + cross.layers[place].bias) + x
    assert_close(cross(x0), x)


def test_a_rank_that_is_no_rank_is_refused():
    with pytest.raises(ValueError, match="rank from 1 to 6"):
        CrossNetwork(6, rank=7)
