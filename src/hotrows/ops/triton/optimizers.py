"""The formulas of the row optimizers (`optim`) on a tile of rows, rounded as `reference` rounds.

Each takes weights [ROWS, COLUMNS] and summed gradients, zeros beyond a row's D columns, reads and
writes the state, and returns the new weights.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def adagrad(b_w, b_g, p_state, m, lr, p_numbers):
    eps = tl.load(p_numbers + 2).to(tl.float32)
    b_squares = tl.load(p_state, mask=m, other=0.0) + b_g * b_g
    tl.store(p_state, b_squares, mask=m)
    return b_w - tl.div_rn(lr * b_g, tl.sqrt_rn(b_squares) + eps)


@triton.jit
def rowwise_adagrad(b_w, b_g, p_state, m_row, lr, p_numbers, p_mean_squares, D: tl.constexpr):
    """p_state: [ROWS], of each row's one number; p_mean_squares: likewise, or None."""
    eps = tl.load(p_numbers + 2).to(tl.float32)
    if p_mean_squares is None:
        b_mean = tl.div_rn(tl.sum(b_g * b_g, axis=1), D * 1.0)
    else:
        b_mean = tl.load(p_mean_squares, mask=m_row, other=0.0)
    b_squares = tl.load(p_state, mask=m_row, other=0.0) + b_mean
    tl.debug_barrier()  # each row's number is read by many threads and written by one
    tl.store(p_state, b_squares, mask=m_row)
    b_rate = tl.div_rn(lr, tl.sqrt_rn(b_squares) + eps)
    return b_w - b_rate[:, None] * b_g


@triton.jit
def adam(b_w, b_g, p_state, m, p_step, m_row, p_numbers, D: tl.constexpr):
    """p_step: [ROWS], the int32 step of each row, which is counted up, or None."""
    lr = tl.load(p_numbers)
    beta1, beta2 = tl.load(p_numbers + 2), tl.load(p_numbers + 3)
    eps = tl.load(p_numbers + 4).to(tl.float32)
    b_m = tl.load(p_state, mask=m, other=0.0)
    b_v = tl.load(p_state + D, mask=m, other=0.0)
    b_m += (1 - beta1).to(tl.float32) * (b_g - b_m)
    b_v += (1 - beta2).to(tl.float32) * (b_g * b_g - b_v)
    tl.store(p_state, b_m, mask=m)
    tl.store(p_state + D, b_v, mask=m)
    if p_step is None:
        correction1, correction2 = tl.load(p_numbers + 5), tl.load(p_numbers + 6)
        rate = (lr * tl.sqrt(correction2) / correction1).to(tl.float32)
        b_move = rate * b_m
    else:
        b_step = tl.load(p_step, mask=m_row, other=0) + 1
        tl.debug_barrier()  # each row's step is read by many threads and written by one
        tl.store(p_step, b_step, mask=m_row)
        b_t = b_step.to(tl.float64)
        # beta^t as exp(t log beta) in float64: its error is far below float32's.
        b_correction1 = 1 - tl.exp(b_t * tl.log(beta1))
        b_correction2 = 1 - tl.exp(b_t * tl.log(beta2))
        b_rate = (lr * tl.sqrt(b_correction2) / b_correction1).to(tl.float32)
        b_move = b_rate[:, None] * b_m
    return b_w - tl.div_rn(b_move, tl.sqrt_rn(b_v) + eps)


@triton.jit
def ftrl(b_w, b_g, p_state, m, lr, p_numbers, D: tl.constexpr):
    l1 = tl.load(p_numbers + 2).to(tl.float32)
    l2 = tl.load(p_numbers + 3).to(tl.float32)
    beta = tl.load(p_numbers + 4).to(tl.float32)
    b_old = tl.load(p_state, mask=m, other=0.0)
    b_n = b_old + b_g * b_g
    b_root = tl.sqrt_rn(b_n)
    b_z = tl.load(p_state + D, mask=m, other=0.0)
    b_z += b_g - tl.div_rn(b_root - tl.sqrt_rn(b_old), lr) * b_w
    tl.store(p_state, b_n, mask=m)
    tl.store(p_state + D, b_z, mask=m)
    b_sign = tl.where(b_z > 0, 1.0, -1.0)
    b_new = tl.div_rn(b_sign * l1 - b_z, tl.div_rn(beta + b_root, lr) + l2)
    return tl.where(tl.abs(b_z) <= l1, 0.0, b_new)
