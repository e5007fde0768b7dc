"""The GPU memory of a training script: its whole run on tensors without contents, or its first steps."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from tunecast.door.accelerate import accelerate_config
from tunecast.door.filters import Names, names, size_of
from tunecast.door.following import cards_unseen, following
from tunecast.door.launchers import ScriptLaunch, launch_from, with_accelerate
from tunecast.door.programs import program_path
from tunecast.door.script_cards import exchanging_cards, held_on_card, other_cards
from tunecast.door.script_words import (
    DEFAULT_GPU as DEFAULT_GPU,
)
from tunecast.door.script_words import (
    assumptions_of,
    failure_words,
    in_short,
    of_several_cards,
    retry_warnings,
    unresolved,
    warnings_of,
)
from tunecast.errors import NotResolved, UsageError
from tunecast.hardware.catalog import gpu as gpu_named
from tunecast.hardware.cluster import Cluster
from tunecast.hardware.spec import Gpu
from tunecast.job.model import bundled_models, resolve_model
from tunecast.prediction.memory.allocator import AllocatorSettings, settings_from_alloc_conf
from tunecast.prediction.modelled import card_of
from tunecast.prediction.on_card import OnCard
from tunecast.prediction.prediction import Prediction, memory_of
from tunecast.prediction.script_run import (
    MASKED_ATTENTION,
    WholeScript,
    memory_request,
    replace_rows,
    script_run,
)
from tunecast.prediction.time.script_time import ScriptClock, StepCount
from tunecast.records import NamedTuple, dataclass, replace
from tunecast.report.draw.figures import Figures, PhasePeak, grouped_blocks, lines_bytes
from tunecast.report.run.on_card import run_figures
from tunecast.result import Result
from tunecast.tape.cards import tapes_by_card
from tunecast.tape.compose import NotComposable
from tunecast.tape.op import Tape
from tunecast.tape.trace.facts import SettingOverride
from tunecast.tape.trace.interpreter import has_torch, tracing_python
from tunecast.tape.trace.limits import TraceLimits
from tunecast.tape.trace.request import AllocatorRequest, Answer
from tunecast.tape.trace.run import ScriptFailed, trace_script

ALLOC_CONF = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""The newer name wins where both are set."""
MOST_BLOCKS = 20
MOST_STEPS_AGAIN = 16
"""Steps that are traced in a second run, since the first skipped them and does not show what they do: the last batch of
an epoch, where gradients accumulate. As many as a run of random lengths has traced anyway."""
MOST_LAUNCHES = 3
"""Launchers that start each other, followed one by one."""


class CardMemory(NamedTuple):
    """One of the cards a process uses."""

    card: int
    """N of `cuda:N`."""
    allocated_bytes: int
    reserved_bytes: int
    device_bytes: int
    smallest_capacity_bytes: int
    fits: bool
    breakdown_bytes: Mapping[str, int]


class LargestBlock(NamedTuple):
    """Blocks alike at the peak, and what made them."""

    total_bytes: int
    times: int
    nbytes: int
    role: str
    module: str
    op: str
    source: str
    phase: str
    step: int


@dataclass(frozen=True)
class TraceDetails(Result):
    """What a script's trace tells beyond a prediction."""

    word: str
    """exact, or estimate where anything was guessed or could not be traced."""
    steps: int
    """Optimizer steps of the run."""
    traced_steps: int
    replayed_steps: int
    """Of these: every operation followed; put together from others of their kind."""
    finished: bool
    """The script ended by itself; else it was stopped after the steps asked for, or since it took too long."""
    error: str | None
    """What it raised after at least one whole step."""
    untraced: tuple[str, ...]
    versions: Mapping[str, str]
    phases: tuple[PhasePeak, ...]
    modules_bytes: Mapping[str, int]
    lines_bytes: Mapping[str, int]
    """What lines of the script hold at the peak, through whatever they call: `train.py:12`. What no line asked for by
    itself (weights, optimizer state, libraries' workspaces) is not among them."""
    largest: tuple[LargestBlock, ...]
    cards: tuple[CardMemory, ...]
    """Those the process uses; the prediction is of the fullest."""


class ScriptTrace(Prediction):
    """The prediction of a script, with what its trace tells beyond; `plan` and `fit` take it as they take a job."""

    KEYS: ClassVar[tuple[str, ...]] = (*Prediction.KEYS, "trace")

    def __init__(
        self, tracer: ScriptTracer, tape: Tape, run: WholeScript, answer: Answer, traced_on: Gpu, gpu: Gpu,
        cluster: Cluster | None, clock: ScriptClock | None = None,
    ) -> None:  # fmt: skip
        self.tracer, self.launch, self.answer = tracer, tracer.launch, answer
        self.traced_on, self.gpu_given = traced_on, tracer.gpu is not None
        self._script, self.run, self.replayed_steps = tape, run, run.replayed_steps
        self._script_clock = clock or ScriptClock(
            self._script, tracer.step_count(answer), tracer.processes, run.stands_for, answer.facts.saved_bytes,
            answer.facts.read_files,
        )  # fmt: skip
        self.on_cards = tracer.on_cards(tape, run, answer, gpu, cluster)
        """By the number of the card; `on_card` is the fullest of them."""
        timed = answer.steps and len(self.on_cards) == 1
        fullest = max(self.on_cards.values(), key=lambda one: (not one.fits, one.device.nbytes))
        warned = warnings_of(answer, tape.guesses, tracer.total_steps)
        super().__init__(
            None,
            None,
            fullest,
            assumptions=[run.told, *tracer.assumptions(), *of_several_cards(self.on_cards, tracer.gpus)],
            warnings=[*warned, *retry_warnings(self.launch, fullest.fits)],
            clock=(lambda _: self._script_clock.timing(gpu, cluster)) if timed else None,
        )

    def on(self, gpu: Gpu, cluster: Cluster | None = None) -> ScriptTrace:
        """The same trace on other cards: their memory, their speed, the kernels of the card it was traced on."""
        tracer, clock = replace(self.tracer, gpu=gpu.name), self._script_clock
        return ScriptTrace(tracer, self._script, self.run, self.answer, self.traced_on, gpu, cluster, clock)

    def of_one_epoch(self) -> ScriptTrace:
        """The same, taken to end after one epoch of its data where nothing says when it ends."""
        tracer = replace(self.tracer, one_epoch=True)
        held = self.on_card
        return ScriptTrace(tracer, self._script, self.run, self.answer, self.traced_on, held.gpu, held.cluster)

    def is_same_on(self, gpu: Gpu) -> bool:
        """Whether a trace on that card would be this one: kernels look at its capability and size, and this script
        perhaps at its memory or name."""
        one, other, asked = card_of(self.traced_on), card_of(gpu), self.answer.facts.asked
        looks = [(one.capability, other.capability), (one.sm_count, other.sm_count)]
        looks += [(one.total_bytes, other.total_bytes)] if "memory" in asked else []
        looks += [(one.name, other.name)] if "name" in asked else []
        return all(mine == theirs for mine, theirs in looks)

    @property
    def dtypes(self) -> frozenset[str]:
        """Of its operations."""
        return frozenset(op.dtype for op in self._script.ops())

    @property
    def fits(self) -> bool | None:  # type: ignore[override]
        """None where only a part of the run was seen, which fits."""
        return None if self.on_card.fits and self.on_card.unresolved else self.on_card.fits

    @property
    def figures(self) -> Figures:
        return run_figures(self, "")

    @property
    def trace(self) -> TraceDetails:
        figures, answer = self.figures, self.answer
        return TraceDetails(
            figures.word,
            answer.steps,
            answer.steps - self.replayed_steps,
            self.replayed_steps,
            answer.finished,
            answer.error,
            tuple(answer.untraced),
            figures.versions,
            figures.phases,
            figures.modules,
            lines_bytes(figures.blocks),
            tuple(
                LargestBlock(alike.nbytes, alike.times, *alike.block)
                for alike in grouped_blocks(figures.blocks)[:MOST_BLOCKS]
            ),
            tuple(_card_memory(card, held) for card, held in self.on_cards.items()),
        )

    @property
    def stop(self) -> str | None:
        """Why what was traced is not a training run, where it is not."""
        if self.answer.error is not None:
            return failure_words(self.answer)
        return self.on_card.unresolved or None


def trace(
    command: Sequence[str],
    *,
    gpu: str | None = None,
    steps: int | None = None,
    nproc_per_node: int | None = None,
    nnodes: int | None = None,
    gpus: int | None = None,
    accelerate: str | None = None,
    allocator: str | None = None,
    capacity_bytes: int | str | None = None,
    reserve_bytes: int | str = 0,
    models: Names = (),
    python: str | None = None,
    limits: TraceLimits | None = None,
    total_steps: int | None = None,
    progress: Callable[[float], None] | None = None,
) -> ScriptTrace:
    """`command` as it is started: `["train.py", "--epochs", "3"]`, also after python, torchrun or accelerate launch.

    gpu             the card to run on
    steps           optimizer steps to take before the script is stopped; 0: until it ends, every one traced; None:
                    until it ends, and steps like others already traced are replayed
    nproc_per_node  processes on each machine, `nnodes` machines; win over the launcher's
    gpus            cards that one process sees: device_map, model parallelism, nn.DataParallel
    accelerate      the YAML of `accelerate config`
    allocator       native or expandable_segments; None: as PYTORCH_ALLOC_CONF says
    capacity_bytes  give PyTorch this much, whatever the card has; or `reserve_bytes` are held by others
    models          `NAME=CONFIG`: what the script loads as NAME has this config.json, bundled model or Hub id
    python          the interpreter that has torch; `limits`: how long it may run, and how much it may hold
    total_steps     optimizer steps of the whole run, whatever the script says
    """
    capacity, reserve = size_of("capacity_bytes", capacity_bytes), size_of("reserve_bytes", reserve_bytes) or 0
    if capacity is not None and reserve:
        told = "got a size with --capacity, which already says what is left for the allocator; allowed: one of them"
        raise UsageError(f"--reserve: {told}", field="--reserve")
    launch = _launch(command, accelerate, nproc_per_node, nnodes)
    if gpus is not None and (launch.nproc_per_node or 1) > 1:
        told = f"got {gpus} with {launch.nproc_per_node} processes on each machine, of which each has a card of its own"
        raise UsageError(f"--gpus: {told}; allowed: one of them", field="--gpus")
    interpreter = _python(launch, python)
    if not launch.as_module and not os.path.isfile(os.path.join(launch.folder or "", launch.script)):
        launch, interpreter = _program(launch, interpreter, python)
    card = gpu_named(gpu or DEFAULT_GPU)
    conf, configured = _configured(launch, allocator)
    tracer = ScriptTracer(
        launch,
        gpu=gpu,
        steps=steps,
        allocator=allocator,
        conf=conf,
        configured=configured,
        capacity_bytes=capacity,
        reserve_bytes=reserve,
        models=_configs(names(models)),
        python=interpreter,
        limits=limits or TraceLimits(),
        total_steps=total_steps,
        nproc_per_node=nproc_per_node,
        nnodes=nnodes,
        gpus=gpus,
    )
    return tracer.trace(card, progress=progress)


@dataclass(frozen=True)
class ScriptTracer:
    """A script and how it is traced: on one card after another, with one change after another."""

    launch: ScriptLaunch
    gpu: str | None
    """As it was named; None: no card was."""
    steps: int | None
    """To take; 0: all, every one traced; None: all, and those like others already traced are replayed."""
    allocator: str | None
    conf: str | None
    """The allocator's configuration in the environment, and what it says."""
    configured: AllocatorSettings | None
    capacity_bytes: int | None
    reserve_bytes: int
    models: Mapping[str, Mapping[str, Any]]
    python: str
    limits: TraceLimits
    total_steps: int | None = None
    one_epoch: bool = False
    """Whether it is taken to end after an epoch where nothing says when it ends."""
    nproc_per_node: int | None = None
    nnodes: int | None = None
    """As they were given, whatever a launcher says."""
    gpus: int | None = None
    """Cards that one process sees."""
    launchers_followed: int = 0

    @property
    def processes(self) -> int:
        """On each machine."""
        return self.launch.nproc_per_node or 1

    def trace(
        self,
        card: Gpu,
        *,
        more_args: Sequence[str] = (),
        overrides: Sequence[SettingOverride] = (),
        progress: Callable[[float], None] | None = None,
        again: bool = False,
    ) -> ScriptTrace:
        """With further arguments on its command line, and other values of what it sets itself. `again`: what it prints
        was shown before."""
        launch = replace(self.launch, args=(*self.launch.args, *more_args))
        memory = memory_request(card, self.allocator, self.configured, self.capacity_bytes, self.reserve_bytes)
        asked = (
            launch, card, self.steps, self.gpus or 1, self.models, overrides, memory, self.python, self.limits, progress
        )  # fmt: skip
        tape, answer = _traced(*asked, again)
        if answer.launches and self.launchers_followed < MOST_LAUNCHES:
            return self._following(launch, answer).trace(card, overrides=overrides, progress=progress, again=again)
        try:
            run = script_run(tape, answer, self.steps)
        except NotComposable as error:
            tape, answer = _traced(*asked, quiet=True, skips=False)
            run = script_run(tape, replace(answer, all_traced=str(error)), self.steps)
        if 0 < len(run.steps_not_shown) <= MOST_STEPS_AGAIN and not answer.too_long:
            found, told = _traced(*asked, quiet=True, traced_steps=run.steps_not_shown)
            with contextlib.suppress(NotComposable):
                shown = script_run(found, told, self.steps)
                if not told.too_long and len(shown.steps_not_shown) < len(run.steps_not_shown):
                    tape, answer, run = found, told, shown
        unseen = () if self.gpus else cards_unseen(launch)
        whole = replace(tape, guesses=(*tape.guesses, *answer.untraced, *run.guesses, *unseen))
        return ScriptTrace(self, whole, run, answer, card, card, other_cards(launch, card))

    def _following(self, launch: ScriptLaunch, answer: Answer) -> ScriptTracer:
        """The script is a launcher: what it would start is traced instead."""
        inner = following(launch, answer, self.nproc_per_node, self.nnodes)
        conf, configured = _configured(inner, self.allocator)
        more = self.launchers_followed + 1
        return replace(self, launch=inner, conf=conf, configured=configured, launchers_followed=more)

    def on_cards(
        self, tape: Tape, run: WholeScript, answer: Answer, gpu: Gpu, cluster: Cluster | None
    ) -> dict[int, OnCard]:
        """By the number of the card, of one process that uses several."""
        tapes, missing = tapes_by_card(tape), unresolved(tape, answer)
        unexplained = MASKED_ATTENTION if answer.facts.masked_attention else ""
        others = cluster or exchanging_cards(tapes, gpu)
        limits = self.allocator, self.configured, self.capacity_bytes, self.reserve_bytes, others
        runs = {number: run if len(tapes) == 1 else replace_rows(run, each) for number, each in tapes.items()}
        return {
            number: replace(held_on_card(each, runs[number], gpu, *limits), unresolved=missing, unexplained=unexplained)
            for number, each in tapes.items()
        }

    def assumptions(self) -> list[str]:
        return assumptions_of(self.launch, self.gpu, self.conf, self.reserve_bytes)

    def step_count(self, answer: Answer) -> StepCount:
        """As the user says; else counted, where the script ran to its end; else as its trainer says."""
        facts = answer.facts
        if self.total_steps is not None:
            return StepCount(self.total_steps, "--total-steps", facts.epoch_steps)
        if answer.finished and answer.steps and not answer.error:
            return StepCount(answer.steps, "the trace, which ran to its end,", facts.epoch_steps)
        if facts.total_steps is None and self.one_epoch:
            return StepCount(facts.epoch_steps, "one epoch of the script's data loader", facts.epoch_steps)
        return StepCount(facts.total_steps, facts.total_steps_from, facts.epoch_steps)


def _launch(
    command: Sequence[str], accelerate: str | None, nproc_per_node: int | None, nnodes: int | None
) -> ScriptLaunch:
    """Our own options win over the launcher's, and those over an accelerate file."""
    launch = told = launch_from(command, nproc_per_node=nproc_per_node)
    if accelerate is not None:
        told = with_accelerate(launch, accelerate_config(accelerate))
    return replace(
        told,
        nproc_per_node=nproc_per_node or launch.nproc_per_node or told.nproc_per_node or 1,
        nnodes=nnodes or launch.nnodes or told.nnodes or 1,
    )


def _program(launch: ScriptLaunch, interpreter: str, given: str | None) -> tuple[ScriptLaunch, str]:
    """An installed program in the place of a script, with the interpreter it names where none was asked for."""
    if os.sep in launch.script or os.path.splitext(launch.script)[1]:
        raise NotResolved(f"there is no script {launch.script!r}", field="script")
    path, own = program_path(launch.script, interpreter)
    if given is None and os.sep in own and own != interpreter and has_torch(own):
        interpreter = own
    return replace(launch, script=path), interpreter


def _configs(given: Sequence[str]) -> dict[str, Mapping[str, Any]]:
    """Configurations by the name a script loads them under: those given, and the bundled ones by their Hub ids.

    Of a bundled one the user's own copy in the local cache is taken, where there is one.
    """
    found: dict[str, Mapping[str, Any]] = {}
    for entry in bundled_models().values():
        with contextlib.suppress(NotResolved):  # a damaged copy in the user's cache is for the script to meet
            found[entry["hub"]] = resolve_model(entry["hub"], offline=True).raw
    for text in given:
        name, _, config = text.partition("=")
        if not name:
            raise UsageError(f"--model: got {text!r}; allowed: NAME=CONFIG, or NAME alone", field="--model")
        found[name] = resolve_model(config or name).raw
    return found


def _python(launch: ScriptLaunch, given: str | None) -> str:
    """The one given; else the python that stands before the script, if it has torch; else as for every trace."""
    named = launch.python
    if given is None and named is not None and (os.sep in named or shutil.which(named)):
        found = tracing_python(named)
        if has_torch(found):
            return found
    return tracing_python(given)


def _traced(
    launch: ScriptLaunch,
    gpu: Gpu,
    steps: int | None,
    gpus: int,
    models: Mapping[str, Any],
    overrides: Sequence[SettingOverride],
    allocator: AllocatorRequest,
    python: str,
    limits: TraceLimits,
    progress: Callable[[float], None] | None,
    quiet: bool,
    skips: bool = True,
    traced_steps: Sequence[int] = (),
) -> tuple[Tape, Answer]:
    try:
        return trace_script(
            launch.script, launch.args, card_of(gpu), as_module=launch.as_module, steps=steps or 0, whole=steps is None,
            skips=skips, traced_steps=traced_steps, nproc_per_node=launch.nproc_per_node or 1,
            nnodes=launch.nnodes or 1, gpus=gpus, rank_variables=launch.rank_variables,
            environment=launch.environment, cwd=launch.folder, models=models,
            overrides=overrides, allocator=allocator, python=python, limits=limits, progress=progress, quiet=quiet,
        )  # fmt: skip
    except ScriptFailed as error:
        raise NotResolved(f"the script fails before its first step is done: {in_short(error.answer)}") from None


def _card_memory(card: int, held: OnCard) -> CardMemory:
    memory = memory_of(held)
    return CardMemory(
        card,
        memory.allocated_bytes,
        memory.reserved_bytes,
        memory.device_bytes,
        held.smallest_capacity_bytes,
        held.fits,
        memory.breakdown_bytes,
    )


def _configured(launch: ScriptLaunch, allocator: str | None) -> tuple[str | None, AllocatorSettings | None]:
    """The allocator's configuration as the run itself would read it, where nobody names an allocator here."""
    environment = {**os.environ, **launch.environment}
    conf = next((environment[name] for name in ALLOC_CONF if environment.get(name)), None)
    return (None, None) if allocator is not None or conf is None else (conf, settings_from_alloc_conf(conf))
