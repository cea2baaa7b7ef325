"""Classifier: training and prediction as scikit-learn's estimators have them, on frames.

    classifier = Classifier("deepfm", epochs=2).fit(frame, labels)
    classifier.predict_proba(frame)[:, 1]

`Trainer` and `Predictor` do the work. It knows the protocol of scikit-learn (parameters, cloning, tags),
so that its pipelines, searches and cross-validation take it, and does not need it.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import shutil
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from hotrows import losses
from hotrows.data import Draft, draft_schema, prepare
from hotrows.data.raw.files import pyarrow
from hotrows.data.raw.tables import as_table, check_order
from hotrows.models.model import Model
from hotrows.runtime.atomic_files import absolute, local, new_folder, write_json
from hotrows.runtime.json_file import JsonFile
from hotrows.runtime.suggestions import did_you_mean
from hotrows.runtime.user_warnings import warn
from hotrows.schema import Schema
from hotrows.train.callback import Callback
from hotrows.train.config import SETTINGS, TrainConfig, advice_on
from hotrows.train.loop.predictor import Predictor, load_run
from hotrows.train.loop.trainer import Trainer
from hotrows.train.run import folder as run_folder
from hotrows.train.run.folder import read_files, write_files
from hotrows.train.telling.result import Result

_ARGUMENTS = ("model", "schema", "run", "validation", "verbose", "random_state")
_NAME, _FILE = "classifier.json", JsonFile("save the classifier again")


class Classifier:
    """A model of two classes that learns from a frame and its labels.

    model: as `Trainer` takes it, of an object a copy (default: the config's).
    schema: the columns to learn from; its label is left aside (default: drafted from the frame by
        `hotrows.data.draft_schema`).
    run: a new folder for the run (default: a temporary one, deleted with this object).
    validation: the share of the rows that decides which checkpoint is the best.
    verbose: as `Trainer.fit` takes it.
    random_state: the seed, by scikit-learn's name (default: `seed`).
    settings: fields of `TrainConfig`, such as epochs=2.

    After `fit`: classes_, both values of the labels; schema_; notes_, what a drafted schema is unsure of;
    run_, the folder; result_, a `Result`; predictor_, a `Predictor`. Copies and pickles of a fitted one
    hold its model, in a folder of their own.

    >>> labels = frame["click"]
    >>> features = {name: values for name, values in frame.items() if name != "click"}
    >>> hotrows.Classifier("fm", epochs=1).fit(features, labels).predict_proba(features).shape
    (100, 2)
    """

    _estimator_type = "classifier"

    def __init__(
        self,
        model: str | type[Model] | Model | None = None,
        *,
        schema: Schema | None = None,
        run: Path | str | None = None,
        validation: float = 0.1,
        verbose: bool | None = None,
        random_state: int | None = None,
        **settings: Any,
    ) -> None:
        self.model, self.schema, self.run = model, schema, run
        self.validation, self.verbose, self.random_state = validation, verbose, random_state
        self.settings = settings
        self._predictor: Predictor | None = None
        self._check()

    def fit(
        self,
        X: Any,
        y: Any,
        callbacks: Sequence[Callback] = (),
        sample_weight: Any = None,
        eval_set: Any = None,
    ) -> Classifier:
        """Trains on a frame: pandas, Polars, Arrow, or a dict of columns.

        y: a label for each row, of two values, the greater of which is predicted, or the name of its
        column in X; a series names the label.
        callbacks: as `Trainer.fit` takes them.
        sample_weight: how much each row counts in the loss and in metrics, numbers of at least 0
        (default: 1, or the schema's weights).
        eval_set: (X, y) or (X, y, weights) of other rows, which choose the best checkpoint and calibrate
        predictions in place of a share `validation` of these; or a list of one such tuple.

        Series are read by position; a warning says where their index is that of X in another order.
        """
        table, labels, weights = _samples(X, y, sample_weight)
        num_rows = len(labels)
        name = y if isinstance(y, str) else getattr(y, "name", None) or "label"
        self.classes_ = _classes(labels)
        if len(self.classes_) != 2:
            raise ValueError(f"expected labels of two values, found {len(self.classes_):,} in y")
        held_out = Fraction(str(self.validation))
        split = f"stratified:{1 - held_out},{held_out},0"
        their_weights = None
        if eval_set is not None:
            table, labels, their_weights = _followed_by(table, labels, eval_set, self.classes_)
            split = f"position:{num_rows}/{len(labels)},{len(labels) - num_rows}/{len(labels)},0"
        table, name = _with_column(table, str(name), (labels == self.classes_[1]).astype(np.int8))
        draft = Draft(self.schema, ()) if self.schema else draft_schema(table, name)
        self.schema_, self.notes_ = draft.schema, draft.notes
        schema = dataclasses.replace(self.schema_, label=name, columns=None)
        if weights is not None or their_weights is not None:
            is_plain = weights is None or np.ptp(weights) == 0 or schema.weight is not None
            if eval_set is not None and their_weights is None and not is_plain:
                warn(
                    "the rows of eval_set have no weights, and those of X have: each counts once in the "
                    "choice of a checkpoint and in the calibration; give (X, y, weights)"
                )
            joined = np.ones(len(labels), np.float32)
            if schema.weight in table.column_names:
                joined[:] = table[schema.weight].to_numpy()
            for place, values in ((slice(num_rows), weights), (slice(num_rows, None), their_weights)):
                joined[place] = joined[place] if values is None else values
            table, weight = _with_column(table, "weight", joined)
            schema = dataclasses.replace(schema, weight=weight)
        config = self._config()
        self.run_, self._predictor = self._folder(), None
        with tempfile.TemporaryDirectory(prefix="hotrows-data-") as folder:
            data = prepare(table, schema, f"{folder}/data", split=split, seed=config.seed)
            trainer = Trainer(data, config, self.run_, model=copy.deepcopy(self.model))
            self.result_ = trainer.fit(verbose=self.verbose, callbacks=callbacks)
        return self

    def predict_proba(self, X: Any, allow_missing_columns: bool = False) -> np.ndarray:
        """The probabilities of both classes, [N, 2] float32.

        X: all that `Predictor.predict` takes; labels that are a column of a frame are not read.
        allow_missing_columns: count a feature without its column as missing (default: ValueError).
        """
        predictor = self.predictor_
        if isinstance(X, Mapping) or hasattr(X, "columns"):
            X = as_table(X)
            (label,) = predictor.labels
            X = X.drop_columns([label]) if label in X.column_names else X
        chances = predictor.predict(X, require_columns=not allow_missing_columns)
        return np.stack([1 - chances, chances], 1)

    def predict(self, X: Any, allow_missing_columns: bool = False) -> np.ndarray:
        """The likelier class of each row, [N]; see `predict_proba`."""
        chances = self.predict_proba(X, allow_missing_columns)[:, 1]
        return self.classes_[(chances > 0.5).astype(np.int64)]

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """The share of the rows whose class is predicted, by their weights."""
        table, labels, weights = _samples(X, y, sample_weight)
        return float(np.average(self.predict(table) == labels, weights=weights))

    @property
    def predictor_(self) -> Predictor:
        """The trained model."""
        if not self.__sklearn_is_fitted__():
            raise ValueError("this Classifier is not fitted: call fit(X, y) first")
        if self._predictor is None:
            model = None if isinstance(self.model, str) else copy.deepcopy(self.model)
            self._predictor = load_run(self.run_, model=model, trust=True)
        return self._predictor

    def save(self, path: Path | str) -> None:
        """Writes the fitted model into a new folder, from which `load` reads it in any process."""
        predictor = self.predictor_  # refuses one that is not fitted
        if self.classes_.dtype.kind not in "biufUO":
            raise ValueError(f"labels of {self.classes_.dtype} cannot be saved: give numbers or text")
        with new_folder(Path(path)) as folder:
            write_files(folder, read_files(predictor.run))
            fields = {"classes": self.classes_.tolist(), "dtype": self.classes_.dtype.str}
            fields |= {"schema": json.loads(self.schema_.to_json()), "notes": list(self.notes_)}
            fields |= {"result": self.result_.to_json(), "validation": self.validation}
            write_json(folder / _NAME, _FILE.sign(fields))

    @classmethod
    def load(
        cls, path: Path | str, *, model: str | type[Model] | Model | None = None, trust: bool = False
    ) -> Classifier:
        """Reads what `save` has written, ready to predict; it fits anew with the settings of its run.

        model, trust: see `load_run`, for a model of your own.
        """
        path = local(path).resolve()
        if not (path / _NAME).exists():
            raise ValueError(f"{path} has no {_NAME}: name a folder that Classifier.save has written")
        predictor, fields = load_run(path, model=model, trust=trust), _FILE.read(path / _NAME)
        config, default = run_folder.read_config(path), TrainConfig()
        changed = {name: getattr(config, name) for name in SETTINGS if name != "model"}
        settings = {name: v for name, v in changed.items() if v != getattr(default, name)}
        with _FILE.naming(path / _NAME):
            loaded = cls(model or config.model, validation=fields["validation"], **settings)
            loaded.classes_ = np.array(fields["classes"], np.dtype(fields["dtype"]))
            loaded.schema_, loaded.notes_ = Schema.from_fields(fields["schema"]), tuple(fields["notes"])
            loaded.result_ = Result.from_json(path, fields["result"])
        loaded.run_, loaded._predictor = path, predictor
        return loaded

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The arguments of this object by name."""
        return {name: getattr(self, name) for name in _ARGUMENTS} | self.settings

    def set_params(self, **params: Any) -> Classifier:
        """Changes arguments; they hold from the next `fit` on."""
        for name, value in params.items():
            if name in _ARGUMENTS:
                setattr(self, name, value)
            else:
                self.settings = {**self.settings, name: value}
        self._check()
        return self

    def __repr__(self) -> str:
        arguments = {name: value for name, value in self.get_params().items() if value is not None}
        return f"Classifier({', '.join(f'{name}={value!r}' for name, value in arguments.items())})"

    def __getstate__(self) -> dict[str, Any]:
        """The state that a copy or another process predicts with: with the files of a fitted run."""
        state = {**vars(self), "_predictor": None}
        return {**state, "_files": read_files(self.run_)} if self.__sklearn_is_fitted__() else state

    def __setstate__(self, state: dict[str, Any]) -> None:
        files = state.pop("_files", None)
        vars(self).update(state)
        if files is not None:
            self.run_ = self._temporary_folder()
            write_files(self.run_, files)
            self.result_ = dataclasses.replace(self.result_, run=self.run_)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "result_")

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import ClassifierTags, InputTags, Tags, TargetTags

        return Tags(
            estimator_type="classifier",
            target_tags=TargetTags(required=True),
            classifier_tags=ClassifierTags(multi_class=False),
            input_tags=InputTags(allow_nan=True, categorical=True, string=True),
        )

    def _check(self) -> None:
        """Refuses arguments that no training would take."""
        for name in self.settings:
            if name not in SETTINGS or name == "model":
                advice = did_you_mean(name, _ARGUMENTS) or advice_on(name)
                raise ValueError(f"Classifier has no argument {name!r}{advice}")
        text = self._config().loss
        for loss in losses.parse_by_label(text).values() if text else ():
            if loss.link != "sigmoid":
                raise ValueError(
                    f"a Classifier predicts probabilities, and the loss {loss} none: take log_loss, "
                    f"weighted, focal or soft, or train with `Trainer`, whose predictions are numbers"
                )
        if not isinstance(self.validation, int | float) or not 0 <= self.validation < 1:
            raise ValueError(f"validation must be from 0 to below 1, not {self.validation!r}")

    def _config(self) -> TrainConfig:
        if self.random_state is None:
            return TrainConfig(**self.settings)
        if "seed" in self.settings or not isinstance(self.random_state, int | np.integer):
            raise ValueError(
                f"random_state must be a whole number, and seed is then left out: they are one setting, "
                f"not {self.random_state!r}"
            )
        return TrainConfig(**self.settings, seed=int(self.random_state))

    def _folder(self) -> Path:
        return self._temporary_folder() if self.run is None else absolute(self.run)

    def _temporary_folder(self) -> Path:
        """A folder that is deleted with this object."""
        folder = tempfile.mkdtemp(prefix="hotrows-run-")
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        return Path(folder)


def _followed_by(
    table: Any, labels: np.ndarray, eval_set: Any, classes: np.ndarray
) -> tuple[Any, np.ndarray, np.ndarray | None]:
    """The rows and their labels, with those of `eval_set` behind them, and the weights of these."""
    one = eval_set[0] if isinstance(eval_set, list) and len(eval_set) == 1 else eval_set
    if not isinstance(one, tuple) or len(one) not in (2, 3):
        raise ValueError("eval_set must be one tuple (X, y) or (X, y, weights), or a list of one")
    others, their_labels, weights = _samples(*one)
    if missing := [name for name in table.column_names if name not in others.column_names]:
        raise ValueError(f"eval_set has no column {missing[0]!r}, which X has")
    if not np.isin(their_labels, classes).all():
        raise ValueError(f"expected labels of eval_set that y has, {classes[0]!r} and {classes[1]!r}")
    others = others.select(table.column_names).cast(table.schema)
    return pyarrow().concat_tables([table, others]), np.concatenate([labels, their_labels]), weights


def _with_column(table: Any, name: str, values: np.ndarray) -> tuple[Any, str]:
    """The table with one more column, and the name that it got there."""
    while name in table.column_names:
        name += "_"
    return table.append_column(name, pyarrow().array(values)), name


def _weights(values: Any, num_rows: int) -> np.ndarray:
    """The weights of the rows, [N] float32."""
    weights = np.asarray(values, np.float32)
    if weights.shape != (num_rows,):
        raise ValueError(f"expected {num_rows:,} weights, one for each row, not {weights.shape}")
    wrong = ~(np.isfinite(weights) & (weights >= 0))
    if wrong.any():
        row = int(wrong.argmax())
        raise ValueError(f"expected weights of at least 0, found {weights[row]} for row {row:,}")
    return weights


def _classes(labels: np.ndarray) -> np.ndarray:
    """The distinct labels, ascending."""
    try:
        return np.unique(labels)
    except TypeError:
        types = sorted({type(label).__name__ for label in labels.tolist()})
        raise ValueError(f"expected labels of one type in y, found {' and '.join(types)}") from None


def _samples(X: Any, y: Any, weights: Any = None) -> tuple[Any, np.ndarray, np.ndarray | None]:
    """The rows as an Arrow table without their labels, the labels, and the weights, if there are any."""
    table = as_table(X)
    check_order("y", y, X)
    check_order("sample weights", weights, X)
    if isinstance(y, str):
        if y not in table.column_names:
            hint = did_you_mean(y, table.column_names)
            raise ValueError(f"X has no column {y!r} for the labels{hint}")
        table, y = table.drop_columns([y]), table[y].to_numpy()
    labels = np.asarray(y)
    if labels.shape != (table.num_rows,):
        raise ValueError(f"expected {table.num_rows:,} labels, one for each row, not {labels.shape}")
    missing = np.array([value is None or value != value for value in labels.tolist()])
    if missing.any():
        raise ValueError(f"y lacks the label of row {int(missing.argmax()):,}; leave such rows out")
    return table, labels, None if weights is None else _weights(weights, len(labels))
