"""Asks for a tape: starts the traced process, limits it, reads its answer. Loads no torch itself.

The traced process runs below a guard (`guard.py`) in a session of its own, with no GPU visible, is ended when it
outlives its time, outgrows its memory or writes too much, and leaves nothing behind: its files live in a temporary
folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import stat
import subprocess
import sys
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
from tunecast.tape.trace.facts import SettingOverride
from tunecast.tape.trace.folders import run_folder
from tunecast.tape.trace.guard import Verdict, over_time
from tunecast.tape.trace.limits import TraceLimits
from tunecast.tape.trace.request import AllocatorRequest, Answer, JobRequest, Request, ScriptRequest
from tunecast.units import GIB

PACKAGE = Path(__file__).parents[2]
START = """
import importlib.util, runpy, sys
root = sys.argv.pop(1)
spec = importlib.util.spec_from_file_location("tunecast", root + "/__init__.py", submodule_search_locations=[root])
sys.modules["tunecast"] = module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
runpy.run_module("tunecast.tape.trace.guard", run_name="__main__", alter_sys=True)
"""
"""Gives another interpreter this tunecast and nothing else: on its path, our site-packages would hide its own."""
POLL_S = 0.2
LARGEST_ANSWER_BYTES = 4 * GIB
LATE_S = 10.0
"""Seconds after which a guard that should have ended is ended."""
MOST_CPU_S = 300
"""A script that was to run to its end is stopped then, and answered as far as it came."""
PART_OF_THE_LIMIT = 0.8
"""Of the time it may take before it is killed: what it has done by then is still to be written."""
OFFLINE = {
    "CUDA_VISIBLE_DEVICES": "",
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "HF_EVALUATE_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "WANDB_MODE": "disabled",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONUNBUFFERED": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    "TORCHINDUCTOR_COMPILE_THREADS": "1",
}

FAILS_WHERE_SKIPPED = "the script fails where calls of the model are skipped"
FAILS_EITHER_WAY = "the script fails, so it was run again with nothing skipped"

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
    with run_folder() as folder:
        request = JobRequest(folder, card, job=job.to_dict(), config=dict(config), lengths=tuple(lengths))
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
    traced_steps: Sequence[int] = (),
    nproc_per_node: int = 1,
    nnodes: int = 1,
    gpus: int = 1,
    rank_variables: bool = True,
    environment: Mapping[str, str] | None = None,
    cwd: str | None = None,
    models: Mapping[str, Mapping[str, Any]] | None = None,
    overrides: Sequence[SettingOverride] = (),
    allocator: AllocatorRequest | None = None,
    python: str = sys.executable,
    limits: TraceLimits | None = None,
    progress: Progress | None = None,
    quiet: bool = False,
) -> tuple[Tape, Answer]:
    """The tape of the first steps of an unmodified training script, or of its `whole` run, most of it skipped where it
    `skips` (tape/whole_run.py; nothing of its `traced_steps`) and no longer than it may take; and what could not be
    traced.

    `allocator`: by what the script's questions about memory are answered. `gpus`: cards that one process sees; where it
    uses several, `tape.cards` takes the tape apart. `environment` and `cwd` are what its launcher would set. `quiet`:
    what it prints is shown to nobody. Raises `ScriptFailed` where it ends before its first step.
    """
    limits = limits or TraceLimits()

    def ask(skips: bool) -> tuple[Tape | None, Answer]:
        with run_folder() as folder:
            request = ScriptRequest(
                folder,
                card,
                devices=max(nproc_per_node, gpus),
                script=script,
                args=tuple(args),
                as_module=as_module,
                steps=steps,
                skips=skips,
                traced_steps=tuple(traced_steps),
                cpu_s=MOST_CPU_S if whole else 0,
                wall_s=limits.seconds * PART_OF_THE_LIMIT if whole else 0,
                nproc_per_node=nproc_per_node,
                nnodes=nnodes,
                rank_variables=rank_variables,
                names_devices=bool({**os.environ, **(environment or {})}.get("CUDA_VISIBLE_DEVICES")),
                models=dict(models or {}),
                overrides=tuple(overrides),
                allocator=allocator,
            )
            return _ask(request, python, limits, progress, quiet=quiet, environment=environment or {}, cwd=cwd)

    tape, answer = ask(skips=whole and skips and gpus == 1)
    if whole and gpus > 1:
        answer = replace(answer, all_traced="it uses several cards in one process")
    if answer.error is not None and answer.skipped:  # perhaps for what the skipped calls returned
        tape, again = ask(skips=False)
        fails_too = again.error is not None
        answer = replace(again, all_traced=FAILS_EITHER_WAY if fails_too else FAILS_WHERE_SKIPPED)
    if tape is None:
        raise _failure(answer)
    return tape, answer


def _ask(
    request: Request,
    python: str,
    limits: TraceLimits,
    progress: Progress | None,
    quiet: bool,
    environment: Mapping[str, str] | None = None,
    cwd: str | None = None,
) -> tuple[Tape | None, Answer]:
    environment = {**os.environ, **(environment or {}), **OFFLINE}
    environment["TMPDIR"] = str(request.folder)
    told = [str(request.write()), str(os.getpid()), json.dumps(limits)]
    log_path = request.folder / "log.txt"
    with log_path.open("wb") as log:
        try:
            guard = subprocess.Popen(
                [python, "-c", START, str(PACKAGE), *told],
                env=environment,
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log if quiet else sys.stderr,
                start_new_session=True,
            )
        except OSError as error:
            raise NotResolved(f"the interpreter {python!r} could not be started: {error.strerror}") from None
        try:
            _wait(guard, limits, progress)
        finally:
            _end(guard)
    assert guard.stdout is not None
    with guard.stdout:
        verdict = Verdict.read(guard.stdout.read().decode())
    if verdict is not None and verdict.reason:
        raise NotResolved(verdict.reason)
    if not _is_file(request.answer_path):
        code = guard.returncode if verdict is None else verdict.code
        raise (_crash_of_script if isinstance(request, ScriptRequest) else _crash)(request, python, code, log_path)
    try:
        answer = Answer.read(request.answer_path)
        return (read_tape(request.tape_path) if _is_file(request.tape_path) else None), answer
    except (ValueError, TypeError, LookupError, OSError, EOFError) as error:
        raise NotResolved(
            f"what the traced process left in its folder cannot be read ({type(error).__name__}: {error}). "
            "To fix: let the script keep its own files out of the root of $TMPDIR."
        ) from None


def _is_file(path: Path) -> bool:
    """No link, no pipe and of a size to be read: the folder is the script's as well."""
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and found.st_size <= LARGEST_ANSWER_BYTES


def _wait(guard: subprocess.Popen[bytes], limits: TraceLimits, progress: Progress | None) -> None:
    start = time.monotonic()
    while guard.poll() is None:
        passed = time.monotonic() - start
        if progress is not None:
            progress(passed)
        if passed > limits.seconds + LATE_S:  # the guard does not answer
            raise NotResolved(over_time(passed, limits))
        time.sleep(POLL_S)


def _end(guard: subprocess.Popen[bytes]) -> None:
    """With all below it. A guard that was killed has left that to us: what it started is in its session."""
    guard.terminate()
    try:
        guard.wait(timeout=LATE_S)
    except subprocess.TimeoutExpired:
        guard.kill()
        guard.wait()
    if guard.returncode < 0:
        for pid in _session(guard.pid):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


def _session(leader: int) -> list[int]:
    """Processes of a session (man proc_pid_stat); none where the system does not say."""
    found = []
    for name in os.listdir("/proc") if os.path.isdir("/proc/self") else ():
        with contextlib.suppress(OSError, ValueError, IndexError):
            if int(Path(f"/proc/{int(name)}/stat").read_text().rpartition(")")[2].split()[3]) == leader:
                found.append(int(name))
    return found


def _crash(request: Request, python: str, code: int | None, log: Path) -> TunecastError:
    tail = log.read_text(errors="replace")[-1500:].strip()
    if "No module named 'torch'" in tail:
        return NotResolved(
            f"{python} has no torch, and tracing runs the real training code. "
            "To fix: pip install torch transformers, or --python /path/to/your/training/environment/bin/python."
        )
    return Unsupported(
        f"the traced process {_end_in_words(code)} before it could answer. Its torch may be one this tunecast does not "
        f"know. To fix: trace with a torch version `tunecast trace --help` names.{chr(10) + tail if tail else ''}"
    )


def _crash_of_script(request: Request, python: str, code: int | None, log: Path) -> TunecastError:
    """No answer at all: C code ended the process, or somebody outside."""
    steps = request.steps_done()
    when = f"after {steps} optimizer {'step' if steps == 1 else 'steps'}" if steps else "before its first step was done"
    fix = "see whether it does so without tunecast as well"
    if code == -signal.SIGKILL:
        fix = "if the machine ran out of memory, free some, or let the script hold less real data"
    elif code is not None and code >= 0:
        fix = "let it end by sys.exit, or by its last line"
    first = f"--steps {steps} answers for what came before; " if steps else ""
    return NotResolved(
        f"the script {_end_in_words(code)} {when}; what was traced is lost with it. To fix: {first}{fix}."
    )


def _end_in_words(code: int | None) -> str:
    if code is None:
        return "was ended"
    if code >= 0:
        return f"ended with code {code}"
    if code == -signal.SIGKILL:
        return "was killed from outside (SIGKILL), most likely by the kernel for want of memory,"
    with contextlib.suppress(ValueError):
        return f"crashed with {signal.Signals(-code).name} ({signal.strsignal(-code)})"
    return f"was ended by signal {-code}"


class ScriptFailed(TunecastError):
    """The script's own failure before its first step was done."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        super().__init__(f"{answer.error}\n{answer.detail}")


def _failure(answer: Answer) -> TunecastError:
    if answer.code == "script":
        return ScriptFailed(answer)
    kinds: dict[str | None, type[TunecastError]] = {
        "usage": UsageError,
        "not_resolved": NotResolved,
        "unsupported": Unsupported,
    }
    message = answer.error or "the traced process gave no answer"
    missing = re.match(r"ModuleNotFoundError: No module named '([\w.]+)'", message)
    if missing:
        name = missing[1]
        return NotResolved(
            f"this job needs the package {name}, which the tracing environment lacks. "
            f"To fix: pip install {name.partition('.')[0]}"
        )
    if answer.place and answer.place not in message:
        message = f"{message} ({answer.place})"
    kind = kinds.get(answer.code, TunecastError)
    return kind(
        message if kind is not TunecastError or not answer.detail else f"{message}\n{answer.detail}", field=answer.field
    )
