"""The trainings among the commands of a script: which framework is called, with which file and which values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePath
from types import ModuleType
from typing import Any

from tunecast.errors import NotResolved
from tunecast.job.recipes.commands import ShellCommand, commands_of
from tunecast.job.recipes.document import Document
from tunecast.job.recipes.launch.launchers import launched
from tunecast.job.recipes.launch.schedulers import Ordered
from tunecast.job.recipes.request import Invocation, Launch, ReadRequest
from tunecast.job.recipes.words import Word, is_open
from tunecast.records import NamedTuple


class Training(NamedTuple):
    """A command that trains."""

    framework: ModuleType
    invocation: Invocation
    launch: Launch
    line: int
    told: str
    """Its first words."""
    entered: Path | None = None
    """As `ReadRequest` has it."""


PROGRAMS = frozenset({"swift", "megatron", "llamafactory-cli", "lmf", "axolotl", "litgpt", "trl", "tune", "vllm"})
"""Of trainers and servers, whose first argument says what they do."""
SERVING = frozenset({"rollout", "deploy", "vllm-serve", "serve", "vllm", "sglang.launch_server"})


def trainings_of(
    ordered: Ordered, path: Path, frameworks: Iterable[ModuleType]
) -> tuple[list[Training], list[list[Word]]]:
    """And commands that serve a model beside it."""
    request = ReadRequest(Document(str(path), {}, {}), path.parent, ordered.launch)
    callable_by_command = [each for each in frameworks if hasattr(each, "invocation")]
    trainings: list[Training] = []
    others: list[list[Word]] = []
    for command in shell_commands(ordered, path):
        if command.words[:1] == ("cd",):
            request = request._replace(entered=entered_by(command.words[1:], request.entered))
        words, launch = launched(command, request, str(path))
        found = None
        for framework in callable_by_command if words else ():
            found = framework.invocation(words)
            if found is not None:
                told = " ".join([PurePath(words[0]).name, *words[1:2]])
                trainings.append(Training(framework, found, launch, words[0].line, told, request.entered))
                break
        if found is None and SERVING & set(words[:2]):
            others.append(words)
    return trainings, others


def entered_by(words: Sequence[str], before: Path | None) -> Path | None:
    """Where `cd` leads, from where a script is already; None where that is not known."""
    if len(words) != 1 or words[0].startswith(("-", "~")) or is_open(words[0]):
        return None
    return (before or Path()) / words[0]


def shell_commands(ordered: Ordered, path: Path) -> list[ShellCommand]:
    itself = {name: str(path) for name in ("0", "BASH_SOURCE")}
    return commands_of(ordered.text, {**itself, **ordered.variables}, ordered.first_line)


def without_training(ordered: Ordered, path: Path) -> str | None:
    """What a script does that trains nothing: `swift export` (line 2); None where that is not known."""
    commands = shell_commands(ordered, path)
    if not commands:
        return "it holds no command"
    request = ReadRequest(Document(str(path), {}, {}), path.parent, ordered.launch)
    found: dict[str, int] = {}
    for command in commands:
        words, _ = launched(command, request, str(path))
        if words and PurePath(words[0]).name in PROGRAMS and len(words) > 1:
            found.setdefault(f"`{PurePath(words[0]).name} {words[1]}`", words[0].line)
    return ", ".join(f"{told} (line {line})" for told, line in found.items()) or None


def request_of(training: Training, path: Path, values: Mapping[str, Any]) -> ReadRequest:
    """With `values` that win over the script's. Raises `NotResolved` where the file it names is not there."""
    invocation, file = training.invocation, str(path)
    request = ReadRequest(Document(file, {}, {}), path.parent, training.launch, invocation.command, training.entered)
    document: Document | None = request.document
    if invocation.config is not None:
        document = request.open(invocation.config)
    if document is None:
        raise NotResolved(f"{file}:{training.line}: {training.told} names {invocation.config}, which is not here")
    places = {name: (file, invocation.lines.get(name, training.line)) for name in invocation.values}
    return request._replace(document=document.with_values(invocation.values, places).with_values(values))
