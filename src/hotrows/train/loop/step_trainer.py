"""StepTrainer: trains a model step by step; it has no folder, and neither evaluates nor saves.

    steps = StepTrainer(data, config, ranks)
    steps.choose_linear_paths()
    with closing(steps.start()) as runner:          # loads, plans and moves rows ahead
        for work in runner:
            loss = steps.train(work)

`Trainer` makes a run of it, `tools.tuning.benchmark` measures it.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor

from hotrows.batch import Batch
from hotrows.data import EncodedData
from hotrows.data.stored.order import POOL_ROWS
from hotrows.data.streams import EventStream
from hotrows.engine import stages
from hotrows.engine.distributed.all_or_none import of_rank_0
from hotrows.engine.distributed.comm import Note, OneRank, Ranks
from hotrows.engine.distributed.dense_gradients import SharedGradients
from hotrows.engine.distributed.process_group import Processes
from hotrows.engine.pipeline.runner import Overlapped, Serial
from hotrows.engine.pipeline.schedule import Work
from hotrows.losses import Calibration
from hotrows.models import nn
from hotrows.models.model import Model
from hotrows.runtime import native
from hotrows.train.config import TrainConfig
from hotrows.train.costs import placement
from hotrows.train.costs.placement import ShardingPlan
from hotrows.train.loop.blocks import batches_of, popular_ids
from hotrows.train.loop.cuda_graph import CapturedStep, described, refusal_of_capture, why_not_captured
from hotrows.train.loop.predictor import Predictor
from hotrows.train.loop.recommender import check_defaults
from hotrows.train.loop.step import Step, dense_optimizer
from hotrows.train.loop.within_groups import Meetings
from hotrows.train.run.data import RunBatches, TrainingBatches, check_labels, id_counts
from hotrows.train.run.stream_batches import DealtStream, StreamBatches
from hotrows.train.start.defaults import settle

log = logging.getLogger("hotrows")

Runner = Serial | Overlapped
ChooseSharding = Callable[[], ShardingPlan]
_WORTH = 1 << 27  # multiply-adds of a forward pass that each thread should have
_ROW = 1000  # multiply-adds in whose time a row is read and updated


class StepTrainer:
    """A model with its tables, its optimizers, and the batches that it is trained on.

    place: returns how tables are dealt over ranks and packs; called with a function that chooses it by
    the costs of a step, which is what is done by default.
    model: a class, or an object that is trained as it is; None: the one that `config` names.
    step: one update, called with plan, batch and the scale of both learning rates; may be replaced.
    """

    def __init__(
        self,
        data: EncodedData,
        config: TrainConfig,
        ranks: Ranks | None = None,
        place: Callable[[ChooseSharding], ShardingPlan] = lambda choose: choose(),
        model: Model | type[Model] | None = None,
    ) -> None:
        self.ranks, self.config = ranks or OneRank(), settle(config, data)
        self.data = data
        batches = batches_of(data, self.config, self.ranks)
        self.batches: RunBatches = batches
        self._popular = popular_ids(data, self.config)
        self._choose_sharding = place
        self.recommender = Predictor(
            self.config,
            data.schema,
            popular=self._popular,
            ranks=self.ranks,
            place=self._place,
            model=model,
        )
        check_labels(data, self.recommender.tasks, self.recommender.losses)
        self._keep_groups(batches)
        self.recommender.begin_at(of_rank_0(self.ranks, data.label_means))
        self.model, self.embedding = self.recommender.model, self.recommender.embedding
        self.cached_tables = self.embedding.cached_tables
        if self.embedding.packed.decay_by_count.needs_counts:
            assert self.config.batch_size is not None, "settle the config first"
            num_batches = -(-data.parts["train"].rows // self.config.batch_size)
            tables, crosses = self.embedding.tables, self.model.crosses
            self.embedding.set_counts(id_counts(data, tables, crosses, max(num_batches, 1)))
        self._num_weights = sum(p.numel() for p in self.model.parameters() if p.dim() >= 2)
        refusal = refusal_of_capture(self.embedding, self.ranks, self.model)
        # Whether steps are captured or not, so that either has the same bits.
        self._pads = self.config.device != "cpu" and refusal is None
        captures = self._captures(refusal)
        self.dense_optimizer = dense_optimizer(self.config, self.model, captures)
        self._shared = SharedGradients(self.model, self.ranks)
        self._plain_step = Step(self.recommender, self.dense_optimizer, self.config, self._shared)
        self.step: Callable[..., Tensor] = self._plain_step
        if captures:
            self.step = CapturedStep(self._plain_step, is_wanted=bool(self.config.cuda_graph))
        self.state, self._meetings = self.batches.first_state(), Meetings(self.recommender)
        self.choices: dict[str, str] = {}
        self._runner: Runner | None = None

    def _captures(self, refusal: str | None) -> bool:
        """True if steps are launched as CUDA graphs; says on a GPU what the config has left open."""
        log.debug("settings: %s", " ".join(self.config.to_json().split()))
        config, reason = self.config, refusal
        if config.cuda_graph and refusal is not None:
            raise ValueError(f"cuda_graph: {refusal}")
        if not config.cuda_graph:
            reason = why_not_captured(config, self.embedding, refusal)
        if config.device != "cpu" and self.ranks.rank == 0:
            log.info(described(config, self.embedding, self.data.schema, reason))
        return reason is None

    def _keep_groups(self, batches: TrainingBatches) -> None:
        """Keeps the samples of a group in one batch for a loss that compares them; warns where shuffling
        scatters them all the same."""
        orders = [loss.name for loss in self.recommender.losses if loss.is_order]
        if not orders or not self.config.shuffle:
            return
        batches.keep_groups()
        if self.ranks.rank == 0 and batches.scatters_groups():
            log.warning(
                f"the loss {orders[0]} compares samples of a group within a batch, and rows of a group "
                f"are far from one another in the data, which is shuffled {POOL_ROWS:,} rows at a time: "
                f"sort the rows by {self.data.schema.grouping!r}, and prepare them with a split by "
                f"position"
            )

    @property
    def paces(self) -> Sequence[float]:
        """See `Step`."""
        return self._plain_step.paces

    @property
    def num_samples(self) -> int:
        """Samples that are trained on, in all epochs."""
        assert self.config.batch_size is not None, "settle the config first"
        return self.batches.total_steps * self.config.batch_size

    @property
    def place(self) -> str:
        """Which step of how many was trained last; no one knows how many a stream will make."""
        of_all = f" of {self.batches.total_steps:,}" if self.batches.known_steps else ""
        return f"step {self.state.step:,}{of_all}"

    def _place(self, model: Model) -> ShardingPlan:
        self.placing = self._choose_sharding(
            lambda: placement.place(
                self.data, self.config, model, self.ranks, self.num_samples, self._popular
            )
        )
        return self.placing

    def choose_linear_paths(self, keep: Callable[[dict], None] = lambda choices: None) -> None:
        """Takes the path of each matrix product, by the rule of the first rank's processor; collective.

        keep: called with the choices on the first rank, before other ranks have them.
        """
        choices = None
        if self.ranks.rank == 0:
            choices = self.recommender.choose_linear_paths()
            keep(choices)
        self.use_linear_paths(self.ranks.gather_objects(choices)[0])

    def use_linear_paths(self, choices: dict[str, str]) -> None:
        """Takes the paths that were chosen earlier."""
        self.choices = choices
        nn.use_linear_paths(self.model, choices)

    def start(self, signals: Callable[[], int] = lambda: 0, trace: bool = False) -> Runner:
        """Returns a runner of the batches to come.

        signals: what this rank requests of all when a batch is planned; see `engine.planning.routing`.
        trace: whether the runner notes when each stage ran.
        """
        batches = self.batches
        if self.config.clip_rows:
            self.embedding.count_squares()
        check_defaults()
        self.recommender.mode.put(training=True)
        self._runner = stages.start(
            self.embedding,
            batches.after(self.state),
            batches.again(self.state),
            plan_depth=self.config.plan_depth,
            trace=trace,
            signals=signals,
            padded=self._pads,
            arrived=batches.arrived,
            num_known=batches.num_left(self.state),
            first=0 if self._runner is None else self._runner.num_trained,
        )
        batches.on_arrival(self._runner.wake)
        return self._runner

    def train(self, work: Work, scale: float = 1.0) -> Tensor:
        """Trains on a batch of the runner; returns its loss. scale: of both learning rates."""
        if self.embedding.wants_catch_up:
            assert self._runner is not None
            with self._runner.paused(trained=False):
                self.embedding.catch_up()
        batch, recommender = work.item.batch, self.recommender
        if self.ranks.rank == 0:
            self._meetings.add(batch, self.state.step + 1 == self.batches.total_steps)
        threads = limited_threads(batch, self._num_weights)
        with recommender.random.drawing(), recommender.mode.training(), threads:
            loss = self.step(work.item.plan, batch, scale)
        self.state = self.batches.advance(self.state)
        return loss

    def calibrate(self, calibration: Calibration) -> None:
        """Predicts with it from here on, and so do checkpoints and whoever begins with them."""
        self.recommender.calibrate(calibration)
        stored = self.recommender.calibration.stored()
        self.state = dataclasses.replace(self.state, calibration=stored)

    def train_on(
        self,
        events: EventStream | None,
        scored: Callable[[Tensor, Batch], None],
        is_due: Callable[[], bool],
    ) -> StreamBatches:
        """Takes the batches of a stream in place of those of the data.

        events: None on ranks other than the first. scored: called with the logits of samples before they
        are trained on. is_due: whether a checkpoint is, by the clock of the first rank.
        """
        batches: StreamBatches
        if self.ranks.num_ranks > 1:
            batches = DealtStream(events, self.state, self.config.steps, is_due, self.ranks)
        else:
            batches = StreamBatches(events, self.state, self.config.steps, is_due)
        self.batches, self.step = batches, self._plain_step  # batches of a stream differ in size
        self._plain_step.scored = scored
        return batches

    def paused(self) -> AbstractContextManager[None]:
        """Between two steps: pauses the stages, so that rows behind a cache can be read."""
        return nullcontext() if self._runner is None else self._runner.paused()

    def note_times(self, note: Note) -> None:
        """Calls `note` with the times of parts of each step, of merging and of messages between ranks."""
        self._plain_step.note = note
        for store in self.cached_tables.files:
            store.note_times(note)
        if not self.config.cuda_graph:
            self.step = self._plain_step  # a graph has no parts
        if isinstance(self.ranks, Processes):
            self.embedding.note = self._shared.note = note
            self.ranks.notes_times = True


def keep_freed_memory() -> None:
    """Makes malloc keep freed memory, for the whole process.

    A step frees and takes the same large blocks again and again.
    """
    native.call("keep_freed_memory")


def num_threads(batch: Batch, weights: int, available: int) -> int:
    """The number of threads for a step on this batch, at most those available; one where it is short.

    Threads wait for one another dozens of times in a step, and beside other programs each time may be one
    in which a core is theirs. What decides is the batch and the model, no clock: sums of products are
    rounded otherwise with another number of threads, and a run should not learn otherwise beside other
    programs.

    weights: of the model's matrices. Each element of a list counts as a sample: of a sequence, models
    multiply each, of other lists it is too many; so it is where a request shares it.
    """
    elements = batch.size + max(batch.num_ids - batch.size * len(batch.all_features), 0)
    work = elements * weights + batch.num_ids * _ROW
    return min(max(work // _WORTH, 1), available)


@contextmanager
def limited_threads(batch: Batch, weights: int) -> Iterator[None]:
    """Lets a step on this batch compute on as many threads as it is worth."""
    available = torch.get_num_threads()
    num = num_threads(batch, weights, available)
    if num == available:
        yield
        return
    torch.set_num_threads(num)
    try:
        yield
    finally:
        torch.set_num_threads(available)
