"""The space of a quality search: what may be chosen, and the data and the config of a choice."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from hotrows import models, optim
from hotrows.data import EncodedData, prepare
from hotrows.data.datasets.schemas import with_min_count
from hotrows.data.stored.encoded import MANIFEST
from hotrows.train.config import TrainConfig
from hotrows.train.start import effects
from hotrows.train.start.defaults import settle

_MODELS, _OF_LABELS = ("deepfm", "dcnv2", "dnn", "dlrm", "fm", "din"), ("mmoe", "ple")
_AS_PREPARED = 0  # of min_count
_CHOICES: dict[str, Any] = {  # values, or arguments of `suggest_float`; rates are times the default
    "lr": {"low": 0.1, "high": 10.0, "log": True},
    "dense_lr": {"low": 0.1, "high": 10.0, "log": True},
    "dim": (4, 8, 16, 32, 64),
    "dropout": {"low": 0.0, "high": 0.5, "step": 0.1},
    "crosses": (False, True),
    "min_count": (_AS_PREPARED, 2, 5, 10, 20),
}
_CROSSES = ("crosses", "effects", "effect_trees", "cross_rows", "effect_folds", "effect_rows")


class SearchSpace:
    """The choices that a config leaves open, on some data.

    folder: where data with another min_count is prepared, once for each value.
    raw: arguments of `prepare` with the raw rows that the data was prepared from; {}: min_count stays.
    """

    def __init__(
        self, data: EncodedData, config: TrainConfig, folder: Path, raw: Mapping[str, Any]
    ) -> None:
        self._config, self._folder, self._raw = config, folder, raw
        self._data, default = {_AS_PREPARED: data}, settle(config, data)
        self._options = _options_of_models(data, config)
        self.models = tuple(self._options)
        self._crosses = self._suggested_crosses(default)
        model = str(default.model if default.model in self.models else self.models[0])
        values = {"lr": 1.0, "dense_lr": 1.0, **self._options[model], **default.model_options}
        values |= {"crosses": any(map(default.model_options.get, _CROSSES)), "min_count": _AS_PREPARED}
        choices = self.choices(model)
        known = [n for n, some in choices.items() if isinstance(some, dict) or values[n] in some]
        self.default = {"model": model, **{name: values[name] for name in known}}  # the first trial
        if len(self.models) == 1 and not choices:
            raise ValueError("all that a search chooses is given: leave a setting open, such as lr")

    def choices(self, model: str) -> dict[str, Any]:
        """By name, what may be chosen for a model."""
        options, chosen = self._options[model], self._config.model_options
        is_open = {
            "lr": self._config.row_optimizer is None,
            "dense_lr": self._config.dense_lr is None,
            "dim": "dim" in options and "dim" not in chosen,
            "dropout": "dropout" in options and "dropout" not in chosen,
            "crosses": any(self._crosses.get(name) for name in _CROSSES[:3] if name in options),
            "min_count": bool(self._raw),
        }
        return {name: _CHOICES[name] for name, is_it in is_open.items() if is_it}

    def suggest(self, trial: Any) -> dict[str, Any]:
        """Has a trial of Optuna choose everything."""
        for name, some in self.choices(trial.suggest_categorical("model", self.models)).items():
            if isinstance(some, dict):
                trial.suggest_float(name, **some)
            else:
                trial.suggest_categorical(name, some)
        return dict(trial.params)

    def config_of(self, chosen: Mapping[str, Any]) -> TrainConfig:
        """The config of a choice, with everything filled in."""
        # Crosses are chosen here; left open, the defaults would choose them.
        opened = replace(self._config, model=chosen["model"], plain=True)
        settled = settle(opened, self.data_of(chosen))
        options = {name: round(chosen[name], 4) for name in ("dim", "dropout") if name in chosen}
        if chosen.get("crosses"):
            taken = self._options[chosen["model"]]
            options |= {name: value for name, value in self._crosses.items() if name in taken}
        changes: dict[str, Any] = {"dense_lr": _times(settled.dense_lr, chosen.get("dense_lr", 1.0))}
        for name in ("row_optimizer", "linear_optimizer"):
            rows = getattr(settled, name)
            if getattr(self._config, name) is None and "lr" in chosen:
                changes[name] = optim.replaced(rows, {"lr": _times(rows.lr, chosen["lr"])})
        options = {**settled.model_options, **options}
        return replace(settled, plain=self._config.plain, model_options=options, **changes)

    def data_of(self, chosen: Mapping[str, Any]) -> EncodedData:
        """The data of a choice, which is prepared when it is first chosen."""
        count = chosen.get("min_count", _AS_PREPARED)
        if count not in self._data:
            self._data[count] = self._prepared(self._folder / f"min-count-{count}", count)
        return self._data[count]

    def _prepared(self, folder: Path, count: int) -> EncodedData:
        data = self._data[_AS_PREPARED]
        if not (folder / MANIFEST).exists():
            open_rows: Any = dict.fromkeys(data.vocabularies)
            schema = with_min_count(data.schema.with_rows(open_rows), count)
            prepare(schema=schema, out=folder, split=data.split, seed=data.seed, **self._raw)
        prepared = EncodedData.open(folder)
        before, after = ({n: p.rows for n, p in d.parts.items()} for d in (data, prepared))
        if before != after:
            raise ValueError(
                f"the raw files make parts of {after} samples, and {data.path} has {before}: delete "
                f"{folder}, and name the files that it was prepared from, in the same order"
            )
        return prepared

    def _suggested_crosses(self, default: TrainConfig) -> dict[str, Any]:
        """Options of crosses and effects that the data suggests; {} if they are given, or cannot be."""
        data, config = self._data[_AS_PREPARED], self._config
        is_counted = data.vocabularies and not data.schema.dynamic_vocabularies
        is_read = any("crosses" in options for options in self._options.values())
        if config.plain or not is_counted or not is_read or {*_CROSSES} & {*config.model_options}:
            return {}
        chosen = {n: value for n, value in default.model_options.items() if n in _CROSSES}
        return chosen or effects.options(data, config.label)


class SearchError(ValueError):
    """Ends a search, of which other trials would fail too."""


def _options_of_models(data: EncodedData, config: TrainConfig) -> dict[str, dict[str, Any]]:
    """By name of each model that the data and the config allow, its options with their defaults."""
    several = len(data.schema.labels) > 1 and config.label is None
    names = (config.model,) if config.model else _OF_LABELS if several else _MODELS
    options, problems = dict[str, dict[str, Any]](), list[ValueError]()
    for name in names:
        try:
            kind = type(models.build(name, data.schema, **config.model_options))
            options[name] = {p.name: p.default for p in inspect.signature(kind).parameters.values()}
        except ValueError as problem:
            problems.append(problem)
    if not options:
        raise problems[0]
    return options


def _times(rate: float | None, times: float) -> float | None:
    return rate if rate is None or times == 1 else float(f"{rate * times:.3g}")
