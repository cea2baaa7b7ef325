"""TensorFlow 2 in one process: `tf.function`, a variable per table, tf-keras' sparse optimizers."""

import os
from argparse import Namespace
from collections.abc import Callable
from itertools import pairwise

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["TF_USE_LEGACY_KERAS"] = "1"

import tensorflow as tf
import tf_keras

from benchmarks.arms import arm
from benchmarks.workload import (
    DEEPFM_DEEP,
    DIM,
    DLRM_BOTTOM,
    DLRM_TOP,
    LEARNING_RATE,
    MLP,
    Batch,
    batches,
)

OPTIMIZERS = {"adagrad": tf_keras.optimizers.legacy.Adagrad, "sgd": tf_keras.optimizers.legacy.SGD}


def main() -> None:
    args = arm.parse()
    arm.report(args, step_of(args), "tensorflow-cpu", "tf-keras")


def step_of(args: Namespace) -> Callable[[int], float | None]:
    """Step k on its batch, as one graph; returns the loss, or None where there is no model."""
    tf.config.threading.set_intra_op_parallelism_threads(args.threads)
    tf.config.threading.set_inter_op_parallelism_threads(args.threads)
    data = [Batch(*map(tf.constant, batch)) for batch in batches(args.workload, args.batch_size)]
    make_step = embedding_step if args.embedding_only else training_step
    step = tf.function(make_step(args))
    return lambda k: _number(step(data[k % len(data)]))


def training_step(args: Namespace) -> Callable:
    model = {"dlrm": Dlrm, "deepfm": DeepFm, "mlp": Mlp}[args.model](args)
    optimizer = OPTIMIZERS[args.optimizer](LEARNING_RATE)

    def step(batch: Batch) -> tf.Tensor:
        with tf.GradientTape() as tape:
            logits = model(batch)
            loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(batch.labels, logits))
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    return step


def embedding_step(args: Namespace) -> Callable:
    """Lookup, backward from a fixed gradient, and update: no model."""
    tables = Tables(args.workload.num_rows, DIM)
    optimizer = OPTIMIZERS[args.optimizer](LEARNING_RATE)
    gradient = 1e-4 * tf.random.normal([args.batch_size, len(args.workload.num_rows), DIM])

    def step(batch: Batch) -> None:
        with tf.GradientTape() as tape:
            vectors = tables(batch.ids)
        variables = tables.trainable_variables
        gradients = tape.gradient(vectors, variables, output_gradients=gradient)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))

    return step


def table(num_rows: int, dim: int) -> tf.Variable:
    return tf.Variable(lambda: tf.random.uniform([num_rows, dim], -0.01, 0.01))


class Tables(tf.Module):
    def __init__(self, num_rows: tuple[int, ...], dim: int) -> None:
        super().__init__()
        self.tables = [table(n, dim) for n in num_rows]

    def __call__(self, ids: tf.Tensor) -> tf.Tensor:
        """ids [F, B] -> vectors [B, F, D]."""
        columns = zip(self.tables, tf.unstack(ids), strict=True)
        return tf.stack([tf.nn.embedding_lookup(table, column) for table, column in columns], 1)


class Layers(tf.Module):
    """Linear layers with an activation between them, and behind the last if `last_relu`."""

    def __init__(
        self,
        sizes: tuple[int, ...],
        precision: str,
        last_relu: bool = False,
        activation: Callable[[tf.Tensor], tf.Tensor] = tf.nn.relu,
    ) -> None:
        super().__init__()
        self.activation = activation
        initial = tf_keras.initializers.HeNormal
        self.weights = [tf.Variable(initial()(pair)) for pair in pairwise(sizes)]
        self.biases = [tf.Variable(tf.zeros(size)) for size in sizes[1:]]
        self.dtype = tf.as_dtype(precision)
        self.num_relus = len(self.weights) if last_relu else len(self.weights) - 1

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        x = tf.cast(x, self.dtype)
        for n, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = tf.nn.bias_add(tf.matmul(x, tf.cast(weight, self.dtype)), tf.cast(bias, self.dtype))
            x = self.activation(x) if n < self.num_relus else x
        return tf.cast(x, tf.float32)


class Dlrm(tf.Module):
    def __init__(self, args: Namespace) -> None:
        super().__init__()
        num_dense, num_vectors = args.workload.num_dense, len(args.workload.num_rows) + 1
        self.pairs = [i * num_vectors + j for i in range(num_vectors) for j in range(i)]
        self.tables = Tables(args.workload.num_rows, DIM)
        self.bottom = Layers((num_dense, *DLRM_BOTTOM), args.precision, last_relu=True)
        self.top = Layers((len(self.pairs) + DIM, *DLRM_TOP), args.precision)

    def __call__(self, batch: Batch) -> tf.Tensor:
        bottom = self.bottom(batch.dense)
        vectors = tf.concat([bottom[:, None], self.tables(batch.ids)], 1)
        dots = tf.matmul(vectors, vectors, transpose_b=True)
        dots = tf.reshape(dots, [-1, vectors.shape[1] ** 2])
        return self.top(tf.concat([bottom, tf.gather(dots, self.pairs, axis=1)], 1))[:, 0]


class DeepFm(tf.Module):
    def __init__(self, args: Namespace) -> None:
        super().__init__()
        inputs = len(args.workload.num_rows) * DIM + args.workload.num_dense
        self.tables = Tables(args.workload.num_rows, DIM)
        self.first = Tables(args.workload.num_rows, 1)
        self.first_dense = Layers((args.workload.num_dense, 1), "float32")
        self.deep = Layers((inputs, *DEEPFM_DEEP), args.precision)

    def __call__(self, batch: Batch) -> tf.Tensor:
        vectors = self.tables(batch.ids)
        total = tf.reduce_sum(vectors, 1)
        pairs = 0.5 * tf.reduce_sum(total**2 - tf.reduce_sum(vectors**2, 1), 1)
        first = tf.reduce_sum(self.first(batch.ids), [1, 2]) + self.first_dense(batch.dense)[:, 0]
        return self.deep(tf.concat([_flat(vectors), batch.dense], 1))[:, 0] + pairs + first


class Mlp(tf.Module):
    def __init__(self, args: Namespace) -> None:
        super().__init__()
        self.tables = Tables(args.workload.num_rows, DIM)
        self.layers = Layers((len(args.workload.num_rows) * DIM, *MLP), args.precision)

    def __call__(self, batch: Batch) -> tf.Tensor:
        return self.layers(_flat(self.tables(batch.ids)))[:, 0]


def _flat(vectors: tf.Tensor) -> tf.Tensor:
    return tf.reshape(vectors, [-1, vectors.shape[1] * vectors.shape[2]])


def _number(loss: tf.Tensor | None) -> float | None:
    return None if loss is None else float(loss)


if __name__ == "__main__":
    main()
