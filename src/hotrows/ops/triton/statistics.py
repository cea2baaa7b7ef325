"""Dice, PReLU and batch normalisation on the GPU: sums over rows, and what is done with them.

Sums go over chunks of rows, each in the order of its tiles, and then over the chunks in theirs, by the
last program to end (`turns`): both follow from the number of rows alone. Means and variances of tiles and
chunks are put together as Chan, Golub and LeVeque do. Formulas: `ops.layers.dice`, `.batch_norm`. Where
`real` is given, the rows that count are the first ones, as many as it holds: gradients behind them are 0.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from hotrows.ops.triton import launch
from hotrows.ops.triton.turns import counts, is_last

_ROWS, _COLUMNS = 64, 32  # of a tile: 16 numbers a thread
_BM, _BH = tl.constexpr(_ROWS), tl.constexpr(_COLUMNS)
_MOST_CHUNKS = 256
_CHUNKS = 64  # put together at once: of 256, four loads after one another for each sum


def moments(x: Tensor) -> tuple[Tensor, Tensor]:
    return _statistics(x, None, None, None, 0.0, 0.0, None)


def moments_remembered(
    x: Tensor, running_mean: Tensor, running_var: Tensor, num_batches: Tensor | None, momentum: float,
    eps: float, real: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    return _statistics(x, running_mean, running_var, num_batches, momentum, eps, real)


def _statistics(
    x: Tensor, running_mean: Tensor | None, running_var: Tensor | None, num_batches: Tensor | None,
    momentum: float, eps: float, real: Tensor | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Mean and variance; with running averages, which move, the mean and 1 / sqrt(var + eps)."""
    x, (num, width) = x.contiguous(), x.shape
    mean, spread = x.new_empty(width), x.new_empty(width)
    num_chunks, tiles = _chunks(num)
    parts, columns = x.new_empty(num_chunks, 2, width), launch.cdiv(width, _COLUMNS)
    running = running_mean, running_var, num_batches, counts(columns, x.device)
    unbiased = num / max(num - 1, 1)
    _moments[(num_chunks, columns)](
        x, parts, mean, spread, *running, real, num, tiles, unbiased, momentum, eps, H=width, BC=_CHUNKS
    )
    return mean, spread


def remember(
    mean: Tensor, var: Tensor, running_mean: Tensor, running_var: Tensor, num_batches: Tensor | None,
    num_rows: int, momentum: float, eps: float,
) -> Tensor:  # fmt: skip
    width, rstd = len(mean), torch.empty_like(mean)
    unbiased = num_rows / (num_rows - 1)
    running = running_mean, running_var, num_batches
    _remember[(launch.cdiv(width, _COLUMNS),)](
        mean, var, *running, rstd, unbiased, momentum, eps, H=width
    )
    return rstd


def dice(x: Tensor, mean: Tensor, rstd: Tensor, alpha: Tensor) -> Tensor:
    return _elementwise(_dice, x.contiguous(), mean, rstd, alpha)


def dice_sums(grad: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, alpha: Tensor) -> Tensor:
    return _sums(_dice_sums, 4, grad, x, mean, rstd, alpha)


def dice_to_x(
    grad: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, alpha: Tensor, sums: Tensor, num_rows: int,
    real: Tensor | None = None,
) -> Tensor:  # fmt: skip
    grad, x, sums = grad.contiguous(), x.contiguous(), sums.contiguous()
    one_over = 1.0 / num_rows if num_rows > 0 else 0.0
    return _elementwise(_dice_to_x, grad, x, mean, rstd, alpha, sums, real, one_over)


def batch_norm(x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return _elementwise(_normalize, x.contiguous(), mean, rstd, weight, bias)


def batch_norm_sums(grad: Tensor, x: Tensor, mean: Tensor, rstd: Tensor) -> Tensor:
    return _sums(_norm_sums, 2, grad, x, mean, rstd)


def batch_norm_to_x(
    grad: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor, sums: Tensor, num_rows: int,
    real: Tensor | None = None,
) -> Tensor:  # fmt: skip
    grad, x, sums = grad.contiguous(), x.contiguous(), sums.contiguous()
    return _elementwise(_norm_to_x, grad, x, mean, rstd, weight, sums, real, 1.0 / num_rows)


def prelu_backward(grad: Tensor, x: Tensor, slope: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    grad_x = torch.empty_like(x.contiguous())
    by_slope, by_bias = _sums(_prelu_back, 2, grad, x, slope, grad_x)
    return grad_x, by_slope, by_bias


def single_output_backward(grad: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    x = x.contiguous()
    grad_x = torch.empty_like(x)
    sums = _sums(_single_back, 2, x, grad, weight, grad_x)
    return grad_x, sums[:1], sums[1, :1]


def column_sums(one: Tensor, other: Tensor) -> Tensor:
    """[2, H]: the sums over the rows of each, [M, H]."""
    return _sums(_two_sums, 2, one, other)


def _elementwise(kernel, *inputs) -> Tensor:
    """inputs[0]: [M, H], as is the result."""
    (num, width), out = inputs[0].shape, torch.empty_like(inputs[0])
    if out.numel() > 0:
        grid = launch.cdiv(num, _ROWS), launch.cdiv(width, _COLUMNS)
        kernel[grid](*inputs, out, num, H=width)
    return out


def _sums(kernel, num_sums: int, *inputs: Tensor) -> Tensor:
    """[num_sums, H], over the rows of the inputs, the first of which is [M, H]."""
    (num, width), inputs = inputs[0].shape, tuple(t.contiguous() for t in inputs)
    num_chunks, tiles = _chunks(num)
    parts = inputs[0].new_empty(num_chunks, num_sums, width)
    if num == 0:
        return inputs[0].new_zeros(num_sums, width)
    columns, sums = launch.cdiv(width, _COLUMNS), parts.new_empty(num_sums, width)
    count = counts(columns, sums.device)
    kernel[(num_chunks, columns)](*inputs, parts, sums, count, num, tiles, H=width, BC=_CHUNKS)
    return sums


def _chunks(num: int) -> tuple[int, int]:
    """How many chunks of rows there are, and how many tiles each has."""
    num_tiles = max(launch.cdiv(num, _ROWS), 1)
    tiles = launch.cdiv(num_tiles, _MOST_CHUNKS)
    return launch.cdiv(num_tiles, tiles), tiles


@triton.jit(do_not_specialize=["num", "num_tiles", "unbiased", "momentum", "eps"])
def _moments(
    p_x, p_parts, p_mean, p_spread, p_running_mean, p_running_var, p_seen, p_count, p_real, num,
    num_tiles, unbiased, momentum, eps, H: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Mean and summed squares of the differences from it, of a chunk; the last one: of all rows."""
    # 1. How many rows count.
    if p_real is not None:
        num = tl.load(p_real).to(tl.int32)
        unbiased = tl.div_rn(num.to(tl.float32), tl.maximum(num - 1, 1).to(tl.float32))
    # 2. Mean and squares of this chunk, one tile after the other.
    i_chunk = tl.program_id(0).to(tl.int64)
    b_mean, b_squares = tl.zeros([_BH], tl.float32), tl.zeros([_BH], tl.float32)
    seen = 0.0
    for tile in range(num_tiles):
        i_tile = i_chunk * num_tiles + tile
        o, m, o_h = _tile(i_tile, num, H)
        b_x = tl.load(p_x + o, mask=m, other=0.0)
        count = tl.minimum(tl.maximum(num - i_tile * _BM, 0), _BM).to(tl.float32)
        b_tile_mean = tl.sum(b_x, axis=0) / tl.maximum(count, 1.0)
        b_apart = tl.where(m, b_x - b_tile_mean[None, :], 0.0)
        b_difference, share = b_tile_mean - b_mean, count / tl.maximum(seen + count, 1.0)
        b_mean += b_difference * share
        b_squares += tl.sum(b_apart * b_apart, axis=0) + b_difference * b_difference * (seen * share)
        seen += count
    # 3. Store them; the last program joins those of all chunks.
    o_h = tl.program_id(1) * _BH + tl.arange(0, _BH)
    p_part = p_parts + i_chunk * (2 * H) + o_h
    tl.store(p_part, b_mean, mask=o_h < H)
    tl.store(p_part + H, b_squares, mask=o_h < H)
    if is_last(p_count + tl.program_id(1), tl.num_programs(0)):
        b_mean, b_var = _combined(p_parts, num, num_tiles * _BM, tl.num_programs(0), o_h, H, BC)
        tl.store(p_mean + o_h, b_mean, mask=o_h < H)
        if p_running_mean is None:
            tl.store(p_spread + o_h, b_var, mask=o_h < H)
        else:
            _move(
                p_running_mean, p_running_var, p_seen, b_mean, b_var, p_spread, unbiased, momentum, eps,
                o_h, o_h < H, tl.program_id(1),
            )  # fmt: skip


@triton.jit
def _combined(p_parts, num, rows, num_chunks, o_h, H: tl.constexpr, BC: tl.constexpr):
    """Mean and variance of all rows, from those of chunks of `rows` rows."""
    b_mean, b_squares = tl.zeros([_BH], tl.float32), tl.zeros([_BH], tl.float32)
    for first in range(0, num_chunks, BC):
        o_c = first + tl.arange(0, BC)
        m = (o_c < num_chunks)[:, None] & (o_h < H)[None, :]
        b_count = tl.minimum(tl.maximum(num - o_c * rows, 0), rows).to(tl.float32)
        b_of_chunk = tl.load(p_parts + o_c[:, None] * (2 * H) + o_h[None, :], mask=m, other=0.0)
        b_mean += tl.sum(b_of_chunk * (b_count / num)[:, None], axis=0)
    for first in range(0, num_chunks, BC):
        o_c = first + tl.arange(0, BC)
        m = (o_c < num_chunks)[:, None] & (o_h < H)[None, :]
        b_count = tl.minimum(tl.maximum(num - o_c * rows, 0), rows).to(tl.float32)
        p_part = p_parts + o_c[:, None] * (2 * H) + o_h[None, :]
        b_apart = tl.load(p_part, mask=m, other=0.0) - b_mean[None, :]
        b_of_chunk = tl.load(p_part + H, mask=m, other=0.0)
        b_squares += tl.sum(b_of_chunk + b_apart * b_apart * b_count[:, None], axis=0)
    return b_mean, b_squares / num


@triton.jit(do_not_specialize=["unbiased", "momentum", "eps"])
def _remember(
    p_mean, p_var, p_running_mean, p_running_var, p_seen, p_rstd, unbiased, momentum, eps, H: tl.constexpr
):
    o_h = tl.program_id(0) * _BH + tl.arange(0, _BH)
    b_mean, b_var = _columns(p_mean, o_h, H), tl.load(p_var + o_h, mask=o_h < H, other=1.0)
    _move(
        p_running_mean, p_running_var, p_seen, b_mean, b_var, p_rstd, unbiased, momentum, eps, o_h,
        o_h < H, tl.program_id(0),
    )  # fmt: skip


@triton.jit
def _move(
    p_running_mean, p_running_var, p_seen, b_mean, b_var, p_rstd, unbiased, momentum, eps, o_h, m,
    i_columns,
):  # fmt: skip
    """Moves running averages; stores 1 / sqrt(var + eps)."""
    b_before = tl.load(p_running_mean + o_h, mask=m)
    tl.store(p_running_mean + o_h, b_before + momentum * (b_mean - b_before), mask=m)
    b_before = tl.load(p_running_var + o_h, mask=m)
    tl.store(p_running_var + o_h, b_before + momentum * (b_var * unbiased - b_before), mask=m)
    tl.store(p_rstd + o_h, tl.div_rn(1.0, tl.sqrt_rn(b_var + eps)), mask=m)
    if p_seen is not None:
        tl.store(p_seen, tl.load(p_seen) + 1, mask=i_columns == 0)


@triton.jit(do_not_specialize=["num"])
def _dice(p_x, p_mean, p_rstd, p_alpha, p_out, num, H: tl.constexpr):
    o, m, o_h = _tile(tl.program_id(0).to(tl.int64), num, H)
    b_x = tl.load(p_x + o, mask=m, other=0.0)
    b_z = _standardized(b_x, p_mean, p_rstd, o_h, H)
    b_p, b_alpha = tl.sigmoid(b_z), _columns(p_alpha, o_h, H)
    tl.store(p_out + o, b_x * (b_p + b_alpha[None, :] * (1.0 - b_p)), mask=m)


@triton.jit(do_not_specialize=["num", "num_tiles"])
def _dice_sums(
    p_grad, p_x, p_mean, p_rstd, p_alpha, p_parts, p_sums, p_count, num, num_tiles, H: tl.constexpr,
    BC: tl.constexpr,
):  # fmt: skip
    i_chunk = tl.program_id(0).to(tl.int64)
    b_by_z, b_by_zz = tl.zeros([_BH], tl.float32), tl.zeros([_BH], tl.float32)
    b_by_alpha, b_by_bias = tl.zeros([_BH], tl.float32), tl.zeros([_BH], tl.float32)
    for tile in range(num_tiles):
        o, m, o_h = _tile(i_chunk * num_tiles + tile, num, H)
        b_g, b_x = _pair(p_grad, p_x, o, m)
        b_z = _standardized(b_x, p_mean, p_rstd, o_h, H)
        b_p, b_alpha = tl.sigmoid(b_z), _columns(p_alpha, o_h, H)
        b_dz = b_g * b_x * (1.0 - b_alpha[None, :]) * b_p * (1.0 - b_p)
        b_by_z += tl.sum(b_dz, axis=0)
        b_by_zz += tl.sum(b_dz * b_z, axis=0)
        b_by_alpha += tl.sum(b_g * b_x * (1.0 - b_p), axis=0)
        b_by_bias += tl.sum(b_g * (b_p + b_alpha[None, :] * (1.0 - b_p)), axis=0)
    o_h = tl.program_id(1) * _BH + tl.arange(0, _BH)
    p_part = p_parts + i_chunk * (4 * H) + o_h
    tl.store(p_part, b_by_z, mask=o_h < H)
    tl.store(p_part + H, b_by_zz, mask=o_h < H)
    tl.store(p_part + 2 * H, b_by_alpha, mask=o_h < H)
    tl.store(p_part + 3 * H, b_by_bias, mask=o_h < H)
    _add_chunks(p_parts, p_sums, p_count, o_h, 4, H, BC)


@triton.jit(do_not_specialize=["one_over", "num"])
def _dice_to_x(
    p_grad, p_x, p_mean, p_rstd, p_alpha, p_sums, p_real, one_over, p_out, num, H: tl.constexpr
):
    """one_over: of the number of rows, 0 where the statistics are of other ones."""
    m_real, one_over = _real(p_real, one_over)
    o, m, o_h = _tile(tl.program_id(0).to(tl.int64), num, H)
    b_g, b_x = _pair(p_grad, p_x, o, m)
    b_z = _standardized(b_x, p_mean, p_rstd, o_h, H)
    b_p, b_alpha = tl.sigmoid(b_z), _columns(p_alpha, o_h, H)[None, :]
    b_dz = b_g * b_x * (1.0 - b_alpha) * b_p * (1.0 - b_p)
    b_by_z = _columns(p_sums, o_h, H) * one_over
    b_by_zz = _columns(p_sums + H, o_h, H) * one_over
    b_dz -= b_by_z[None, :] + b_z * b_by_zz[None, :]
    b_rstd = _columns(p_rstd, o_h, H)
    b_dx = b_g * (b_p + b_alpha * (1.0 - b_p)) + b_rstd[None, :] * b_dz
    tl.store(p_out + o, tl.where(m_real, b_dx, 0.0), mask=m)


@triton.jit(do_not_specialize=["num"])
def _normalize(p_x, p_mean, p_rstd, p_weight, p_bias, p_out, num, H: tl.constexpr):
    o, m, o_h = _tile(tl.program_id(0).to(tl.int64), num, H)
    b_z = _standardized(tl.load(p_x + o, mask=m, other=0.0), p_mean, p_rstd, o_h, H)
    b_weight, b_bias = _columns(p_weight, o_h, H), _columns(p_bias, o_h, H)
    tl.store(p_out + o, b_z * b_weight[None, :] + b_bias[None, :], mask=m)


@triton.jit(do_not_specialize=["num", "num_tiles"])
def _norm_sums(
    p_grad, p_x, p_mean, p_rstd, p_parts, p_sums, p_count, num, num_tiles, H: tl.constexpr,
    BC: tl.constexpr,
):  # fmt: skip
    i_chunk = tl.program_id(0).to(tl.int64)
    b_by_bias, b_by_weight = tl.zeros([_BH], tl.float32), tl.zeros([_BH], tl.float32)
    for tile in range(num_tiles):
        o, m, o_h = _tile(i_chunk * num_tiles + tile, num, H)
        b_g, b_x = _pair(p_grad, p_x, o, m)
        b_by_bias += tl.sum(b_g, axis=0)
        b_by_weight += tl.sum(b_g * _standardized(b_x, p_mean, p_rstd, o_h, H), axis=0)
    _store_two(p_parts, i_chunk, b_by_bias, b_by_weight, H)
    _add_chunks(p_parts, p_sums, p_count, tl.program_id(1) * _BH + tl.arange(0, _BH), 2, H, BC)


@triton.jit(do_not_specialize=["one_over", "num"])
def _norm_to_x(
    p_grad, p_x, p_mean, p_rstd, p_weight, p_sums, p_real, one_over, p_out, num, H: tl.constexpr
):
    m_real, one_over = _real(p_real, one_over)
    o, m, o_h = _tile(tl.program_id(0).to(tl.int64), num, H)
    b_g, b_x = _pair(p_grad, p_x, o, m)
    b_z = _standardized(b_x, p_mean, p_rstd, o_h, H)
    b_by_bias = _columns(p_sums, o_h, H) * one_over
    b_by_weight = _columns(p_sums + H, o_h, H) * one_over
    b_scale = _columns(p_rstd, o_h, H) * _columns(p_weight, o_h, H)
    b_dx = b_scale[None, :] * (b_g - b_by_bias[None, :] - b_z * b_by_weight[None, :])
    tl.store(p_out + o, tl.where(m_real, b_dx, 0.0), mask=m)


@triton.jit(do_not_specialize=["num", "num_tiles"])
def _prelu_back(
    p_grad, p_x, p_slope, p_grad_x, p_parts, p_sums, p_count, num, num_tiles, H: tl.constexpr,
    BC: tl.constexpr,
):  # fmt: skip
    """The gradient of x, and the sums of one chunk for those of the slope and of a bias in front."""
    i_chunk = tl.program_id(0).to(tl.int64)
    b_by_slope, b_by_bias = tl.zeros([_BH], tl.float32), tl.zeros([_BH], tl.float32)
    for tile in range(num_tiles):
        o, m, o_h = _tile(i_chunk * num_tiles + tile, num, H)
        b_g, b_x = _pair(p_grad, p_x, o, m)
        b_slope = _columns(p_slope, o_h, H)
        b_dx = tl.where(b_x > 0, b_g, b_g * b_slope[None, :])
        tl.store(p_grad_x + o, b_dx, mask=m)
        b_by_slope += tl.sum(tl.where(b_x > 0, 0.0, b_g * b_x), axis=0)
        b_by_bias += tl.sum(b_dx, axis=0)
    _store_two(p_parts, i_chunk, b_by_slope, b_by_bias, H)
    _add_chunks(p_parts, p_sums, p_count, tl.program_id(1) * _BH + tl.arange(0, _BH), 2, H, BC)


@triton.jit(do_not_specialize=["num", "num_tiles"])
def _single_back(
    p_x, p_grad, p_weight, p_grad_x, p_parts, p_sums, p_count, num, num_tiles, H: tl.constexpr,
    BC: tl.constexpr,
):  # fmt: skip
    """The gradient of x, and the sums of one chunk for those of the weight and of the bias."""
    i_chunk = tl.program_id(0).to(tl.int64)
    b_by_weight, b_by_bias = tl.zeros([_BH], tl.float32), tl.zeros([_BH], tl.float32)
    for tile in range(num_tiles):
        i_tile = i_chunk * num_tiles + tile
        o, m, o_h = _tile(i_tile, num, H)
        o_m = i_tile * _BM + tl.arange(0, _BM)
        b_g = tl.load(p_grad + o_m, mask=o_m < num, other=0.0)[:, None]
        tl.store(p_grad_x + o, b_g * _columns(p_weight, o_h, H)[None, :], mask=m)
        b_by_weight += tl.sum(b_g * tl.load(p_x + o, mask=m, other=0.0), axis=0)
        b_by_bias += tl.sum(b_g, axis=0)
    _store_two(p_parts, i_chunk, b_by_weight, b_by_bias, H)
    _add_chunks(p_parts, p_sums, p_count, tl.program_id(1) * _BH + tl.arange(0, _BH), 2, H, BC)


@triton.jit(do_not_specialize=["num", "num_tiles"])
def _two_sums(
    p_one, p_other, p_parts, p_sums, p_count, num, num_tiles, H: tl.constexpr, BC: tl.constexpr
):
    i_chunk = tl.program_id(0).to(tl.int64)
    b_one, b_other = tl.zeros([_BH], tl.float32), tl.zeros([_BH], tl.float32)
    for tile in range(num_tiles):
        o, m, _ = _tile(i_chunk * num_tiles + tile, num, H)
        b_x, b_y = _pair(p_one, p_other, o, m)
        b_one += tl.sum(b_x, axis=0)
        b_other += tl.sum(b_y, axis=0)
    _store_two(p_parts, i_chunk, b_one, b_other, H)
    _add_chunks(p_parts, p_sums, p_count, tl.program_id(1) * _BH + tl.arange(0, _BH), 2, H, BC)


@triton.jit
def _store_two(p_parts, i_chunk, b_first, b_second, H: tl.constexpr):
    """Two sums of a chunk."""
    o_h = tl.program_id(1) * _BH + tl.arange(0, _BH)
    p_part = p_parts + i_chunk * (2 * H) + o_h
    tl.store(p_part, b_first, mask=o_h < H)
    tl.store(p_part + H, b_second, mask=o_h < H)


@triton.jit
def _add_chunks(p_parts, p_sums, p_count, o_h, NUM: tl.constexpr, H: tl.constexpr, BC: tl.constexpr):
    """NUM sums over all rows, from those of the chunks."""
    if is_last(p_count + tl.program_id(1), tl.num_programs(0)):
        for i_sum in tl.static_range(NUM):
            b_sum = tl.zeros([_BH], tl.float32)
            for first in range(0, tl.num_programs(0), BC):
                o_c = first + tl.arange(0, BC)
                m = (o_c < tl.num_programs(0))[:, None] & (o_h < H)[None, :]
                p_part = p_parts + (o_c[:, None] * NUM + i_sum) * H + o_h[None, :]
                b_sum += tl.sum(tl.load(p_part, mask=m, other=0.0), axis=0)
            tl.store(p_sums + i_sum * H + o_h, b_sum, mask=o_h < H)


@triton.jit
def _tile(i_tile, num, H: tl.constexpr):
    """Places of a tile of [M, H], its mask, and its columns."""
    o_m = i_tile * _BM + tl.arange(0, _BM)
    o_h = tl.program_id(1) * _BH + tl.arange(0, _BH)
    return o_m[:, None] * H + o_h[None, :], (o_m < num)[:, None] & (o_h < H)[None, :], o_h


@triton.jit
def _real(p_real, one_over):
    """Which rows of this program's tile count, [BM, 1], and 1 over the number of all that do."""
    o_m = tl.program_id(0).to(tl.int64) * _BM + tl.arange(0, _BM)
    m = o_m[:, None] >= 0
    if p_real is not None:
        num = tl.load(p_real)
        m = o_m[:, None] < num
        one_over = tl.where(one_over == 0, 0.0, tl.div_rn(1.0, num.to(tl.float32)))
    return m, one_over


@triton.jit
def _columns(p, o_h, H: tl.constexpr):
    """The values of columns, zeros outside: [BH]."""
    return tl.load(p + o_h, mask=o_h < H, other=0.0)


@triton.jit
def _pair(p_grad, p_x, o, m):
    """A tile of the gradient, and of x."""
    return tl.load(p_grad + o, mask=m, other=0.0), tl.load(p_x + o, mask=m, other=0.0)


@triton.jit
def _standardized(b_x, p_mean, p_rstd, o_h, H: tl.constexpr):
    b_mean, b_rstd = _columns(p_mean, o_h, H), _columns(p_rstd, o_h, H)
    return (b_x - b_mean[None, :]) * b_rstd[None, :]
