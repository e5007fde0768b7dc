"""One program under `tunecast trace`, within bounds, and whether it went as expected."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from dataclasses import asdict, dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from typing import IO, Any

from programs.manifest import Program, Source

ROOT = Path(__file__).parents[3]
TIME_LIMIT_S = 600
MEMORY_LIMIT_GIB = 10
MOST_MESSAGE = 400
GIB = 2**30


@dataclass(frozen=True)
class Places:
    repositories: Path
    """Git directories, OWNER/NAME each."""
    checkouts: Path
    data: Path


@dataclass(frozen=True)
class Outcome:
    """What one program gave."""

    name: str
    source: str
    version: str
    command: str
    exit_code: int
    word: str
    """exact or estimate; "" where it was refused."""
    steps: int
    finished: bool
    allocated_bytes: int
    weights_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    cpu_s: float
    host_bytes: int
    message: str
    """What was said on the error output, and what the script raised after a whole step."""
    by_hand: str
    why: str
    failure: str
    """How it differs from what is expected; "" where it does not."""


class NotHere(Exception):
    """The repository or the package is not on this machine."""


def checkout_of(source: Source, places: Places) -> Path:
    """The folder of the source's files, unpacked once."""
    if source.release:
        packages = interpreter_of(source).parents[1] / Path(sysconfig.get_path("purelib")).relative_to(sys.prefix)
        found = PathFinder.find_spec(source.name.replace("-", "_"), [str(packages), *sys.path])
        if found is None or not found.submodule_search_locations:
            raise NotHere(f"the package {source.name} {source.release} is not installed")
        return Path(next(iter(found.submodule_search_locations)))
    folder = places.checkouts / source.name / source.commit[:12]
    if not folder.exists():
        git = places.repositories / source.name
        if not git.exists():
            raise NotHere(f"To fix: git clone --bare https://github.com/{source.name} {git}")
        folder.mkdir(parents=True)
        archive = ["git", f"--git-dir={git}", "archive", source.commit, *source.paths]
        packed = subprocess.Popen(archive, stdout=subprocess.PIPE)
        subprocess.run(["tar", "-x", "-C", str(folder)], stdin=packed.stdout, check=True)
        if packed.wait():
            raise NotHere(f"{git} does not have {source.commit}")
    return folder


def interpreter_of(source: Source) -> Path:
    """Of the environment that has the source's packages; `./dev` makes them beside each other."""
    return Path(sys.prefix).parent / source.environment / "bin" / "python"


def trace_program(program: Program, places: Places) -> Outcome:
    source, python = checkout_of(program.source, places), str(interpreter_of(program.source))
    for path, stand_in in program.files.items():
        (source / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(places.data / stand_in, source / path)
    named = {"source": str(source), "data": str(places.data), "python": python}
    command = [word.format(**named) for word in program.command]
    options = [word.format(**named) for word in program.options]
    steps = ["--steps", str(program.steps)] if program.steps else []
    words = [
        python, "-m", "tunecast", "trace", "--json", *steps, "--time-limit", str(TIME_LIMIT_S), "--memory-limit",
        str(MEMORY_LIMIT_GIB), *options, "--", *command,
    ]  # fmt: skip
    importable = [str(ROOT / "src"), *([] if program.source.release else [str(source), str(source / "src")])]
    variables = {
        **os.environ, "PYTHONPATH": ":".join(importable), "HF_HOME": str(places.data / ".cache"),
        **{key: value.format(**named) for key, value in program.variables.items()},
    }  # fmt: skip
    folder = program.folder.format(**named)
    if program.prepare:
        prepare = [word.format(**named) for word in program.prepare]
        subprocess.run(prepare, cwd=folder, env=variables, check=True, stdin=subprocess.DEVNULL, capture_output=True)
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = subprocess.Popen(words, cwd=folder, env=variables, stdin=subprocess.DEVNULL, stdout=out, stderr=err)
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        texts = [text_of(file).replace(f"{source}/", "").replace(python, "python") for file in (out, err)]
    shown = " ".join(program.command).replace("{source}/", "").replace("{data}/", "")
    return outcome_of(program, shown, child.returncode, *texts, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024)


def text_of(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


def outcome_of(
    program: Program, command: str, exit_code: int, out: str, err: str, cpu_s: float, host_bytes: int
) -> Outcome:
    answer = answer_in(out)
    memory, trace = answer.get("memory") or {}, answer.get("trace") or {}
    parts = memory.get("breakdown_bytes") or {}
    message = trace.get("error") or ("" if answer else message_in(err))
    outcome = Outcome(
        program.name, program.source.name, program.source.version, command, exit_code, trace.get("word", ""),
        trace.get("steps", 0), trace.get("finished", False), memory.get("allocated_bytes", 0),
        parts.get("weights", 0) + parts.get("adapters", 0), parts.get("gradients", 0), parts.get("optimizer", 0),
        round(cpu_s, 1), host_bytes, message[:MOST_MESSAGE], program.by_hand, program.why, "",
    )  # fmt: skip
    return Outcome(**{**asdict(outcome), "failure": failure_of(program, outcome)})


def answer_in(out: str) -> dict[str, Any]:
    """The JSON object of the answer, the last on the output: the script may have printed before it."""
    try:
        return dict(json.loads(out[out.index('{\n  "schema"') :] if '{\n  "schema"' in out else out))
    except ValueError:
        return {}


def message_in(err: str) -> str:
    found = re.findall(r"^tunecast: (?:error: )?(.*(?:\n.*)*)", err, re.MULTILINE)
    return " ".join((found[-1] if found else err[-MOST_MESSAGE:]).split())


def failure_of(program: Program, outcome: Outcome) -> str:
    if program.refused:
        if outcome.exit_code in (0, 3):
            return "traced, and a refusal was expected"
        return "" if program.refused in outcome.message else f"refused without saying {program.refused!r}"
    if outcome.exit_code not in (0, 3):
        return "not traced"
    if outcome.message:
        return "stopped by an error after a step"
    if not outcome.finished and not program.steps:
        return f"ended before its end, after {outcome.steps} steps"
    if (not outcome.finished and outcome.steps < program.steps) or not outcome.steps:
        return f"{outcome.steps} steps of {program.steps}"
    if outcome.allocated_bytes < program.least_gib * GIB:
        return f"{outcome.allocated_bytes} bytes at the peak, fewer than weights and states have"
    return ""
