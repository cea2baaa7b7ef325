"""One model: plain PyTorch beside the accelerated model, from equal weights, on equal batches.

What must be equal: the forward of the first batch, the dense parameters' gradients in the first step,
and everything that `state_dict()` returns after twenty steps.

How equal: in float64, to 1e-9 of a tensor's largest value. In float32 the error is measured against the
plain float64 run, and may be twice plain float32's own, plus 4 units in the last place of that largest
value. Some models amplify rounding (a bias before BatchNorm has a gradient of pure noise, which Adam
scales to full steps): therefore plain PyTorch also runs from weights changed in their last bit: twice,
and up to forty times where that does not explain a difference. In float64 a tensor may move ten
times as far as it does there; in float32 plain's own error is the largest of those runs'.

A model that has no float64 run, or draws random numbers, is compared with the plain float32 run.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from benchmarks.any_model.recipe import Recipe

STEPS = 20
SEED = 7
RELATIVE = 1e-9
AMPLIFIED = 10.0
TIMES_PLAIN = 2.0
ULPS = 4
CUDA = torch.device("cuda", 0)
PLAIN_RUNS = (2, 10, 40)  # from weights changed in their last bit: more where fewer do not explain


@dataclass(frozen=True)
class Outcome:
    """Tensors by part (`forward`, `gradients`, `weights`) and name."""

    parts: dict[str, dict[str, Tensor]]


@dataclass(frozen=True)
class Verdict:
    """The worst tensor of a part, as a multiple of what is allowed (above 1: it differs).

    error: of the accelerated run; relative to the tensor's largest value. own: of plain PyTorch.
    """

    part: str
    tensor: str
    of_allowed: float
    error: float
    own: float


@contextmanager
def precision(dtype: torch.dtype) -> Iterator[None]:
    """In float64 the libraries' own `.float()` casts become `.double()`, or no run would be float64."""
    default, single = torch.get_default_dtype(), torch.Tensor.float
    torch.set_default_dtype(dtype)
    if dtype == torch.float64:
        torch.Tensor.float = torch.Tensor.double  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.set_default_dtype(default)
        torch.Tensor.float = single  # type: ignore[method-assign]


def starting_weights(recipe: Recipe) -> dict[str, Any]:
    """Those of a float32 model, from which every run begins."""
    torch.manual_seed(SEED)
    return {name: _copy(tensor) for name, tensor in recipe.build().state_dict().items()}


def run(
    recipe: Recipe,
    optimizer: str,
    dtype: torch.dtype,
    weights: dict[str, Any],
    accelerate: Any = None,
    last_bit: int = 0,
    steps: int = STEPS,
    on_device: bool = False,
) -> Outcome:
    """accelerate: `hotrows.accelerate`, or None. last_bit: a seed by which the weights are changed.
    on_device: on the pretended GPU of the tests, else on the processor."""
    with ExitStack() as stack:
        stack.enter_context(precision(dtype))
        torch.manual_seed(SEED)
        model = recipe.build().to(dtype)
        model.load_state_dict(_changed(weights, dtype, last_bit))
        if on_device:
            stack.enter_context(_pretended())
        place = CUDA if on_device else torch.device("cpu")
        _move(model, place)
        batches = _put(recipe.batches(dtype), place)
        training = recipe.training(model, optimizer)
        if accelerate is not None:
            accelerate(model, training.optimizer)
        model.train()
        torch.manual_seed(SEED)
        forward = _flat(model(*_put(recipe.arguments(model, batches[0]), place)))
        torch.manual_seed(SEED)
        gradients: dict[str, Tensor] = {}

        def first(*_: Any) -> None:  # some loops clear the gradients behind the step
            if not gradients:
                gradients.update(_dense_gradients(model))

        training.optimizer.register_step_pre_hook(first)
        for k in range(steps):
            training.step(batches[k % len(batches)])
        kept = {name: _copy(tensor) for name, tensor in model.state_dict().items()}
        parts = {"forward": forward, "gradients": gradients, "weights": kept}
        return Outcome({name: _tensors(part) for name, part in parts.items()})


def _move(model: nn.Module, place: torch.device) -> None:
    """`model.to(place)`, also of layers whose weights something refers to (`nn.GRU`): a parameter cannot
    become one of the pretended GPU then."""
    if place.type == "cpu":
        return
    moved: dict[Tensor, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            if parameter not in moved:
                moved[parameter] = nn.Parameter(parameter.detach().to(place), parameter.requires_grad)
            setattr(module, name, moved[parameter])
        for name, buffer in list(module.named_buffers(recurse=False)):
            setattr(module, name, buffer.to(place))


def _put(value: Any, place: torch.device) -> Any:
    """The value with its tensors at a place."""
    return tree_map_only(Tensor, lambda tensor: tensor.to(place), value)


def _pretended() -> AbstractContextManager[object]:
    from tests.support import pretend_tables

    return pretend_tables.gpu()


def compare64(plain: Outcome, repeats: list[Outcome], other: Outcome) -> list[Verdict]:
    """own: plain runs from weights changed in their last bit."""

    def allowed(tensor: Tensor, largest: float, own_error: float) -> float:
        return max(RELATIVE * largest, AMPLIFIED * own_error)

    return _worst(plain, repeats, other, allowed)


def compare32(plain64: Outcome, plain32: list[Outcome], other: Outcome) -> list[Verdict]:
    """plain32: the plain run, and those from weights changed in their last bit."""

    def allowed(tensor: Tensor, largest: float, own_error: float) -> float:
        return TIMES_PLAIN * own_error + ULPS * torch.finfo(torch.float32).eps * largest

    return _worst(plain64, plain32, other, allowed)


def check(
    recipe: Recipe,
    optimizer: str,
    weights: dict[str, Any],
    accelerate: Any,
    quick: bool = False,
    on_device: bool = False,
) -> dict[str, Any]:
    """The verdicts of one optimizer as JSON: {dtype: {ok, worst, seconds} or {error}}.

    on_device: of the accelerated run, or where there is none of the one that is checked; plain PyTorch
    runs on the processor.
    """
    verdicts_by_name: dict[str, Any] = {}
    if recipe.float64:
        plain = run(recipe, optimizer, torch.float64, weights)
    for dtype in (torch.float64, torch.float32) if recipe.float64 else (torch.float32,):
        name = str(dtype).removeprefix("torch.")
        start = time.perf_counter()
        float64 = dtype == torch.float64
        alone = plain if float64 else run(recipe, optimizer, dtype, weights)
        reference = alone if recipe.draws or not recipe.float64 else plain

        try:
            if accelerate is None and not on_device:  # the check of the check: it must pass
                other = run(recipe, optimizer, dtype, weights, last_bit=10_000)
            else:
                other = run(recipe, optimizer, dtype, weights, accelerate, on_device=on_device)
        except Exception as error:
            verdicts_by_name[name] = {"ok": False, "error": described(error)}
            continue
        compare = compare64 if float64 else compare32
        repeats = [alone]
        for num in PLAIN_RUNS:  # rounding amplified has heavy tails
            for seed in range(len(repeats), num + 1):
                repeats.append(run(recipe, optimizer, dtype, weights, last_bit=seed))
            verdicts = compare(reference, repeats, other)
            if _ok(verdicts):
                break
        verdicts_by_name[name] = {
            "ok": _ok(verdicts),
            "worst": [asdict(verdict) for verdict in verdicts],
            "plain_runs": len(repeats),
            "seconds": round(time.perf_counter() - start, 2),
        }
        if quick and recipe.float64:
            break
    return verdicts_by_name


def _ok(verdicts: list[Verdict]) -> bool:
    return all(verdict.of_allowed <= 1 for verdict in verdicts)


def repeats(recipe: Recipe, optimizer: str, weights: dict[str, Any]) -> bool:
    """Whether two plain runs agree bit by bit."""
    first, second = (run(recipe, optimizer, torch.float32, weights, steps=4) for _ in range(2))
    return all(
        torch.equal(tensor, second.parts[part][name])
        for part, tensors in first.parts.items()
        for name, tensor in tensors.items()
    )


def described(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"[:400]


def _worst(plain: Outcome, repeats: list[Outcome], other: Outcome, allowed: Any) -> list[Verdict]:
    verdicts = []
    for part, tensors in plain.parts.items():
        worst: Verdict | None = None
        if missing := tensors.keys() ^ other.parts[part].keys():
            verdicts.append(Verdict(part, f"only one side has {sorted(missing)[:4]}", 1e30, 1e30, 0))
            continue
        for name, tensor in tensors.items():
            largest = tensor.double().abs().max().item() if tensor.numel() else 0.0
            own_error = max(_distance(tensor, run.parts[part][name]) for run in repeats)
            error = _distance(tensor, other.parts[part][name])
            if not largest == largest:
                raise ArithmeticError(f"plain PyTorch itself makes nan of {name}")
            limit = allowed(tensor, largest, own_error)
            ratio = error / limit if limit else (0.0 if error == 0 else 1e30)
            scale = largest or 1.0
            verdict = Verdict(part, name, ratio, error / scale, own_error / scale)
            if worst is None or verdict.of_allowed > worst.of_allowed:
                worst = verdict
        if worst is not None:
            verdicts.append(worst)
    return verdicts


def _distance(a: Tensor, b: Tensor) -> float:
    if a.shape != b.shape:
        return 1e30
    if not a.numel():
        return 0.0
    distance = (a.double() - b.double()).abs()
    same = a.double().isnan() & b.double().isnan()
    distance = distance.masked_fill(same, 0).nan_to_num(nan=1e30, posinf=1e30)
    return distance.max().item()


def _dense_gradients(model: nn.Module) -> dict[str, Tensor]:
    tables = {
        id(parameter)
        for module in model.modules()
        if isinstance(module, nn.Embedding | nn.EmbeddingBag)
        for parameter in module.parameters(recurse=False)
    }
    return {
        name: parameter.grad.detach().clone()
        for name, parameter in model.named_parameters()
        if id(parameter) not in tables and parameter.grad is not None and not parameter.grad.is_sparse
    }


def _changed(weights: dict[str, Any], dtype: torch.dtype, seed: int) -> dict[str, Any]:
    random = torch.Generator().manual_seed(seed)
    changed = {}
    for name, tensor in weights.items():
        if isinstance(tensor, Tensor) and tensor.is_floating_point():
            tensor = tensor.to(dtype)
            if seed:
                ulps = torch.randint(-1, 2, tensor.shape, generator=random)
                tensor = tensor * (1 + ulps.to(dtype) * torch.finfo(dtype).eps)
        changed[name] = _copy(tensor)
    return changed


def _flat(value: Any, name: str = "") -> dict[str, Any]:
    if isinstance(value, Tensor):
        return {name: _copy(value)}
    if isinstance(value, dict):
        return {k: v for key, item in value.items() for k, v in _flat(item, f"{name}.{key}").items()}
    if isinstance(value, list | tuple):
        return {k: v for n, item in enumerate(value) for k, v in _flat(item, f"{name}.{n}").items()}
    return {}


def _copy(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value


def _tensors(part: dict[str, Any]) -> dict[str, Tensor]:
    """Of plain class, so that nothing of the accelerated model takes part in the comparison."""
    return {
        name: torch.from_numpy(value.detach().cpu().numpy().copy())
        for name, value in part.items()
        if isinstance(value, Tensor)
    }
