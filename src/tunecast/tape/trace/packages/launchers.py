"""Launchers that a script starts itself: `trl sft` calls accelerate, `llamafactory-cli train` starts torchrun.

What they would start is what trains. The script is ended with the launcher's command, which the asking process reads as
if it had been typed. A plain `python` is followed only where an installed program starts it (`swift sft`); elsewhere it
may as well prepare data.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

from tunecast.tape.trace.packages import after_import

PROGRAMS = frozenset({"torchrun", "accelerate", "accelerate-launch", "deepspeed"})
MODULES = frozenset({"torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch"})


class Launching(BaseException):
    """The script starts a launcher; `environment` is what it has set for it."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        super().__init__(" ".join(command))
        self.command, self.environment = tuple(command), dict(environment)


def install(script: str, before_training: Callable[[], bool]) -> None:
    """`before_training`: whether no step is done yet; what is launched later is none of this training."""
    begun = dict(os.environ)
    installed = os.path.dirname(os.path.abspath(script)) == os.path.dirname(sys.executable)

    def launch(command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        now = os.environ if environment is None else environment
        raise Launching(command, {name: value for name, value in now.items() if begun.get(name) != value})

    def of_accelerate(module: ModuleType) -> None:
        def launch_command(args: argparse.Namespace) -> None:
            launch(["accelerate", "launch", *words_of(module.launch_command_parser(), args)])

        module.launch_command = launch_command  # type: ignore[attr-defined]

    def of_torchrun(module: ModuleType) -> None:
        def run(args: argparse.Namespace) -> None:
            launch(["torchrun", *words_of(module.get_args_parser(), args)])

        module.run = run  # type: ignore[attr-defined]

    after_import("accelerate.commands.launch", of_accelerate)
    after_import("torch.distributed.run", of_torchrun)

    for name in ("execv", "execve", "execvp", "execvpe"):
        setattr(os, name, _seen(getattr(os, name), lambda words, env: follow(words, env)))
    start = subprocess.Popen.__init__

    def __init__(self: Any, args: Any, *rest: Any, **options: Any) -> None:
        follow(args, options.get("env"))
        start(self, args, *rest, **options)

    subprocess.Popen.__init__ = __init__  # type: ignore[method-assign]

    def follow(args: Any, environment: Mapping[str, str] | None) -> None:
        if not isinstance(args, (list, tuple)) or not all(isinstance(word, (str, os.PathLike)) for word in args):
            return
        words = [os.fspath(word) for word in args]
        if words and before_training() and is_launcher(words, plain_python=installed):
            launch(words, environment)


def _seen(execute: Callable[..., Any], follow: Callable[[Any, Any], None]) -> Callable[..., Any]:
    def run(file: Any, args: Any, *environment: Any) -> Any:
        follow(list(args), environment[0] if environment else None)
        return execute(file, args, *environment)

    return run


def is_launcher(words: Sequence[str], *, plain_python: bool) -> bool:
    name = os.path.basename(words[0])
    if name == "accelerate":
        return list(words[1:2]) == ["launch"]
    if name in PROGRAMS:
        return True
    if not name.startswith("python"):
        return False
    rest = [word for word in words[1:] if word != "-u"]
    if rest[:1] == ["-m"]:
        return rest[1:2] != [] and (rest[1] in MODULES or (plain_python and rest[1] != "pip"))
    return plain_python and bool(rest) and rest[0].endswith(".py")


def words_of(parser: argparse.ArgumentParser, args: argparse.Namespace) -> list[str]:
    """The command line that gives these values."""
    words: list[str] = []
    for action in parser._actions:
        value = getattr(args, action.dest, None)
        if not action.option_strings or value is None or value == action.default:
            continue
        flag = action.option_strings[0] if len(action.option_strings[0]) > 2 else action.option_strings[-1]
        if action.nargs == 0:
            words += [flag] if value else []
        else:
            words.append(f"{flag}={value}")
    return [*words, str(args.training_script), *map(str, args.training_script_args)]
