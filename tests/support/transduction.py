"""HSTU's layer, spelled out query by query."""

import torch
from torch.nn import functional


def formula(layer, x, seconds=None):
    """All of a list, its last element the candidate: [L, D], of the paper's equations 1 to 3."""
    heads, places = layer.distances.shape
    normed = layer.norm(x)
    u, q = functional.silu(layer.to_gates(normed)).chunk(2, 1)
    k, v = functional.silu(layer.to_keys(normed)).chunk(2, 1)
    outputs = []
    for h, (q_h, k_h, v_h) in enumerate(zip(*(t.chunk(heads, 1) for t in (q, k, v)), strict=True)):
        rows = []
        for m in range(len(x)):
            out = torch.zeros(q_h.shape[1], dtype=x.dtype)
            for n in range(max(0, m - places + 1), m + 1):
                score = q_h[m] @ k_h[n] + layer.distances[h, m - n]
                if seconds is not None:
                    between = max(int(seconds[m] - seconds[n]), 1)
                    half = int(between >= 1.5 * 2 ** (between.bit_length() - 1))
                    score = score + layer.intervals[h, 2 * (between.bit_length() - 1) + half]
                out = out + functional.silu(score) * v_h[n] / places
            rows.append(out)
        outputs.append(torch.stack(rows))
    return layer.to_output(layer.norm_attended(torch.cat(outputs, 1)) * u) + x
