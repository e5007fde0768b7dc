"""What a setting takes on a rig: the one place where the planner asks the predictor.

    Estimator.frame      steps, tokens and all phases but training: no tape needed
    Estimator.floor_s    the least a micro-batch takes on a card (`bounds.py`)
    Estimator.time_run   the whole job, phase by phase, as `tunecast predict` says it
    Estimator.replay     memory of the fullest card

Everything is asked once and kept (`_once`), by a key that lists all it depends on. A tape depends on the card only by
what its kernels look at (`_look`), so cards alike share one.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from tunecast.errors import NotResolved, TunecastError, Unsupported
from tunecast.hardware.catalog import gpus
from tunecast.hardware.spec import Gpu
from tunecast.job.job import Job
from tunecast.job.lengths import sample_lengths
from tunecast.job.model import ModelConfig
from tunecast.job.names import ROLLOUTS
from tunecast.job.shardings import REPLICATED, SHARDINGS, shards_and_copies
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
from tunecast.planning.space import ONE_CARD, Rig, Setting, Space, Split, Spread, ranks_on
from tunecast.planning.technique import Technique
from tunecast.prediction.culprit import config_errors
from tunecast.prediction.data.lengths import Epoch, epoch_of, longest_row
from tunecast.prediction.data.preparation import preparation_s, tokenised_s
from tunecast.prediction.memory.pages import managed_bytes
from tunecast.prediction.memory.replay import replay
from tunecast.prediction.memory.vllm import vllm_share
from tunecast.prediction.modelled import card_of
from tunecast.prediction.on_card import allocator_settings, job_on_card
from tunecast.prediction.outside.needs import Outside, machine_ram_bytes, outside_of, tensors_on_paper
from tunecast.prediction.price.host import host_of, loop_s
from tunecast.prediction.time.timing import RunClock, StepTimes, lengths_to_price, plain, typical_epoch
from tunecast.prediction.time.whole import WholeTime, fixed_phases, with_preparation
from tunecast.records import NamedTuple, replace
from tunecast.tape.build.job_runs import fold_job
from tunecast.tape.fold import Folded
from tunecast.tape.op import Phase
from tunecast.tape.shorten import with_few_micro_batches
from tunecast.tape.step import Step
from tunecast.tape.timed import steps_alone, steps_of_fold
from tunecast.units import MIB

if TYPE_CHECKING:
    from tunecast.prediction.data.own_batches import OwnRun
    from tunecast.prediction.lessons.correction import Correction, Learned

Answer = TypeVar("Answer")
CANONICAL = "h200-sxm-141gb"
"""The card whose tape floors are read off: products are the same on every card."""


MOST_FOLDS = 8
"""Kept at a time: a setting is priced and replayed at once, and its builder keeps the structure behind it."""
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
    """A run as bills take it."""

    step_s: float
    whole: WholeTime
    weights_bytes: int
    """Of the result on disk; 0 where it is not known."""
    checkpoint_bytes: int
    learned: Correction | None = None
    """What the user's own runs changed of its steps; None where they say nothing of such."""


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
    def __init__(self, space: Space, model: ModelConfig, learned: Mapping[str, Learned] | None = None) -> None:
        """`learned`: by card, of the user's own runs."""
        self.space, self.model, self.config, self.learned = space, model, model.raw, learned or {}
        self.lengths = sample_lengths(space.job.data)
        self.bounds_time = has_time_floor(space.job)
        self._answers: dict[str, dict[Hashable, Any]] = {}

    def _once(self, question: str, key: Hashable, answer: Callable[[], Answer], most: int | None = None) -> Answer:
        """`most`: so many answers to this question are kept at a time."""
        known = self._answers.setdefault(question, {})
        if key not in known:
            while most is not None and len(known) >= most:
                del known[next(iter(known))]
            known[key] = answer()
        found: Answer = known[key]
        return found

    # what needs no tape

    def outside(self, technique: Technique, spread: Spread, cards: tuple[int, int] = (1, 1)) -> Outside | None:
        """What lies outside the steps, which depends on how weights are cut: as they are cut they are saved. `cards` of
        a machine, and machines, count where each rank writes its part."""
        if spread.light == 0:
            cards = (1, 1)

        def find() -> Outside | None:
            setting = Setting(technique, spread, Split(1, 1))
            job = self.space.job_of(Rig(CANONICAL, *cards, None, None), setting, checked=False)
            try:
                return outside_of(job, self.model)
            except Unsupported:
                return None

        return self._once("outside", (technique.base, spread.data, spread.light, cards), find)

    def ram_bytes(self, rig: Rig, setting: Setting) -> int | None:
        """What one machine needs of its host's memory; None where that is not known."""
        key = setting.technique.base, setting.spread, rig.gpus, rig.nodes
        return self._once("ram", key, lambda: machine_ram_bytes(self.space.job_of(rig, setting), self.model))

    def tensors(self, technique: Technique, data: str) -> Tensors:
        is_zero = SHARDINGS[data].is_zero

        def find() -> Tensors:
            job = self.space.alone_on(CANONICAL, technique, 1)
            try:
                found = tensors_on_paper(job, self.config)
                return (zero_tensors_of if is_zero else tensors_of)(job, self.model, found)
            except NotResolved:
                return NO_TENSORS

        return self._once("tensors", (technique.base, is_zero), find)

    def epoch(self, job: Job, ranks: int) -> Epoch | None:
        return self._once("epoch", (ranks, job.micro_batch, job.grad_accum), lambda: epoch_of(job, self.lengths))

    def frame(self, rig: Rig, setting: Setting) -> RunFrame:
        technique, spread, split = setting
        ranks = ranks_on(self.space.job, rig, spread)
        cards = (rig.gpus, rig.nodes) if spread.light else (1, 1)
        key = technique.base, technique.kernels, spread.data, spread.light, ranks, split, cards
        return self._once("frame", key, lambda: self._frame(technique, spread, ranks, split, cards))

    def _frame(
        self, technique: Technique, spread: Spread, ranks: int, split: Split, cards: tuple[int, int]
    ) -> RunFrame:
        rig, setting = Rig(CANONICAL, ranks, 1, None, None), Setting(technique, ONE_CARD, split)
        job = self.space.job_of(rig, setting)
        parts = job.parallel
        job = replace(job, hardware=replace(job.hardware, gpus=ranks * parts.tensor * parts.pipeline * parts.context))
        epoch = self.epoch(job, ranks)
        typical = epoch or typical_epoch(job, self.lengths)
        outside = self.outside(technique, spread._replace(layers=1), cards)
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
        self, gpu: str, technique: Technique, micro_batch: int, length: int, spread: Spread, *, close: bool
    ) -> tuple[float, float]:
        """Of the first micro-batch of rows of this length, on one card, and of each later one. Where completions are
        generated, the first has those of its own rows: of more rows they take no less. A `close` floor of ZeRO takes a
        tape of its own."""
        is_cast = close and spread.sharding.is_zero
        key = gpu, technique.work, micro_batch, length, spread, is_cast
        return self._once(
            "floor", key, lambda: self._floor_s(gpus()[gpu], technique, micro_batch, length, spread, is_cast)
        )

    def _floor_s(
        self, gpu: Gpu, technique: Technique, micro_batch: int, length: int, spread: Spread, is_cast: bool
    ) -> tuple[float, float]:
        found = self._work(technique, micro_batch, length, is_cast)
        if found is None:
            return 0.0, 0.0
        work, generation = found
        copied = copied_of(self.tensors(technique, spread.data), self.space.job, gpu, spread)
        like = REPLICATED if is_cast else spread.data
        busy_s = work.busy_s(gpu, like, narrow=technique.matmul_dtype is not None, fused=technique.compile)
        busy_s += copied.micro_batch_s
        launched_s = 0.0 if technique.compile else work.launched_s(like)
        first_s = busy_s + copied.step_s + generation.busy_s(gpu, like), launched_s + generation.launched_s(like)
        return max(first_s), max(busy_s + copied.later_s, launched_s)

    def least_ratio(self, gpu: str) -> float:
        """Of a step corrected by the user's own runs over the predicted one, at least: floors are of the latter."""
        if gpu not in self.learned:
            return 1.0
        from tunecast.prediction.lessons.correction import least_ratio

        return self._once("least ratio", gpu, lambda: least_ratio(self.learned[gpu], gpu))

    def least_bytes(self, rig: Rig, setting: Setting) -> int:
        """What the fullest card holds at least, by the run of one micro-batch alone on one card.

        With whole weights a rank holds all that, and more. Spread over cards by layers, what is alive at the peak lies
        on them together. Where weights, gradients and state are cut, what else was alive is not (in 16 bits at least);
        under ZeRO it is what is alive on one card whose model was cast as DeepSpeed casts it.
        """
        (technique, spread, split), job = setting, self.space.job
        if technique.compile or technique.matmul_dtype is not None:
            return memory_floor_bytes(self.tensors(technique, spread.data), job, rig, spread, split.micro_batch)
        is_cast = spread.sharding.is_zero
        key = technique, split.micro_batch, is_cast
        alone, whole = self._once(
            "alone", key, lambda: self._alone_bytes(*key) if self.bounds_time else (0, NO_TENSORS)
        )
        alone = max(0, alone - BORROWED_BYTES)
        if spread.sharding.is_replicated:
            return alone // spread.layers
        of = self.tensors(technique, spread.data)
        accumulates = split.grad_accum > 1
        floor = memory_floor_bytes(of, job, rig, spread, split.micro_batch, accumulates=accumulates)
        rest = alone - whole.weights - whole.gradients - whole.state
        if of.weights == 0 or whole.weights == 0 or rest <= 0:
            return floor
        lasting = int(lasting_bytes(of, job, rig, spread)) + whole_gradients_bytes(of, spread, accumulates)
        return max(floor, lasting + (rest if is_cast else rest // 2))

    def _alone_bytes(self, technique: Technique, micro_batch: int, is_cast: bool) -> tuple[int, Tensors]:
        """The most that is alive, and what of it lasts."""

        def find() -> tuple[int, Tensors]:
            setting = Setting(technique, ONE_CARD, Split(micro_batch, 1))
            longest = longest_row(self.space.job, self.lengths)
            try:
                job = self._job_alone(technique, micro_batch, is_cast)
                folded = self.fold(ALONE, setting, replace(plain(job), seq_len=longest, lengths=None))
                whole = tensors_of(job, self.model, tensors_on_paper(job, self.config))
            except TunecastError:
                return 0, NO_TENSORS
            return replay(folded, allocator_settings("native", ALONE.gpu, folded)).allocated_bytes, whole

        return self._once("alone", (technique, micro_batch, is_cast), find) if self.bounds_time else (0, NO_TENSORS)

    def _job_alone(self, technique: Technique, micro_batch: int, is_cast: bool) -> Job:
        job = self.space.alone_on(CANONICAL, technique, micro_batch)
        return cast_by_deepspeed(job) if is_cast else job

    def end_s(self, rig: Rig, technique: Technique, data: str) -> float:
        """Of a step's end, at least."""
        cards, _ = shards_and_copies(SHARDINGS[data], rig.gpus, rig.nodes, self.space.job.parallel.replicate)

        def find() -> float:
            found = self._work(technique, 1, longest_row(self.space.job, self.lengths), is_cast=False)
            return 0.0 if found is None else found[0].end_s(rig.gpu, data, cards)

        return self._once("end", (rig.gpu_name, technique.base, data, cards), find)

    def sent(self, technique: Technique, rig: Rig, spread: Spread) -> Sent:
        if not self.bounds_time:
            return Sent(0.0, 0.0)
        key = technique.base, rig, spread
        return self._once(
            "sent", key, lambda: sent_of(self.tensors(technique, spread.data), self.space.job, rig, spread)
        )

    def _work(self, technique: Technique, micro_batch: int, length: int, is_cast: bool) -> tuple[Work, Work] | None:
        """Of a micro-batch, and of generating what it is trained on."""

        def find() -> tuple[Work, Work] | None:
            eager = technique.eager
            setting = Setting(eager, ONE_CARD, Split(micro_batch, 1))
            try:
                job = replace(plain(self._job_alone(eager, micro_batch, is_cast)), seq_len=length, lengths=None)
                steps = self._steps(ALONE, setting, job)
            except TunecastError:
                return None
            step, host = next(iter(steps.values())), host_of(job)
            return work_of(step, host), work_of(step, host, (Phase.GENERATE,))

        return self._once("work", (technique.work, micro_batch, length, is_cast), find) if self.bounds_time else None

    # predictions

    def time_run(self, rig: Rig, setting: Setting) -> Timed:
        """Raises what the closed form raises."""
        technique, spread, _ = setting
        outside = self.outside(technique, spread._replace(layers=1), (rig.gpus, rig.nodes))
        job = self.space.job_of(rig, setting)
        epoch = self.epoch(job, ranks_on(job, rig, spread))
        learned = self.learned.get(rig.gpu_name)
        clock = RunClock(job, self.model, rig.gpu, self.lengths, epoch, learned=learned)

        def step_times() -> StepTimes:
            runs = clock.runs()
            played = [None if spread.layers > 1 or run.lengths else self._steps(rig, setting, run) for run in runs]
            return clock.step_times(runs, played)

        steps = self._once("step times", (rig, _plainly_loaded(setting)), step_times, MOST_FOLDS)
        evaluation_s = self._once("evaluation", (rig, technique, spread), clock.evaluation_s)
        mean, whole = clock.run_time(steps, evaluation_s, outside)
        assert whole is not None
        disk = None if outside is None else outside.disk
        weights_bytes, checkpoint_bytes = (disk.weights_bytes, disk.checkpoint_bytes) if disk else (0, 0)
        return Timed(mean.step_s, whole, weights_bytes, checkpoint_bytes, steps.correction)

    def with_processes(self, timed: Timed, processes: int) -> Timed:
        """The same where so many processes prepare the data."""
        job, whole = self.space.job, timed.whole
        if processes == job.data.num_proc or not whole.phases_s["preparation"]:
            return timed
        more = replace(job, data=replace(job.data, num_proc=processes))
        return timed._replace(
            whole=with_preparation(whole, preparation_s(job, whole.epoch), preparation_s(more, whole.epoch))
        )

    def replay(self, rig: Rig, setting: Setting) -> Held:
        """Raises what the closed form raises."""
        job, gpu = self.space.job_of(rig, setting), rig.gpu
        folded = self.fold(rig, setting, replace(plain(job), lengths=job.lengths))
        own = None if not job.data.has_lengths else self._own(rig, setting, job)
        held = job_on_card(job, gpu, folded, managed_bytes(job, self.model), own, vllm_share(job, self.model, gpu))
        needs, has = held.unlimited.reserved_bytes, held.capacity_bytes
        device = held.device
        fits = held.fits and (own is None or held.runs.within(int(has * (1 - BRIEFLY))).completed)
        return Held(fits, needs, has, device.nbytes, device.range_bytes, has + held.outside_bytes)

    def fold(self, rig: Rig, setting: Setting, job: Job) -> Folded:
        """Of a few micro-batches: one tape for memory and, mostly, time, and for every card that looks alike."""

        def find() -> Folded | TunecastError:
            short = with_few_micro_batches(job)
            keeps_ops = not short.lengths and job.task not in ROLLOUTS  # whose time is asked of a tape of its own

            def build(of: ModelConfig) -> Folded:
                return fold_job(short, of.raw, card_of(rig.gpu), keeps_ops=keeps_ops)

            try:
                with config_errors(self.model, build):
                    return build(self.model)
            except TunecastError as error:
                return error

        key = _plainly_loaded(setting), job.lengths or job.seq_len, _look(rig, setting, job)
        found = self._once("fold", key, find, MOST_FOLDS)
        if isinstance(found, TunecastError):
            raise found
        return found

    def _steps(self, rig: Rig, setting: Setting, job: Job) -> dict[int, Step]:
        """Of the tape that memory is asked of; where completions are generated, which takes most of it and of which
        time needs little, of one of their own."""
        if job.task not in ROLLOUTS:
            return steps_of_fold(self.fold(rig, setting, job), job.grad_accum)
        return steps_alone(job, self.config, card_of(rig.gpu))

    def _own(self, rig: Rig, setting: Setting, job: Job) -> OwnRun | None:
        """The job's own batches, briefly; the same on every card that looks alike."""
        from tunecast.prediction.data.own_batches import BRIEFLY, own_run  # few jobs say how long their samples are

        def found() -> OwnRun | None:
            return own_run(job, self.config, card_of(rig.gpu), budget=BRIEFLY)

        key = _plainly_loaded(setting), _look(rig, setting, job)
        return self._once("own run", key, found, MOST_FOLDS)


def _plainly_loaded(setting: Setting) -> Setting:
    """Ways to load a model differ in nothing that its steps do."""
    return setting._replace(spread=setting.spread._replace(light=0)) if setting.spread.light else setting


def _look(rig: Rig, setting: Setting, job: Job) -> Hashable:
    """What decides a tape of the cards it runs on: how many, and of one what torch's kernels ask (tape/kernels,
    tape/build); Unsloth looks at its memory too."""
    gpu = rig.gpu
    shape = shards_and_copies(setting.spread.sharding, rig.gpus, rig.nodes, job.parallel.replicate)
    memory_bytes = gpu.memory_bytes if stack_of(job).looks_at_memory else 0
    return shape, gpu.compute_capability, gpu.sm_count, memory_bytes, job.autocast


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
