"""The traced process: reads a request, trains on a card that is not there, writes the tape.

    guard.py ──forks──► main(REQUEST.json)

Runs under the user's own interpreter, so everything it imports is the standard library, torch and tunecast itself.
The answer (a tape file and a small JSON beside it) is written also when the program fails half-way.
"""

from __future__ import annotations

import os
import traceback
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

from tunecast.errors import TunecastError
from tunecast.job.stacks import stack_of
from tunecast.tape.file import write_tape
from tunecast.tape.op import Tape
from tunecast.tape.trace.launch import rank_zero
from tunecast.tape.trace.request import Answer, JobRequest, Request, ScriptRequest
from tunecast.tape.trace.sandbox import Sandbox

PACKAGES = ("torch", "transformers", "peft", "bitsandbytes", "accelerate", "trl", "liger-kernel", "unsloth")


def main(path: str) -> int:
    request = Request.read(Path(path))
    answer = Answer()
    try:
        tape, answer = _traced(request)
        if answer.steps or answer.error is None:
            write_tape(tape, request.tape_path)
    except TunecastError as error:
        answer = Answer(error=error.message, code=error.code, field=error.field)
    except BaseException as error:
        detail = "".join(traceback.format_exception(error))[-4000:]
        answer = Answer(error=f"{type(error).__name__}: {error}", code="internal", detail=detail)
    answer.write(request.answer_path)
    return 0


def _traced(request: Request) -> tuple[Tape, Answer]:
    sandbox = None
    if isinstance(request, ScriptRequest):
        sandbox = Sandbox(request.folder)
        sandbox.restrict()  # before torch: threads that were there already would not be bound
        if request.rank_variables and request.nproc_per_node * request.nnodes > 1:
            os.environ.update(rank_zero(request.nproc_per_node, request.nnodes))
    from tunecast.tape.trace.session import tracing

    with tracing(request.card, devices=request.devices) as recorder:
        if isinstance(request, JobRequest):
            from tunecast.job.mapping import job_from_dict

            job = job_from_dict(request.job)
            recipe = import_module(f"tunecast.tape.trace.{stack_of(job).recipe}")
            recipe.train(job, request.config, request.lengths, recorder)
            return recorder.tape(versions()), Answer(steps=len(request.lengths), finished=True)
        assert isinstance(request, ScriptRequest) and sandbox is not None
        from tunecast.tape.trace.script import trace_script

        answer, units = trace_script(request, recorder, sandbox)
        return recorder.tape(versions(), units), answer


def versions() -> dict[str, str]:
    found: dict[str, Any] = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
