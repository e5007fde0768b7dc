"""Asks for a tape: starts the traced process, limits it, reads its answer. Loads no torch itself.

The child runs in its own process group with no GPU visible and no network names to reach for, is killed when it
outlives its time or outgrows its memory, and leaves nothing behind: its files live in a temporary folder.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tunecast.errors import NotResolved, TunecastError, Unsupported, UsageError
from tunecast.job.job import Job
from tunecast.records import replace
from tunecast.tape.card import Card
from tunecast.tape.file import read_tape
from tunecast.tape.op import Tape
from tunecast.tape.trace.limits import TraceLimits
from tunecast.tape.trace.request import Answer, JobRequest, Request, ScriptRequest
from tunecast.units import gib

PACKAGE = Path(__file__).parents[2]
START = """
import importlib.util, runpy, sys
root = sys.argv.pop(1)
spec = importlib.util.spec_from_file_location("tunecast", root + "/__init__.py", submodule_search_locations=[root])
sys.modules["tunecast"] = module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
runpy.run_module("tunecast.tape.trace.child", run_name="__main__", alter_sys=True)
"""
"""Gives another interpreter this tunecast and nothing else: on its path, our site-packages would hide its own."""
POLL_S = 0.2
MOST_CPU_S = 300
"""A script that was to run to its end is stopped then, and answered as far as it came."""
PART_OF_THE_LIMIT = 0.8
"""Of the time it may take before it is killed: what it has done by then is still to be written."""
OFFLINE = {
    "CUDA_VISIBLE_DEVICES": "",
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "WANDB_MODE": "disabled",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONUNBUFFERED": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    "TORCHINDUCTOR_COMPILE_THREADS": "1",
}

Progress = Callable[[float], None]
"""Called several times a second with the seconds passed."""


def trace_training(
    job: Job,
    config: Mapping[str, Any],
    lengths: Sequence[int],
    card: Card,
    *,
    python: str = sys.executable,
    limits: TraceLimits | None = None,
    progress: Progress | None = None,
) -> Tape:
    """The tape of a job's own training run over the model of `config`: a step for each of `lengths`."""
    with tempfile.TemporaryDirectory(prefix="tunecast-") as folder:
        request = JobRequest(Path(folder), card, job=job.to_dict(), config=dict(config), lengths=tuple(lengths))
        tape, answer = _ask(request, python, limits or TraceLimits(), progress, quiet=True)
        if tape is None:
            raise _failure(answer)
        return tape


def trace_script(
    script: str,
    args: Sequence[str],
    card: Card,
    *,
    as_module: bool = False,
    steps: int = 3,
    whole: bool = False,
    skips: bool = True,
    nproc_per_node: int = 1,
    nnodes: int = 1,
    models: Mapping[str, Mapping[str, Any]] | None = None,
    python: str = sys.executable,
    limits: TraceLimits | None = None,
    progress: Progress | None = None,
) -> tuple[Tape, Answer]:
    """The tape of the first steps of an unmodified training script, or of its `whole` run, most of it skipped where it
    `skips` (tape/whole_run.py) and no longer than it may take; and what could not be traced."""
    limits = limits or TraceLimits()

    def ask(skips: bool) -> tuple[Tape | None, Answer]:
        with tempfile.TemporaryDirectory(prefix="tunecast-") as folder:
            request = ScriptRequest(
                Path(folder),
                card,
                devices=nproc_per_node,
                script=script,
                args=tuple(args),
                as_module=as_module,
                steps=steps,
                skips=skips,
                cpu_s=MOST_CPU_S if whole else 0,
                wall_s=limits.seconds * PART_OF_THE_LIMIT if whole else 0,
                nproc_per_node=nproc_per_node,
                nnodes=nnodes,
                models=dict(models or {}),
            )
            return _ask(request, python, limits, progress, quiet=False)

    tape, answer = ask(skips=whole and skips)
    if answer.error is not None and answer.skipped:  # perhaps for what the skipped calls returned
        tape, answer = ask(skips=False)
        answer = replace(answer, all_traced="the script fails where calls of the model are skipped")
    if tape is None:
        raise _failure(answer)
    return tape, answer


def _ask(
    request: Request, python: str, limits: TraceLimits, progress: Progress | None, quiet: bool
) -> tuple[Tape | None, Answer]:
    environment = dict(os.environ) | OFFLINE
    environment["TMPDIR"] = str(request.folder)
    command = [python, "-c", START, str(PACKAGE), str(request.write())]
    log_path = request.folder / "log.txt"
    with log_path.open("wb") as log:
        try:
            child = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log if quiet else sys.stderr,
                stderr=log if quiet else sys.stderr,
                start_new_session=True,
            )
        except OSError as error:
            raise NotResolved(f"the interpreter {python!r} could not be started: {error.strerror}") from None
        try:
            _watch(child, limits, progress)
        finally:
            _end(child)
    if not request.answer_path.exists():
        raise _crash(python, child.returncode, log_path)
    answer = Answer.read(request.answer_path)
    return (read_tape(request.tape_path) if request.tape_path.exists() else None), answer


def _watch(child: subprocess.Popen[bytes], limits: TraceLimits, progress: Progress | None) -> None:
    start = time.monotonic()
    while child.poll() is None:
        passed = time.monotonic() - start
        if progress is not None:
            progress(passed)
        if passed > limits.seconds:
            raise NotResolved(
                f"tracing took longer than {limits.seconds:.0f} s and was stopped. "
                "To fix: --time-limit SECONDS, fewer --steps, or a smaller script."
            )
        used = resident_bytes(child.pid)
        if used > limits.memory_bytes:
            raise NotResolved(
                f"tracing used {gib(used)} of host memory, more than {gib(limits.memory_bytes)}, and was stopped. "
                "To fix: --memory-limit GIB, or let the script hold less real data."
            )
        time.sleep(POLL_S)


def _end(child: subprocess.Popen[bytes]) -> None:
    """The whole process group, so that nothing a script started lives on."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def resident_bytes(pid: int) -> int:
    """Of the process, 0 where the system does not say."""
    try:
        fields = Path(f"/proc/{pid}/statm").read_text().split()
        return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return 0


def _crash(python: str, code: int | None, log: Path) -> TunecastError:
    tail = log.read_text(errors="replace")[-1500:].strip()
    if "No module named 'torch'" in tail:
        return NotResolved(
            f"{python} has no torch, and tracing runs the real training code. "
            "To fix: pip install torch transformers, or --python /path/to/your/training/environment/bin/python."
        )
    how = f"was killed by signal {-code}" if code is not None and code < 0 else f"ended with code {code}"
    return Unsupported(
        f"the traced process {how} before it could answer. Its torch may be one this tunecast does not know. "
        f"To fix: trace with a torch version `tunecast trace --help` names.{chr(10) + tail if tail else ''}"
    )


def _failure(answer: Answer) -> TunecastError:
    kinds: dict[str | None, type[TunecastError]] = {
        "usage": UsageError,
        "not_resolved": NotResolved,
        "unsupported": Unsupported,
    }
    message = answer.error or "the traced process gave no answer"
    missing = "No module named " in message
    if missing:
        name = message.rpartition("No module named ")[2].strip("'\"")
        return NotResolved(
            f"this job needs the package {name}, which the tracing environment lacks. "
            f"To fix: pip install {name.partition('.')[0]}"
        )
    kind = kinds.get(answer.code, TunecastError)
    return kind(
        message if kind is not TunecastError or not answer.detail else f"{message}\n{answer.detail}", field=answer.field
    )
