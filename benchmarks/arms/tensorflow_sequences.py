"""DIN and DIEN in TensorFlow 2: the layers of `padded_models`, on histories in one of two layouts.

padded   [B, L, D], with zeros behind the last, as most of TensorFlow's implementations have them
packed   [N, D], the elements that there are, those of all samples at a time together; samples are
         sorted, the longest first, so that recurrent layers work on a batch that shrinks

Item vectors of targets and histories are fetched by one lookup. Rows learn by Adagrad, layers by Adam.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tensorflow as tf
import tf_keras

from benchmarks.arms.tensorflow import Layers, table
from benchmarks.samples import Samples, padded
from benchmarks.sequences import ATTENTION, DENSE_LEARNING_RATE, FEATURES, HIDDEN, ROW_LEARNING_RATE

LAYOUTS = ("packed", "padded")


class Batch(NamedTuple):
    ids: tf.Tensor  # [F, B]
    dense: tf.Tensor
    labels: tf.Tensor
    history: tf.Tensor  # ids: padded [B, L], packed [N]
    lengths: tf.Tensor  # padded: [B] of the histories; packed: [L] samples that are as long or longer
    samples: tf.Tensor  # packed: [N] the sample of each element; padded: none


def inputs(samples: Samples, layout: str) -> Batch:
    ids, lengths = padded(samples, FEATURES.max_length)
    if layout == "padded":
        nothing = np.zeros(0, np.int64)
        return Batch(samples.ids, samples.dense, samples.labels, ids, lengths, nothing)
    order = np.argsort(-lengths, kind="stable")
    ids, lengths = ids[order], lengths[order]
    mask = (np.arange(FEATURES.max_length) < lengths[:, None]).T  # [L, B]
    sample = np.broadcast_to(np.arange(len(order)), mask.shape)[mask]
    num = mask.sum(1)
    return Batch(
        np.ascontiguousarray(samples.ids[:, order]),
        samples.dense[order],
        samples.labels[order],
        ids.T[mask],
        num[num > 0],
        sample,
    )


def training_step(args: Namespace) -> Callable[[Batch], tf.Tensor]:
    """The step on a batch; its variables are made here, in the scope at hand."""
    histories = {"padded": Padded, "packed": Packed}[args.histories]()
    model = Model(args.model, args.dim, histories)
    rows = tf_keras.optimizers.legacy.Adagrad(ROW_LEARNING_RATE)
    layers = tf_keras.optimizers.legacy.Adam(DENSE_LEARNING_RATE)

    def step(batch: Batch) -> tf.Tensor:
        with tf.GradientTape() as tape:
            logits = model(batch)
            loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(batch.labels, logits))
        tables = list(model.tables.values())
        others = list(model.layers_of.trainable_variables)
        gradients = tape.gradient(loss, tables + others)
        rows.apply_gradients(zip(gradients[: len(tables)], tables, strict=True))
        layers.apply_gradients(zip(gradients[len(tables) :], others, strict=True))
        return loss

    return step


class Model(tf.Module):
    """A model with its tables: logits [B]."""

    def __init__(self, name: str, dim: int, histories: Padded | Packed) -> None:
        super().__init__()
        self.tables = {field: table(rows, dim) for field, rows in FEATURES.rows.items()}
        self.layers_of = {"din": Din, "dien": Dien}[name](dim, histories)

    def __call__(self, batch: Batch) -> tf.Tensor:
        ids = dict(zip(FEATURES.fields, tf.unstack(batch.ids), strict=True))
        size = len(ids[FEATURES.target])
        both = tf.concat([ids[FEATURES.target], tf.reshape(batch.history, [-1])], 0)
        items = tf.nn.embedding_lookup(self.tables[FEATURES.target], both)
        target, past = items[:size], items[size:]
        vectors = [
            target if name == FEATURES.target else tf.nn.embedding_lookup(self.tables[name], ids[name])
            for name in FEATURES.fields
        ]
        past = tf.reshape(past, tf.concat([tf.shape(batch.history), [target.shape[1]]], 0))
        return self.layers_of(tf.concat([*vectors, batch.dense], 1), target, past, batch)


class Din(tf.Module):
    def __init__(self, dim: int, histories: Padded | Packed) -> None:
        super().__init__()
        self.histories = histories
        self.attention = Attention(dim, histories)
        self.top = _top(dim)

    def __call__(self, others: tf.Tensor, target: tf.Tensor, past: tf.Tensor, batch: Batch):
        interest = self.histories.sum(past * self.attention(target, past, batch), batch)
        return self.top(tf.concat([others, interest], 1))[:, 0]


class Dien(tf.Module):
    def __init__(self, dim: int, histories: Padded | Packed) -> None:
        super().__init__()
        self.histories = histories
        self.extraction, self.evolution = Gru(dim), Gru(dim)
        self.attention = Attention(dim, histories)
        self.top = _top(dim)

    def __call__(self, others: tf.Tensor, target: tf.Tensor, past: tf.Tensor, batch: Batch):
        states, _ = self.histories.recur(self.extraction, past, None, batch)
        weights = self.attention(target, states, batch)
        _, interest = self.histories.recur(self.evolution, states, weights, batch)
        return self.top(tf.concat([others, interest], 1))[:, 0]


class Attention(tf.Module):
    """softmax over the history of MLP([q, k, q - k, q * k]): a weight per element, [..., 1]."""

    def __init__(self, dim: int, histories: Padded | Packed) -> None:
        super().__init__()
        self.histories = histories
        sizes = (4 * dim, *ATTENTION, 1)
        self.layers = Layers(sizes, "float32", activation=tf.sigmoid)

    def __call__(self, target: tf.Tensor, keys: tf.Tensor, batch: Batch) -> tf.Tensor:
        queries = self.histories.beside(target, keys, batch)
        x = tf.concat([queries, keys, queries - keys, queries * keys], -1)
        scores = self.layers(tf.reshape(x, [-1, x.shape[-1]]))
        return self.histories.softmax(tf.reshape(scores, tf.shape(keys)[:-1]), batch)[..., None]


class Gru(tf.Module):
    """A cell: gates of the inputs come of one product for all elements; attention scales the update."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        initial = tf_keras.initializers.GlorotUniform
        self.of_inputs = tf.Variable(initial()([dim, 3 * dim]))
        self.of_states = tf.Variable(initial()([dim, 3 * dim]))
        self.input_bias = tf.Variable(tf.zeros(3 * dim))
        self.state_bias = tf.Variable(tf.zeros(3 * dim))

    def gates(self, inputs: tf.Tensor) -> tf.Tensor:
        return tf.matmul(inputs, self.of_inputs) + self.input_bias

    def __call__(self, gates: tf.Tensor, h: tf.Tensor, attention: tf.Tensor | None) -> tf.Tensor:
        r, u, new = tf.split(gates, 3, 1)
        r_h, u_h, new_h = tf.split(tf.matmul(h, self.of_states) + self.state_bias, 3, 1)
        new = tf.tanh(new + tf.sigmoid(r + r_h) * new_h)
        u = tf.sigmoid(u + u_h)
        if attention is None:
            return u * h + (1 - u) * new
        u = attention * u
        return (1 - u) * h + u * new


class Padded:
    """Histories [B, L, D]."""

    def beside(self, target: tf.Tensor, keys: tf.Tensor, batch: Batch) -> tf.Tensor:
        return tf.broadcast_to(target[:, None], tf.shape(keys))

    def softmax(self, scores: tf.Tensor, batch: Batch) -> tf.Tensor:
        return tf.nn.softmax(tf.where(self._mask(batch), scores, -1e9), 1)

    def sum(self, values: tf.Tensor, batch: Batch) -> tf.Tensor:
        return tf.reduce_sum(values, 1)

    def recur(
        self, cell: Gru, inputs: tf.Tensor, attention: tf.Tensor | None, batch: Batch
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """All states [B, L, D] and the last ones [B, D]."""
        size, length, dim = tf.shape(inputs)[0], FEATURES.max_length, inputs.shape[-1]
        gates = tf.reshape(cell.gates(tf.reshape(inputs, [-1, dim])), [size, length, 3 * dim])
        fed = gates if attention is None else tf.concat([gates, attention], 2)

        def step(now: tf.Tensor, states: list[tf.Tensor]) -> tuple[tf.Tensor, list[tf.Tensor]]:
            weight = None if attention is None else now[:, 3 * dim :]
            h = cell(now[:, : 3 * dim], states[0], weight)
            return h, [h]

        _, outputs, states = tf_keras.backend.rnn(
            step, fed, [tf.zeros([size, dim])], mask=self._mask(batch), input_length=length
        )
        return outputs, states[0]

    def _mask(self, batch: Batch) -> tf.Tensor:
        return tf.sequence_mask(batch.lengths, FEATURES.max_length)


class Packed:
    """Histories [N, D]: time after time, at each the samples that are so long."""

    def beside(self, target: tf.Tensor, keys: tf.Tensor, batch: Batch) -> tf.Tensor:
        return tf.gather(target, batch.samples)

    def softmax(self, scores: tf.Tensor, batch: Batch) -> tf.Tensor:
        size = tf.shape(batch.labels)[0]
        highest = tf.math.unsorted_segment_max(scores, batch.samples, size)
        raised = tf.exp(scores - tf.stop_gradient(tf.gather(highest, batch.samples)))
        total = tf.math.unsorted_segment_sum(raised, batch.samples, size)
        return raised / tf.gather(total, batch.samples)

    def sum(self, values: tf.Tensor, batch: Batch) -> tf.Tensor:
        return tf.math.unsorted_segment_sum(values, batch.samples, tf.shape(batch.labels)[0])

    def recur(
        self, cell: Gru, inputs: tf.Tensor, attention: tf.Tensor | None, batch: Batch
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """All states [N, D] and the last ones [B, D]."""
        size, dim = tf.shape(batch.labels)[0], inputs.shape[-1]
        gates = self._by_time(cell.gates(inputs), batch)
        weights = None if attention is None else self._by_time(attention, batch)
        length = tf.shape(batch.lengths)[0]
        states = tf.TensorArray(tf.float32, length, infer_shape=False, element_shape=[None, dim])

        def step(t: tf.Tensor, h: tf.Tensor, states: tf.TensorArray):
            now = gates.read(t)
            num = tf.shape(now)[0]
            alive = cell(now, h[:num], None if weights is None else weights.read(t))
            return t + 1, tf.concat([alive, h[num:]], 0), states.write(t, alive)

        _, last, states = tf.while_loop(
            lambda t, *_: t < length,
            step,
            (0, tf.zeros([size, dim]), states),
            shape_invariants=(tf.TensorShape([]), tf.TensorShape([None, dim]), None),
        )
        return tf.ensure_shape(states.concat(), [None, dim]), last

    def _by_time(self, values: tf.Tensor, batch: Batch) -> tf.TensorArray:
        array = tf.TensorArray(
            tf.float32,
            tf.shape(batch.lengths)[0],
            infer_shape=False,
            element_shape=[None, values.shape[1]],
        )
        return array.split(values, tf.cast(batch.lengths, tf.int32))


def _top(dim: int) -> Layers:
    width = (len(FEATURES.fields) + 1) * dim + FEATURES.num_dense
    return Layers((width, *HIDDEN, 1), "float32")
