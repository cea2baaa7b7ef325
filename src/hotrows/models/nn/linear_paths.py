"""Which path computes each product of a model's linear layers: measured once, then written down.

Choices are a flat table of strings, fit for JSON:

    {"forward float32 367x512": "onednn", "weight_gradient float32 367x512": "torch", ...}

Paths differ in rounding. So a run keeps its table, for when it is resumed, and the machine keeps what
was measured on it, for the next run of such a model (`kept_linear_paths`).
"""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn

from hotrows.models.nn import products
from hotrows.models.nn.linear import DTYPES, PathLinear, Paths
from hotrows.runtime.machine import num_cores
from hotrows.runtime.measurements import Measurement
from hotrows.runtime.utilization import Utilization

_MOST_SAMPLES = 8192  # enough to leave the caches; more would only take longer
_LEAST_GAIN = 0.03  # a path wins where it saves this share of the plain one's time, noise aside
_ROUNDS = range(4, 30)
_MOST_PRODUCTS, _LEAST_SAMPLES = 1 << 29, 256  # of a comparison of number formats
_ENOUGH = 0.25  # seconds after which that measures a layer no more: some processors have no bfloat16
_TRIES, _QUIET = 3, 0.12  # measurements at most, until other programs used so few cores meanwhile
_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 2e-2}


def choose_linear_paths(
    model: nn.Module, batch_size: int, dtype: torch.dtype = torch.float32, seconds: float = 1.5
) -> dict[str, str]:
    """Measures the paths of every product of the model's `nn.Linear` layers, for about `seconds`.

    A path may win only where its result agrees with the plain one. Large layers come first: on a
    machine too busy to measure, what is left after three times `seconds` stays plain. The model is
    not touched.
    """
    shapes = {(m.in_features, m.out_features) for m in _linears(model)}
    work = {shape: shape[0] * shape[1] for shape in sorted(shapes, reverse=True)}
    deadline = time.perf_counter() + 3 * seconds
    choices = {}
    for shape in sorted(work, key=lambda shape: -work[shape]):
        share = seconds * work[shape] / sum(work.values()) / len(products.BY_PRODUCT)
        for product, *arguments in _examples(shape, min(batch_size, _MOST_SAMPLES), dtype):
            names = products.paths_for(product, shape[1], dtype)
            runs = {name: partial(products.BY_PRODUCT[product][name], *arguments) for name in names}
            is_late = time.perf_counter() > deadline
            best = products.PLAIN if is_late else _fastest(runs, share, _TOLERANCE[dtype])
            choices[_key(product, dtype, shape)] = best
    return choices


def kept_linear_paths(model: nn.Module, batch_size: int, dtype: torch.dtype) -> dict[str, str]:
    """Returns what `choose_linear_paths` chose when this machine first measured layers of such shapes.

    Where other programs are busy meanwhile, it measures again, twice at most: the quietest one counts.
    """
    conditions = {
        "layers": sorted({(m.in_features, m.out_features) for m in _linears(model)}),
        "batch_size": min(batch_size, _MOST_SAMPLES),
        "dtype": _name(dtype),
        "offered": {product: products.paths_for(product, 1, dtype) for product in products.BY_PRODUCT},
    }
    measurement = Measurement("linear paths", conditions)
    choose = partial(choose_linear_paths, model, batch_size, dtype)
    return measurement.read() or measurement.write(_quietest(choose))


def use_linear_paths(model: nn.Module, choices: Mapping[str, str]) -> None:
    """Makes every `nn.Linear` of the model compute its products on the chosen paths.

    Layers without a choice stay plain, and so does everything on a GPU. Parameters keep their
    identity and their names; optimizers made before keep working.
    """
    for key, path in choices.items():
        product, dtype = key.split(" ")[:2]
        is_known = product in products.BY_PRODUCT and dtype in DTYPES
        known = products.paths_for(product, 1, DTYPES[dtype]) if is_known else []
        if path not in known:
            raise ValueError(
                f"linear path {path!r} for {key!r} is not offered by PyTorch {torch.__version__} "
                f"here, only {known}; resume with the PyTorch that wrote the run, or measure anew"
            )
    for layer in _linears(model):
        shape = (layer.in_features, layer.out_features)
        by_dtype = {name: _paths(choices, dtype, shape) for name, dtype in DTYPES.items()}
        layer.__class__ = PathLinear
        cast("PathLinear", layer).paths = by_dtype


def products_per_sample(model: nn.Module) -> int:
    """Multiply-adds of the model's `nn.Linear` layers for one sample, forward."""
    return sum(layer.in_features * layer.out_features for layer in _linears(model))


def kept_seconds_by_format(model: nn.Module, batch_size: int) -> dict[str, float]:
    """Returns how long the products of a step, forward and backward, take by number format; as first
    measured on this machine, with `torch.autocast` where it is not float32.

    batch_size: samples of a step; fewer are measured where it would take long. Takes some tenths of a
    second, once.
    """
    per_sample = products_per_sample(model)
    size = min(batch_size, max(_MOST_PRODUCTS // max(per_sample, 1), _LEAST_SAMPLES))
    layers = sorted((m.in_features, m.out_features) for m in _linears(model))
    measurement = Measurement("number formats", {"layers": layers, "samples": size})
    kept = measurement.read() or measurement.write(_seconds_by_format(model, size))
    return {name: seconds * batch_size / size for name, seconds in kept.items()}


def _seconds_by_format(model: nn.Module, size: int) -> dict[str, float]:
    """The sum of the shortest times of the model's layers, whose copies take turns in both formats."""
    generator = torch.Generator().manual_seed(0)
    totals = dict.fromkeys(DTYPES, 0.0)
    for layer in map(copy.deepcopy, _linears(model)):
        x = torch.randn(size, layer.in_features, generator=generator, requires_grad=True)

        def run(dtype: torch.dtype, layer: nn.Linear = layer, x: Tensor = x) -> None:
            with torch.enable_grad(), torch.autocast("cpu", dtype=dtype, enabled=dtype != x.dtype):
                y = layer(x)
            y.backward(torch.ones_like(y))

        times: dict[str, list[float]] = {name: [] for name in DTYPES}
        while len(times["float32"]) < _ROUNDS.start and sum(map(sum, times.values())) < _ENOUGH:
            for name, dtype in DTYPES.items():
                times[name].append(_time(partial(run, dtype)))
        totals = {name: totals[name] + min(times[name]) for name in DTYPES}
    return totals


def _linears(model: nn.Module) -> Iterator[nn.Linear]:
    for module in model.modules():
        if isinstance(module, nn.Linear) and type(module) in (nn.Linear, PathLinear):
            yield module


def _examples(shape: tuple[int, int], size: int, dtype: torch.dtype) -> list[tuple]:
    """Each product with random arguments; hidden layers end in a ReLU, the last one does not."""
    generator = torch.Generator().manual_seed(0)
    num_inputs, num_outputs = shape

    def normal(*sizes: int) -> Tensor:
        return torch.randn(*sizes, generator=generator).to(dtype)

    x, grad = normal(size, num_inputs), normal(size, num_outputs)
    weight, bias = normal(num_outputs, num_inputs), normal(num_outputs)
    return [
        ("forward", x, weight, bias, num_outputs > 1),
        ("input_gradient", grad, weight),
        ("weight_gradient", grad, x),
    ]


def _quietest(measure: Callable[[], dict[str, str]]) -> dict[str, str]:
    """What `measure` returned while others used the fewest cores, of `_TRIES` times at most."""
    least, answer = float("inf"), dict[str, str]()
    for _ in range(_TRIES):
        used = Utilization()
        measured, figures = measure(), used.end()
        machine = figures.get("machine_busy", 0.0) * (os.cpu_count() or 1)
        others = machine - figures["cores_busy"] * num_cores()
        if others < least:
            least, answer = others, measured
        if others <= _QUIET:
            break
    return answer


@torch.no_grad()
def _fastest(runs: Mapping[str, Callable[[], Tensor]], seconds: float, tolerance: float) -> str:
    """The path with the shortest of its times, all taking turns; the plain one on a near tie."""
    expected = runs[products.PLAIN]()
    able = {name: run for name, run in runs.items() if _agrees(run, expected, tolerance)}
    times = dict.fromkeys(able, float("inf"))
    begin = time.perf_counter()
    for done in range(_ROUNDS.stop):
        if done >= _ROUNDS.start and time.perf_counter() - begin > seconds:
            break
        for name, run in able.items():
            times[name] = min(times[name], _time(run))
    best = min(times, key=lambda name: times[name])
    gains = times[best] < times[products.PLAIN] * (1 - _LEAST_GAIN)
    return best if gains else products.PLAIN


def _time(run: Callable[[], object]) -> float:
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def _agrees(run: Callable[[], Tensor], expected: Tensor, tolerance: float) -> bool:
    try:
        got = run()
    except RuntimeError:  # a build of PyTorch without this kernel
        return False
    same = got.shape == expected.shape and got.dtype == expected.dtype
    return same and bool((got - expected).abs().max() <= tolerance * expected.abs().max())


def _key(product: str, dtype: torch.dtype, shape: tuple[int, int]) -> str:
    return f"{product} {_name(dtype)} {shape[0]}x{shape[1]}"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _paths(choices: Mapping[str, str], dtype: torch.dtype, shape: tuple[int, int]) -> Paths:
    chosen = (choices.get(_key(p, dtype, shape), products.PLAIN) for p in products.BY_PRODUCT)
    return Paths(*chosen)
