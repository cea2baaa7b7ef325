"""The bytes of a record."""

import pytest
import torch

from hotrows.ops.record import RecordLayout, views
from hotrows.table import Table


def test_state_is_aligned_behind_narrow_weights():
    layout = RecordLayout(dim=3, dtype="bfloat16", state_width=2, has_step=True)
    assert (layout.state_offset, layout.step_offset, layout.stride) == (8, 16, 20)
    assert layout.as_ints() == [3, 16, 8, 2, 16, 20, 1]


def test_views_write_the_record():
    layout = RecordLayout(dim=3, dtype="bfloat16", state_width=2, has_step=True)
    records = torch.zeros(4, layout.stride, dtype=torch.uint8)
    parts = views(records, layout.as_ints())
    parts.weights[1] = torch.tensor([1.0, 2.0, 3.0])
    parts.state[1] = torch.tensor([4.0, 5.0])
    parts.step[1] = 6
    again = records[1].clone()
    assert again[:6].view(torch.bfloat16).tolist() == [1, 2, 3]
    assert again[8:16].view(torch.float32).tolist() == [4, 5]
    assert again[16:].view(torch.int32).tolist() == [6]
    assert not records[0].any() and not records[2:].any()


def test_integers_are_followed_by_their_scale():
    layout = RecordLayout(dim=16, dtype="int8", state_width=1)
    assert (layout.state_offset, layout.stride) == (20, 24)
    assert RecordLayout(dim=16, state_width=1).stride == 68
    records = torch.zeros(2, layout.stride, dtype=torch.uint8)
    views(records, layout.as_ints()).write(torch.linspace(-1, 1, 16)[None], slice(1, 2))
    assert records[1, 16:20].view(torch.float32).tolist() == [2**-6]
    assert records[1, [0, 15]].view(torch.int8).tolist() == [-64, 64]
    assert not records[0].any() and not records[1, 20:].any()


def test_two_integers_of_4_bits_are_a_byte_the_first_in_its_low_bits():
    layout = RecordLayout(dim=16, dtype="int4", state_width=1)
    assert (layout.state_offset, layout.stride) == (12, 16)
    records = torch.zeros(2, layout.stride, dtype=torch.uint8)
    stored = views(records, layout.as_ints())
    weights = torch.linspace(-7, 7, 16).round() / 4
    stored.write(weights[None], slice(1, 2))
    assert records[1, 8:12].view(torch.float32).tolist() == [0.25]
    assert records[1, 0] == (-6 & 15) << 4 | (-7 & 15)
    assert torch.equal(stored.read()[1], weights)
    assert not records[0].any() and not records[1, 12:].any()


def test_integers_of_4_bits_need_an_even_dim():
    with pytest.raises(ValueError, match="'t': rows of int4 need an even dim, not 7.* dim 8 or int8"):
        Table("t", 9, 7, ("t",), dtype="int4")


def test_a_layout_describes_itself():
    assert RecordLayout(dim=16, state_width=16).to_json() == {
        "dim": 16, "dtype": "float32", "state_width": 16, "has_step": False, "stride": 128,
    }  # fmt: skip
