"""Captures one Python function: dynamo turns it into graphs, and the backend packs their lookups.

Dynamo stores compiled code at the code object of a function, for at most eight kinds of inputs each.
Models share the code of their class, so each captured function gets a code object of its own.
"""

import inspect
import logging
import threading
import warnings
from collections.abc import Callable
from functools import partial, wraps
from types import FunctionType, MethodType
from typing import Any

import torch
from torch._dynamo import config as dynamo_config

from hotrows.acceleration.graph import rewrite
from hotrows.acceleration.report import CaptureReport

# Hooks may be registered, and removed again, at any time: a graph is checked for them at each call.
_SETTINGS = {"suppress_errors": True, "skip_nnmodule_hook_guards": False}
_running = threading.local()  # .report: of the captured function that this thread is in


def capture(function: Callable[..., Any], report: CaptureReport) -> Callable[..., Any]:
    """Returns a callable that does what `function` does, with its lookups packed.

    Parts that dynamo cannot trace run uncaptured, and `report.notes` says why. The callable
    holds compiled code: leave it out of copies and pickles, and capture anew. `.plain` is `function`.
    """
    try:
        compiled = _compiled(function, report)
    except RuntimeError as error:  # a Python that this PyTorch cannot compile for
        report.note(_first_line(error))
        compiled = function
    num_graphs, packs_nothing = 0, False

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal num_graphs, packs_nothing
        if packs_nothing or _is_traced():
            return function(*args, **kwargs)
        before = getattr(_running, "report", None)
        settings = [(name, getattr(dynamo_config, name)) for name in _SETTINGS]
        _running.report = report
        try:
            for name, value in _SETTINGS.items():
                setattr(dynamo_config, name, value)
            result = compiled(*args, **kwargs)
        finally:
            _running.report = before
            for name, value in settings:
                setattr(dynamo_config, name, value)
        if len(report.graphs) > num_graphs:
            num_graphs, packs_nothing = len(report.graphs), report.has_nothing_to_pack()
        return result

    call.plain = function  # type: ignore[attr-defined]
    _filter_messages()
    return call


def _is_traced() -> bool:
    """Whether another capture is under way, which must trace the function itself."""
    compiler = torch.compiler
    return compiler.is_dynamo_compiling() or compiler.is_exporting() or torch.jit.is_tracing()


def _compiled(function: Callable[..., Any], report: CaptureReport) -> Callable[..., Any]:
    options: dict[str, Any] = {}
    if "isolate_recompiles" in inspect.signature(torch.compile).parameters:
        options["isolate_recompiles"] = True
    backend = partial(rewrite, report=report)
    return torch.compile(with_own_code(function), backend=backend, dynamic=None, **options)


def with_own_code(function: Callable[..., Any]) -> Callable[..., Any]:
    """A copy of a Python function whose code object is its own; any other callable as it is."""
    if isinstance(function, MethodType):
        return MethodType(with_own_code(function.__func__), function.__self__)
    if not isinstance(function, FunctionType):
        return function
    code = function.__code__.replace()
    copy = FunctionType(
        code, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    copy.__annotations__ = function.__annotations__
    copy.__qualname__, copy.__module__ = function.__qualname__, function.__module__
    copy.__dict__.update(function.__dict__)
    return copy


# Dynamo says only in its log where it gives up


_GIVES_UP = "torch._dynamo.convert_frame"
_BREAKS_AT_ITEM = "torch._dynamo.variables.tensor"  # the report has it as the reason of a break


def _filter_messages() -> None:
    """Adds filters of warnings and of dynamo's log; they are global, and let others' messages pass."""
    # Dynamo reads the .grad of intermediate results; PyTorch warns of it as if the model had done so.
    modules = r"torch\._(dynamo|subclasses)"
    warnings.filterwarnings("ignore", r"The \.grad attribute of a Tensor", module=modules)
    for name in (_GIVES_UP, _BREAKS_AT_ITEM):
        log = logging.getLogger(name)
        if _to_report not in log.filters:
            log.addFilter(_to_report)


def _to_report(record: logging.LogRecord) -> bool:
    """Writes messages about a captured function into its report instead of the log."""
    report = getattr(_running, "report", None)
    if report is None or record.levelno < logging.WARNING:
        return True
    if record.name == _GIVES_UP:
        error = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
        report.note(_first_line(error) if error is not None else _limit(record.getMessage()))
    return False


def _first_line(error: BaseException) -> str:
    error = getattr(error, "inner_exception", None) or error  # what a backend's failure wraps
    text = next(iter(str(error).strip().splitlines()), "")
    return f"dynamo gave up, so plain PyTorch runs: {type(error).__name__}: {text}"


def _limit(message: str) -> str:
    lines = [line.strip() for line in message.splitlines()]
    where = next((line for line in lines if line.startswith("function:")), "")
    return f"{lines[0]}; {where}: inputs of a new kind run as plain PyTorch from here on"
