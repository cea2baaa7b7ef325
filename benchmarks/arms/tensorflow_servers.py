"""TensorFlow 2's ParameterServerStrategy on one machine: chief, one worker, one parameter server.

The chief schedules steps and sleeps; several are on their way at a time. Variables are the server's:
the worker asks it for rows and sends it gradients, over gRPC on the loopback interface.
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from argparse import Namespace
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from benchmarks.arms import arm, rank_arm, tensorflow_sequences
from benchmarks.arms.tensorflow import tf, training_step
from benchmarks.processes import loopback, peak_rss_mb
from benchmarks.sequences import batches_of
from benchmarks.workload import Batch, batches, measure_runs

ROLES = ("ps", "worker")
SEQUENCE_MODELS = ("din", "dien")


def main() -> None:
    args = _parse()
    tf.get_logger().setLevel("ERROR")
    roles = ("chief", *ROLES)
    ports = rank_arm.free_ports(len(roles))
    addresses = {role: [f"127.0.0.1:{port}"] for role, port in zip(roles, ports, strict=True)}
    try:
        servers = [rank_arm.start(role, {}, serve, addresses, role, args.threads) for role in ROLES]
        for server in servers:
            rank_arm.received(server)
        _report(args, addresses, [server.process.pid for server in servers])
        sys.stdout.flush()
        status = 0
    except BaseException:
        traceback.print_exc()
        status = 1
    os._exit(status)  # at once: servers end with this process, and the chief would complain of it


def _parse() -> argparse.Namespace:
    parser = arm.parser(models=(*arm.MODELS, *SEQUENCE_MODELS), histories=tensorflow_sequences.LAYOUTS)
    parser.add_argument("--dim", type=int, default=16, help="of din and dien")
    return arm.finish(parser.parse_args())


def serve(channel: Connection, addresses: dict[str, list[str]], role: str, threads: int) -> None:
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)
    server = tf.distribute.Server(tf.train.ClusterSpec(addresses), role, 0, protocol="grpc")
    channel.send(server.target)
    channel.recv()  # nothing: until the chief ends


def _report(args: Namespace, addresses: dict[str, list[str]], pids: Sequence[int]) -> None:
    run_steps, num_steps, losses = _runner(args, addresses), 0, []

    def run(first: int, num: int) -> None:
        nonlocal num_steps
        losses.append(run_steps(num))
        num_steps += num

    before = loopback()
    timing = measure_runs(run, windows=args.windows, max_seconds=args.max_seconds, pids=pids)
    after = loopback()
    arm.print_figures(
        args,
        timing,
        losses,
        ("tensorflow-cpu", "tf-keras"),
        peak_rss_mb=peak_rss_mb(pids) + arm.peak_rss_mb(),
        wire_mb=(after.num_bytes - before.num_bytes) / num_steps / 1e6,
        wire_packets=(after.num_packets - before.num_packets) / num_steps,
    )


def _runner(args: Namespace, addresses: dict[str, list[str]]) -> Callable[[int], float]:
    """A function that takes a number of steps and returns the last one's loss."""
    strategy = tf.distribute.ParameterServerStrategy(
        tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec(addresses), task_type="chief", task_id=0, rpc_layer="grpc"
        )
    )
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    make_batch, data, make_step = _setting(args)
    with strategy.scope():
        step = make_step(args)
    batches = iter(coordinator.create_per_worker_dataset(lambda: _dataset(data)))

    @tf.function
    def one_step(batches: Any) -> tf.Tensor:
        return strategy.run(step, args=(make_batch(*next(batches)),))

    def run(num: int) -> float:
        for _ in range(num):
            loss = coordinator.schedule(one_step, args=(batches,))
        coordinator.join()
        return float(loss.fetch())

    return run


def _setting(args: Namespace) -> tuple[type, list[tuple[np.ndarray, ...]], Callable]:
    if args.model in SEQUENCE_MODELS:
        data = [
            tensorflow_sequences.inputs(samples, args.histories)
            for samples in batches_of(batch_size=args.batch_size)
        ]
        return tensorflow_sequences.Batch, data, tensorflow_sequences.training_step
    return Batch, batches(args.workload, args.batch_size), training_step


def _dataset(data: Sequence[tuple[np.ndarray, ...]]) -> tf.data.Dataset:
    """The batches in turn, for ever; a part of them may differ in length."""
    parts = [_stacked(part) for part in zip(*data, strict=True)]
    return tf.data.Dataset.from_tensor_slices(tuple(parts)).repeat().prefetch(2)


def _stacked(part: Sequence[np.ndarray]) -> np.ndarray | tf.RaggedTensor:
    if len({array.shape for array in part}) == 1:
        return np.stack(part)
    lengths = [len(array) for array in part]
    return tf.RaggedTensor.from_row_lengths(np.concatenate(part), lengths)


if __name__ == "__main__":
    main()
