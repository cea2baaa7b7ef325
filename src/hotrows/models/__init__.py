"""Models: from looked-up vectors and dense values to a logit per sample; they never see an id.

A model says which tables it needs in `tables`; `Embedding(model.tables)` holds them, given the
model's `sequences` and `crosses` where it has some. A model of your own is a `Model` too, named
`module:Class` or `file.py:Class` where a run is to find it again: code, which no file alone makes run
(`confirmed`).
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from hotrows.models.options import check as check_options
from hotrows.runtime.lazy import lazy_names
from hotrows.runtime.suggestions import did_you_mean
from hotrows.schema import Schema

if TYPE_CHECKING:
    from hotrows.models import tables as tables
    from hotrows.models.can import CAN
    from hotrows.models.dcnv2 import DCNv2
    from hotrows.models.deepfm import DeepFM
    from hotrows.models.dien import DIEN
    from hotrows.models.din import DIN
    from hotrows.models.dlrm import DLRM
    from hotrows.models.dnn import DNN
    from hotrows.models.fm import FM
    from hotrows.models.lr import LR
    from hotrows.models.mmoe import MMoE
    from hotrows.models.model import Model
    from hotrows.models.model import logits_and_loss as logits_and_loss
    from hotrows.models.tbsm import TBSM
    from hotrows.models.wide_deep import WideDeep

__all__ = [
    "BY_NAME",
    "CAN",
    "DIEN",
    "DIN",
    "DLRM",
    "DNN",
    "FM",
    "LR",
    "TBSM",
    "DCNv2",
    "DeepFM",
    "MMoE",
    "Model",
    "WideDeep",
]

# The class in each module; the name of the module is that of the model.
_CLASSES = {
    "lr": "LR",
    "fm": "FM",
    "dnn": "DNN",
    "wide_deep": "WideDeep",
    "deepfm": "DeepFM",
    "dlrm": "DLRM",
    "dcnv2": "DCNv2",
    "din": "DIN",
    "dien": "DIEN",
    "can": "CAN",
    "tbsm": "TBSM",
    "hstu": "HSTU",
    "mmoe": "MMoE",
    "ple": "PLE",
    "esmm": "ESMM",
}


class _ByName(Mapping[str, "type[Model]"]):
    """The models of the library; a class is imported when it is looked up, names alone are free."""

    def __getitem__(self, name: str) -> type[Model]:
        return getattr(import_module(f"{__name__}.{name}"), _CLASSES[name])

    def __contains__(self, name: object) -> bool:
        return name in _CLASSES

    def __iter__(self) -> Iterator[str]:
        return iter(_CLASSES)

    def __len__(self) -> int:
        return len(_CLASSES)


BY_NAME = _ByName()
_PASS_IT = "; of a program or notebook, pass the class or an object of it as model="
__getattr__, __dir__ = lazy_names(
    __name__,
    {f"{__name__}.{name}": [kind] for name, kind in _CLASSES.items()}
    | {f"{__name__}.model": ["Model", "logits_and_loss"]},
)


def default_name(schema: Schema, label: str | None = None) -> str:
    """The model where none is named: of all labels together where there are several and `label` chooses
    none of them; else the one that also reads data without dense features, or without ids."""
    return "mmoe" if len(schema.labels) > 1 and label is None else "deepfm"


def build(model: str | type[Model] | Model, schema: Schema, /, **options) -> Model:
    """The model for a schema; options are the arguments of its class.

    model: one of `BY_NAME`; a class of your own, or its name as `module:Class` or
    `path/to/file.py:Class`; or an object, which is returned as it is.
    """
    if isinstance(model, str):
        model = class_of(model)
    if isinstance(model, type):
        check_options(model, options)
        model = model(schema, **options)
    if not model.tables and schema.id_features:
        raise ValueError(
            f"{type(model).__name__} sets no tables, so it reads no feature: set self.tables"
        )
    return model


def class_of(name: str) -> type[Model]:
    """The class of a model by its name, one of `BY_NAME` or your own."""
    if ":" in name:
        return _own(name)
    if name not in BY_NAME:
        raise ValueError(
            f"model must be one of {', '.join(BY_NAME)}, or your own as file.py:Class, not {name!r}"
            f"{did_you_mean(name, BY_NAME)}"
        )
    return BY_NAME[name]


def name_of(model: str | type[Model] | Model) -> str:
    """The name by which `build` finds the class of a model again, in another process, too.

    A class that is in no module, such as one of a notebook or of a function, has a name that says so
    and is not found.
    """
    from hotrows.models.model import Model

    if isinstance(model, str):
        return model
    kind = model if isinstance(model, type) else type(model)
    if not issubclass(kind, Model):
        raise ValueError(
            f"model must be a name, or a class made of hotrows.models.Model or an object of one, "
            f"not {kind.__name__}"
        )
    place = kind.__module__
    package, _, name = place.rpartition(".")
    if package == __name__ and _CLASSES.get(name) == kind.__name__:
        return name
    if place == "__main__" and hasattr(sys.modules[place], "__file__"):
        place = str(Path(sys.modules[place].__file__ or "").resolve())
    return f"{place}:{kind.__qualname__}"


def confirmed(read: str | None, source: Path, model: str | None, trust: bool) -> str | None:
    """The name of the model to build where the file `source` names one; ValueError where that is code
    that nobody asks for.

    read: the name in the file, None where it names none; model: the one that the caller gives, and is
    taken; trust: whether the caller lets the file decide which code runs.
    """
    if model is not None:
        return model
    if read is not None and ":" in read and not trust:
        raise ValueError(
            f"{source} names a model that is code, {read}, which runs only where it is asked for: name "
            f"it again (--model {read}, or model=), or trust the file (--trust-code, or trust=True)"
        )
    return read


def _own(name: str) -> type[Model]:
    from hotrows.models.model import Model

    place, _, kind = name.rpartition(":")
    is_named = place.endswith(".py") or all(place.split("."))
    if not kind.isidentifier() or not is_named:
        raise ValueError(f"model {name!r} must be file.py:Class or module:Class{_PASS_IT}")
    if place.endswith(".py") and not Path(place).is_file():
        raise ValueError(f"model {kind!r}: there is no file {place}")
    try:
        module = _from_file(Path(place)) if place.endswith(".py") else import_module(place)
    except ModuleNotFoundError as error:
        raise ValueError(f"model {name!r} cannot be imported: {error}") from None
    model_class = getattr(module, kind, None)
    if not (isinstance(model_class, type) and issubclass(model_class, Model)):
        raise ValueError(
            f"model {name!r}: {place} has no class {kind!r} made of hotrows.models.Model{_PASS_IT}"
        )
    return model_class


def _from_file(path: Path):
    spec = importlib.util.spec_from_file_location(str(path.resolve()), path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses of the file look for it
    spec.loader.exec_module(module)
    return module
