"""Shell scripts that end in a training: `bash run.sh ARGS`, `sbatch run.slurm`. Read, never run.

Assignments, exports, `cd`, `$VAR`, `${VAR:-default}` and "$@" are followed (job/recipes/commands.py). The last command
that starts Python is the training; one that hangs on an `if`, a loop or a pipe into it is refused by name.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath

from tunecast.errors import NotResolved, UsageError
from tunecast.job.readers.bounds import bounded_text
from tunecast.job.recipes.commands import ShellCommand, commands_of
from tunecast.job.recipes.launch.launchers import LAUNCHERS, Launcher, split_options
from tunecast.job.recipes.launch.schedulers import of_slurm
from tunecast.job.recipes.trainings import PROGRAMS, SERVING
from tunecast.job.recipes.words import Word, is_open
from tunecast.records import NamedTuple
from tunecast.units import MIB

ENDINGS = (".sh", ".bash", ".zsh", ".slurm", ".sbatch", ".sub")
SHELLS = frozenset({"bash", "sh", "zsh", "dash", "ksh", "sbatch"})
MOST_SCRIPT_BYTES = 2 * MIB
OF_A_JOB = {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0", "SLURM_JOB_ID": "0"}
"""What Slurm sets for the first task of a job."""
NO_TRAINING = frozenset({"pip", "venv", "ensurepip", "virtualenv", "site", "compileall"})
"""Modules that `python -m` is often given beside the training."""
VARIABLE = re.compile(r"\$\{?([A-Za-z_]\w*)")
MOST_SHOWN = 300


class ShellStart(NamedTuple):
    """The training a shell script ends in."""

    words: tuple[str, ...]
    environment: Mapping[str, str]
    folder: str
    """Where the script has gone with `cd`."""
    python: str | None
    """Of the environment it activates."""
    place: str
    """`run.sh:12`."""
    skipped: tuple[str, ...]
    """Starts of Python before it, which are not run."""


def is_shell_script(path: str) -> bool:
    if path.endswith(ENDINGS):
        return True
    if os.path.splitext(path)[1] or not os.path.isfile(path):
        return False
    with open(path, "rb") as file:
        first, second = (file.readline(200).decode(errors="replace") for _ in range(2))
    names_shell = any(PurePath(word).name in SHELLS for word in first[2:].split())
    return first.startswith("#!") and names_shell and not second.startswith("'''exec'")  # a Python program of pip's


def start_of_file(path: str, arguments: Sequence[str], environment: Mapping[str, str], folder: str) -> ShellStart:
    place = os.path.join(folder, path)
    if not os.path.isfile(place):
        raise NotResolved(f"there is no script {path!r}", field="script")
    ordered = of_slurm(bounded_text(Path(place), MOST_SCRIPT_BYTES), path)
    of_job = {**OF_A_JOB, **ordered.variables} if "#SBATCH" in ordered.text else {}
    variables = {**of_job, **environment, "0": path, "BASH_SOURCE": path}
    found = commands_of(ordered.text, variables, ordered.first_line, arguments=arguments, certain=True)
    return _start(found, path, folder, of_job)


def start_of_text(text: str, environment: Mapping[str, str], folder: str) -> ShellStart:
    """Of `bash -c TEXT`."""
    return _start(commands_of(text, dict(environment), certain=True), "bash -c", folder, {})


def _start(commands: Sequence[ShellCommand], file: str, folder: str, of_job: Mapping[str, str]) -> ShellStart:
    python: str | None = None
    starts: list[ShellCommand] = []
    folders: list[str] = []
    for command in commands:
        words = command.words
        if words[0] == "cd" and len(words) == 2 and not command.around:
            folder = os.path.normpath(os.path.join(folder, _certain(os.path.expanduser(words[1]), file)))
        elif words[0] in ("source", ".") and len(words) > 1 and words[1].endswith("bin/activate"):
            python = os.path.join(os.path.expanduser(words[1][: -len("activate")]), "python")
        elif starts_training(words):
            starts.append(command)
            folders.append(folder)
    if not starts:
        raise UsageError(
            f"{file}: no command in it starts a training. To fix: put the training's own command after --",
            field="script",
        )
    *before, last = starts
    place = f"{file}:{last.words[0].line}"
    if last.around:
        raise UsageError(
            f"{place}: {last.words[0]} hangs on {last.around}; the script is read, not run. "
            f"To fix: tunecast trace -- {_shown(last.words)}",
            field="script",
        )
    own = {name: str(value) for name, value in last.environment.items() if not is_open(value)}
    skipped = tuple(f"{file}:{each.words[0].line}: {_shown(each.words)}" for each in before)
    return ShellStart(last.words, {**of_job, **own}, folders[-1], python, place, skipped)


def require_certain(words: Sequence[str], place: str) -> None:
    """Raises `UsageError` where a word hangs on what the script does not say."""
    for word in words:
        _certain(word, place)


def _certain(word: str, place: str) -> str:
    if not is_open(word):
        return word
    variable = VARIABLE.search(word)
    if variable is None or "$(" in word or "`" in word:
        raise UsageError(
            f"{place}: {_shown([word])} is what another program prints, and none is run. "
            "To fix: put the training's own command after --, with the value itself",
            field="script",
        )
    name = variable[1]
    raise UsageError(
        f"{place}: the value of {name} is not known: it is not set, or under a condition. To fix: "
        f"{name}=VALUE tunecast trace -- ..., or put the training's own command after --",
        field="script",
    )


def starts_training(words: Sequence[Word]) -> bool:
    """Whether a command starts a Python program that may train."""
    rest = list(words)
    while rest:
        name = program_name(rest[0])
        if name == "python":
            options, behind = split_options(rest[1:], LAUNCHERS["python"])
            runs = behind and not ("m" in options and behind[0].partition(".")[0] in NO_TRAINING)
            return bool(runs) and "c" not in options
        if name in PROGRAMS:
            return len(rest) > 1 and not SERVING & set(rest[:2])
        if name in ("torchrun", "deepspeed", "accelerate-launch", "ft_launcher"):
            return len(rest) > 1
        if name == "accelerate":
            return rest[1:2] == ["launch"]
        if name in SHELLS:
            return any(word.endswith(ENDINGS) for word in rest[1:])
        if rest[0].endswith((".py", *ENDINGS)):
            return True
        inner = behind_wrapper(rest, LAUNCHERS.get(name))
        if inner is None:
            return False
        rest = inner
    return False


def behind_wrapper(words: Sequence[Word], launcher: Launcher | None) -> list[Word] | None:
    """What is left behind `nohup`, `uv run`, `srun`; None where the first word is none of those."""
    rest = list(words[1:])
    if launcher is None or (launcher.subcommands and rest[:1] != list(launcher.subcommands)):
        return None
    _, rest = split_options(rest[len(launcher.subcommands) :], launcher)
    return rest[launcher.arguments :]


def program_name(word: str) -> str:
    """`/env/bin/python3.12` is python."""
    name = PurePath(word).name
    if re.fullmatch(r"python(\d+(\.\d+)?)?", name):
        return "python"
    return "mpirun" if name in ("mpiexec", "orterun") else name


def _shown(words: Sequence[str]) -> str:
    text = shlex.join(words)
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN].rpartition(' ')[0]} …"
