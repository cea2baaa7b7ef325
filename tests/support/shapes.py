"""Checks shapes and dtypes in annotations (`hotrows.runtime.shapes`) of what is imported after `install`.

jaxtyping's own hook wraps every function, most of which name no shape, and doubles the time of tests
that call small ones often; this one wraps functions and dataclasses that do. Types are mypy's. A call is
checked where its shapes are of a new kind (which sizes are equal, or 0, or 1), and one in sixteen.
"""

import ast
import functools
import inspect
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import PathFinder, SourceFileLoader
from typing import Any, get_args

import jaxtyping
import torch
from beartype import beartype

PACKAGES = (
    "hotrows.ops.plan",
    "hotrows.ops",
    "hotrows.engine.planning",
    "hotrows.engine.keys",
    "hotrows.engine",
)
# Kernels, which Triton reads as source; and what a compiled model traces.
EXCEPT = ("hotrows.ops.triton", "hotrows.engine.vectors", "hotrows.ops.layers")
SHAPES = {"Float", "Float32", "Float64", "Int32", "Int64", "UInt8"}


def install():
    sys.meta_path.insert(0, _Finder())


def checked(annotated):
    """A function, or a dataclass, that checks the arguments and results whose annotation is a shape."""
    if inspect.isclass(annotated):
        plain = annotated.__init__
        jaxtyping.jaxtyped(annotated, typechecker=_of_shapes)
        annotated.__init__ = _sampled(plain, annotated.__init__)
        return annotated
    strict = jaxtyping.jaxtyped(annotated, typechecker=_of_shapes)
    # A size read from an argument's attribute ("{pack.num_rows}") is not seen in the kind of a call.
    computed = any("{" in _dimensions(hint) for hint in annotated.__annotations__.values())
    return strict if computed else _sampled(annotated, strict)


def _sampled(plain, strict):
    """Calls `strict` for arguments of a new kind and in one call of sixteen, else `plain`."""
    kinds, num_calls = set(), 0

    @functools.wraps(plain)
    def call(*args, **kwargs):
        nonlocal num_calls
        num_calls += 1
        sizes = {0: 0, 1: 1}
        kind = (*kwargs, *(_kind(value, sizes) for value in (*args, *kwargs.values())))
        if num_calls % 16 and kind in kinds:
            return plain(*args, **kwargs)
        result = strict(*args, **kwargs)
        kinds.add(kind)
        return result

    return call


def _kind(value, sizes):
    """The kind of an argument: dtype and sizes, a number for each size that differs from those before."""
    if isinstance(value, torch.Tensor):
        return (value.dtype, *(sizes.setdefault(size, len(sizes)) for size in value.shape))
    if isinstance(value, list | tuple):
        return (len(value), *(_kind(part, sizes) for part in value[:2]))
    return type(value)


def _of_shapes(function):
    hints = {name: hint for name, hint in function.__annotations__.items() if _names_shape(hint)}
    function.__annotations__ = dict.fromkeys(function.__annotations__, Any) | hints
    return beartype(function)


def _names_shape(hint):
    return bool(_dimensions(hint))


def _dimensions(hint):
    """The sizes that a hint names, as written, such as "M D"."""
    if isinstance(hint, type) and issubclass(hint, jaxtyping.AbstractArray):
        return hint.dim_str or "..."
    return " ".join(filter(None, map(_dimensions, get_args(hint))))


class _Finder(MetaPathFinder):
    def find_spec(self, fullname, path=None, target=None):
        if not _is_in(fullname, PACKAGES) or _is_in(fullname, EXCEPT):
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and type(spec.loader) is SourceFileLoader:
            spec.loader = _Loader(fullname, spec.origin)
        return spec


class _Loader(SourceFileLoader):
    def get_code(self, fullname):  # from the source each time: no bytecode is left behind
        return self.source_to_code(self.get_data(self.path), self.path)

    def source_to_code(self, data, path, *, _optimize=-1):
        tree = ast.parse(data, path)
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and any(map(_is_shape, _annotations(node))):
                node.decorator_list.append(_decorator(node))
            elif isinstance(node, ast.ClassDef) and any(map(_is_shape, _fields(node))):
                node.decorator_list.insert(0, _decorator(node))
        return compile(tree, path, "exec", dont_inherit=True, optimize=_optimize)


def _is_in(module, packages):
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def _annotations(function):
    a = function.args
    arguments = [*a.posonlyargs, *a.args, *a.kwonlyargs, a.vararg, a.kwarg]
    return [function.returns, *(argument.annotation for argument in arguments if argument)]


def _fields(cls):
    return [node.annotation for node in cls.body if isinstance(node, ast.AnnAssign)]


def _is_shape(annotation):
    """Whether an annotation has a part such as Int64[Tensor, "N"]."""
    return annotation is not None and any(
        isinstance(node, ast.Subscript) and getattr(node.value, "id", "") in SHAPES
        for node in ast.walk(annotation)
    )


def _decorator(node):
    call = ast.parse(f"__import__({__name__!r}, fromlist=['checked']).checked", mode="eval").body
    for part in ast.walk(call):
        ast.copy_location(part, node)
    return call
