"""What `Classifier` and `Regressor` have in common: the protocol of scikit-learn, on the engine of a run.

`Trainer` and `Predictor` do the work. The protocol (parameters, cloning, tags) is known here, so that
pipelines, searches and cross-validation take these objects, and scikit-learn is not needed.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import shutil
import tempfile
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch

from hotrows import losses, optim
from hotrows.data import Draft, draft_schema, prepare
from hotrows.models.model import Model
from hotrows.runtime.atomic_files import absolute, local, new_folder, write_json
from hotrows.runtime.json_file import JsonFile
from hotrows.runtime.suggestions import did_you_mean
from hotrows.runtime.user_warnings import warn
from hotrows.schema import Label, Schema
from hotrows.train.callback import Callback
from hotrows.train.config import SETTINGS, TrainConfig, advice_on
from hotrows.train.estimator_rows import check_number, followed_by, rows_of, samples, with_column
from hotrows.train.loop.predictor import Predictor, load_run
from hotrows.train.loop.trainer import Trainer
from hotrows.train.run import folder as run_folder
from hotrows.train.run.folder import read_files, write_files
from hotrows.train.telling.result import Result
from hotrows.train.telling.row_sample import RowSample, sample_of

# Of an estimator: what is no setting of a training, or stands for several of them.
_OWN = ("model", "schema", "run", "validation", "verbose", "random_state", "lr", "dim")
_SHOWN = (*_OWN, "epochs", "batch_size", "model_options")
_OF_OPTIONS = "model_options__"  # as scikit-learn names what is inside of a parameter
# Names of other libraries, and ours.
_ALIASES = {
    **dict.fromkeys(("learning_rate", "learning_rate_init", "eta", "alpha"), "lr"),
    **dict.fromkeys(("n_estimators", "max_iter", "num_boost_round", "iterations", "n_epochs"), "epochs"),
    **dict.fromkeys(("embedding_dim", "embed_dim", "n_factors", "n_components"), "dim"),
    **dict.fromkeys(("early_stopping_rounds", "n_iter_no_change", "patience"), "stop_patience"),
    **dict.fromkeys(("validation_fraction", "eval_fraction", "test_size"), "validation"),
    **dict.fromkeys(("n_jobs", "num_threads"), "planning_threads"),
}
_SIGNED = JsonFile("save the estimator again")
_HELD_OUT = 4096  # rows of the validation part that importances are measured on
_Self = TypeVar("_Self", bound="Estimator")
# Read when first used; beside the objects, whose attributes predictions change none of.
_PREDICTORS: weakref.WeakKeyDictionary[Estimator, Predictor] = weakref.WeakKeyDictionary()


class Estimator(ABC):
    """What both have: parameters, training on a frame, files. Their docstrings say it."""

    _file: ClassVar[str]
    _links: ClassVar[tuple[str, ...]]  # of losses that it takes, see `hotrows.losses`
    _other_link: ClassVar[str]  # the message where a loss has another
    _split: ClassVar[str]  # of rows that nothing orders
    _loss: ClassVar[str | None] = None  # where none is given
    classes_: np.ndarray
    _held_out: RowSample | None

    def __init__(
        self,
        model: str | type[Model] | Model | None = None,
        *,
        schema: Schema | None = None,
        run: Path | str | None = None,
        validation: float = 0.1,
        verbose: bool | None = None,
        random_state: int | None = None,
        lr: float | None = None,
        dim: int | None = None,
        epochs: int | None = None,
        batch_size: int | None = None,
        model_options: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        self.model, self.schema, self.run = model, schema, run
        self.validation, self.verbose, self.random_state = validation, verbose, random_state
        self.lr, self.dim, self.epochs, self.batch_size = lr, dim, epochs, batch_size
        self.model_options = model_options
        self._set(settings)

    def fit(
        self: _Self,
        X: Any,
        y: Any,
        callbacks: Sequence[Callback] = (),
        sample_weight: Any = None,
        eval_set: Any = None,
    ) -> _Self:
        """Trains on a frame (pandas, Polars, Arrow, a dict of columns) or an array [N, F].

        y: the target of each row, or the name of its column in X; a series names the target.
        callbacks: as `Trainer.fit` takes them.
        sample_weight: how much each row counts in the loss and in metrics, numbers of at least 0
        (default: 1, or the schema's weights).
        eval_set: (X, y) or (X, y, weights) of other rows, which choose the best checkpoint and calibrate
        predictions in place of a share `validation` of these; or a list of one such tuple. Without it
        the last rows validate where a drafted schema has a time, and else rows drawn at random.

        Series are read by position; a warning says where their index is that of X in another order.
        """
        table, targets, weights = samples(X, y, sample_weight)
        if table.num_rows == 1:
            raise ValueError("expected several rows, found 1 sample: a model learns from what differs")
        self._learn_targets(targets)
        self._note_columns(X, table)
        name = str(y if isinstance(y, str) else getattr(y, "name", None) or "label")
        num_rows, split = len(targets), None
        theirs: np.ndarray | None = None
        if eval_set is not None:
            table, others, theirs = followed_by(table, eval_set)
            targets = np.concatenate([targets, others])
            split = f"position:{num_rows}/{len(targets)},{len(others)}/{len(targets)},0"
        table, name = with_column(table, name, self._labels(targets))
        draft = Draft(self.schema, ()) if self.schema else draft_schema(table, name)
        self.schema_, self.notes_ = draft.schema, draft.notes
        if left_out := [n for n in draft.notes if " is left out: " in n and "the index of" not in n]:
            more = f" (and {len(left_out) - 3:,} more)" if len(left_out) > 3 else ""
            warn(f"{'; '.join(left_out[:3])}{more}. `schema=` says how to read a column")
        schema = dataclasses.replace(self.schema_, label=self._label(name), columns=None)
        if weights is not None or theirs is not None:
            is_plain = weights is None or np.ptp(weights) == 0 or schema.weight is not None
            if eval_set is not None and theirs is None and not is_plain:
                warn(
                    "the rows of eval_set have no weights, and those of X have: each counts once in the "
                    "choice of a checkpoint and in the calibration; give (X, y, weights)"
                )
            joined = np.ones(len(targets), np.float32)
            if schema.weight in table.column_names:
                joined[:] = table[schema.weight].to_numpy()
            for place, values in ((slice(num_rows), weights), (slice(num_rows, None), theirs)):
                joined[place] = joined[place] if values is None else values
            table, weight = with_column(table, "weight", joined)
            schema = dataclasses.replace(schema, weight=weight)
        kind = draft.split.partition(":")[0] or self._split
        self._train(table, schema, split or self._shares(kind), self.run, callbacks)
        return self

    def _fit_further(self: _Self, X: Any, y: Any, sample_weight: Any) -> _Self:
        """Fits, or goes on from what was fitted, with the columns of the first rows."""
        if not self.__sklearn_is_fitted__():
            return self.fit(X, y, sample_weight=sample_weight)
        table, targets, weights = samples(X, y, sample_weight)
        check_number(table, self.n_features_in_, type(self).__name__)
        known = run_folder.open_encoder(self.run_)
        (label,) = self.predictor_.labels
        table, _ = with_column(table, label, self._labels(targets))
        if weights is not None and known.schema.weight is None:
            raise ValueError("the rows of the first call had no weights: give sample_weight there, too")
        if known.schema.weight is not None:
            ones = np.ones(len(targets), np.float32)
            table, _ = with_column(table, known.schema.weight, ones if weights is None else weights)
        self._train(table, None, self._shares("fraction"), None, (), begins=self.run_)
        return self

    def _train(
        self,
        table: Any,
        schema: Schema | None,
        split: str,
        run: Path | str | None,
        callbacks: Sequence[Callback],
        begins: Path | None = None,
    ) -> None:
        """Trains in a new folder. begins: the run that it goes on from, with that run's columns."""
        config = self._config()
        folder = self._temporary_folder() if run is None else absolute(run)
        known = None
        if begins is not None:
            known = begins / run_folder.ENCODERS
            config = dataclasses.replace(config, start_from=str(begins))
        with tempfile.TemporaryDirectory(prefix="hotrows-data-") as data_folder:
            data = prepare(
                table, schema, f"{data_folder}/data", split=split, seed=config.seed, extend=known
            )
            trainer = Trainer(data, config, folder, model=copy.deepcopy(self.model))
            self.result_ = trainer.fit(verbose=self.verbose, callbacks=callbacks)
            part = data.parts["validation"] if data.parts["validation"].rows else data.parts["train"]
            self._held_out = sample_of(part, _HELD_OUT, config.seed)
        self.run_ = folder
        _PREDICTORS.pop(self, None)

    def _numbers(self, X: Any, allow_missing_columns: bool) -> np.ndarray:
        """The predictions of the model, [N] float32."""
        predictor = self.predictor_
        of_columns = any(hasattr(X, name) for name in ("columns", "__array__", "toarray"))
        of_files = isinstance(X, list) and X and all(isinstance(path, str | Path) for path in X)
        if of_columns or isinstance(X, Mapping) or (isinstance(X, list) and not of_files):
            X = rows_of(X)
            check_number(X, self.n_features_in_, type(self).__name__)
            (label,) = predictor.labels
            X = X.drop_columns([label]) if label in X.column_names else X
        elif isinstance(X, Iterator) and not hasattr(X, "__arrow_c_stream__"):
            raise TypeError(
                f"expected rows, found an iterator ({type(X).__name__}): give a frame, or batches to "
                f"`predictor_.predict`"
            )
        return np.asarray(predictor.predict(X, require_columns=not allow_missing_columns))

    @property
    def predictor_(self) -> Predictor:
        """The trained model."""
        if not self.__sklearn_is_fitted__():
            raise _not_fitted(f"this {type(self).__name__} is not fitted: call fit(X, y) first")
        if self not in _PREDICTORS:
            model = None if isinstance(self.model, str) else copy.deepcopy(self.model)
            _PREDICTORS[self] = load_run(self.run_, model=model, trust=True)
        return _PREDICTORS[self]

    @property
    def feature_importances_(self) -> np.ndarray:
        """How much worse predictions of validation rows get where the values of a feature change places:
        [F] float64, in the order of `feature_names_`.

        Of a Classifier the AUC that is lost, of a Regressor the root mean squared error that is added.
        At most 4,096 rows are looked at. Permutation importance of Breiman (2001).
        """
        predictor, held_out = self.predictor_, vars(self).get("_held_out")
        if held_out is None:
            raise AttributeError(
                "the validation rows are not kept in copies and files: read feature_importances_ where "
                "the estimator was fitted, or call sklearn.inspection.permutation_importance"
            )
        order = torch.randperm(len(held_out), generator=torch.Generator().manual_seed(0))
        others = held_out.taken(order)
        before, lost = self._badness(predictor, held_out), []
        for feature in predictor.schema.features:
            if (place := predictor.schema.dense_places.get(feature.name)) is not None:
                permuted = held_out.with_numbers(place, others)
            else:
                permuted = held_out.with_ids((feature.name,), others)
            lost.append(self._badness(predictor, permuted) - before)
        return np.array(lost)

    @property
    def feature_names_(self) -> tuple[str, ...]:
        """The features that were learned from, in the order of `feature_importances_`."""
        return tuple(feature.name for feature in self.predictor_.schema.features)

    def save(self, path: Path | str, overwrite: bool = False) -> None:
        """Writes the fitted model into a new folder, from which `load` reads it in any process.

        overwrite: replace what `save` has written there, once the new folder is complete.
        """
        predictor = self.predictor_  # refuses one that is not fitted
        fields = self._saved_fields()
        with new_folder(Path(path), replaces=self._file if overwrite else None) as folder:
            write_files(folder, read_files(predictor.run))
            fields |= {"schema": json.loads(self.schema_.to_json()), "notes": list(self.notes_)}
            fields |= {"result": self.result_.to_json(), "validation": self.validation}
            fields |= {"num_features": self.n_features_in_}
            write_json(folder / self._file, _SIGNED.sign(fields))

    @classmethod
    def load(
        cls: type[_Self],
        path: Path | str,
        *,
        model: str | type[Model] | Model | None = None,
        trust: bool = False,
    ) -> _Self:
        """Reads what `save` has written, ready to predict; it fits anew with the settings of its run.

        model, trust: see `load_run`, for a model of your own.
        """
        path = local(path).resolve()
        if not (path / cls._file).exists():
            raise ValueError(
                f"{path} has no {cls._file}: name a folder that {cls.__name__}.save has written"
            )
        predictor, fields = load_run(path, model=model, trust=trust), _SIGNED.read(path / cls._file)
        config, default = run_folder.read_config(path), TrainConfig(loss=cls._loss)
        changed = {name: getattr(config, name) for name in SETTINGS if name != "model"}
        settings = {name: v for name, v in changed.items() if v != getattr(default, name)}
        with _SIGNED.naming(path / cls._file):
            loaded = cls(model or config.model, validation=fields["validation"], **settings)
            loaded._read_fields(fields)
            loaded.schema_, loaded.notes_ = Schema.from_fields(fields["schema"]), tuple(fields["notes"])
            loaded.result_ = Result.from_json(path, fields["result"])
            loaded.n_features_in_ = fields.get("num_features", len(loaded.schema_.features))
        loaded.run_ = path
        _PREDICTORS[loaded] = predictor
        return loaded

    @property
    def settings(self) -> dict[str, Any]:
        """The fields of `TrainConfig` that were given."""
        values = {name: vars(self).get(name) for name in SETTINGS if name != "model"}
        return {name: value for name, value in values.items() if value is not None}

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The arguments of this object by name."""
        return {name: getattr(self, name) for name in _SHOWN} | self.settings

    def set_params(self: _Self, **params: Any) -> _Self:
        """Changes arguments from the next `fit` on; `model_options__dim=8` changes one option."""
        options = {n.removeprefix(_OF_OPTIONS): v for n, v in params.items() if n.startswith(_OF_OPTIONS)}
        params = {name: value for name, value in params.items() if not name.startswith(_OF_OPTIONS)}
        if options:
            params["model_options"] = {
                **(params.get("model_options", self.model_options) or {}),
                **options,
            }
        self._set(params)
        return self

    def __repr__(self) -> str:
        values = {name: value for name, value in self.get_params().items() if value is not None}
        arguments = ", ".join(f"{name}={value!r}" for name, value in values.items())
        return f"{type(self).__name__}({arguments})"

    def __getstate__(self) -> dict[str, Any]:
        """The state that a copy or another process predicts with: with the files of a fitted run."""
        state = {name: value for name, value in vars(self).items() if name != "_held_out"}
        return {**state, "_files": read_files(self.run_)} if self.__sklearn_is_fitted__() else state

    def __setstate__(self, state: dict[str, Any]) -> None:
        files = state.pop("_files", None)
        vars(self).update(state.pop("settings", {}))  # of 0.1.0rc1
        vars(self).update({name: None for name in _SHOWN if name not in state} | state)
        if files is not None:
            self.run_ = self._temporary_folder()
            write_files(self.run_, files)
            self.result_ = dataclasses.replace(self.result_, run=self.run_)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "result_")

    def _set(self, params: Mapping[str, Any]) -> None:
        """Refuses arguments that no training would take, and keeps the others."""
        kind = type(self).__name__
        for name in params:
            if name not in (*_SHOWN, *SETTINGS):
                known = _ALIASES.get(name)
                advice = f"; here it is {known}" if known else ""
                advice = advice or did_you_mean(name, _SHOWN) or advice_on(name)
                raise ValueError(f"{kind} has no argument {name!r}{advice}")
        before = dict(vars(self))
        vars(self).update(params)
        try:
            text = self._config().loss
            for loss in losses.parse_by_label(text).values() if text else ():
                if loss.link not in self._links or loss.is_order:
                    raise ValueError(self._other_link.format(loss=loss))
            if not isinstance(self.validation, int | float) or not 0 <= self.validation < 1:
                raise ValueError(f"validation must be from 0 to below 1, not {self.validation!r}")
        except ValueError:
            vars(self).clear()
            vars(self).update(before)
            raise

    def _config(self) -> TrainConfig:
        settings = self.settings
        if self.random_state is not None:
            if "seed" in settings or not isinstance(self.random_state, int | np.integer):
                raise ValueError(
                    f"random_state must be a whole number, and seed is then left out: they are one "
                    f"setting, not {self.random_state!r}"
                )
            settings["seed"] = int(self.random_state)
        if self.dim is not None:
            settings["model_options"] = {**settings.get("model_options", {}), "dim": self.dim}
        if self.lr is not None:
            rows = settings.get("row_optimizer") or optim.Adagrad()
            rows = optim.BY_NAME[rows]() if isinstance(rows, str) else rows
            settings["row_optimizer"] = optim.replaced(rows, {"lr": self.lr})
            settings.setdefault("dense_lr", self.lr)
        of_schema = self.schema.labels[0].loss if self.schema else None
        return TrainConfig(**{"loss": of_schema or self._loss, **settings})

    def _shares(self, kind: str) -> str:
        held_out = Fraction(str(self.validation))
        return f"{kind}:{1 - held_out},{held_out},0"

    def _note_columns(self, X: Any, table: Any) -> None:
        self.n_features_in_ = table.num_columns
        vars(self).pop("feature_names_in_", None)  # of an earlier fit
        if hasattr(X, "columns") and all(isinstance(name, str) for name in X.columns):
            self.feature_names_in_ = np.array(table.column_names, object)

    def _temporary_folder(self) -> Path:
        """A folder that is deleted with this object."""
        folder = tempfile.mkdtemp(prefix="hotrows-run-")
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        return Path(folder)

    def _tags(self, **of_kind: Any) -> Any:
        from sklearn.utils import InputTags, Tags, TargetTags

        inputs = InputTags(allow_nan=True, categorical=True, string=True)
        return Tags(target_tags=TargetTags(required=True), input_tags=inputs, **of_kind)

    @abstractmethod
    def _learn_targets(self, targets: np.ndarray) -> None:
        """Refuses targets of another kind, and keeps what predictions need of them."""

    @abstractmethod
    def _labels(self, targets: np.ndarray) -> np.ndarray:
        """What a model learns of targets, [N]."""

    @abstractmethod
    def _label(self, name: str) -> str | Label:
        """The label of a schema."""

    @abstractmethod
    def _badness(self, predictor: Predictor, rows: RowSample) -> float:
        """How bad predictions are."""

    @abstractmethod
    def _saved_fields(self) -> dict[str, Any]:
        """What a file has beside the run, for `_read_fields`."""

    @abstractmethod
    def _read_fields(self, fields: Mapping[str, Any]) -> None: ...


def _not_fitted(message: str) -> Exception:
    """scikit-learn's own error where it is there, which is a ValueError, too."""
    try:
        from sklearn.exceptions import NotFittedError
    except ImportError:
        return ValueError(message)
    error: Exception = NotFittedError(message)
    return error
