"""An unmodified training script, run as `python script.py args` would run it, until it has taken the steps asked for.

It is stopped by an exception no ordinary code catches, raised where the next step, an evaluation or a checkpoint
would begin. What the script could not do here (write, start programs, reach a network, save tensors without
contents) goes into the answer, a sentence each.
"""

from __future__ import annotations

import contextlib
import dataclasses
import faulthandler
import math
import os
import re
import runpy
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch._subclasses.fake_tensor import FakeTensorMode, UnsupportedOperatorException
from torch.nn.modules import module as modules
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack, _push_mode

from tunecast.errors import NotResolved, TunecastError, Unsupported
from tunecast.tape.file import write_tape
from tunecast.tape.op import Unit
from tunecast.tape.trace import tensor_files, unread
from tunecast.tape.trace.ending import LEAVE
from tunecast.tape.trace.host_watch import HostWatch
from tunecast.tape.trace.ledger import counted
from tunecast.tape.trace.logits import Logits
from tunecast.tape.trace.meter import memory_so_far
from tunecast.tape.trace.notebook import run_notebook
from tunecast.tape.trace.observer import Observer
from tunecast.tape.trace.packages import datasets, launchers, transformers
from tunecast.tape.trace.packages.launchers import Launching
from tunecast.tape.trace.packages.transformers import NotOnThisMachine
from tunecast.tape.trace.places import place_of_error
from tunecast.tape.trace.processes import allow_forks, leave_if_forked
from tunecast.tape.trace.recorder import Recorder
from tunecast.tape.trace.request import Answer, ScriptRequest
from tunecast.tape.trace.sandbox import Sandbox
from tunecast.tape.trace.skip import Skipper

OWN_FILES = (str(Path(__file__).parent), "<frozen runpy>")
SEVERAL_THREADS = "the script trains in several threads, which take turns as the machine has it"
OF_XFORMERS = ("xformers", "flash_attn_3.")
"""Its kernels are compiled for a card and take real tensors."""
MOST_DETAIL = 4000
MOST_MESSAGE = 600
ASKING_A_NETWORK = ("connecting to", "looking up")
WANTS_A_NETWORK = re.compile(r"offline|hugging ?face ?hub|couldn.t (reach|connect)|connection ?error|downloading", re.I)
MOST_IGNORED_STOPS = 50
"""A loop with a bare `except:` swallows the stop; after so many the answer is written and the process left."""

PART_WITHOUT_SKIPS = 0.2
"""Of the seconds of CPU, where no call could be skipped so far: more of these will not reach the end of a long run."""


class Stop(BaseException):
    """Enough steps were taken."""


def trace_script(request: ScriptRequest, recorder: Recorder, sandbox: Sandbox) -> tuple[Answer, Sequence[Unit]]:
    """How it went, and the units of its run where calls may be skipped."""
    show_devices(request.devices if request.names_devices else 0)
    run = ScriptRun(request, recorder, sandbox)
    sandbox.cards = lambda: cards_of(recorder, request.devices)
    sandbox.enter()
    allow_forks(sandbox.note_of_fork)
    run.watch()
    answer = run.through()
    return answer, run.units


def cards_of(recorder: Recorder, devices: int) -> list[dict[str, Any]]:
    """What `nvidia-smi` tells of the cards."""
    card = recorder.card
    one = {"name": card.name, "total_bytes": card.total_bytes, "capability": ".".join(map(str, card.capability))}
    return [{**one, "used_bytes": 0 if index else recorder.memory.used_bytes(0)} for index in range(devices)]


def show_devices(count: int) -> None:
    """CUDA_VISIBLE_DEVICES hides all cards from C, which reads the process's own environment; Python code, which splits
    it into numbers, is shown the cards of the run, or as in most runs no such variable."""
    shown, key = os.environ._data, os.environ.encodekey("CUDA_VISIBLE_DEVICES")  # type: ignore[attr-defined]
    shown.pop(key, None)
    if count:
        shown[key] = os.environ.encodevalue(",".join(map(str, range(count))))  # type: ignore[attr-defined]


def in_one_line(error: BaseException) -> str:
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return text if len(text) <= MOST_MESSAGE else f"{text[: MOST_MESSAGE - 1]}…"


def run_as_main(request: ScriptRequest, recorder: Recorder) -> None:
    """`sys.argv`, `sys.path[0]` and `__name__` as the interpreter sets them for `python FILE` and `python -m NAME`."""
    sys.argv = [request.script, *request.args]
    if request.as_module:
        sys.path[0] = os.getcwd()
        runpy.run_module(request.script, run_name="__main__", alter_sys=True)
        return
    if not os.path.exists(request.script):
        raise NotResolved(f"there is no script {request.script}", field="script")
    sys.path[0] = os.path.dirname(os.path.realpath(request.script))
    if request.script.endswith(".ipynb"):
        run_notebook(request.script, lambda told: recorder.assumptions.update([told]))
        return
    runpy.run_path(request.script, run_name="__main__")


class ScriptRun:
    """Counts the script's steps, stops it, and says how it went."""

    def __init__(self, request: ScriptRequest, recorder: Recorder, sandbox: Sandbox) -> None:
        self.request, self.recorder, self.sandbox = request, recorder, sandbox
        self.observer = Observer(recorder.scopes, recorder.asked, request.overrides)
        self.saved_bytes: list[int] = []
        self._stops = self._steps_told = 0
        self._process, self._began_s, self.too_long = os.getpid(), time.monotonic(), False
        self._steps_file = os.open(request.steps_path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        recorder.memory.units = lambda: self.units
        if request.allocator is not None:
            recorder.memory.replay_by(memory_so_far(request.allocator, torch.__version__))
        traced = frozenset(request.traced_steps)
        self.skipper = Skipper(recorder, self.stop_when_done, traced) if request.skips else None

    def watch(self) -> None:
        hook = modules.register_module_forward_pre_hook(lambda module, inputs: self.stop_when_done())
        modules._global_forward_pre_hooks.move_to_end(hook.id, last=False)  # before the tracer sees a new step begin
        register_optimizer_step_pre_hook(lambda optimizer, args, kwargs: self.stop_when_done())
        tensor_files.install(self.recorder, self.sandbox.overlay, self.stop_when_done, self.saved_bytes.append)
        datasets.install(self.sandbox.overlay)
        launchers.install(self.request.script, lambda: not self.steps)
        transformers.offer(self.request.models, self.request.folder / "models")
        self.observer.install()
        self.recorder.host_watch = HostWatch()
        self.recorder.host_watch.install()
        self.recorder.values.chance.follow_seeds()
        skip_no_step(self.recorder)
        Logits(self.recorder).watch()
        unread.follow(self.recorder)
        self.recorder.emulated["aten::masked_select"] = masked_select
        follow_threads()
        faulthandler.enable(all_threads=False)  # a crash in C code shows the line of Python it came from
        os._exit = self.answer_before_leaving  # type: ignore[assignment]
        for told in self.sandbox.refusals.sentences():
            self.recorder.assumptions[told] = 1
        if self.skipper is not None:
            self.skipper.install()

    def through(self) -> Answer:
        try:
            run_as_main(self.request, self.recorder)
            leave_if_forked()
        except Stop:
            return self.answer()
        except Launching as start:
            return Answer(launches=start.command, environment=start.environment, folder=os.getcwd())
        except SystemExit as end:
            leave_if_forked(None if end.code in (None, 0) else end)
            if end.code in (None, 0):
                return self.answer(finished=True)
            if isinstance(end.code, int):
                return self.failed(end, f"the script ended with code {end.code}")
            return self.failed(end, str(end.code)[:MOST_DETAIL])
        except BaseException as error:
            leave_if_forked(error)
            return self.failed(error, in_one_line(error))
        return self.answer(finished=True)

    @property
    def units(self) -> Sequence[Unit]:
        return self.skipper.units if self.skipper is not None else ()

    @property
    def steps(self) -> int:
        return self.recorder.scopes.steps_done

    def stop_when_done(self) -> None:
        if self.steps != self._steps_told:
            self._steps_told = self.steps
            with contextlib.suppress(OSError):  # the script may close what it did not open
                os.pwrite(self._steps_file, str(self.steps).encode(), 0)
        if not (self.request.steps and self.steps >= self.request.steps) and not self.takes_too_long():
            return
        if not self._stops:
            self.recorder.scopes.begin_step()  # what the end of the program frees belongs to no step
            self.recorder.paused += 1
        self._stops += 1
        if self._stops > MOST_IGNORED_STOPS:
            self._leave_at_once(self.answer())
        raise Stop

    def takes_too_long(self) -> bool:
        """Whether to stop here: a step at least is wanted."""
        request = self.request
        if not self.too_long and self.steps and (request.cpu_s or request.wall_s):
            cpu_s, wall_s = time.process_time(), time.monotonic() - self._began_s
            most_s = request.cpu_s or math.inf
            if cpu_s > most_s * PART_WITHOUT_SKIPS and not (self.skipper and self.skipper.skips):
                most_s *= PART_WITHOUT_SKIPS
            self.too_long = cpu_s > most_s or wall_s > (request.wall_s or math.inf)
        return self.too_long

    def _leave_at_once(self, answer: Answer) -> NoReturn:
        from tunecast.tape.trace.child import versions

        write_tape(self.recorder.tape(versions(), self.units), self.request.tape_path)
        answer.write(self.request.answer_path)
        LEAVE(0)

    def answer_before_leaving(self, code: int) -> NoReturn:
        """`os._exit` ends the process where it stands: what was traced so far is told first."""
        if os.getpid() != self._process:
            LEAVE(code)
        told = f"the script ended with os._exit({code})"
        if not code:
            self._leave_at_once(self.answer(finished=True))
        if self.steps:
            self._leave_at_once(dataclasses.replace(self.answer(), error=told, code="script"))
        Answer(error=f"{told} before its first step was done", code=NotResolved.code).write(self.request.answer_path)
        LEAVE(0)

    def answer(self, *, finished: bool = False) -> Answer:
        skipper = self.skipper
        if len(self.recorder.scopes.stepping_threads) > 1:
            self.recorder.guesses[SEVERAL_THREADS] = 1
        untraced = (*self.sandbox.sentences(), *counted(self.recorder.untraced))
        read = tuple(tensor_files.files_read.values())
        facts = dataclasses.replace(self.observer.facts(), saved_bytes=tuple(self.saved_bytes), read_files=read)
        return Answer(
            steps=self.steps, finished=finished, untraced=untraced, facts=facts,
            skipped=skipper.skipped if skipper else 0, too_long=self.too_long,
            all_traced=skipper.why_not if skipper else "",
        )  # fmt: skip

    def failed(self, error: BaseException, text: str) -> Answer:
        """The tape of at least one whole step is worth having; without one the error is all there is to tell."""
        known = explained(error) or offline(error, self.sandbox)
        detail = "" if known is not None or isinstance(error, SystemExit) else own_frames_removed(error)
        return dataclasses.replace(
            self.answer(),
            error=text if known is None else known.message,
            code="script" if known is None else known.code,
            field=None if known is None else known.field,
            detail=detail,
            place=place_of_error(error, self.request.script),
        )


def offline(error: BaseException, sandbox: Sandbox) -> TunecastError | None:
    """What fails for want of a network: by what was refused, or by its own words."""
    text = in_one_line(error)
    refused = next((told for told in sandbox.refused if told.startswith(ASKING_A_NETWORK)), "")
    if not refused and not (isinstance(error, Exception) and WANTS_A_NETWORK.search(text)):
        return None
    return NotResolved(
        f"{text.rstrip(chr(46))}. Tracing uses no network{f' ({refused})' if refused else ''}. "
        "To fix: run that line once without tunecast (or `hf download NAME`), so that what it needs lies in the cache",
        field="script",
    )


def explained(error: BaseException) -> TunecastError | None:
    """Errors that have a remedy, said as such."""
    if isinstance(error, TunecastError):
        return error
    if isinstance(error, NotOnThisMachine):
        return NotResolved(str(error), field="script")
    operation = operation_without_shapes(error)
    if operation:
        remedy = "upgrade the package it comes from, or give it one with torch.library.register_fake"
        if operation.startswith(OF_XFORMERS) and "xformers" in sys.modules:
            remedy = "--python of an environment without xformers; PyTorch's own attention then takes its place"
        return Unsupported(
            f'the operation {operation} has no shape-only ("fake") kernel, so its result cannot be known without '
            f"running it. To fix: {remedy}."
        )
    if isinstance(error, ModuleNotFoundError) and error.name == "mpi4py" and "deepspeed" in sys.modules:
        return NotResolved(
            "DeepSpeed finds no variables of a launcher and would ask MPI, which is not here. "
            "To fix: tunecast trace -- deepspeed --num_gpus N train.py, or torchrun or accelerate launch",
            field="script",
        )
    missing = missing_module(error)
    if missing:
        return NotResolved(
            f"the script imports {missing}, which {sys.executable} does not have. "
            f"To fix: install it there, or --python /path/to/your/training/environment/bin/python."
        )
    return None


def missing_module(error: BaseException) -> str:
    """The module that was not found; packages that import late raise a further error, which names none."""
    part: BaseException | None = error
    while isinstance(part, ModuleNotFoundError):
        if part.name:
            return part.name
        part = part.__cause__ or part.__context__
    return ""


def operation_without_shapes(error: BaseException) -> str:
    if isinstance(error, UnsupportedOperatorException):
        return str(error.func)
    found = re.search(r"no fake impl registered for <CustomOpDef\((.*?)\)>", str(error))
    return found.group(1) if found else ""


def own_frames_removed(error: BaseException) -> str:
    """The end of the traceback as the script's author would see it."""
    told = traceback.TracebackException.from_exception(error)
    part: traceback.TracebackException | None = told
    while part is not None:
        part.stack = traceback.StackSummary.from_list([f for f in part.stack if not f.filename.startswith(OWN_FILES)])
        part = part.__cause__ or part.__context__
    return "".join(told.format())[-MOST_DETAIL:]


def follow_threads() -> None:
    """Dispatch modes belong to a thread; a thread the script starts would compute for real, unseen."""
    active = _get_current_dispatch_mode_stack()
    show = threading.excepthook
    begin, run = threading.Thread.start, threading.Thread._bootstrap_inner  # type: ignore[attr-defined]

    def start(self: threading.Thread) -> None:
        tell_kernels_of_threads_apart()
        begin(self)

    def _bootstrap_inner(self: threading.Thread) -> None:
        for mode in active:
            _push_mode(mode)
        run(self)

    def excepthook(error: threading.ExceptHookArgs) -> None:
        if not issubclass(error.exc_type, Stop):  # how a thread that trains is stopped
            show(error)

    threading.Thread.start = start  # type: ignore[method-assign]
    threading.Thread._bootstrap_inner = _bootstrap_inner  # type: ignore[attr-defined]
    threading.excepthook = excepthook


def tell_kernels_of_threads_apart() -> None:
    """A fake tensor says it is on `meta` while a kernel runs on it; seen from another thread that is wrong."""
    if isinstance(vars(FakeTensorMode).get("in_kernel_invocation"), property):
        return
    here = threading.local()

    def is_inside(mode: FakeTensorMode) -> bool:
        return id(mode) in getattr(here, "modes", ())

    def set_inside(mode: FakeTensorMode, inside: bool) -> None:
        others: frozenset[int] = getattr(here, "modes", frozenset()) - {id(mode)}
        here.modes = others | {id(mode)} if inside else others

    FakeTensorMode.in_kernel_invocation = property(is_inside, set_inside)  # type: ignore[assignment, misc]


def skip_no_step(recorder: Recorder) -> None:
    """A gradient scaler reads whether a gradient overflowed, and skips the step then; here there is nothing to read."""

    def _maybe_opt_step(self: Any, optimizer: Any, optimizer_state: Any, *args: Any, **kwargs: Any) -> Any:
        recorder.assumptions["no float16 gradient overflows, so no step is skipped"] = 1
        return optimizer.step(*args, **kwargs)

    torch.amp.GradScaler._maybe_opt_step = _maybe_opt_step  # type: ignore[method-assign]


def masked_select(tensor: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """As on the card: an index by the mask (ATen/native/cuda/IndexKernel.cpp, `masked_select_out_cuda_impl`)."""
    tensor, mask = torch.broadcast_tensors(tensor, mask)
    return tensor[mask]
