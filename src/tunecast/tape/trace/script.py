"""An unmodified training script, run as `python script.py args` would run it, until it has taken the steps asked for.

It is stopped by an exception no ordinary code catches, raised where the next step, an evaluation or a checkpoint
would begin. What the script could not do here (write, start programs, reach a network, save tensors without
contents) goes into the answer, a sentence each.
"""

from __future__ import annotations

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
from typing import Any

import torch
from torch._subclasses.fake_tensor import UnsupportedOperatorException
from torch.nn.modules import module as modules
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack, _push_mode

from tunecast.errors import NotResolved, TunecastError, Unsupported
from tunecast.tape.file import write_tape
from tunecast.tape.op import Unit
from tunecast.tape.trace import tensor_files
from tunecast.tape.trace.ledger import counted
from tunecast.tape.trace.packages import datasets, transformers
from tunecast.tape.trace.packages.transformers import NotOnThisMachine
from tunecast.tape.trace.recorder import Recorder
from tunecast.tape.trace.request import Answer, ScriptRequest
from tunecast.tape.trace.sandbox import Sandbox
from tunecast.tape.trace.skip import Skipper

OWN_FILES = (str(Path(__file__).parent), "<frozen runpy>")
MOST_DETAIL = 4000
MOST_IGNORED_STOPS = 50
"""A loop with a bare `except:` swallows the stop; after so many the answer is written and the process left."""

PART_WITHOUT_SKIPS = 0.2
"""Of the seconds of CPU, where no call could be skipped so far: more of these will not reach the end of a long run."""


class Stop(BaseException):
    """Enough steps were taken."""


def trace_script(request: ScriptRequest, recorder: Recorder) -> tuple[Answer, Sequence[Unit]]:
    """How it went, and the units of its run where calls may be skipped."""
    sandbox = Sandbox(request.folder)
    run = ScriptRun(request, recorder, sandbox)
    sandbox.enter()
    run.watch()
    answer = run.through()
    return answer, run.skipper.units if run.skipper is not None else ()


def run_as_main(request: ScriptRequest) -> None:
    """`sys.argv`, `sys.path[0]` and `__name__` as the interpreter sets them for `python FILE` and `python -m NAME`."""
    sys.argv = [request.script, *request.args]
    if request.as_module:
        sys.path[0] = os.getcwd()
        runpy.run_module(request.script, run_name="__main__", alter_sys=True)
        return
    if not os.path.exists(request.script):
        raise NotResolved(f"there is no script {request.script}", field="script")
    sys.path[0] = os.path.dirname(os.path.realpath(request.script))
    runpy.run_path(request.script, run_name="__main__")


class ScriptRun:
    """Counts the script's steps, stops it, and says how it went."""

    def __init__(self, request: ScriptRequest, recorder: Recorder, sandbox: Sandbox) -> None:
        self.request, self.recorder, self.sandbox = request, recorder, sandbox
        self._stops, self._began_s, self.too_long = 0, time.monotonic(), False
        self.skipper = Skipper(recorder, before_call=self.stop_when_done) if request.skips else None

    def watch(self) -> None:
        hook = modules.register_module_forward_pre_hook(lambda module, inputs: self.stop_when_done())
        modules._global_forward_pre_hooks.move_to_end(hook.id, last=False)  # before the tracer sees a new step begin
        register_optimizer_step_pre_hook(lambda optimizer, args, kwargs: self.stop_when_done())
        tensor_files.install(self.recorder, self.sandbox.overlay, before_save=self.stop_when_done)
        datasets.install(self.sandbox.overlay)
        transformers.offer(self.request.models, self.request.folder / "models")
        self.recorder.values.chance.follow_seeds()
        skip_no_step(self.recorder)
        self.recorder.emulated["aten::masked_select"] = masked_select
        follow_threads()
        if self.skipper is not None:
            self.skipper.install()

    def through(self) -> Answer:
        try:
            run_as_main(self.request)
        except Stop:
            return self.answer()
        except SystemExit as end:
            if end.code in (None, 0):
                return self.answer(finished=True)
            return self.failed(end, f"the script ended with {'code ' if isinstance(end.code, int) else ''}{end.code}")
        except BaseException as error:
            return self.failed(error, f"{type(error).__name__}: {error}")
        return self.answer(finished=True)

    @property
    def steps(self) -> int:
        return self.recorder.scopes.steps_done

    def stop_when_done(self) -> None:
        if not (self.request.steps and self.steps >= self.request.steps) and not self.takes_too_long():
            return
        if not self._stops:
            self.recorder.scopes.begin_step()  # what the end of the program frees belongs to no step
            self.recorder.paused += 1
        self._stops += 1
        if self._stops > MOST_IGNORED_STOPS:
            self._leave_at_once()
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

    def _leave_at_once(self) -> None:
        from tunecast.tape.trace.child import versions

        units = self.skipper.units if self.skipper is not None else ()
        write_tape(self.recorder.tape(versions(), units), self.request.tape_path)
        self.answer().write(self.request.answer_path)
        os._exit(0)

    def answer(self, *, finished: bool = False, error: str | None = None, detail: str = "") -> Answer:
        skipper = self.skipper
        untraced = (*self.sandbox.sentences(), *counted(self.recorder.untraced))
        return Answer(
            steps=self.steps, finished=finished, error=error, code="script" if error else None, detail=detail,
            untraced=untraced, skipped=skipper.skipped if skipper else 0, too_long=self.too_long,
            all_traced=skipper.why_not if skipper else "",
        )  # fmt: skip

    def failed(self, error: BaseException, text: str) -> Answer:
        """A tape of at least one whole step is worth having; without one the error is all there is to tell."""
        known = explained(error)
        detail = "" if known is not None or isinstance(error, SystemExit) else own_frames_removed(error)
        if self.steps:
            return self.answer(error=known.message if known is not None else text, detail=detail)
        raise known or TunecastError(f"{text}\n{detail}") from None


def explained(error: BaseException) -> TunecastError | None:
    """Errors that have a remedy, said as such."""
    if isinstance(error, TunecastError):
        return error
    if isinstance(error, NotOnThisMachine):
        return NotResolved(str(error), field="script")
    operation = operation_without_shapes(error)
    if operation:
        return Unsupported(
            f'the operation {operation} has no shape-only ("fake") kernel, so its result cannot be known without '
            "running it. To fix: upgrade the package it comes from, or give it one with torch.library.register_fake."
        )
    if isinstance(error, ModuleNotFoundError):
        return NotResolved(
            f"the script imports {error.name}, which {sys.executable} does not have. "
            f"To fix: install it there, or --python /path/to/your/training/environment/bin/python."
        )
    return None


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
    start = threading.Thread._bootstrap_inner  # type: ignore[attr-defined]

    def _bootstrap_inner(self: threading.Thread) -> None:
        for mode in active:
            _push_mode(mode)
        start(self)

    threading.Thread._bootstrap_inner = _bootstrap_inner  # type: ignore[attr-defined]


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
