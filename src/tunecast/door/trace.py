"""The GPU memory of a training script: its first steps, run as they are on tensors without contents."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from tunecast.door.accelerate import accelerate_config
from tunecast.door.filters import Names, names, size_of
from tunecast.door.launchers import ScriptLaunch, launch_from, with_accelerate
from tunecast.errors import DEBUG, NotResolved, TunecastError, UsageError
from tunecast.hardware.catalog import gpu as gpu_named
from tunecast.hardware.catalog import meant_by
from tunecast.hardware.cluster import Cluster, cards_of
from tunecast.hardware.spec import Gpu
from tunecast.job.model import bundled_models, resolve_model
from tunecast.prediction.memory.allocator import AllocatorSettings, settings_from_alloc_conf
from tunecast.prediction.modelled import card_of, others_hold
from tunecast.prediction.on_card import OnCard, allocator_settings, on_card
from tunecast.prediction.prediction import Prediction
from tunecast.prediction.time.script_time import ScriptClock, StepCount
from tunecast.records import NamedTuple, dataclass, replace
from tunecast.report.draw.figures import Figures, PhasePeak, grouped_blocks
from tunecast.report.run.on_card import run_figures
from tunecast.result import Result
from tunecast.tape.op import Tape
from tunecast.tape.trace.facts import SettingOverride
from tunecast.tape.trace.interpreter import has_torch, tracing_python
from tunecast.tape.trace.limits import TraceLimits
from tunecast.tape.trace.request import Answer
from tunecast.tape.trace.run import trace_script

DEFAULT_GPU = "h200-sxm-141gb"
DEFAULT_STEPS = 3
ALLOC_CONF = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""The newer name wins where both are set."""
MOST_BLOCKS = 20
_FRAME = re.compile(r'File "([^"\n]+)", line (\d+)')


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
    finished: bool
    """The script ended by itself; else it was stopped after the steps asked for."""
    error: str | None
    """What it raised after at least one whole step."""
    untraced: tuple[str, ...]
    versions: Mapping[str, str]
    phases: tuple[PhasePeak, ...]
    modules_bytes: Mapping[str, int]
    largest: tuple[LargestBlock, ...]


class ScriptTrace(Prediction):
    """The prediction of a script, with what its trace tells beyond; `plan` and `fit` take it as they take a job."""

    KEYS: ClassVar[tuple[str, ...]] = (*Prediction.KEYS, "trace")

    def __init__(
        self, tracer: ScriptTracer, tape: Tape, answer: Answer, traced_on: Gpu, gpu: Gpu, cluster: Cluster | None,
        clock: ScriptClock | None = None,
    ) -> None:  # fmt: skip
        self.tracer, self.launch, self.answer = tracer, tracer.launch, answer
        self.traced_on, self.gpu_given = traced_on, tracer.gpu is not None
        self._script = tape
        self._script_clock = clock or ScriptClock(self._script, tracer.step_count(answer), tracer.processes)
        super().__init__(
            None,
            None,
            tracer.on_card(self._script, gpu, cluster),
            assumptions=tracer.assumptions(answer),
            warnings=_warnings(answer),
            clock=lambda _: self._script_clock.timing(gpu, cluster),
        )

    def on(self, gpu: Gpu, cluster: Cluster | None = None) -> ScriptTrace:
        """The same trace on other cards: their memory, their speed, the kernels of the card it was traced on."""
        tracer = replace(self.tracer, gpu=gpu.name)
        return ScriptTrace(tracer, self._script, self.answer, self.traced_on, gpu, cluster, self._script_clock)

    def of_one_epoch(self) -> ScriptTrace:
        """The same, taken to end after one epoch of its data where nothing says when it ends."""
        tracer = replace(self.tracer, one_epoch=True)
        held = self.on_card
        return ScriptTrace(tracer, self._script, self.answer, self.traced_on, held.gpu, held.cluster)

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
    def figures(self) -> Figures:
        return run_figures(self, "")

    @property
    def trace(self) -> TraceDetails:
        figures, answer = self.figures, self.answer
        return TraceDetails(
            figures.word,
            answer.steps,
            answer.finished,
            answer.error,
            tuple(answer.untraced),
            figures.versions,
            figures.phases,
            figures.modules,
            tuple(
                LargestBlock(alike.nbytes, alike.times, *alike.block)
                for alike in grouped_blocks(figures.blocks)[:MOST_BLOCKS]
            ),
        )

    @property
    def stop(self) -> str | None:
        """Why the script stopped by itself before its end, where it did."""
        return None if self.answer.error is None else _stopped(self.answer)


def trace(
    command: Sequence[str],
    *,
    gpu: str | None = None,
    steps: int = DEFAULT_STEPS,
    nproc_per_node: int | None = None,
    nnodes: int | None = None,
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
    steps           optimizer steps to take before the script is stopped; 0: until it ends
    nproc_per_node  processes on each machine, `nnodes` machines; win over the launcher's
    accelerate      the YAML of `accelerate config`
    allocator       native or expandable_segments; None: as PYTORCH_ALLOC_CONF says
    capacity_bytes  give PyTorch this much, whatever the card has; or `reserve_bytes` are held by others
    models          `NAME=CONFIG`: what the script loads as NAME has this config.json, bundled model or Hub id
    python          the interpreter that has torch; `limits`: how long it may run, and how much it may hold
    total_steps     optimizer steps of the whole run, where the script does not say them itself
    """
    capacity, reserve = size_of("capacity_bytes", capacity_bytes), size_of("reserve_bytes", reserve_bytes) or 0
    if capacity is not None and reserve:
        told = "got a size with --capacity, which already says what is left for the allocator; allowed: one of them"
        raise UsageError(f"--reserve: {told}", field="--reserve")
    launch = _launch(command, accelerate, nproc_per_node, nnodes)
    card = gpu_named(gpu or DEFAULT_GPU)
    conf = _alloc_conf() if allocator is None else None
    tracer = ScriptTracer(
        launch,
        gpu=gpu,
        steps=steps,
        allocator=allocator,
        conf=conf,
        configured=settings_from_alloc_conf(conf) if conf else None,
        capacity_bytes=capacity,
        reserve_bytes=reserve,
        models=_configs(names(models)),
        python=_python(launch, python),
        limits=limits or TraceLimits(),
        total_steps=total_steps,
    )
    return tracer.trace(card, progress=progress)


@dataclass(frozen=True)
class ScriptTracer:
    """A script and how it is traced: on one card after another, with one change after another."""

    launch: ScriptLaunch
    gpu: str | None
    """As it was named; None: no card was."""
    steps: int
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
        with _environment(launch.environment):
            tape, answer = _traced(
                launch, card, self.steps, self.models, overrides, self.python, self.limits, progress, again
            )
        whole = replace(tape, guesses=(*tape.guesses, *answer.untraced))
        return ScriptTrace(self, whole, answer, card, card, _others(launch, card))

    def on_card(self, tape: Tape, gpu: Gpu, cluster: Cluster | None) -> OnCard:
        return _on_card(tape, gpu, self.allocator, self.configured, self.capacity_bytes, self.reserve_bytes, cluster)

    def assumptions(self, answer: Answer) -> list[str]:
        return _assumptions(self.launch, answer, self.gpu, self.conf, self.reserve_bytes)

    def step_count(self, answer: Answer) -> StepCount:
        """Counted, where the script ran to its end; else as the user, then as its trainer says."""
        facts = answer.facts
        if answer.finished and answer.steps and not answer.error:
            return StepCount(answer.steps, "the trace, which ran to its end,", facts.epoch_steps)
        if self.total_steps is not None:
            return StepCount(self.total_steps, "--total-steps", facts.epoch_steps)
        if facts.total_steps is None and self.one_epoch:
            return StepCount(facts.epoch_steps, "one epoch of the script's data loader", facts.epoch_steps)
        return StepCount(facts.total_steps, facts.total_steps_from, facts.epoch_steps)


def _launch(
    command: Sequence[str], accelerate: str | None, nproc_per_node: int | None, nnodes: int | None
) -> ScriptLaunch:
    """Our own options win over the launcher's, and those over an accelerate file."""
    launch = told = launch_from(command)
    if accelerate is not None:
        told = with_accelerate(launch, accelerate_config(accelerate))
    if not launch.as_module and not os.path.isfile(launch.script):
        raise NotResolved(f"there is no script {launch.script!r}", field="script")
    return replace(
        told,
        nproc_per_node=nproc_per_node or launch.nproc_per_node or told.nproc_per_node or 1,
        nnodes=nnodes or launch.nnodes or told.nnodes or 1,
    )


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """As the launcher would set it, for as long as the script is traced."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


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
    steps: int,
    models: Mapping[str, Any],
    overrides: Sequence[SettingOverride],
    python: str,
    limits: TraceLimits,
    progress: Callable[[float], None] | None,
    quiet: bool,
) -> tuple[Tape, Answer]:
    try:
        return trace_script(
            launch.script, launch.args, card_of(gpu), as_module=launch.as_module, steps=steps,
            nproc_per_node=launch.nproc_per_node or 1, nnodes=launch.nnodes or 1, models=models,
            overrides=overrides, python=python, limits=limits, progress=progress, quiet=quiet,
        )  # fmt: skip
    except TunecastError as error:
        if error.code != TunecastError.code or "\n" not in error.message:
            raise
        raise NotResolved(f"the script fails before its first step is done: {_in_short(error.message)}") from None


def _others(launch: ScriptLaunch, gpu: Gpu) -> Cluster | None:
    """The cards a script is launched on, where they are several."""
    each, machines = launch.nproc_per_node or 1, launch.nnodes or 1
    return cards_of(gpu, each, machines) if each * machines > 1 else None


def _on_card(
    tape: Tape,
    gpu: Gpu,
    allocator: str | None,
    configured: AllocatorSettings | None,
    capacity_bytes: int | None,
    reserve_bytes: int,
    cluster: Cluster | None,
) -> OnCard:
    settings = allocator_settings(allocator or "native", gpu, tape, pretended=capacity_bytes is not None)
    if configured is not None:
        settings = replace(
            configured,
            device_total_bytes=settings.device_total_bytes,
            oldest_segment_first=settings.oldest_segment_first,
            capacity_is_physical=settings.capacity_is_physical,
        )
    return on_card(
        tape, gpu, settings, capacity_bytes, reserve_bytes, cluster=cluster, managed_bytes=tape.managed_bytes
    )


def _alloc_conf() -> str | None:
    """As the run itself would read it."""
    return next((os.environ[name] for name in ALLOC_CONF if os.environ.get(name)), None)


def _assumptions(
    launch: ScriptLaunch, answer: Answer, gpu: str | None, conf: str | None, reserve_bytes: int
) -> list[str]:
    which = "all" if answer.finished else "the first"
    told = [f"{which} {answer.steps} optimizer steps of the script"]
    world = (launch.nproc_per_node or 1) * (launch.nnodes or 1)
    if world > 1:
        told.append(f"rank 0 of {world} processes, {launch.nproc_per_node} on each machine")
    if reserve_bytes:
        told.append(others_hold(reserve_bytes))
    if gpu is None:
        told.append(f"no --gpu was given: {DEFAULT_GPU} is taken")
    elif (taken := meant_by(gpu).note(gpu)) is not None:
        told.append(taken)
    if conf:
        told.append(f"the allocator is configured by the environment: {conf}")
    return told


def _warnings(answer: Answer) -> list[str]:
    told = []
    if answer.steps < 2 and answer.error is None:
        told.append(
            f"the script took {answer.steps} optimizer steps; an optimizer's state exists from the second on, "
            "so longer training may need more"
        )
    if answer.error is not None:
        told.append(_stopped(answer).splitlines()[0])
    return told


def _stopped(answer: Answer) -> str:
    return f"the script stopped after {answer.steps} steps: {_in_short(f'{answer.error}{chr(10)}{answer.detail}')}"


def _in_short(message: str) -> str:
    """A script's failure in one line, with the line of its own code: the last that lies in no installed package."""
    if os.environ.get(DEBUG):
        return message
    first, _, traceback = message.partition("\n")
    frames = _FRAME.findall(traceback)
    own = [frame for frame in frames if "site-packages" not in frame[0]] or frames
    return f"{first} ({own[-1][0]}:{own[-1][1]}; {DEBUG}=1 shows more)" if own else first
