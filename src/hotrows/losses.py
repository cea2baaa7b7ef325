"""Losses: what a label may be, what a model minimizes to learn it, and what its output then means.

    name         label        prediction    judged by          its number
    log_loss     0 or 1       sigmoid(z)    auc
    soft         0 to 1       sigmoid(z)    log_loss
    weighted:10  0 or 1       sigmoid(z')   auc                how many samples a 1 counts for
    focal:2      0 or 1       sigmoid(z")   auc                exponent of 1 - p
    fake_negative 0 or 1      sigmoid(z)    auc
    squared      any number   z             rmse               unit of labels
    huber:1      any number   z             mae                error from which on it is linear; unit
    poisson      at least 0   exp(z)        poisson_deviance
    bpr:16       any number   z, an order   ndcg@10            partners of a sample

z is the output of the model for a sample, times the unit of labels, and z' = z - log(10), which makes
probabilities of a model that was trained as if there were ten times as many ones. Focal loss is that of
Lin et al. (ICCV 2017), and z" makes probabilities of its outputs as Charoenphakdee et al. (CVPR 2021)
do. BPR is that of Rendle et al. (UAI 2009), and fake_negative that of Ktena et al. (RecSys 2019), for
labels that come late.

    loss = parse("huber:2")
    loss(outputs, labels, weights)      # a scalar to minimize
    loss.predictions(outputs)           # in the units of the label

All between outputs and predictions is one value, the `Calibration` of a model, which checkpoints, bundles
and versions have, and by which predictors, servers and pages answer:

    outputs -> of a loss that keeps the odds -> times scale plus shift -> link: sigmoid, exp or identity
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, TypeVar

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    Array = TypeVar("Array", Tensor, np.ndarray)

NO_GROUP = -(1 << 63)  # the group of samples whose group is missing: no other sample is in it
_FLOAT32 = 3.4028234663852886e38  # its greatest number
_RANKING = re.compile(r"ndcg|mrr|(ndcg|hit)@[1-9][0-9]{0,8}")
_LEAST_RATE = 1e-6  # of ones that a first output stands for; with none in the data it would be infinite


@dataclass(frozen=True)
class LabelRange:
    """The labels that a loss admits: numbers from `low` to `high`, or 0 and 1 alone.

    words: what they are, for messages: "expected a ...".
    """

    words: str
    low: float = -_FLOAT32
    high: float = _FLOAT32
    binary: bool = False

    def wrong(self, values: np.ndarray) -> np.ndarray:
        """True if each number is no such label; NaN is none."""
        if self.binary:
            return (values != 0) & (values != 1)
        return ~((values >= self.low) & (values <= self.high))

    def includes(self, other: LabelRange) -> bool:
        """True if every label of the other range is one of this."""
        return self.low <= other.low and other.high <= self.high and (other.binary or not self.binary)


ZERO_OR_ONE = LabelRange("label 0 or 1", 0, 1, binary=True)
ZERO_TO_ONE = LabelRange("label from 0 to 1", 0, 1)
AT_LEAST_ZERO = LabelRange("label of at least 0", 0)
ANY_NUMBER = LabelRange("number that float32 can hold")


@dataclass(frozen=True)
class Loss:
    """Cross-entropy of a probability with a label of 0 or 1; other losses are made of this one.

    decides: the metric that says which evaluation was the best. is_order: whether outputs rank samples
    within a group, and mean nothing by themselves.
    scale, shift: predictions are of outputs times `scale` plus `shift`, which calibrates them; training
    does not know of either.
    """

    scale: float = dataclasses.field(default=1.0, kw_only=True, repr=False)
    shift: float = dataclasses.field(default=0.0, kw_only=True, repr=False)
    name: ClassVar[str] = "log_loss"
    labels: ClassVar[LabelRange] = ZERO_OR_ONE
    link: ClassVar[str] = "sigmoid"
    decides: ClassVar[str] = "auc"
    is_order: ClassVar[bool] = False
    is_of_streams: ClassVar[bool] = False  # whether samples stand for others, as a stream makes them

    def __call__(
        self, outputs: Tensor, labels: Tensor, weights: Tensor | None = None, groups: Tensor | None = None
    ) -> Tensor:
        """The sum of weight times loss over samples, divided by their number.

        outputs, labels, weights: [B], in float32; groups: [B] integers, equal within a
        group, or NO_GROUP.
        """
        losses = self.of_samples(outputs, labels)
        return (losses if weights is None else losses * weights).mean()

    def of_samples(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """The loss of each sample, [B]."""
        from torch.nn import functional

        return functional.binary_cross_entropy_with_logits(outputs, labels, reduction="none")

    def importance(self, outputs: Tensor, labels: Tensor) -> Tensor | None:
        """The weights [B] by which samples stand for those to predict; None: they are these."""
        return None

    def calibrated(self, outputs: Array) -> Array:
        """Outputs of the model, of PyTorch or NumPy, as those whose `link` is the prediction."""
        outputs = self.unbiased(outputs)
        return outputs if (self.scale, self.shift) == (1, 0) else outputs * self.scale + self.shift

    def unbiased(self, outputs: Array) -> Array:
        """Outputs as those of a loss that changes neither the odds nor the unit of labels."""
        return outputs

    def predictions(self, outputs: Array) -> Array:
        """The predictions for samples, in float32, in the units of the label, of any shape."""
        import numpy as np

        if not isinstance(outputs, np.ndarray):
            outputs = self.calibrated(outputs.float())
            if self.link == "sigmoid":
                return outputs.sigmoid()
            return outputs.exp() if self.link == "exp" else outputs
        outputs = self.calibrated(outputs).astype(np.float32, copy=False)
        if self.link == "sigmoid":
            powers = np.exp(-np.abs(outputs))  # at most 1: nothing overflows
            return (np.where(outputs >= 0, 1, powers) / (1 + powers)).astype(np.float32)
        return np.exp(outputs) if self.link == "exp" else outputs

    def first_output(self, mean: float) -> float:
        """The output that predicts the mean of the labels for every sample: where a bias should start."""
        if self.link == "identity":
            return mean
        if self.link == "exp":
            return math.log(max(mean, _LEAST_RATE))
        rate = min(max(mean, _LEAST_RATE), 1 - _LEAST_RATE)
        return math.log(rate / (1 - rate))

    @property
    def text(self) -> str:
        """What `parse` reads as this loss, with all of its numbers."""
        numbers = [repr(float(getattr(self, field.name))) for field in _numbers(self)]
        return ":".join([self.name, *(number.removesuffix(".0") for number in numbers)])

    def __str__(self) -> str:
        """The text, without a unit of 1."""
        return self.text.removesuffix(":1") if getattr(self, "unit", 0) == 1 else self.text


@dataclass(frozen=True)
class Soft(Loss):
    """Cross-entropy of a probability with a label from 0 to 1."""

    name = "soft"
    labels = ZERO_TO_ONE
    decides = "log_loss"


@dataclass(frozen=True)
class Weighted(Loss):
    """Cross-entropy in which a label of 1 counts as `positive` samples.

    Odds are then `positive` times too high; predictions are made of the true ones.
    """

    positive: float = 10.0
    name = "weighted"

    def of_samples(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return super().of_samples(outputs, labels) * (1 + (self.positive - 1) * labels)

    def unbiased(self, outputs: Array) -> Array:
        return outputs - math.log(self.positive)

    def first_output(self, mean: float) -> float:
        return super().first_output(mean) + math.log(self.positive)


@dataclass(frozen=True)
class Focal(Loss):
    """Cross-entropy times (1 - p)^gamma, p the probability of the true label: less for easy samples.

    Outputs are then too near to 0. Where a share p of samples is 1, the least loss is at the output z
    with q = sigmoid(z) for which p / (1 - p) = (q / phi(q)) / ((1 - q) / phi(1 - q)), where
    phi(q) = (1 - q)^gamma - gamma (1 - q)^(gamma - 1) q log(q); predictions are this p.
    """

    gamma: float = 2.0
    name = "focal"

    def of_samples(self, outputs: Tensor, labels: Tensor) -> Tensor:
        losses = super().of_samples(outputs, labels)
        return losses * (-(-losses).expm1()).pow(self.gamma)  # losses = -log(p)

    def unbiased(self, outputs: Array) -> Array:
        import numpy as np

        values = outputs if isinstance(outputs, np.ndarray) else outputs.detach().cpu().numpy()
        z = np.clip(values, -300, 300, dtype=np.float64)  # beyond them exp(-z) is 0
        logits = z + self._log_phi(-z) - self._log_phi(z)
        return logits if isinstance(outputs, np.ndarray) else outputs.new_tensor(logits)

    def _log_phi(self, z: np.ndarray) -> np.ndarray:
        """log(phi(q)) of q = sigmoid(z)."""
        import numpy as np

        log_q, log_rest = -np.logaddexp(0, -z), -np.logaddexp(0, z)
        factor = np.exp(log_rest) - self.gamma * np.exp(log_q) * log_q
        return (self.gamma - 1) * log_rest + np.log(factor)

    def first_output(self, mean: float) -> float:
        import numpy as np

        wanted, low, high = super().first_output(mean), -50.0, 50.0
        for _ in range(60):  # halves the interval: no closed form is known
            middle = (low + high) / 2
            is_low = float(self.unbiased(np.array(middle))) < wanted
            low, high = (middle, high) if is_low else (low, middle)
        return high


@dataclass(frozen=True)
class FakeNegative(Loss):
    """Cross-entropy of samples of which each is trained as a 0 at once, and as a 1 if its label comes.

    The fake negative weighted loss of Ktena et al., "Addressing delayed feedback for continuous training
    with neural networks in CTR prediction" (RecSys 2019). Where p is the true rate, samples are 1 at the
    rate b = p / (1 + p). With q = sigmoid(z), of which no gradient is taken, a 1 counts 1 + q and a 0
    counts (1 - q) (1 + q), so that the mean gradient is (1 - q) (q - p) and is zero at q = p.
    """

    name = "fake_negative"
    is_of_streams = True

    def of_samples(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return super().of_samples(outputs, labels) * self.importance(outputs, labels)

    def importance(self, outputs: Tensor, labels: Tensor) -> Tensor:
        rates = outputs.detach().sigmoid()
        return (1 + rates) * (1 - rates * (1 - labels))


@dataclass(frozen=True)
class OfNumbers(Loss):
    """A loss of the labels divided by `unit`: learning rates are for numbers that deviate by about 1."""

    unit: float = dataclasses.field(default=1.0, kw_only=True, repr=False)
    labels = ANY_NUMBER
    link = "identity"

    def unbiased(self, outputs: Array) -> Array:
        return outputs * self.unit if self.unit != 1 else outputs

    def first_output(self, mean: float) -> float:
        return mean / self.unit


@dataclass(frozen=True)
class Squared(OfNumbers):
    """(z - y / unit)^2."""

    name = "squared"
    decides = "rmse"

    def of_samples(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return (outputs - labels / self.unit).square()


@dataclass(frozen=True)
class Huber(OfNumbers):
    """e^2 / 2 up to an error e = z - y / unit of d = delta / unit, linear beyond.

    With a unit it is divided by d < 1: beyond, the gradient is 1, for which learning rates are.
    """

    delta: float = 1.0
    name = "huber"
    decides = "mae"

    def of_samples(self, outputs: Tensor, labels: Tensor) -> Tensor:
        from torch.nn import functional

        targets, delta = labels / self.unit, self.delta / self.unit
        errors = functional.huber_loss(outputs, targets, reduction="none", delta=delta)
        return errors if self.unit == 1 else errors / min(delta, 1)


@dataclass(frozen=True)
class Poisson(Loss):
    """exp(z) - y z: the negative log likelihood of a count, without what depends on y alone."""

    name = "poisson"
    labels = AT_LEAST_ZERO
    link = "exp"
    decides = "poisson_deviance"

    def of_samples(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return outputs.exp() - labels * outputs


@dataclass(frozen=True)
class BPR(Loss):
    """log(1 + exp(z_b - z_a)), mean over pairs of samples of a group with y_a > y_b.

    pairs: a sample is compared with so many of its group that follow it in the batch, those of other
    groups left out; the first ones of a group follow no others. A batch without any pair has a loss of 0.
    """

    pairs: float = 16.0
    name = "bpr"
    labels = ANY_NUMBER
    link = "identity"
    decides = "ndcg@10"
    is_order = True

    def __call__(
        self, outputs: Tensor, labels: Tensor, weights: Tensor | None = None, groups: Tensor | None = None
    ) -> Tensor:
        """The mean over pairs, each times the weights of both samples."""
        assert groups is not None, "tasks of an order are checked to have groups"
        from torch.nn import functional

        groups, order = groups.sort(stable=True)
        outputs, labels = outputs[order], labels[order].where(groups != NO_GROUP, 0.0)
        weights = None if weights is None else weights[order]
        total, num_pairs = outputs.sum() * 0.0, outputs.new_zeros(())
        for apart in range(1, min(int(self.pairs), len(groups) - 1) + 1):
            above = labels[:-apart] - labels[apart:]
            counts = ((groups[:-apart] == groups[apart:]) & (above != 0)).to(outputs.dtype)
            if weights is not None:
                counts = counts * weights[:-apart] * weights[apart:]
            gaps = (outputs[apart:] - outputs[:-apart]) * above.sign()
            total = total + (functional.softplus(gaps) * counts).sum()
            num_pairs = num_pairs + counts.sum()
        return total / num_pairs.where(num_pairs > 0, 1.0)

    def first_output(self, mean: float) -> float:
        return 0.0


@dataclass(frozen=True)
class StoredLoss:
    """A loss in a JSON file: its text, its link, and what calibrates its outputs; see `Loss`."""

    loss: str
    prediction: str
    scale: float = 1.0
    shift: float = 0.0


@dataclass(frozen=True)
class Calibration:
    """All that turns the outputs of a model into its predictions.

    losses: by label, in the order of the outputs.

    >>> calibration = Calibration({"click": parse("focal:2")}).with_scales([(0.5, -1.0)])
    >>> calibration.stored()["click"]
    StoredLoss(loss='focal:2', prediction='sigmoid', scale=0.5, shift=-1.0)
    """

    losses: Mapping[str, Loss]

    @property
    def scales(self) -> tuple[tuple[float, float], ...]:
        """The scale and the shift of each label."""
        return tuple((loss.scale, loss.shift) for loss in self.losses.values())

    def calibrated(self, outputs: Array) -> Array:
        """Outputs [N] or [N, T], of PyTorch or NumPy, as those whose links are the predictions."""
        return self._by_label(lambda loss, of_label: loss.calibrated(of_label), outputs)

    def predictions(self, outputs: Array) -> Array:
        """The predictions of outputs [N] or [N, T], in the units of the labels."""
        return self._by_label(lambda loss, of_label: loss.predictions(of_label), outputs)

    def with_scales(self, scales: Sequence[Sequence[float]]) -> Calibration:
        """The same losses with the scale and the shift of each label; (): as the model was trained."""
        scales = scales or [(1.0, 0.0)] * len(self.losses)
        pairs = zip(self.losses.items(), scales, strict=True)
        return Calibration({n: dataclasses.replace(x, scale=a, shift=b) for (n, x), (a, b) in pairs})

    def scaled_as(self, other: Calibration) -> Calibration:
        """The same losses, scaled as `other` scales labels of these names and losses."""
        same = {n: x for n, x in other.losses.items() if str(x) == str(self.losses.get(n))}
        return self.with_scales(Calibration({n: same.get(n, Loss()) for n in self.losses}).scales)

    def stored(self) -> dict[str, StoredLoss]:
        """All of it for a JSON file, from which `of_stored` makes an equal value."""
        return {n: StoredLoss(str(x), x.link, x.scale, x.shift) for n, x in self.losses.items()}

    @staticmethod
    def of_stored(stored: Mapping[str, StoredLoss]) -> Calibration:
        """The value whose `stored` this is; ValueError names what is not a loss."""
        losses = Calibration({name: parse(one.loss) for name, one in stored.items()})
        return losses.with_scales([(one.scale, one.shift) for one in stored.values()])

    def _by_label(self, function: Callable[[Loss, Array], Array], outputs: Array) -> Array:
        import numpy as np

        losses = list(self.losses.values())
        if outputs.ndim == 1:
            return function(losses[0], outputs)
        columns = [function(loss, outputs[:, t]) for t, loss in enumerate(losses)]
        if isinstance(outputs, np.ndarray):
            return np.stack(columns, 1)
        import torch

        return torch.stack(columns, 1)


def _numbers(loss: Loss | type[Loss]) -> list[dataclasses.Field]:
    """The fields of a loss that its text states, in its order."""
    fields = dataclasses.fields(loss)
    return [field for field in fields if not field.kw_only] + [f for f in fields if f.name == "unit"]


_KINDS: dict[str, type[Loss]] = {
    kind.name: kind for kind in (Loss, Soft, Weighted, Focal, FakeNegative, Squared, Huber, Poisson, BPR)
}
NAMES = tuple(_KINDS)


def parse_by_label(text: str) -> dict[str, Loss]:
    """The losses of a text such as "huber:2", of any label, "", or "rating=squared,click=focal".

    >>> parse_by_label('rating=squared,click=focal')
    {'rating': Squared(), 'click': Focal(gamma=2.0)}
    """
    return {label: parse(loss) for label, loss in texts_by_label(text).items()}


def texts_by_label(text: str) -> dict[str, str]:
    """The text of each loss that `parse_by_label` reads.

    >>> texts_by_label('huber:2')
    {'': 'huber:2'}
    """
    pairs = [word.rpartition("=") for word in text.split(",")]
    texts = {label.strip(): loss.strip() for label, _, loss in pairs}
    if len(texts) < len(pairs) or ("" in texts and len(texts) > 1):
        raise ValueError(f"give one loss, or one for each label (rating=squared,click=focal): {text!r}")
    return texts


def check_grouped(schema: str, losses: Mapping[str, str | None], group: str | None) -> None:
    """Raises ValueError where a loss compares samples of a group and there is none. schema: its name;
    losses: by label, as declared; group: the column of groups."""
    ordered = [label for label, loss in losses.items() if parse(loss or Loss.name).is_order]
    if ordered and group is None:
        raise ValueError(
            f"schema {schema!r}: the loss of label {ordered[0]!r} compares samples of a group; say which "
            f"column that is: group=COLUMN"
        )


def parse_ranking(text: str) -> tuple[str, ...]:
    """The names of metrics within groups in a text such as "ndcg@10,hit@5,mrr".

    >>> parse_ranking('ndcg@10, hit@5, mrr')
    ('ndcg@10', 'hit@5', 'mrr')
    """
    names = tuple(dict.fromkeys(word.strip().lower() for word in text.split(",")))
    wrong = [name for name in names if not _RANKING.fullmatch(name)]
    if wrong:
        raise ValueError(f"metrics must be of ndcg, ndcg@K, hit@K and mrr, K from 1 on, not {wrong[0]!r}")
    return names


def parse(text: str) -> Loss:
    """The loss of a text such as squared or huber:2; ValueError where it is none.

    >>> parse('huber:2')
    Huber(delta=2.0)
    """
    name, *numbers = text.split(":")
    kind = _KINDS.get(name)
    if kind is None:
        raise ValueError(f"a loss must be one of {', '.join(NAMES)}, not {text[:60]!r}")
    fields = [field.name for field in _numbers(kind)]
    if len(numbers) > len(fields):
        known = " and ".join(fields) or "no number"
        raise ValueError(f"the loss {name} takes {known}: {text[:60]!r}")
    values = dict[str, float]()
    for field, number in zip(fields, numbers, strict=False):
        try:
            values[field] = float(number)
        except ValueError:
            values[field] = math.nan
        if not 0 < values[field] <= _FLOAT32:
            raise ValueError(f"the {field} of the loss {name} must be a number above 0: {text[:60]!r}")
    return dataclasses.replace(kind(), **values)


def is_open(text: str) -> bool:
    """True if the text of a loss leaves out the unit of its labels, which then follows from the data.

    >>> is_open('huber:2'), is_open('huber:2:1'), is_open('focal')
    (True, False, False)
    """
    names = [field.name for field in _numbers(type(parse(text)))]
    return "unit" in names[text.count(":") :]
