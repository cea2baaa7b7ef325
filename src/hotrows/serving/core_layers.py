"""Layers over histories that the native core computes, where the program would pad and repeat lists.

    model.onnx        vectors of candidates and of histories -> logits         anyone can run it
    model.core.onnx   vectors of candidates, outputs of layers -> logits       behind the layers

A layer reads the lists of all samples end to end, each once for all candidates that share it. It computes
as in training (`ops.layers.attention`), with the order of sums of `hotrows predict`. Parameters are those
of the whole program, by name.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from ctypes import c_float
from dataclasses import dataclass
from typing import Any

import numpy as np

from hotrows.data.rows import ends_of
from hotrows.runtime.native import call, codes
from hotrows.serving.bundle import Bundle, CoreLayer
from hotrows.serving.programs import Program, open_core_program, values_of
from hotrows.serving.user_cache import UserCache, key_of

_Product = Callable[[np.ndarray, np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Lists:
    """R lists, of which the samples of a request may share one.

    queries: [B, D]; keys: [N, D], list after list; lengths: [R], of the lists; samples: [R], how many
    samples each list is of.
    """

    queries: np.ndarray
    keys: np.ndarray
    lengths: np.ndarray
    samples: np.ndarray

    @property
    def num_pairs(self) -> int:
        """N', the keys of the lists of all samples."""
        return int(self.lengths @ self.samples)

    @functools.cached_property
    def places(self) -> tuple[np.ndarray, ...]:
        """The core's `SharedLists`: ends of the lists of all samples, offsets of lists, starts."""
        return tuple(map(ends_of, (self.lengths * self.samples, self.lengths, self.samples)))

    def only(self, chosen: np.ndarray) -> Lists:
        """Those lists alone, [R] bool, without queries."""
        keys = self.keys[np.repeat(chosen, self.lengths)]
        return Lists(self.queries[:0], keys, self.lengths[chosen], self.samples[chosen])

    def product(self, x: np.ndarray, matrix: np.ndarray) -> np.ndarray:
        """x [N, D], of keys, times a matrix: a list of several samples by itself, so that its bits do not
        depend on the other lists, and all others at once."""
        is_shared, offsets = self.samples > 1, self.places[1]
        if len(is_shared) == 1 or not is_shared.any():
            return x @ matrix
        out, others = np.empty((len(x), matrix.shape[1]), np.float32), np.repeat(~is_shared, self.lengths)
        out[others] = x[others] @ matrix
        for first, end in zip(offsets[:-1][is_shared], offsets[1:][is_shared], strict=True):
            np.matmul(x[first:end], matrix, out=out[first:end])
        return out


class TargetAttentionLayer:
    """`models.nn.TargetAttention` of lists.

    precision: of its products, one of `bundle.PRECISIONS`; int8 needs the range of a sigmoid, and means
    bfloat16 with any other activation. plain: without the instructions for it.
    """

    def __init__(
        self, options: Mapping[str, Any], dim: int, parameters: Sequence[np.ndarray],
        precision: str = "float32", plain: bool = False,
    ) -> None:  # fmt: skip
        bits = _BITS[precision]
        self._bits, self._plain = bits if options["activation"] == "sigmoid" else max(bits, 16), plain
        self._sizes = np.array(options["sizes"], np.int64)
        self._activation = _ACTIVATIONS[options["activation"]]
        self._scale, self._normalize, self._dim = options["scale"], options["normalize"], dim
        end = 2 + 2 * len(self._sizes)
        self._first, slopes = parameters[:2], parameters[end:]
        self._others = np.concatenate(parameters[2:end])
        self._slopes = np.concatenate(slopes) if slopes else None

    @staticmethod
    def sizes(options: Mapping[str, Any], dim: int) -> list[int]:
        """How many values each parameter has."""
        hidden = options["sizes"]
        sizes = [4 * dim * hidden[0], hidden[0]]
        for into, out in itertools.pairwise([*hidden, 1]):
            sizes += [into * out, out]
        return [*sizes, *hidden] if options["activation"] == "prelu" else sizes

    def __call__(self, lists: Lists) -> np.ndarray:
        """[B, D]: a weighted sum of each sample's keys; zeros for an empty list."""
        out = np.empty_like(lists.queries)
        self.weights(lists, out)
        return out

    def weights(self, lists: Lists, sums: np.ndarray | None = None) -> np.ndarray:
        """[N'], of the keys of every sample's list; sums: receives what `__call__` returns."""
        weights = np.empty(lists.num_pairs, np.float32)
        is_narrow = self._bits < 32
        name = "narrow_attention" if is_narrow else "target_attention"
        how = [self._bits, int(self._plain)] if is_narrow else []
        call(
            name, lists.queries, lists.keys, *lists.places, len(lists.lengths),
            self._dim, *self._first, self._sizes, len(self._sizes), self._others, self._slopes,
            self._activation, c_float(self._scale), int(self._normalize), *how, weights, sums,
        )  # fmt: skip
        return weights


class EvolvingInterestLayer:
    """`models.interests.EvolvingInterest` of lists, DIEN's: two GRUs, the second led by attention.

    precision: of products with the queries, whose number is large; the second GRU has bfloat16 for int8.
    plain: as in `TargetAttentionLayer`.
    """

    def __init__(
        self, options: Mapping[str, Any], dim: int, parameters: Sequence[np.ndarray],
        precision: str = "float32", plain: bool = False,
    ) -> None:  # fmt: skip
        self._bits, self._plain = max(_BITS[precision], 16), plain
        self._dim, self._kind = dim, _KINDS_OF_GRUS[options["evolution"]]
        self._after, self._sums = options["reset"] == "after", options["sums"]
        self._extraction, self._evolving = parameters[:4], parameters[4:8]
        self._query = [p.reshape(-1, dim) for p in parameters[8:11]]  # weight, maybe bias and slope
        attention, others = options["attention"], parameters[11:]
        self._attention = None
        if attention:
            self._attention = TargetAttentionLayer(attention, dim, others, precision, plain)

    @staticmethod
    def sizes(options: Mapping[str, Any], dim: int) -> list[int]:
        """How many values each parameter has."""
        sizes = 2 * [3 * dim * dim, 3 * dim * dim, 3 * dim, 3 * dim] + [dim * dim]
        attention = options["attention"]
        return [*sizes, dim, dim, *TargetAttentionLayer.sizes(attention, dim)] if attention else sizes

    def __call__(self, lists: Lists, states: np.ndarray | None = None) -> np.ndarray:
        """[B, D], or with sums [B, 3 D]: the last state that attention to each query leads to. states: as
        `of_lists` makes them."""
        states, dim = self.of_lists(lists) if states is None else states, self._dim
        query = lists.queries @ self._query[0].T
        of_states = dataclasses.replace(lists, queries=query, keys=states)
        if self._attention is None:
            weights = np.empty(lists.num_pairs, np.float32)
            call("jagged_dot", query, states, *lists.places, len(lists.lengths), dim, weights)
            ends = ends_of(np.repeat(lists.lengths, lists.samples))
            call("softmax_jagged", weights, ends, len(query), weights)
        else:
            query += self._query[1]
            query[:] = np.where(query > 0, query, query * self._query[2])
            weights = self._attention.weights(of_states)
        into, across, bias, bias_across = self._evolving
        parts = states @ into.reshape(-1, dim).T + bias
        last = np.empty_like(query)
        call(
            "last_states", parts, weights, *lists.places, len(lists.lengths), across, bias_across,
            dim, self._kind, int(self._after), self._bits, int(self._plain), last,
        )  # fmt: skip
        if not self._sums:
            return last
        pieces = np.split(lists.keys, np.cumsum(lists.lengths)[:-1])
        total = np.repeat(np.stack([piece.sum(0) for piece in pieces]), lists.samples, 0)
        return np.concatenate([last, total, total * lists.queries], 1)

    def of_lists(self, lists: Lists) -> np.ndarray:
        """[N, D]: the states of the first GRU, once for each list."""
        into, across, bias, bias_across = self._extraction
        parts = lists.product(lists.keys, into.reshape(-1, self._dim).T) + bias
        states, inner = np.empty_like(lists.keys), np.empty_like(lists.keys)
        call(
            "recurrent", parts, None, ends_of(lists.lengths), len(lists.lengths), across, bias_across,
            self._dim, _KINDS_OF_GRUS["gru"], int(self._after), inner if self._after else None, states,
        )  # fmt: skip
        return states


class TransducedInterestLayer:
    """`models.hstu.TransducedInterest` of lists: each layer of HSTU reads what the one before it made."""

    def __init__(self, options: Mapping[str, Any], dim: int, parameters: Sequence[np.ndarray]) -> None:
        self._dim, step = dim, len(self.sizes({**options, "layers": 1}, dim))
        of_layers = (parameters[first : first + step] for first in range(0, len(parameters), step))
        self._layers = [_Transduction(options, dim, of_layer) for of_layer in of_layers]

    @staticmethod
    def sizes(options: Mapping[str, Any], dim: int) -> list[int]:
        """How many values each parameter has."""
        linear = [2 * dim * dim, 2 * dim, 2 * dim * dim, 2 * dim, dim * dim, dim]
        return options["layers"] * [*4 * [dim], *linear, options["heads"] * options["places"]]

    def __call__(self, lists: Lists, keys: np.ndarray | None = None) -> np.ndarray:
        """[B, D]: the state of each query behind its list. keys: as `of_lists` makes them."""
        state, keys = lists.queries, self.of_lists(lists) if keys is None else keys
        for layer, of_layer in zip(self._layers, keys, strict=True):
            state = layer.behind(lists, state, of_layer)
        return state

    def of_lists(self, lists: Lists) -> np.ndarray:
        """[layers, N, 2D]: what each layer lets queries read."""
        all_keys, past = np.empty((len(self._layers), len(lists.keys), 2 * self._dim), "f4"), lists.keys
        for place, layer in enumerate(self._layers):
            x = layer.normed(past)
            all_keys[place] = layer.keys(x, lists.product)
            if place < len(self._layers) - 1:
                past = layer.within(lists, past, x, all_keys[place])
        return all_keys


class _Transduction:
    """`models.nn.hstu.TransductionLayer` of lists."""

    def __init__(self, options: Mapping[str, Any], dim: int, parameters: Sequence[np.ndarray]) -> None:
        self._heads, self._places, self._eps = (options[name] for name in ("heads", "places", "eps"))
        self._norm, self._norm_attended = parameters[:2], parameters[2:4]
        matrices = [weight.reshape(-1, dim).T for weight in parameters[4:10:2]]
        self._gates, self._keys, self._output = zip(matrices, parameters[5:10:2], strict=True)
        self._distances = parameters[10]

    def normed(self, x: np.ndarray) -> np.ndarray:
        return _normed(x, self._norm, self._eps)

    def keys(self, x: np.ndarray, product: _Product = np.matmul) -> np.ndarray:
        """[N, 2D], keys and behind them values; x: normed."""
        return _silu(product(x, self._keys[0]) + self._keys[1])

    def within(self, lists: Lists, past: np.ndarray, x: np.ndarray, keys: np.ndarray) -> np.ndarray:
        """[N, D]: of elements, which read those up to their own place."""
        gates, queries = self._gates_of(x, lists.product)
        return self._out(self._attended(lists, queries, keys, None), gates, past, lists.product)

    def behind(self, lists: Lists, queries: np.ndarray, keys: np.ndarray) -> np.ndarray:
        """[B, D]: of queries, which read all of their list and themselves."""
        x = self.normed(queries)
        gates, query = self._gates_of(x)
        by_head = (len(x), self._heads, -1)
        key, value = (half.reshape(by_head) for half in np.split(self.keys(x), 2, 1))
        score = (query.reshape(by_head) * key).sum(2) + self._distances[:: self._places]
        attended = self._attended(lists, query, keys, lists.places[2])
        attended += ((_silu(score) / np.float32(self._places))[:, :, None] * value).reshape(x.shape)
        return self._out(attended, gates, queries)

    def _gates_of(self, x: np.ndarray, product: _Product = np.matmul) -> tuple[np.ndarray, np.ndarray]:
        """Gates and queries, [N, D] each."""
        gates, queries = np.split(_silu(product(x, self._gates[0]) + self._gates[1]), 2, 1)
        return gates, np.ascontiguousarray(queries)

    def _attended(
        self, lists: Lists, queries: np.ndarray, keys: np.ndarray, starts: np.ndarray | None
    ) -> np.ndarray:
        out, dim = np.empty_like(queries), queries.shape[1]
        call(
            "pointwise_attention", queries, dim, keys, 2 * dim, starts, lists.places[1], self._distances,
            None, None, None, len(lists.lengths), self._heads, dim // self._heads, self._places, out,
        )  # fmt: skip
        return out

    def _out(
        self, attended: np.ndarray, gates: np.ndarray, x: np.ndarray, product: _Product = np.matmul
    ) -> np.ndarray:
        normed = _normed(attended, self._norm_attended, self._eps)
        return product(normed * gates, self._output[0]) + self._output[1] + x


def _normed(x: np.ndarray, norm: Sequence[np.ndarray], eps: float) -> np.ndarray:
    """Layer normalisation, by a weight and a bias."""
    apart = x - x.mean(1, keepdims=True)
    return apart / np.sqrt((apart * apart).mean(1, keepdims=True) + np.float32(eps)) * norm[0] + norm[1]


def _silu(x: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):  # 1 / inf is 0
        return x / (1 + np.exp(-x))


@dataclass(frozen=True)
class CoreModel:
    """The layers of the core by name, and the program behind them. threads: of the layers."""

    bundle: Bundle
    program: Program
    layers: Mapping[str, Callable[[Lists], np.ndarray]]
    threads: int

    def output(self, layer: CoreLayer, lists: Lists, cache: UserCache | None = None) -> np.ndarray:
        """What a layer makes of lists: [B, D]. cache: of what it makes of lists that samples share."""
        compute, before = self.layers[layer.name], call("set_threads", self.threads)
        try:
            if cache is not None and isinstance(compute, OF_LISTS):
                return compute(lists, _of_lists(compute, lists, cache))
            return compute(lists)
        finally:
            call("set_threads", before)

    def with_parameters(self, values: Mapping[str, np.ndarray]) -> CoreModel:
        """The model with these values of its parameters, all of which must be there."""
        program = self.program.with_parameters(values)
        flat = {name: np.ascontiguousarray(value).reshape(-1) for name, value in values.items()}
        return dataclasses.replace(self, program=program, layers=_layers(self.bundle, flat))


def open_core(bundle: Bundle, content: bytes, threads: int) -> CoreModel:
    """The model with layers of the core; content: of the file of the whole program."""
    layers = _layers(bundle, values_of(content))
    return CoreModel(bundle, open_core_program(bundle, threads), layers, threads)


def _of_lists(
    layer: EvolvingInterestLayer | TransducedInterestLayer, lists: Lists, cache: UserCache
) -> np.ndarray:
    """What a layer makes of lists alone, in the same bits with a cache and without."""
    offsets, missing = lists.places[1], np.ones(len(lists.lengths), bool)
    shared = np.flatnonzero(lists.samples > 1).tolist()
    keys = {r: key_of(layer, lists.keys[offsets[r] : offsets[r + 1]]) for r in shared}
    parts = cache.find(keys)
    missing[list(parts)] = False
    if missing.any():
        missed = lists.only(missing)
        pieces = np.split(layer.of_lists(missed), missed.places[1][1:-1], -2)
        for r, piece in zip(np.flatnonzero(missing).tolist(), pieces, strict=True):
            parts[r] = piece
            if r in keys:
                cache.keep(keys[r], piece.copy())
    return np.concatenate([parts[r] for r in range(len(missing))], -2)


def _layers(bundle: Bundle, values: Mapping[str, np.ndarray]) -> dict[str, Callable[[Lists], np.ndarray]]:
    dims = {table.name: table.dim for table in bundle.tables}
    layers: dict[str, Callable[[Lists], np.ndarray]] = {}
    for layer in bundle.core_layers:
        reads = layer.targets, layer.sequences
        widths = [sum(dims.get(table, 0) for _, table in which) for which in reads]
        if layer.kind not in KINDS or widths[0] != widths[1]:
            raise ValueError(
                f"{bundle.path} has the layer {layer.name!r}, which this version of hotrows does not "
                f"have; export again"
            )
        kind, dim = KINDS[layer.kind], widths[0]
        parameters = [values.get(name, _NONE) for name in layer.parameters]
        sizes, expected = [p.size for p in parameters], kind.sizes(layer.options, dim)
        if sizes != expected:
            raise ValueError(
                f"layer {layer.name!r} needs parameters of {expected} values, not {sizes}; export again"
            )
        of_layer = [np.array(p, np.float32) for p in parameters]
        how = (bundle.precision,) if layer.can_be_narrow else ()
        layers[layer.name] = kind(layer.options, dim, of_layer, *how)
    return layers


KINDS: dict[str, type[TargetAttentionLayer | EvolvingInterestLayer | TransducedInterestLayer]] = {
    "target_attention": TargetAttentionLayer,
    "evolving_interest": EvolvingInterestLayer,
    "transduced_interest": TransducedInterestLayer,
}
OF_LISTS = EvolvingInterestLayer, TransducedInterestLayer
"""Those that make something of lists alone, whatever the queries."""
_NONE = np.zeros(0, np.float32)
_BITS = {"float32": 32, "bfloat16": 16, "int8": 8}
_ACTIVATIONS = codes("target_activation", "sigmoid", "prelu", "relu", "tanh", "none")
_KINDS_OF_GRUS = codes("recurrent_kind", "gru", "augru", "augru_code", "agru")
