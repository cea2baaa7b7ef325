"""Estimators: training and prediction as scikit-learn's have them, on frames and arrays.

classifier = Classifier("deepfm", epochs=2).fit(frame, labels)
classifier.predict_proba(frame)[:, 1]
Regressor(epochs=2, lr=0.02).fit(frame, prices).predict(frame)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from hotrows import losses
from hotrows.schema import Label
from hotrows.train.estimator import Estimator
from hotrows.train.estimator_rows import samples
from hotrows.train.loop.predictor import Predictor
from hotrows.train.metrics import auc
from hotrows.train.telling.row_sample import RowSample, score


class Classifier(Estimator):
    """A model of two classes that learns from a frame and its labels.

    model: as `Trainer` takes it, of an object a copy (default: the config's).
    schema: the columns to learn from; its label is left aside (default: drafted from the frame by
        `hotrows.data.draft_schema`).
    run: a new folder for the run (default: a temporary one, deleted with this object).
    validation: the share of the rows that decides which checkpoint is the best.
    verbose: as `Trainer.fit` takes it.
    random_state: the seed, by scikit-learn's name (default: `seed`).
    lr: the learning rate of rows and of the dense part (default: that of each optimizer).
    dim: the width of vectors (default: the model's); model_options: other arguments of the model's class,
        one of which is `model_options__top` in a grid.
    epochs, batch_size, settings: fields of `TrainConfig`.

    After `fit`: classes_, both values of the labels; schema_; notes_, what a drafted schema is unsure of;
    run_, the folder; result_, a `Result`; predictor_, a `Predictor`; n_features_in_; of a frame
    feature_names_in_; feature_importances_. Copies and pickles of a fitted one hold its model, in a
    folder of their own.

    >>> labels = frame["click"]
    >>> features = {name: values for name, values in frame.items() if name != "click"}
    >>> hotrows.Classifier("fm", epochs=1).fit(features, labels).predict_proba(features).shape
    (100, 2)
    """

    _estimator_type = "classifier"
    _file, _links, _split = "classifier.json", ("sigmoid",), "stratified"
    _other_link = (
        "a Classifier predicts probabilities, and the loss {loss} none: take log_loss, weighted, focal "
        "or soft, or a Regressor, whose predictions are numbers"
    )

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Classifier:
        """Trains on further rows: the model goes on from what it has learned, and new values get rows.

        The first call is `fit`. Later ones read the columns of the first, weights if it had some.
        classes: both values of the labels, where the first rows may have one alone.
        """
        if not self.__sklearn_is_fitted__():
            self._expected = None if classes is None else np.asarray(classes)
        return self._fit_further(X, y, sample_weight)

    def predict_proba(self, X: Any, allow_missing_columns: bool = False) -> np.ndarray:
        """The probabilities of both classes, [N, 2] float32.

        X: all that `Predictor.predict` takes; labels that are a column of a frame are not read.
        allow_missing_columns: count a feature without its column as missing (default: ValueError).
        """
        chances = self._numbers(X, allow_missing_columns)
        return np.stack([1 - chances, chances], 1)

    def predict(self, X: Any, allow_missing_columns: bool = False) -> np.ndarray:
        """The likelier class of each row, [N]; see `predict_proba`."""
        chances = self.predict_proba(X, allow_missing_columns)[:, 1]
        return self.classes_[(chances > 0.5).astype(np.int64)]

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """The share of the rows whose class is predicted, by their weights."""
        table, labels, weights = samples(X, y, sample_weight)
        return float(np.average(self.predict(table) == labels, weights=weights))

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import ClassifierTags

        return self._tags(estimator_type="classifier", classifier_tags=ClassifierTags(multi_class=False))

    def _learn_targets(self, targets: np.ndarray) -> None:
        classes = vars(self).pop("_expected", None)
        classes = _distinct(targets if classes is None else classes)
        if len(classes) != 2:
            kind = "class" if len(classes) == 1 else "classes"
            hint = f": {_why_not_binary(targets)}" if len(classes) > 2 else ""
            raise ValueError(f"expected labels of two values, found {len(classes):,} {kind} in y{hint}")
        self.classes_ = classes

    def _labels(self, targets: np.ndarray) -> np.ndarray:
        if not np.isin(targets, self.classes_).all():
            first, second = self.classes_.tolist()
            raise ValueError(f"expected labels that y has, {first!r} and {second!r}, and found others")
        return (targets == self.classes_[1]).astype(np.int8)

    def _label(self, name: str) -> str:
        return name

    def _badness(self, predictor: Predictor, rows: RowSample) -> float:
        (scored,) = score(predictor, rows).values()
        return -auc(scored.outputs, scored.labels)

    def _saved_fields(self) -> dict[str, Any]:
        if self.classes_.dtype.kind not in "biufUO":
            raise ValueError(f"labels of {self.classes_.dtype} cannot be saved: give numbers or text")
        return {"classes": self.classes_.tolist(), "dtype": self.classes_.dtype.str}

    def _read_fields(self, fields: Mapping[str, Any]) -> None:
        self.classes_ = np.array(fields["classes"], np.dtype(fields["dtype"]))


class Regressor(Estimator):
    """A model of numbers that learns from a frame and a number for each of its rows.

    Its arguments are those of a `Classifier`; the loss is squared, huber or poisson (default: squared).
    After `fit` it has what a Classifier has, but for the classes.

    >>> features = {name: values for name, values in frame.items() if name != "price"}
    >>> hotrows.Regressor("fm", epochs=1).fit(features, frame["price"]).predict(features).shape
    (100,)
    """

    _estimator_type = "regressor"
    _file, _links, _split, _loss = "regressor.json", ("identity", "exp"), "fraction", "squared"
    _other_link = (
        "a Regressor predicts numbers, and the loss {loss} none: take squared, huber or poisson, or a "
        "Classifier"
    )

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Regressor:
        """Trains on further rows, as that of a `Classifier`."""
        return self._fit_further(X, y, sample_weight)

    def predict(self, X: Any, allow_missing_columns: bool = False) -> np.ndarray:
        """The number of each row, [N] float64.

        X: all that `Predictor.predict` takes; the target's column in a frame is not read.
        allow_missing_columns: count a feature without its column as missing (default: ValueError).
        """
        return self._numbers(X, allow_missing_columns).astype(np.float64)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """R squared, the share of the variance of y that predictions explain, by the rows' weights."""
        table, targets, weights = samples(X, y, sample_weight)
        targets = targets.astype(np.float64)
        mean = np.average(targets, weights=weights)
        squared = np.average((targets - self.predict(table)) ** 2, weights=weights)
        return float(1 - squared / np.average((targets - mean) ** 2, weights=weights))

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import RegressorTags

        return self._tags(estimator_type="regressor", regressor_tags=RegressorTags())

    def _learn_targets(self, targets: np.ndarray) -> None:
        if targets.dtype.kind not in "biuf" and not _are_numbers(targets):
            raise ValueError(f"expected numbers in y, found {targets.dtype}; a Classifier learns classes")

    def _labels(self, targets: np.ndarray) -> np.ndarray:
        return targets.astype(np.float64)

    def _label(self, name: str) -> Label:
        by_label = losses.parse_by_label(self._config().loss or "squared")
        return Label(name, loss=str(by_label.get(name) or by_label.get("") or "squared"))

    def _badness(self, predictor: Predictor, rows: RowSample) -> float:
        (scored,) = score(predictor, rows).values()
        return float((scored.predictions - scored.labels).square().mean().sqrt())

    def _saved_fields(self) -> dict[str, Any]:
        return {}

    def _read_fields(self, fields: Mapping[str, Any]) -> None:
        pass


def _distinct(labels: np.ndarray) -> np.ndarray:
    """The distinct labels, ascending."""
    try:
        return np.unique(labels)
    except TypeError:
        types = sorted({type(label).__name__ for label in labels.tolist()})
        raise ValueError(f"expected labels of one type in y, found {' and '.join(types)}") from None


def _why_not_binary(targets: np.ndarray) -> str:
    """In the words of scikit-learn, which its checks look for."""
    if targets.dtype.kind == "f" and not (targets == np.round(targets)).all():
        return "Unknown label type: continuous; a Regressor learns numbers"
    return "Only binary classification is supported. The type of the target is multiclass"


def _are_numbers(values: np.ndarray) -> bool:
    return all(isinstance(value, int | float) for value in values.tolist())
