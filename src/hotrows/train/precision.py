"""One line at the start of a long run, where bfloat16 would train much faster on this processor."""

from __future__ import annotations

import logging

from hotrows.nn.linear_paths import kept_seconds_by_format, products_per_sample
from hotrows.train.step_trainer import StepTrainer

log = logging.getLogger("hotrows")

_LONG = 600.0  # seconds
_MUCH = 1.5


def advise_bfloat16(steps: StepTrainer, samples_per_second: float) -> None:
    """Says that bfloat16 would be faster, if so; called after the first steps, whose speed is given.

    The gain is predicted: what of a step is no product of a linear layer takes as long as before.
    """
    config = steps.config
    if config.precision == "bfloat16" or not steps.recommender.device.on_host or not samples_per_second:
        return
    assert config.batch_size is not None, "settle the config first"
    left = steps.batches.known_steps - steps.state.step
    step = config.batch_size / samples_per_second
    if left * step < _LONG or not products_per_sample(steps.model):
        return
    seconds = kept_seconds_by_format(steps.model, -(-config.batch_size // steps.ranks.num_ranks))
    ratio = seconds["bfloat16"] / seconds["float32"]
    gain = step / (step - min(seconds["float32"], step) * (1 - ratio))
    if gain >= _MUCH:
        log.info(
            f"some {left * step / 60:,.0f} minutes are to train: --precision bfloat16 "
            f"(precision='bfloat16') would be about {gain:.1f} times as fast on this processor"
        )
