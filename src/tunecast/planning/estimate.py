"""What a setting takes on a rig: the one place where the planner asks the predictor.

    Estimator.frame     steps, tokens and all phases but training: no tape needed
    Estimator.floor_s   the least a micro-batch takes on a card (`bounds.py`)
    Estimator.timed     the whole job, phase by phase, as `tunecast predict` says it
    Estimator.held      memory of the fullest card, replayed
    Estimator.said      the whole prediction, for picks

Everything is asked once and kept. A tape depends on the card only by what its kernels look at (`_look`), so cards
alike share one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tunecast.errors import NotResolved, TunecastError, Unsupported
from tunecast.hardware.catalog import gpus
from tunecast.hardware.spec import Gpu
from tunecast.job.job import Job
from tunecast.job.lengths import sample_lengths
from tunecast.job.model import ModelConfig
from tunecast.job.shardings import REPLICATED, SHARDINGS
from tunecast.job.stacks import stack_of
from tunecast.planning.bounds import (
    NO_TENSORS,
    Sent,
    Tensors,
    Work,
    cast_by_deepspeed,
    copied_of,
    has_time_floor,
    lasting_bytes,
    memory_floor_bytes,
    sent_of,
    tensors_of,
    whole_gradients_bytes,
    work_of,
    zero_tensors_of,
)
from tunecast.planning.memo import (
    MOST_FOLDS,
    AloneOf,
    EndOf,
    EpochOf,
    EvaluationOf,
    FloorOf,
    FoldOf,
    FrameOf,
    LikeCards,
    Memo,
    OutsideOf,
    OwnRunOf,
    RamOf,
    SentOf,
    StepTimesOf,
    TensorsOf,
    WorkOf,
)
from tunecast.planning.recipe import Recipe
from tunecast.planning.space import ONE_CARD, Rig, Setting, Space, Split, Spread, ranks_on
from tunecast.prediction import engines
from tunecast.prediction.culprit import config_errors
from tunecast.prediction.data.lengths import Epoch, epoch_of, longest_row
from tunecast.prediction.data.preparation import preparation_s, tokenised_s
from tunecast.prediction.memory.pages import managed_bytes
from tunecast.prediction.memory.replay import replay
from tunecast.prediction.modelled import card_of
from tunecast.prediction.on_card import allocator_settings, job_on_card
from tunecast.prediction.outside.needs import Outside, machine_ram_bytes, outside_of, tensors_on_paper
from tunecast.prediction.prediction import Prediction
from tunecast.prediction.price.host import host_of, loop_s
from tunecast.prediction.time.timing import RunClock, StepTimes, lengths_to_price, plain, typical_epoch
from tunecast.prediction.time.whole import WholeTime, fixed_phases, with_preparation
from tunecast.records import NamedTuple, replace
from tunecast.tape.build.job_runs import fold_job
from tunecast.tape.fold import Folded
from tunecast.tape.shorten import with_few_micro_batches
from tunecast.tape.timed import steps_of_fold
from tunecast.units import MIB

if TYPE_CHECKING:
    from tunecast.prediction.data.own_batches import OwnRun

CANONICAL = "h200-sxm-141gb"
"""The card whose tape floors are read off: products are the same on every card."""


ALONE = Rig(CANONICAL, 1, 1, None, None)
BORROWED_BYTES = 256 * MIB
"""By which cards differ in what their kernels borrow: cuBLAS' workspace (32 MiB on Hopper, 8 elsewhere), attention's,
Triton's sums; tests/unit/test_plan_bounds.py holds floors read off one card against predictions on others."""


class RunFrame(NamedTuple):
    """What is known of a run before its steps are priced."""

    steps: int
    last: float
    """By how much the mean step is shorter for the last one of an epoch."""
    weights: tuple[tuple[int, float], ...]
    """A mean micro-batch takes at least the sum of these shares of those of the given lengths."""
    fixed_s: float
    """All phases but provisioning and, of training, the steps themselves."""
    saves_s: float
    """Of that, checkpoints, which a spot machine may write more seldom."""
    tokenised_s: float
    """Of that, what more processes share."""
    tokens: float
    weights_bytes: int
    """Of the result on disk; 0 where it is not known."""


class Timed(NamedTuple):
    step_s: float
    whole: WholeTime
    weights_bytes: int
    """Of the result on disk; 0 where it is not known."""
    checkpoint_bytes: int


BRIEFLY = 0.01
"""Of the capacity, left free where a job's own batches were replayed briefly: all of them reserved, and needed, at most
0.6 % more (prediction/data/own_batches.py), and no plan may show what a prediction then refuses."""


class Held(NamedTuple):
    """Memory of the fullest card."""

    fits: bool
    needs_bytes: int
    """Of the allocator, without a limit."""
    has_bytes: int
    """For the allocator."""
    device_bytes: int
    range_bytes: tuple[int, int]
    capacity_bytes: int
    """What the process may hold, as `device_bytes` is what it does."""

    @property
    def fits_surely(self) -> bool:
        """At the high end of its range too."""
        return self.fits and self.range_bytes[1] <= self.capacity_bytes


class Estimator:
    def __init__(self, space: Space, model: ModelConfig) -> None:
        self.space, self.model, self.config = space, model, model.raw
        self.lengths = sample_lengths(space.job.data)
        self.bounds_time = has_time_floor(space.job)
        self.memo = Memo()

    # what needs no tape

    def outside(self, recipe: Recipe, spread: Spread, cards: tuple[int, int] = (1, 1)) -> Outside | None:
        """What lies outside the steps, which depends on how weights are cut: as they are cut they are saved. `cards` of
        a machine, and machines, count where each rank writes its part."""
        if spread.light == 0:
            cards = (1, 1)

        def find() -> Outside | None:
            job = self.space.job_of(Rig(CANONICAL, *cards, None, None), Setting(recipe, spread, Split(1, 1)))
            try:
                return outside_of(job, self.model)
            except Unsupported:
                return None

        return self.memo.get(OutsideOf(recipe.base, spread.data, spread.light, cards), find)

    def ram_bytes(self, rig: Rig, setting: Setting) -> int | None:
        """What one machine needs of its host's memory; None where that is not known."""
        key = RamOf(setting.recipe.base, setting.spread, rig.gpus, rig.nodes)
        return self.memo.get(key, lambda: machine_ram_bytes(self.space.job_of(rig, setting), self.model))

    def tensors(self, recipe: Recipe, data: str) -> Tensors:
        is_zero = SHARDINGS[data].is_zero

        def find() -> Tensors:
            job = self.space.alone_on(CANONICAL, recipe, 1)
            try:
                found = tensors_on_paper(job, self.config)
                return (zero_tensors_of if is_zero else tensors_of)(job, self.model, found)
            except NotResolved:
                return NO_TENSORS

        return self.memo.get(TensorsOf(recipe.base, is_zero), find)

    def epoch(self, job: Job, ranks: int) -> Epoch | None:
        key = EpochOf(ranks, Split(job.micro_batch, job.grad_accum))
        return self.memo.get(key, lambda: epoch_of(job, self.lengths))

    def frame(self, rig: Rig, setting: Setting) -> RunFrame:
        recipe, spread, split = setting
        ranks = ranks_on(self.space.job, rig, spread)
        cards = (rig.gpus, rig.nodes) if spread.light else (1, 1)
        key = FrameOf(recipe.base, recipe.kernels, spread.data, spread.light, ranks, split, cards)
        return self.memo.get(key, lambda: self._frame(recipe, spread, ranks, split, cards))

    def _frame(self, recipe: Recipe, spread: Spread, ranks: int, split: Split, cards: tuple[int, int]) -> RunFrame:
        rig, setting = Rig(CANONICAL, ranks, 1, None, None), Setting(recipe, ONE_CARD, split)
        job = self.space.job_of(rig, setting)
        parts = job.parallel
        job = replace(job, hardware=replace(job.hardware, gpus=ranks * parts.tensor * parts.pipeline * parts.context))
        epoch = self.epoch(job, ranks)
        typical = epoch or typical_epoch(job, self.lengths)
        outside = self.outside(recipe, spread._replace(layers=1), cards)
        fixed = fixed_phases(job, epoch, typical=typical, outside=outside)
        assert fixed is not None, "a plan is of a job whose length is known"
        phases = fixed.seconds(training=fixed.steps * loop_s(job, self.model.layers, host_of(job)))
        rest = typical.micro_batches % split.grad_accum
        return RunFrame(
            steps=fixed.steps,
            last=(typical.steps - 1 + rest / split.grad_accum) / typical.steps if rest else 1.0,
            weights=_weights(typical, lengths_to_price(job, typical)),
            fixed_s=sum(s for name, s in phases.items() if name != "provisioning"),
            saves_s=phases["checkpoints"],
            tokenised_s=tokenised_s(job, epoch),
            tokens=fixed.real_tokens,
            weights_bytes=0 if outside is None else outside.disk.weights_bytes,
        )

    # floors

    def floor_s(
        self, gpu: str, recipe: Recipe, micro_batch: int, length: int, spread: Spread, *, close: bool
    ) -> tuple[float, float]:
        """Of the first micro-batch of rows of this length, on one card, and of each later one. A `close` floor of ZeRO
        takes a tape of its own."""
        is_cast = close and spread.sharding.is_zero
        key = FloorOf(gpu, recipe.work, micro_batch, length, spread, is_cast)
        return self.memo.get(key, lambda: self._floor_s(gpus()[gpu], recipe, micro_batch, length, spread, is_cast))

    def _floor_s(
        self, gpu: Gpu, recipe: Recipe, micro_batch: int, length: int, spread: Spread, is_cast: bool
    ) -> tuple[float, float]:
        work = self._work(recipe, micro_batch, length, is_cast)
        if work is None:
            return 0.0, 0.0
        copied = copied_of(self.tensors(recipe, spread.data), self.space.job, gpu, spread)
        like = REPLICATED if is_cast else spread.data
        busy_s = work.busy_s(gpu, like, narrow=recipe.matmul_dtype is not None, fused=recipe.compile)
        busy_s += copied.micro_batch_s
        launched_s = 0.0 if recipe.compile else work.launched_s(like)
        return max(busy_s + copied.step_s, launched_s), max(busy_s + copied.later_s, launched_s)

    def least_bytes(self, rig: Rig, setting: Setting) -> int:
        """What the fullest card holds at least, by the run of one micro-batch alone on one card.

        With whole weights a rank holds all that, and more. Spread over cards by layers, what is alive at the peak lies
        on them together. Where weights, gradients and state are cut, what else was alive is not (in 16 bits at least);
        under ZeRO it is what is alive on one card whose model was cast as DeepSpeed casts it.
        """
        (recipe, spread, split), job = setting, self.space.job
        if recipe.compile or recipe.matmul_dtype is not None:
            return memory_floor_bytes(self.tensors(recipe, spread.data), job, rig, spread, split.micro_batch)
        is_cast = spread.sharding.is_zero
        key = AloneOf(recipe, split.micro_batch, is_cast)
        alone, whole = self.memo.get(key, lambda: self._alone_bytes(*key) if self.bounds_time else (0, NO_TENSORS))
        alone = max(0, alone - BORROWED_BYTES)
        if spread.sharding.is_replicated:
            return alone // spread.layers
        of = self.tensors(recipe, spread.data)
        accumulates = split.grad_accum > 1
        floor = memory_floor_bytes(of, job, rig, spread, split.micro_batch, accumulates=accumulates)
        rest = alone - whole.weights - whole.gradients - whole.state
        if of.weights == 0 or whole.weights == 0 or rest <= 0:
            return floor
        lasting = int(lasting_bytes(of, job, rig, spread)) + whole_gradients_bytes(of, spread, accumulates)
        return max(floor, lasting + (rest if is_cast else rest // 2))

    def _alone_bytes(self, recipe: Recipe, micro_batch: int, is_cast: bool) -> tuple[int, Tensors]:
        """The most that is alive, and what of it lasts."""
        setting = Setting(recipe, ONE_CARD, Split(micro_batch, 1))
        longest = longest_row(self.space.job, self.lengths)
        try:
            job = self._job_alone(recipe, micro_batch, is_cast)
            folded = self.fold(ALONE, setting, replace(plain(job), seq_len=longest, lengths=None))
            whole = tensors_of(job, self.model, tensors_on_paper(job, self.config))
        except TunecastError:
            return 0, NO_TENSORS
        return replay(folded, allocator_settings("native", ALONE.gpu, folded)).allocated_bytes, whole

    def _job_alone(self, recipe: Recipe, micro_batch: int, is_cast: bool) -> Job:
        job = self.space.alone_on(CANONICAL, recipe, micro_batch)
        return cast_by_deepspeed(job) if is_cast else job

    def end_s(self, rig: Rig, recipe: Recipe, data: str) -> float:
        """Of a step's end, at least."""
        cards = rig.gpus if SHARDINGS[data].replicates_machines else rig.cards

        def find() -> float:
            work = self._work(recipe, 1, longest_row(self.space.job, self.lengths), is_cast=False)
            return 0.0 if work is None else work.end_s(rig.gpu, data, cards)

        return self.memo.get(EndOf(rig.gpu_name, recipe.base, data, cards), find)

    def sent(self, recipe: Recipe, rig: Rig, spread: Spread) -> Sent:
        if not self.bounds_time:
            return Sent(0.0, 0.0)
        key = SentOf(recipe.base, rig, spread)
        return self.memo.get(key, lambda: sent_of(self.tensors(recipe, spread.data), self.space.job, rig, spread))

    def _work(self, recipe: Recipe, micro_batch: int, length: int, is_cast: bool) -> Work | None:
        def find() -> Work | None:
            eager = recipe.eager
            setting = Setting(eager, ONE_CARD, Split(micro_batch, 1))
            try:
                job = replace(plain(self._job_alone(eager, micro_batch, is_cast)), seq_len=length, lengths=None)
                steps = steps_of_fold(self.fold(ALONE, setting, job), 1)
            except TunecastError:
                return None
            return work_of(next(iter(steps.values())), host_of(job))

        key = WorkOf(recipe.work, micro_batch, length, is_cast)
        return self.memo.get(key, find) if self.bounds_time else None

    # predictions

    def timed(self, rig: Rig, setting: Setting) -> Timed:
        """Raises what the closed form raises."""
        outside = self.outside(setting.recipe, setting.spread._replace(layers=1), (rig.gpus, rig.nodes))
        mean, whole = RunOnRig(self, rig, setting).run_time(outside)
        assert whole is not None
        disk = None if outside is None else outside.disk
        return Timed(mean.step_s, whole, disk.weights_bytes if disk else 0, disk.checkpoint_bytes if disk else 0)

    def prepared(self, timed: Timed, processes: int) -> Timed:
        """The same where so many processes prepare the data."""
        job, whole = self.space.job, timed.whole
        if processes == job.data.num_proc or not whole.phases_s["preparation"]:
            return timed
        more = replace(job, data=replace(job.data, num_proc=processes))
        return timed._replace(
            whole=with_preparation(whole, preparation_s(job, whole.epoch), preparation_s(more, whole.epoch))
        )

    def held(self, rig: Rig, setting: Setting) -> Held:
        """Raises what the closed form raises."""
        job, gpu = self.space.job_of(rig, setting), rig.gpu
        folded = self.fold(rig, setting, replace(plain(job), lengths=job.lengths))
        own = None if job.data.lengths is None else self._own(rig, setting, job)
        held = job_on_card(job, gpu, folded, managed_bytes(job, self.model), own)
        needs, has = held.unlimited.reserved_bytes, held.capacity_bytes
        device = held.device
        fits = held.fits and (own is None or held.runs.within(int(has * (1 - BRIEFLY))).completed)
        return Held(fits, needs, has, device.nbytes, device.range_bytes, has + held.outside_bytes)

    def said(self, job: Job) -> Prediction:
        """As `tunecast predict` says it."""
        return engines.predict(job)

    def said_or_none(self, job: Job) -> Prediction | None:
        """None where the closed form does not have it."""
        try:
            return self.said(job)
        except TunecastError:
            return None

    def fold(self, rig: Rig, setting: Setting, job: Job) -> Folded:
        """Of a few micro-batches: one tape for memory and time, and for every card that looks alike."""

        def find() -> Folded | TunecastError:
            short = with_few_micro_batches(job)

            def build(of: ModelConfig) -> Folded:
                return fold_job(short, of.raw, card_of(rig.gpu), keeps_ops=not short.lengths)

            try:
                with config_errors(self.model, build):
                    return build(self.model)
            except TunecastError as error:
                return error

        key = FoldOf(_plainly_loaded(setting), job.lengths or job.seq_len, _like_cards(rig, setting, job))
        found = self.memo.get(key, find, MOST_FOLDS)
        if isinstance(found, TunecastError):
            raise found
        return found

    def _own(self, rig: Rig, setting: Setting, job: Job) -> OwnRun | None:
        """The job's own batches, briefly; the same on every card that looks alike."""
        from tunecast.prediction.data.own_batches import own_run  # few jobs say how long their samples are

        key = OwnRunOf(_plainly_loaded(setting), _like_cards(rig, setting, job))
        return self.memo.get(key, lambda: own_run(job, self.config, card_of(rig.gpu), brief=True), MOST_FOLDS)


class RunOnRig(RunClock):
    """A setting on a rig, priced; what other settings have too is asked for once."""

    def __init__(self, estimator: Estimator, rig: Rig, setting: Setting) -> None:
        super().__init__(estimator.space.job_of(rig, setting), estimator.model, rig.gpu)
        self.estimator, self.rig, self.setting = estimator, rig, setting
        # Ways to load a model differ in nothing here.
        self.lengths = estimator.lengths
        self.epoch = estimator.epoch(self.job, ranks_on(self.job, rig, setting.spread))

    def played(self, one: Job) -> Folded | None:
        if self.setting.spread.layers > 1 or one.lengths:
            return None
        return self.estimator.fold(self.rig, self.setting, one)

    def step_times(self) -> StepTimes:
        key = StepTimesOf(self.rig, _plainly_loaded(self.setting))
        return self.estimator.memo.get(key, super().step_times, MOST_FOLDS)

    def evaluation_s(self) -> float | None:
        key = EvaluationOf(self.rig, self.setting.recipe, self.setting.spread)
        return self.estimator.memo.get(key, super().evaluation_s)


def _plainly_loaded(setting: Setting) -> Setting:
    return setting._replace(spread=setting.spread._replace(light=0)) if setting.spread.light else setting


def _like_cards(rig: Rig, setting: Setting, job: Job) -> LikeCards:
    """Of a card what torch's kernels ask (tape/kernels, tape/build); Unsloth looks at its memory too."""
    gpu, shape = rig.gpu, (rig.gpus, rig.nodes) if setting.spread.sharding.replicates_machines else (rig.cards,)
    memory_bytes = gpu.memory_bytes if stack_of(job).looks_at_memory else 0
    return LikeCards(shape, gpu.compute_capability, gpu.sm_count, memory_bytes, job.autocast)


def _weights(epoch: Epoch, priced: Sequence[int]) -> tuple[tuple[int, float], ...]:
    """Of each priced length, the share of micro-batches that take at least as long: those up to the next one.

    A single one stands for all in proportion (`ByLength`).
    """
    if len(priced) == 1:
        return ((priced[0], epoch.mean_length / priced[0]),)
    shares = dict.fromkeys(priced, 0.0)
    for length, share in epoch.lengths.items():
        below = [each for each in priced if each <= length]
        if below:
            shares[max(below)] += share
    return tuple((length, share) for length, share in shares.items() if share)
