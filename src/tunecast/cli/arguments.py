"""Parsers that refuse as the rest of tunecast does: what was given, what is allowed, the nearest right thing."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import NoReturn

from tunecast.errors import UsageError, nearest
from tunecast.job.knob import shown
from tunecast.tape.trace.limits import Limits
from tunecast.units import GIB, bytes_from


class Parser(argparse.ArgumentParser):
    """Raises `UsageError` instead of printing a usage of fifty flags and leaving."""

    def __init__(self, command: str, usage: str, description: str, epilog: str) -> None:
        super().__init__(
            f"tunecast {command}",
            usage,
            description,
            epilog,
            formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, max_help_position=34, width=110),
            allow_abbrev=False,
        )

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}. See {self.prog} --help")

    def read(self, argv: Sequence[str]) -> argparse.Namespace:
        """Flags and names in any order; unknown flags named with the nearest known one."""
        arguments, unknown = self.parse_known_intermixed_args(list(argv))
        flags = [word.partition("=")[0] for word in unknown if word.startswith("-")]
        if flags:
            known = [flag for flag in self._option_string_actions if flag.startswith("--")]
            told = [f"{flag}: unknown flag{_hint(flag, known)}" for flag in flags]
            raise UsageError("; ".join(told) + f". See {self.prog} --help", field=flags[0])
        if unknown:
            raise UsageError(f"got {shown(unknown[0])}, which belongs to nothing. See {self.prog} --help")
        return arguments


def _hint(flag: str, known: Sequence[str]) -> str:
    near = nearest(flag.replace("_", "-"), known)
    return f"; nearest: {near}" if near else ""


def number(low: float, high: float, unit: str = "") -> Callable[[str], float]:
    """A reader of numbers above `low`, at most `high`."""

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not low < value <= high:
            allowed = f"a number{' of ' + unit if unit else ''} above {low:g}, at most {high:g}"
            raise argparse.ArgumentTypeError(f"got {shown(text)}; allowed: {allowed}")
        return value

    return read


def positive(given: object) -> int | None:
    """The whole number from 1 on that was given, as text or not; None where it is none, or has ten digits and more."""
    if isinstance(given, str):
        given = int(given) if given.isdecimal() and len(given) < 10 else None
    return given if isinstance(given, int) and not isinstance(given, bool) and 1 <= given < 10**9 else None


def count(text: str) -> int:
    number = positive(text)
    if number is None or number > 100_000:
        raise argparse.ArgumentTypeError(f"got {shown(text)}; allowed: a whole number from 1 to 100000")
    return number


def size(text: str) -> int:
    """`2GiB`; 0 for none."""
    nbytes = 0 if text == "0" else bytes_from(text[:64])
    if nbytes is None:
        raise argparse.ArgumentTypeError(f"got {shown(text)}; allowed: a size such as 2GiB or 2GB")
    return nbytes


def add_tracing_flags(parser: argparse.ArgumentParser) -> None:
    """What both commands that trace can be told about it."""
    group = parser.add_argument_group("tracing")
    limits = Limits()
    group.add_argument(
        "--python", metavar="PATH", help="interpreter that has your torch (default: ours, or the active environment's)"
    )
    group.add_argument(
        "--time-limit",
        metavar="S",
        type=number(0, 1e6, "seconds"),
        default=limits.seconds,
        help=f"end the traced process after this many seconds (default: {limits.seconds:.0f})",
    )
    group.add_argument(
        "--memory-limit",
        metavar="GIB",
        type=number(0, 1e5, "GiB"),
        default=limits.memory_bytes / GIB,
        help=f"end it when it holds more host memory than this (default: {limits.memory_bytes / GIB:.0f})",
    )


def add_output_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("output")
    amount = group.add_mutually_exclusive_group()
    amount.add_argument("--short", action="store_true", help="one line: the verdict, what it needs, how long it takes")
    amount.add_argument(
        "--details", action="store_true", help="everything: phases, modules, bytes, assumptions, versions"
    )
    group.add_argument("--json", action="store_true", help="JSON instead of text")
    group.add_argument("--html", metavar="FILE", help="write the run's memory over time as a page of its own")
    group.add_argument(
        "--snapshot", metavar="FILE", help="write the pickle that PyTorch's memory viewer (memory_viz) opens"
    )


def limits_from(arguments: argparse.Namespace) -> Limits:
    return Limits(arguments.time_limit, int(arguments.memory_limit * GIB))
