"""How many files a reader passes from a command to the deepest call it makes.

    ./dev walk predict                      the hops of one prediction
    ./dev walk plan                         the hops of one plan
    ./dev walk predict --source OTHER/src   the same of another checkout, to compare the two

The command is run in this process under `sys.setprofile`, and every stack of calls it makes is looked at.

A hop       is a call from one file of the package into another. The first is from the shell into cli/main.py.
The walk    is the stack with the most hops, and its hops are the measure: no call of the command is further away.
Left out    are `__call__` methods, because `self.norm(x)` is read as a call of the norm's `forward`; files outside the
            package; and a passage that the same stack has made before, because a model is nested (decoder.py calls
            autograd.py calls decoder.py ...) and a reader has to understand a passage once.

Nothing is named but the command, so that the measure survives any renaming. The same command gives the same number
every time, with or without what is compiled.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType

SOURCE = Path(__file__).parents[2] / "src"
COMMANDS = {
    "predict": "predict llama-3.1-8b --method qlora --gpu rtx-4090 --json",
    "plan": "plan llama-3.1-8b --method lora --within 6h --gpu h100-sxm-80gb --as-of 2026-11-15 --json",
}
PASSED_THROUGH = "__call__"

Passage = tuple[str, str]


@dataclass(frozen=True, eq=False)
class Call:
    """One function on a stack, with the calls above it."""

    caller: Call | None
    file: str
    function: str
    passages: frozenset[Passage]
    """The changes of file from the command to here."""
    callees: dict[CodeType, Call] = field(default_factory=dict)

    @property
    def hops(self) -> int:
        return len(self.passages)

    def stack(self) -> list[Call]:
        calls = [self]
        while (caller := calls[-1].caller) is not None:
            calls.append(caller)
        return calls[-2::-1]

    def callee(self, code: CodeType, file: str) -> Call:
        """The call of `code` from here; a function that is only passed through stays in its caller's file."""
        known = self.callees.get(code)
        if known is None:
            name = code.co_name
            place = self.file if name == PASSED_THROUGH else file
            passage = frozenset() if place == self.file else frozenset([(self.file, place)])
            known = self.callees[code] = Call(self, place, name, self.passages | passage)
        return known

    def all_callees(self) -> Iterator[Call]:
        for callee in self.callees.values():
            yield callee
            yield from callee.all_callees()


class Profile:
    """Every distinct stack of calls within a folder, as a tree."""

    def __init__(self, folder: Path) -> None:
        self._folder = f"{folder.resolve()}/"
        self.shell = Call(None, "the shell", "", frozenset())
        self._stack: list[tuple[FrameType | None, Call]] = [(None, self.shell)]

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if not code.co_filename.startswith(self._folder):
            return
        if event == "call":
            caller = self._stack[-1][1]
            self._stack.append((frame, caller.callee(code, code.co_filename[len(self._folder) :])))
        elif event == "return" and self._stack[-1][0] is frame:
            self._stack.pop()


def profile(command: str, source: Path) -> Profile:
    """The calls of a command that is run in this process, in the package that lies in `source`."""
    sys.path.insert(0, str(source))
    from tunecast.cli.main import main

    seen = Profile(source / "tunecast")
    with contextlib.redirect_stdout(io.StringIO()):
        sys.setprofile(seen)
        try:
            main(command.split())
        finally:
            sys.setprofile(None)
    return seen


def deepest(calls: Iterator[Call]) -> Call:
    return max(calls, key=lambda call: call.hops)


def deepest_by_room(shell: Call) -> Mapping[str, int]:
    rooms: dict[str, int] = {}
    for call in shell.all_callees():
        room = call.file.rpartition("/")[0] or "tunecast"
        rooms[room] = max(rooms.get(room, 0), call.hops)
    return dict(sorted(rooms.items(), key=lambda item: -item[1]))


def lines(call: Call) -> Iterator[str]:
    """The stack of a call, one line per file; a passage made before has no number."""
    before = 0
    for file, group in itertools.groupby(call.stack(), key=lambda each: each.file):
        calls = list(group)
        names = [each.function for each in calls if each.function[0] != "<" and each.function != PASSED_THROUGH]
        number = calls[0].hops if calls[0].hops > before else ""
        before = calls[0].hops
        yield f"{number:>4}  {file:36}{' > '.join(dict.fromkeys(names))}".rstrip()


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="./dev walk", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=COMMANDS)
    parser.add_argument("--source", type=Path, default=SOURCE, metavar="FOLDER", help="the src folder to run")
    arguments = parser.parse_args()
    seen = profile(COMMANDS[arguments.command], arguments.source)
    furthest = deepest(seen.shell.all_callees())
    print(f"tunecast {COMMANDS[arguments.command]}: {furthest.hops} hops to the deepest call\n")
    print("\n".join(lines(furthest)))
    rooms = ", ".join(f"{room} {hops}" for room, hops in deepest_by_room(seen.shell).items())
    print(f"\nHops to the deepest call of each folder: {rooms}")


if __name__ == "__main__":
    main()
