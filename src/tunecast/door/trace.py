"""The GPU memory of a training script: its whole run on tensors without contents, or its first steps."""

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
from tunecast.prediction.script_run import WholeScript, script_run
from tunecast.prediction.time.script_time import script_timing
from tunecast.records import NamedTuple, dataclass, replace
from tunecast.report.draw.figures import Figures, PhasePeak, grouped_blocks
from tunecast.report.run.on_card import run_figures
from tunecast.result import Result
from tunecast.tape.compose import NotComposable
from tunecast.tape.op import Tape
from tunecast.tape.trace.interpreter import has_torch, tracing_python
from tunecast.tape.trace.limits import TraceLimits
from tunecast.tape.trace.request import Answer
from tunecast.tape.trace.run import trace_script

DEFAULT_GPU = "h200-sxm-141gb"
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
    largest: tuple[LargestBlock, ...]


class ScriptTrace(Prediction):
    """The prediction of a script, with what its trace tells beyond."""

    KEYS: ClassVar[tuple[str, ...]] = (*Prediction.KEYS, "trace")

    launch: ScriptLaunch
    answer: Answer
    gpu_given: bool
    """Whether a card was named."""
    replayed_steps: int = 0
    """Put together from others of their kind rather than traced."""

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
    steps: int | None = None,
    nproc_per_node: int | None = None,
    nnodes: int | None = None,
    accelerate: str | None = None,
    allocator: str | None = None,
    capacity_bytes: int | str | None = None,
    reserve_bytes: int | str = 0,
    models: Names = (),
    python: str | None = None,
    limits: TraceLimits | None = None,
    progress: Callable[[float], None] | None = None,
) -> ScriptTrace:
    """`command` as it is started: `["train.py", "--epochs", "3"]`, also after python, torchrun or accelerate launch.

    gpu             the card to run on
    steps           optimizer steps to take before the script is stopped; 0: until it ends, every one traced; None:
                    until it ends, and steps like others already traced are replayed
    nproc_per_node  processes on each machine, `nnodes` machines; win over the launcher's
    accelerate      the YAML of `accelerate config`
    allocator       native or expandable_segments; None: as PYTORCH_ALLOC_CONF says
    capacity_bytes  give PyTorch this much, whatever the card has; or `reserve_bytes` are held by others
    models          `NAME=CONFIG`: what the script loads as NAME has this config.json, bundled model or Hub id
    python          the interpreter that has torch; `limits`: how long it may run, and how much it may hold
    """
    capacity, reserve = size_of("capacity_bytes", capacity_bytes), size_of("reserve_bytes", reserve_bytes) or 0
    if capacity is not None and reserve:
        told = "got a size with --capacity, which already says what is left for the allocator; allowed: one of them"
        raise UsageError(f"--reserve: {told}", field="--reserve")
    launch = _launch(command, accelerate, nproc_per_node, nnodes)
    card = gpu_named(gpu or DEFAULT_GPU)
    conf = _alloc_conf() if allocator is None else None
    configured = settings_from_alloc_conf(conf) if conf else None
    known, interpreter = _configs(names(models)), _python(launch, python)
    with _environment(launch.environment):
        asked = (launch, card, steps, known, interpreter, limits or TraceLimits(), progress)
        tape, answer = _traced(*asked)
        try:
            run = script_run(tape, answer, steps)
        except NotComposable as error:
            tape, answer = _traced(*asked, skips=False)
            run = script_run(tape, replace(answer, all_traced=str(error)), steps)
    whole = replace(tape, guesses=(*tape.guesses, *answer.untraced, *run.guesses))
    held = _on_card(whole, run, card, allocator, configured, capacity, reserve, _others(launch, card))
    found = ScriptTrace(
        None,
        None,
        held,
        assumptions=[run.told, *_assumptions(launch, gpu, conf, reserve)],
        warnings=_warnings(answer),
        clock=lambda _: script_timing(whole, card, held.cluster, run.stands_for),
    )
    found.replayed_steps = run.replayed_steps
    found.launch, found.answer, found.gpu_given = launch, answer, gpu is not None
    return found


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
    steps: int | None,
    models: Mapping[str, Any],
    python: str,
    limits: TraceLimits,
    progress: Callable[[float], None] | None,
    *,
    skips: bool = True,
) -> tuple[Tape, Answer]:
    try:
        return trace_script(
            launch.script, launch.args, card_of(gpu), as_module=launch.as_module, steps=steps or 0, whole=steps is None,
            skips=skips, nproc_per_node=launch.nproc_per_node or 1, nnodes=launch.nnodes or 1, models=models,
            python=python, limits=limits, progress=progress,
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
    run: WholeScript,
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
    held = on_card(
        tape, gpu, settings, capacity_bytes, reserve_bytes, cluster=cluster, managed_bytes=tape.managed_bytes,
        script=run.rows,
    )  # fmt: skip
    if run.whole is None:
        return held
    return replace(held, make_tape=lambda: run.tape_of(held.shown) or tape, find_op=run.op_without_room)


def _alloc_conf() -> str | None:
    """As the run itself would read it."""
    return next((os.environ[name] for name in ALLOC_CONF if os.environ.get(name)), None)


def _assumptions(launch: ScriptLaunch, gpu: str | None, conf: str | None, reserve_bytes: int) -> list[str]:
    told = []
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
