"""How fast are the layers of models with histories, beside PyTorch's own forms of them?

Forward and backward of each layer: ours on lists end to end, by the kernels in `hotrows.ops.triton`, and
plain PyTorch on lists padded to the longest (attention, co-action, the GRU led by attention), and cuDNN
on a packed sequence (`nn.GRU`). 8,192 samples of 1 to 100 elements, dim 36; products in float32 on both
sides. Outputs and the gradients of parameters are compared first.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence

from benchmarks.gpu_parts.part import Findings, Setting
from benchmarks.gpu_parts.timing import timed
from hotrows.models.nn import GRU, AttentionalGRU, CoAction, TargetAttention, last_of, to_padded
from hotrows.ops.layers.padded import PaddedLists

DIM = 36


@dataclass(frozen=True)
class Pair:
    """Both forms of a layer; shared: leaves of both, beside which each has inputs of its own."""

    ours: Callable[[], Tensor]
    theirs: Callable[[], Tensor]
    shared: Sequence[Tensor]
    our_inputs: Sequence[Tensor] = ()
    their_inputs: Sequence[Tensor] = ()


def run(findings: Findings, setting: Setting) -> None:
    torch.backends.cudnn.allow_tf32 = False  # as our own products are, three of TF32 each
    pairs = {}
    for name, make in PAIRS.items():
        torch.manual_seed(0)
        pairs[name] = make(setting)
        findings.check_runs(f"{name}: equal to PyTorch's", lambda name=name: _check(pairs[name]))
    findings.demand_green()
    for name, pair in pairs.items():
        ours = timed(lambda pair=pair: _step(pair.ours, pair.shared, pair.our_inputs), setting)
        theirs = timed(lambda pair=pair: _step(pair.theirs, pair.shared, pair.their_inputs), setting)
        findings.add(name, {
            "ms": ours.ms, "launch_ms": ours.launch_ms, "pytorch_ms": theirs.ms,
            "pytorch_launch_ms": theirs.launch_ms, "faster": theirs.ms / ours.ms,
        })  # fmt: skip


def _step(form: Callable[[], Tensor], shared: Sequence[Tensor], inputs: Sequence[Tensor]) -> list[Tensor]:
    """Its output and the gradients of what is shared; gradients of the inputs are computed, too."""
    out = form()
    return [out, *torch.autograd.grad(out.square().sum(), [*shared, *inputs])[: len(shared)]]


def _check(pair: Pair) -> None:
    ours = _step(pair.ours, pair.shared, pair.our_inputs)
    theirs = _step(pair.theirs, pair.shared, pair.their_inputs)
    highest = [value.abs().max().item() for value in theirs]
    least = 1e-5 * max(highest[1:])  # of a bias in front of a softmax the gradient is noise
    for one, other, scale in zip(ours, theirs, highest, strict=True):
        assert (one - other).abs().max().item() <= max(1e-3 * scale, least), "the two forms differ"
    for one, again in zip(ours, _step(pair.ours, pair.shared, pair.our_inputs), strict=True):
        assert torch.equal(one, again), "a second run has other bits"


def _lists(setting: Setting, width: int) -> tuple[Tensor, Tensor, Tensor, PaddedLists]:
    """Vectors end to end, their offsets, the vectors padded to the longest list, and its lists."""
    size, longest = setting.pick((8192, 100), (12, 7))
    lengths = torch.randint(1, longest + 1, (size,), device=setting.device)
    lengths[0] = longest
    offsets = functional.pad(lengths.cumsum(0), (1, 0))
    values = torch.randn(int(offsets[-1]), width, device=setting.device)
    padded = to_padded(values, offsets, longest)[0].flatten(0, 1)
    return values.requires_grad_(), offsets, padded.requires_grad_(), PaddedLists(lengths, longest)


def _attention(setting: Setting) -> Pair:
    keys, offsets, padded, lists = _lists(setting, DIM)
    layer = TargetAttention(DIM).to(setting.device)
    queries = torch.randn(len(offsets) - 1, DIM, device=setting.device, requires_grad=True)
    return Pair(
        lambda: layer(queries, keys, offsets), lambda: layer(queries, padded, lists),
        [queries, *layer.parameters()], [keys], [padded],
    )  # fmt: skip


def _co_action(setting: Setting) -> Pair:
    inputs, offsets, padded, lists = _lists(setting, 16)
    layer = CoAction()
    weights = torch.randn(len(offsets) - 1, CoAction.num_parameters(), device=setting.device) / 4
    weights.requires_grad_()
    return Pair(
        lambda: layer(weights, inputs, offsets), lambda: layer(weights, padded, lists),
        [weights], [inputs], [padded],
    )  # fmt: skip


def _gru(setting: Setting) -> Pair:
    x, offsets, padded, lists = _lists(setting, DIM)
    layer, peer = GRU(DIM, DIM).to(setting.device), nn.GRU(DIM, DIM, batch_first=True).to(setting.device)
    peer._flat_weights = [
        getattr(layer, name) for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    ]
    lengths = lists.lengths.cpu()

    def packed() -> Tensor:
        sequences = lists.apart(padded)
        return peer(pack_padded_sequence(sequences, lengths, True, enforce_sorted=False))[1][0]

    return Pair(
        lambda: last_of(layer(x, offsets, lengths), offsets), packed, [*layer.parameters()], [x], [padded]
    )


def _attentional_gru(setting: Setting) -> Pair:
    x, offsets, padded, lists = _lists(setting, DIM)
    layer = AttentionalGRU(DIM, DIM).to(setting.device)
    attention = torch.rand(len(x), 1, device=setting.device)
    spread = to_padded(attention, offsets, lists.longest)[0].flatten()

    def steps() -> Tensor:
        """A step of all samples after the other, each where its list has not ended."""
        parts = lists.apart(functional.linear(padded, layer.weight_ih, layer.bias_ih)).unbind(1)
        h = padded.new_zeros(len(lists.lengths), DIM)
        for part, a, shown in zip(
            parts, lists.apart(spread).unbind(1), lists.mask.unbind(1), strict=True
        ):
            x_r, x_z, x_n = part.chunk(3, 1)
            u_r, u_z, u_n = functional.linear(h, layer.weight_hh, layer.bias_hh).chunk(3, 1)
            n = torch.tanh(x_n + torch.sigmoid(x_r + u_r) * u_n)
            h = h + (shown * a)[:, None] * torch.sigmoid(x_z + u_z) * (n - h)
        return h

    lengths = lists.lengths.cpu()
    return Pair(
        lambda: last_of(layer(x, attention.flatten(), offsets, lengths), offsets), steps,
        [*layer.parameters()], [x], [padded],
    )  # fmt: skip


PAIRS = {
    "target attention": _attention, "co-action": _co_action, "GRU": _gru,
    "attentional GRU": _attentional_gru,
}  # fmt: skip
