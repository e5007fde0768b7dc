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

from typing import TYPE_CHECKING, NamedTuple

from tunecast.errors import NotResolved, TunecastError, Unsupported
from tunecast.hardware.catalog import gpus
from tunecast.hardware.cluster import cluster_of
from tunecast.hardware.spec import Gpu
from tunecast.job.job import Job
from tunecast.job.lengths import sample_lengths
from tunecast.job.model import ModelConfig
from tunecast.plan.bounds import (
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
from tunecast.plan.recipe import Recipe
from tunecast.plan.space import Rig, Setting, Space, Split, Spread, ranks_on
from tunecast.predict import engines
from tunecast.predict.culprit import config_errors
from tunecast.predict.host import Host, host_of, loop_s
from tunecast.predict.lengths import Epoch, epoch_of, longest_row, total_steps
from tunecast.predict.modelled import card_of
from tunecast.predict.outside import Outside, machine_ram_bytes, outside_of, tensors_on_paper
from tunecast.predict.pages import managed_bytes
from tunecast.predict.prediction import Prediction, allocator_settings, job_on_card
from tunecast.predict.preparation import preparation_s, tokenised_s
from tunecast.predict.replay import replay
from tunecast.predict.runtime import StepTime
from tunecast.predict.timing import (
    StepTimes,
    evaluation_seconds,
    lengths_to_price,
    plain,
    run_time,
    times_by_length,
    typical_epoch,
)
from tunecast.predict.whole import WholeTime, whole_job, with_preparation
from tunecast.records import replace
from tunecast.tape.build.short import fold_job
from tunecast.tape.fold import Folded
from tunecast.tape.shorten import with_few_micro_batches
from tunecast.tape.timed import steps_of_fold
from tunecast.units import MIB

if TYPE_CHECKING:
    from tunecast.predict.own_batches import OwnRun

CANONICAL = "h200-sxm-141gb"
"""The card whose tape floors are read off: products are the same on every card."""


ALONE = Rig(CANONICAL, 1, 1, None, None)
BORROWED_BYTES = 256 * MIB
"""By which cards differ in what their kernels borrow: cuBLAS' workspace (32 MiB on Hopper, 8 elsewhere), attention's,
Triton's sums; tests/unit/test_plan_bounds.py holds floors read off one card against predictions on others."""
MOST_FOLDS = 8
"""Kept at a time: a setting is priced and replayed at once, and its builder keeps the structure behind it."""


class Frame(NamedTuple):
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
0.6 % more (predict/own_batches.py), and no plan may show what a prediction then refuses."""


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
        self._epochs: dict[tuple[int, Split], Epoch | None] = {}
        self._frames: dict[tuple[object, ...], Frame] = {}
        self._owns: dict[tuple[object, ...], OwnRun | None] = {}
        self._outsides: dict[tuple[object, ...], Outside | None] = {}
        self._ram: dict[tuple[object, ...], int | None] = {}
        self._tensors: dict[tuple[object, ...], Tensors] = {}
        self._works: dict[tuple[object, ...], Work | None] = {}
        self._floors: dict[tuple[object, ...], tuple[float, float]] = {}
        self._ends: dict[tuple[object, ...], float] = {}
        self._alone: dict[tuple[object, ...], tuple[int, Tensors]] = {}
        self._sent: dict[tuple[object, ...], Sent] = {}
        self._folds: dict[tuple[object, ...], Folded | TunecastError] = {}
        self._priced: dict[tuple[Rig, Setting], StepTimes] = {}
        self._evaluations: dict[tuple[object, ...], float | None] = {}

    # what needs no tape

    def outside(self, recipe: Recipe, spread: Spread, cards: tuple[int, int] = (1, 1)) -> Outside | None:
        """What lies outside the steps, which depends on how weights are cut: as they are cut they are saved. `cards` of
        a machine, and machines, count where each rank writes its part."""
        if spread.light == 0:
            cards = (1, 1)
        key = recipe.base, spread.data, spread.light, cards
        if key not in self._outsides:
            job = self.space.job_of(Rig(CANONICAL, *cards, None, None), Setting(recipe, spread, Split(1, 1)))
            try:
                self._outsides[key] = outside_of(job, self.model)
            except Unsupported:
                self._outsides[key] = None
        return self._outsides[key]

    def ram_bytes(self, rig: Rig, setting: Setting) -> int | None:
        """What one machine needs of its host's memory; None where that is not known."""
        recipe, spread, _ = setting
        key = recipe.base, spread, rig.gpus, rig.nodes
        if key not in self._ram:
            self._ram[key] = machine_ram_bytes(self.space.job_of(rig, setting), self.model)
        return self._ram[key]

    def tensors(self, recipe: Recipe, data: str) -> Tensors:
        is_zero = data.startswith("zero")
        key = recipe.base, is_zero
        if key not in self._tensors:
            job = self.space.alone_on(CANONICAL, recipe, 1)
            try:
                found = tensors_on_paper(job, self.config).parameters
                self._tensors[key] = (zero_tensors_of if is_zero else tensors_of)(job, self.model, found)
            except (Unsupported, NotResolved):
                self._tensors[key] = NO_TENSORS
        return self._tensors[key]

    def epoch(self, job: Job, ranks: int) -> Epoch | None:
        key = ranks, Split(job.micro_batch, job.grad_accum)
        if key not in self._epochs:
            self._epochs[key] = epoch_of(job, self.lengths)
        return self._epochs[key]

    def frame(self, rig: Rig, setting: Setting) -> Frame:
        recipe, spread, split = setting
        ranks = ranks_on(self.space.job, rig, spread)
        cards = (rig.gpus, rig.nodes) if spread.light else (1, 1)
        key = recipe.base, recipe.kernels, spread.data, spread.light, ranks, split, cards
        if key not in self._frames:
            self._frames[key] = self._frame(recipe, spread, ranks, split, cards)
        return self._frames[key]

    def _frame(self, recipe: Recipe, spread: Spread, ranks: int, split: Split, cards: tuple[int, int]) -> Frame:
        rig, setting = Rig(CANONICAL, ranks, 1, None, None), Setting(recipe, Spread("ddp", 1), split)
        job = self.space.job_of(rig, setting)
        parts = job.parallel
        job = replace(job, hardware=replace(job.hardware, gpus=ranks * parts.tensor * parts.pipeline * parts.context))
        epoch = self.epoch(job, ranks)
        typical = epoch or typical_epoch(job, self.lengths)
        assert total_steps(job, epoch) is not None, "a plan is of a job whose length is known"
        nothing = {length: _no_step() for length in lengths_to_price(job, typical)}
        around_s = loop_s(job, self.model.layers, host_of(job))
        outside = self.outside(recipe, spread._replace(layers=1), cards)
        whole = whole_job(job, epoch, nothing, typical=typical, outside=outside, loop_s=around_s)
        assert whole is not None
        fixed_s = sum(s for name, s in whole.phases_s.items() if name != "provisioning")
        rest = typical.micro_batches % split.grad_accum
        last = (typical.steps - 1 + rest / split.grad_accum) / typical.steps if rest else 1.0
        result = 0 if outside is None else outside.disk.weights_bytes
        saves_s = whole.phases_s.get("checkpoints", 0.0)
        weights, shared_s = _weights(typical, list(nothing)), tokenised_s(job, epoch)
        return Frame(whole.steps, last, weights, fixed_s, saves_s, shared_s, whole.real_tokens, result)

    # floors

    def floor_s(
        self, gpu: str, recipe: Recipe, micro_batch: int, length: int, spread: Spread, *, close: bool
    ) -> tuple[float, float]:
        """Of the first micro-batch of rows of this length, on one card, and of each later one. A `close` floor of ZeRO
        takes a tape of its own."""
        is_cast = close and spread.data.startswith("zero")
        key = gpu, recipe.base, recipe.gradient_checkpointing, recipe.kernels, micro_batch, length, spread, is_cast
        found = self._floors.get(key)
        if found is None:
            found = self._floors[key] = self._floor_s(gpus()[gpu], recipe, micro_batch, length, spread, is_cast)
        return found

    def _floor_s(
        self, gpu: Gpu, recipe: Recipe, micro_batch: int, length: int, spread: Spread, is_cast: bool
    ) -> tuple[float, float]:
        work = self._work(recipe, micro_batch, length, is_cast)
        if work is None:
            return 0.0, 0.0
        copied = copied_of(self.tensors(recipe, spread.data), self.space.job, gpu, spread)
        like = "ddp" if is_cast else spread.data
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
        is_cast = spread.data.startswith("zero")
        key = recipe, split.micro_batch, is_cast
        if key not in self._alone:
            self._alone[key] = self._alone_bytes(*key) if self.bounds_time else (0, NO_TENSORS)
        alone, whole = self._alone[key]
        alone = max(0, alone - BORROWED_BYTES)
        if spread.data == "ddp":
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
        setting = Setting(recipe, Spread("ddp", 1), Split(micro_batch, 1))
        longest = longest_row(self.space.job, self.lengths)
        try:
            job = self._job_alone(recipe, micro_batch, is_cast)
            folded = self._fold(ALONE, setting, replace(plain(job), seq_len=longest, lengths=None))
            whole = tensors_of(job, self.model, tensors_on_paper(job, self.config).parameters)
        except TunecastError:
            return 0, NO_TENSORS
        return replay(folded, allocator_settings("native", ALONE.card, folded)).allocated_bytes, whole

    def _job_alone(self, recipe: Recipe, micro_batch: int, is_cast: bool) -> Job:
        job = self.space.alone_on(CANONICAL, recipe, micro_batch)
        return cast_by_deepspeed(job) if is_cast else job

    def end_s(self, rig: Rig, recipe: Recipe, data: str) -> float:
        """Of a step's end, at least."""
        cards = rig.gpus if data == "hsdp" else rig.cards
        key = rig.gpu, recipe.base, data, cards
        found = self._ends.get(key)
        if found is None:
            length = longest_row(self.space.job, self.lengths)
            work = self._work(recipe, 1, length, is_cast=False)
            found = self._ends[key] = 0.0 if work is None else work.end_s(rig.card, data, cards)
        return found

    def sent(self, recipe: Recipe, rig: Rig, spread: Spread) -> Sent:
        if not self.bounds_time:
            return Sent(0.0, 0.0)
        key = recipe.base, rig, spread
        if key not in self._sent:
            self._sent[key] = sent_of(self.tensors(recipe, spread.data), self.space.job, rig, spread)
        return self._sent[key]

    def _work(self, recipe: Recipe, micro_batch: int, length: int, is_cast: bool) -> Work | None:
        key = recipe.base, recipe.gradient_checkpointing, recipe.kernels, micro_batch, length, is_cast
        if key not in self._works:
            found = self._worked(recipe, micro_batch, length, is_cast) if self.bounds_time else None
            self._works[key] = found
        return self._works[key]

    def _worked(self, recipe: Recipe, micro_batch: int, length: int, is_cast: bool) -> Work | None:
        recipe = recipe.eager
        setting = Setting(recipe, Spread("ddp", 1), Split(micro_batch, 1))
        try:
            job = replace(plain(self._job_alone(recipe, micro_batch, is_cast)), seq_len=length, lengths=None)
            steps = steps_of_fold(self._fold(ALONE, setting, job), 1)
        except TunecastError:
            return None
        return work_of(next(iter(steps.values())), host_of(job))

    # predictions

    def timed(self, rig: Rig, setting: Setting) -> Timed:
        """Raises what the closed form raises."""
        job = self.space.job_of(rig, setting)
        epoch = self.epoch(job, ranks_on(job, rig, setting.spread))
        typical = epoch or typical_epoch(job, self.lengths)
        host, times = host_of(job), self._step_times(rig, _plainly_loaded(setting), typical)
        outside = self.outside(setting.recipe, setting.spread._replace(layers=1), (rig.gpus, rig.nodes))
        evaluation_s = self._evaluation_s(job, rig, setting, host)
        mean, whole = run_time(job, self.model, epoch, typical, times, host, outside, evaluation_s)
        assert whole is not None
        disk = None if outside is None else outside.disk
        return Timed(mean.step_s, whole, disk.weights_bytes if disk else 0, disk.checkpoint_bytes if disk else 0)

    def _step_times(self, rig: Rig, setting: Setting, typical: Epoch) -> StepTimes:
        """Of the last few settings: ways to load a model differ in nothing here."""
        key = rig, setting
        if key not in self._priced:
            while len(self._priced) >= MOST_FOLDS:
                del self._priced[next(iter(self._priced))]
            job, gpu = self.space.job_of(rig, setting), rig.card
            cluster = cluster_of(job, gpu) if rig.cards > 1 else None
            host, bare = host_of(job), plain(job)
            times: dict[int, StepTime] = {}
            width = 0
            for length in lengths_to_price(job, typical):
                one = replace(bare, seq_len=length, lengths=None)
                folded = self._fold(rig, setting, one) if setting.spread.layers == 1 else None
                priced = times_by_length(one, self.config, gpu, host, cluster, folded)
                times[length], width = next(iter(priced.by_length.values())), width or priced.planned_width
            self._priced[key] = StepTimes(times, width)
        return self._priced[key]

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
        job, gpu = self.space.job_of(rig, setting), rig.card
        folded = self._fold(rig, setting, replace(plain(job), lengths=job.lengths))
        own = None if job.data.lengths is None else self._own(rig, setting, job)
        held = job_on_card(job, gpu, folded, managed_bytes(job, self.model), own)
        needs, has = held.unlimited.reserved_bytes, held.capacity_bytes
        device = held.device
        fits = held.fits and (own is None or held.runs.within(int(has * (1 - BRIEFLY))).completed)
        return Held(fits, needs, has, device.nbytes, device.range_bytes, has + held.outside_bytes)

    def said(self, job: Job) -> Prediction:
        """As `tunecast predict` says it."""
        return engines.predicted(job, timed=True).prediction

    def said_or_none(self, job: Job) -> Prediction | None:
        """None where the closed form does not have it."""
        try:
            return self.said(job)
        except TunecastError:
            return None

    def _evaluation_s(self, job: Job, rig: Rig, setting: Setting, host: Host) -> float | None:
        if job.run.eval_strategy == "no" or job.data.eval_samples is None:
            return None
        key = rig, setting.recipe, setting.spread
        if key not in self._evaluations:
            cluster = cluster_of(job, rig.card) if rig.cards > 1 else None
            self._evaluations[key] = evaluation_seconds(job, self.model, rig.card, cluster, self.lengths, host)
        return self._evaluations[key]

    def _fold(self, rig: Rig, setting: Setting, job: Job) -> Folded:
        """Of a few micro-batches: one tape for memory and time, and for every card that looks alike."""
        shape = (rig.gpus, rig.nodes) if setting.spread.data == "hsdp" else (rig.cards,)
        length = job.lengths or job.seq_len
        key = _plainly_loaded(setting), length, shape, _look(rig.card, job.stack), job.autocast
        if key not in self._folds:
            while len(self._folds) >= MOST_FOLDS:
                del self._folds[next(iter(self._folds))]
            try:
                self._folds[key] = self._folded(rig, with_few_micro_batches(job))
            except TunecastError as error:
                self._folds[key] = error
        found = self._folds[key]
        if isinstance(found, TunecastError):
            raise found
        return found

    def _own(self, rig: Rig, setting: Setting, job: Job) -> OwnRun | None:
        """The job's own batches, briefly; the same on every card that looks alike."""
        from tunecast.predict.own_batches import own_run  # few jobs say how long their samples are

        shape = (rig.gpus, rig.nodes) if setting.spread.data == "hsdp" else (rig.cards,)
        key = _plainly_loaded(setting), shape, _look(rig.card, job.stack), job.autocast
        if key not in self._owns:
            while len(self._owns) >= MOST_FOLDS:
                del self._owns[next(iter(self._owns))]
            self._owns[key] = own_run(job, self.config, card_of(rig.card), brief=True)
        return self._owns[key]

    def _folded(self, rig: Rig, short: Job) -> Folded:
        def fold(of: ModelConfig) -> Folded:
            return fold_job(short, of.raw, card_of(rig.card), keeps_ops=not short.lengths)

        with config_errors(self.model, fold):
            return fold(self.model)


def _plainly_loaded(setting: Setting) -> Setting:
    return setting._replace(spread=setting.spread._replace(light=0)) if setting.spread.light else setting


def _look(gpu: Gpu, stack: str) -> tuple[object, ...]:
    """What torch's kernels ask of a card (tape/kernels, tape/build); Unsloth looks at its memory too."""
    return gpu.compute_capability, gpu.sm_count, gpu.memory_bytes if stack == "unsloth" else 0


def _weights(epoch: Epoch, priced: list[int]) -> tuple[tuple[int, float], ...]:
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


def _no_step() -> StepTime:
    return StepTime(0.0, 0.0, 0.0, {}, "compute", 0.0, 0.0, 0, 0, 0.0)
