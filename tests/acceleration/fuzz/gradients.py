"""What loops do with gradients and module hooks: memory read and written, gradients by parameter, late hooks."""

from __future__ import annotations

import copy
import io
import pickle
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

# ---- between backward and the step


def sparse_weights(model: nn.Module) -> set[int]:
    """The `id()` of weights whose gradients are sparse in plain PyTorch."""
    return {id(module.weight) for module in model.modules() if getattr(module, "sparse", False)}


def _reading(read: Callable[[Tensor], Any]) -> Callable[[Any, nn.Parameter], Any]:
    return lambda run, w: None if w.grad is None or id(w) in sparse_weights(run.model) else read(w.grad)


def _saved(grad: Tensor) -> Tensor:
    file = io.BytesIO()
    torch.save(grad, file)
    file.seek(0)
    return torch.load(file)


def _written(grad: Tensor) -> None:
    grad.numpy()[::2] = 0.01


def _written_by_dlpack(grad: Tensor) -> None:
    torch.from_dlpack(grad).mul_(0.5)


def _view_kept(grad: Tensor) -> Tensor:
    rows = grad.view(-1)
    grad.mul_(0.5)
    rows.add_(0.001)
    grad.clamp_(max=0.05)
    return rows


def _foreach(grad: Tensor) -> list[Tensor]:
    other = torch.ones_like(grad)
    torch._foreach_add_([grad, other], [other, grad], alpha=0.01)
    torch._foreach_lerp_([grad], [other], 0.01)
    return [other, *torch._foreach_norm([grad, other], 1), *torch._foreach_mul([grad, other], [0.5, 2.0])]


AFTER: dict[str, Callable[[Any, nn.Parameter], Any]] = {
    "numpy": _reading(lambda grad: grad.detach().cpu().numpy().tolist()),
    "tolist": _reading(lambda grad: grad.tolist()),
    "asarray": _reading(lambda grad: np.asarray(grad, dtype=np.float32).sum().item()),
    "histogram": _reading(lambda grad: np.histogram(grad.numpy(), (-1, -0.303, 0.0213, 1))[0].tolist()),
    "pickle": _reading(lambda grad: pickle.loads(pickle.dumps(grad))),
    "save": _reading(_saved),
    "deepcopy": _reading(lambda grad: copy.deepcopy(grad).to_dense()),
    "from_dlpack": _reading(lambda grad: torch.from_dlpack(grad).clone()),
    "storage": _reading(lambda grad: list(grad.storage())),
    "share_memory_": _reading(lambda grad: grad.share_memory_().is_shared()),
    "numpy written": _reading(_written),
    "dlpack written": _reading(_written_by_dlpack),
    "view kept": _reading(_view_kept),
    "foreach": _reading(_foreach),
    "clamp min": _reading(lambda grad: grad.clamp(min=-0.01)),
    "clamp_ max": _reading(lambda grad: grad.clamp_(max=0.02).sum()),
    "clip norm, 1, foreach": lambda run, w: nn.utils.clip_grad_norm_(
        [p for p in run.model.parameters() if id(p) not in sparse_weights(run.model)],
        1.0,
        1,
        foreach=True,
    ),
}


# ---- behind the step: hooks that come and go


def _register(name: str, hook: Callable[..., Any], **options: Any) -> Callable[[Any, nn.Parameter], None]:
    def act(run: Any, w: nn.Parameter) -> None:
        for module in run.model.modules():
            if getattr(module, "weight", None) is w or isinstance(module, nn.Linear):
                run.handles.append(getattr(module, name)(hook, **options))

    return act


def _remove_all(run: Any, w: nn.Parameter) -> None:
    while run.handles:
        run.handles.pop().remove()


def _remove_one(run: Any, w: nn.Parameter) -> None:
    if run.handles:
        run.handles.pop(0).remove()


def _scale_output(module: nn.Module, args: Any, out: Tensor) -> Tensor:
    return out * 0.75


def _scale_output_of_any(module: nn.Module, args: Any, kwargs: Any, out: Tensor) -> Tensor:
    return out * 1.25


def _halve_gradients(module: nn.Module, grad_input: Any, grad_output: Any) -> Any:
    return tuple(None if grad is None else grad * 0.5 for grad in grad_input)


THEN: dict[str, Callable[[Any, nn.Parameter], Any]] = {
    "late forward hook": _register("register_forward_hook", _scale_output),
    "late forward hook, kwargs": _register(
        "register_forward_hook", _scale_output_of_any, with_kwargs=True
    ),
    "late forward hook, always": _register("register_forward_hook", _scale_output, always_call=True),
    "late pre hook": _register("register_forward_pre_hook", lambda module, args: None),
    "late backward hook": _register("register_full_backward_hook", _halve_gradients),
    "late backward pre hook": _register(
        "register_full_backward_pre_hook", lambda module, grads: tuple(g * 2 for g in grads)
    ),
    "remove hooks": _remove_all,
    "remove a hook": _remove_one,
}


# ---- backward, as the loop names it


def backward_to_inputs(model: nn.Module, loss: Tensor) -> None:
    loss.backward(inputs=[p for p in model.parameters() if p.requires_grad])


def surgery(model: nn.Module, loss: Tensor) -> None:
    """Adds what gradients of two tasks have in common, as plain tensors."""
    params = [p for p in model.parameters() if p.requires_grad and id(p) not in sparse_weights(model)]
    ones, others = (
        torch.autograd.grad(x, params, retain_graph=True, allow_unused=True) for x in (loss, loss.sin())
    )
    for p, one, other in zip(params, ones, others, strict=True):
        if one is not None:
            dot = (one.flatten() * other.flatten()).sum()
            grad = one + other if dot > 0 else one
            p.grad = grad if p.grad is None else p.grad + grad


BACKWARD = {"inputs": backward_to_inputs, "surgery": surgery}


def drawn(draw: random.Random) -> dict[str, Any]:
    """What one step does more: its way backward, and names for after and then."""

    def some(forms: Any, chance: float) -> tuple[tuple[str, int], ...]:
        return ((draw.choice(list(forms)), draw.randrange(8)),) if draw.random() < chance else ()

    backward = draw.choice(list(BACKWARD)) if draw.random() < 0.15 else None
    return {"backward": backward, "after": some(AFTER, 0.4), "then": some(THEN, 0.25)}
