"""Files of settings, in JSON, TOML or YAML, recipes by name, and `--set NAME=VALUE`, which changes single
settings."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from hotrows.cli.options import name_and_value
from hotrows.models.recipes import RECIPES
from hotrows.runtime.suggestions import did_you_mean, one_line
from hotrows.train.config import CONFIG_FILE, ROW_OPTIMIZERS, SETTINGS, TrainConfig

_WITH_ENTRIES = ("model_options", "label_weights", *ROW_OPTIMIZERS)


def read(path: Path, changes: Sequence[str] = ()) -> TrainConfig:
    """Reads a config from a file, or the recipe of that name where there is no such file; changes: texts
    of --set, which take precedence."""
    if not path.exists():
        if str(path) in RECIPES:
            return _with_changes(RECIPES[str(path)], changes)
        raise ValueError(
            f"there is no {path}; `hotrows tune` writes one, and {', '.join(RECIPES)} are recipes"
        )
    fields = _fields_of(path)
    with CONFIG_FILE.naming(path):
        config = TrainConfig.from_fields(fields)
    return _with_changes(fields, changes) if changes else config


def changed(config: TrainConfig, changes: Sequence[str]) -> TrainConfig:
    """Returns the config with the changes that texts of --set state, such as model_options.dim=32."""
    if not changes:
        return config
    return _with_changes(json.loads(config.to_json()), changes)


def _fields_of(path: Path) -> dict[str, Any]:
    if path.suffix not in (".toml", ".yaml", ".yml"):
        return CONFIG_FILE.read(path)
    with CONFIG_FILE.naming(path):
        text = path.read_text(encoding="utf-8")
        fields = _from_toml(text) if path.suffix == ".toml" else _from_yaml(text)
        if not isinstance(fields, dict):
            raise ValueError("expected names with values")
        return fields


def _from_toml(text: str) -> Any:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        try:
            import tomli as tomllib
        except ModuleNotFoundError:
            raise ImportError("Python 3.10 reads TOML by the package tomli: pip install tomli") from None
    return tomllib.loads(text)


def _from_yaml(text: str) -> Any:
    try:
        import yaml
    except ModuleNotFoundError:
        raise ImportError("YAML needs the package PyYAML: pip install pyyaml, or use TOML") from None
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(one_line(error, None)) from None


def _with_changes(fields: Mapping[str, Any], changes: Sequence[str]) -> TrainConfig:
    """The config of these fields, changed: a.b=c changes the entry b of the setting a."""
    fields = dict(fields)
    for text in changes:
        place, value = name_and_value(text, "--set", "epochs=2")
        name, dot, entry = place.partition(".")
        if name not in SETTINGS:
            hint = did_you_mean(name, SETTINGS) or f"; there are {', '.join(SETTINGS)}"
            raise click.UsageError(f"--set {text}: there is no setting {name!r}{hint}")
        if dot:
            if name not in _WITH_ENTRIES:
                raise click.UsageError(
                    f"--set {text}: {name} has no entries; {', '.join(_WITH_ENTRIES)} have"
                )
            before = fields.get(name) or {}
            value = {**({"kind": before} if isinstance(before, str) else before), entry: value}
        elif SETTINGS[name].type is str and value is not None:
            value = text.partition("=")[2]
        fields[name] = value
    try:
        return TrainConfig.from_fields(fields)
    except ValueError as error:
        raise click.UsageError(f"--set {' --set '.join(changes)}: {error}") from None
