"""DIN and DIEN of DeepCTR-Torch and FuxiCTR, with what their own loops do in a step.

Both train with dense Adam: every step touches every row of every table. DeepCTR-Torch pads to the
longest history there may be, FuxiCTR to the longest in the batch. L2 regularisation is off.
"""

from argparse import Namespace
from collections.abc import Callable

import torch
from torch import nn
from torch.optim import Optimizer

from benchmarks.arms import accelerated, sequence_arm
from benchmarks.samples import Samples
from benchmarks.sequences import ATTENTION, FEATURES, HIDDEN, batches_of

Trained = tuple[Callable[[int], float], nn.Module, Optimizer]


def main() -> None:
    parser = sequence_arm.parser(library=("deepctr-torch", "fuxictr"))
    accelerated.add_arguments(parser)
    args = parser.parse_args()
    if args.model == "can":
        raise ValueError("neither library has CAN")
    torch.set_num_threads(args.threads)
    make_step = {"deepctr-torch": deepctr, "fuxictr": fuxictr}[args.library]
    trained = make_step(args, batches_of(batch_size=args.batch_size))
    accelerated.report(args, *trained, "torch", args.library)


def deepctr(args: Namespace, data: list[Samples]) -> Trained:
    from benchmarks.arms import deepctr_models

    options = {"dnn_hidden_units": HIDDEN, "att_activation": "sigmoid", "task": "binary"}
    if args.model == "din":
        options |= {"att_hidden_size": ATTENTION, "att_weight_normalization": True}
    else:
        options |= {"att_hidden_units": ATTENTION, "gru_type": "AUGRU"}
    model = deepctr_models.build(args.model, FEATURES, args.dim, **options)
    model.compile("adam", "binary_crossentropy")
    model.train()
    inputs = [deepctr_models.inputs(FEATURES, samples) for samples in data]
    labels = [torch.from_numpy(samples.labels) for samples in data]

    def step(k: int) -> float:
        k %= len(data)
        loss = model.loss_func(model(inputs[k]).squeeze(), labels[k], reduction="sum")
        model.optim.zero_grad()
        (loss + model.get_regularization_loss() + model.aux_loss).backward()
        model.optim.step()
        return loss.item() / args.batch_size

    return step, model, model.optim


def fuxictr(args: Namespace, data: list[Samples]) -> Trained:
    from benchmarks.arms import fuxictr_models

    options = {"dnn_hidden_units": list(HIDDEN), "batch_norm": False}
    options["attention_hidden_units"] = list(ATTENTION)
    if args.model == "din":
        options |= {"attention_hidden_activations": "sigmoid", "din_use_softmax": True}
    else:
        options |= {"attention_type": "din_attention", "attention_activation": "sigmoid"}
    model = fuxictr_models.build(args.model, FEATURES, args.dim, task="binary_classification", **options)
    model.train()
    model._max_gradient_norm, model._batch_index = 10.0, 0  # what its fit() sets

    def labelled(samples: Samples) -> tuple:
        columns, items, mask = fuxictr_models.inputs(FEATURES, samples)
        return columns | {"label": torch.from_numpy(samples.labels)}, items, mask

    inputs = [labelled(samples) for samples in data]
    return lambda k: model.train_step(inputs[k % len(inputs)]).item(), model, model.optimizer


if __name__ == "__main__":
    main()
