"""Parsers that take what other trainers call things, and refuse as the rest of tunecast does: what was given, what is
allowed, the nearest right thing.

`--help` shows on one screen what most people need, `--help-all` everything (cli/usage.py).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

from tunecast.errors import UsageError
from tunecast.job.knob import shown
from tunecast.tape.trace.limits import TraceLimits
from tunecast.units import GIB, bytes_from, positive

BOOLS = ("true", "false", "yes", "no", "on", "off", "1", "0")
"""What may follow a switch, as transformers' HfArgumentParser has it: `--packing True`."""


class Parser(argparse.ArgumentParser):
    """Raises `UsageError` instead of printing a usage of fifty flags and leaving."""

    def __init__(self, command: str, usage: str, description: str, epilog: str, short: Sequence[str] = ()) -> None:
        super().__init__(
            f"tunecast {command}",
            usage,
            description,
            epilog,
            formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, max_help_position=34, width=110),
            allow_abbrev=False,
        )
        self.short = short
        """Flags that --help shows, in its order; none: all there are."""
        if short:
            self.add_argument(
                "--help-all", action=HelpAll, nargs=0, help="show every flag, in groups, with its default, and exit"
            )

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}. See {self.prog} --help")

    def read(self, argv: Sequence[str]) -> argparse.Namespace:
        """Flags and names in any order, in our own words or other trainers'; a flag nobody has is told what is."""
        arguments, unknown = self.parse_known_intermixed_args(list(self._translated(argv)))
        flags = [word.partition("=")[0] for word in unknown if word.startswith("-")]
        if flags:
            from tunecast.cli.hints import flag_hint

            known = [flag for flag in self._option_string_actions if flag.startswith("--")]
            told = [f"{flag}: {flag_hint(flag, known)}" for flag in flags]
            raise UsageError("; ".join(told) + f". See {self.prog} --help", field=flags[0])
        if unknown:
            raise UsageError(f"got {shown(unknown[0])}, which belongs to nothing. See {self.prog} --help")
        return arguments

    def format_help(self) -> str:
        from tunecast.cli.usage import help_text

        return help_text(self, everything=not self.short)

    def _translated(self, argv: Sequence[str]) -> Iterator[str]:
        """`--batch_size 4` as `--micro-batch 4`, `--packing True` as `--packing`, `--load-in-4bit` as `--set …`."""
        words = list(argv)
        known = self._option_string_actions
        while words:
            word = words.pop(0)
            if not word.startswith("--") or word == "--":
                yield word
                continue
            flag, equals, value = word.partition("=")
            if flag not in known:
                flag = flag.replace("_", "-") if flag.replace("_", "-") in known else self._foreign(flag, words, value)
                if flag == "--set":
                    yield from (flag, words.pop(0))
                    continue
            if isinstance(known.get(flag), argparse.BooleanOptionalAction):
                yield _switch(flag, value if equals else _bool_word(words))
            elif flag == "--targets" and not equals and words:
                yield from (flag, ",".join([words.pop(0), *_modules(words)]))
            else:
                yield f"{flag}{equals}{value}"

    def _foreign(self, flag: str, words: list[str], value: str) -> str:
        """Our flag of that meaning; `--set`, with what it sets put before the other words; or the flag as it is."""
        from tunecast.cli.hints import our_flag
        from tunecast.job.foreign import MEANINGS, is_switch, plain

        known = self._option_string_actions
        name = plain(flag)
        if name.removeprefix("no_") in MEANINGS and "--set" in known:
            off = name not in MEANINGS
            name = name.removeprefix("no_")
            if not value and not off and words and (words[0].lower() in (*MEANINGS[name], *BOOLS)):
                value = words.pop(0)
            if not value and is_switch(name):
                value = "false" if off else "true"
            words.insert(0, f"{name}={value}")
            return "--set"
        ours = our_flag(name)
        return ours if ours in known else flag


class HelpAll(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option_string: Any = None) -> None:
        from tunecast.cli.usage import help_text

        assert isinstance(parser, Parser)
        print(help_text(parser, everything=True), end="")
        parser.exit()


def _bool_word(words: list[str]) -> str:
    return words.pop(0) if words and words[0].lower() in BOOLS else ""


def _modules(words: list[str]) -> Iterator[str]:
    """Further ones as TRL takes them: `--lora_target_modules q_proj v_proj`. No model is called so."""
    while words and words[0].endswith("_proj"):
        yield words.pop(0)


def _switch(flag: str, value: str) -> str:
    """`--packing` or `--no-packing`."""
    if value.lower() not in ("", *BOOLS):
        raise UsageError(f"{flag}: got {value!r}; allowed: nothing, true or false", field=flag)
    if value.lower() not in ("false", "no", "off", "0"):
        return flag
    return f"--{flag.removeprefix('--no-')}" if flag.startswith("--no-") else f"--no-{flag[2:]}"


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


def count(text: str, or_else: str = "") -> int:
    number = positive(text)
    if number is None or number > 100_000:
        raise argparse.ArgumentTypeError(f"got {shown(text)}; allowed: a whole number from 1 to 100000{or_else}")
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
    limits = TraceLimits()
    group.add_argument(
        "--python",
        metavar="PATH",
        help="Python with your torch (default: tunecast's, or the active environment's)",
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
        help=f"end it when it holds more host memory than this, in GiB (default: {limits.memory_bytes / GIB:.0f})",
    )


def add_output_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("output")
    amount = group.add_mutually_exclusive_group()
    amount.add_argument("--short", action="store_true", help="one line: the verdict, what it needs, how long it takes")
    amount.add_argument(
        "--details", action="store_true", help="everything: phases, modules, bytes, assumptions, versions"
    )
    add_json_flag(group)
    group.add_argument("--html", metavar="FILE", help="write an HTML page of the run's memory over time")
    group.add_argument(
        "--snapshot", metavar="FILE", help="write the pickle that PyTorch's memory viewer (memory_viz) opens"
    )


def add_json_flag(parser: argparse._ActionsContainer) -> None:
    parser.add_argument("--json", action="store_true", help="JSON instead of text")


def add_calibration_flag(parser: argparse._ActionsContainer) -> None:
    words = "ignore what `tunecast calibrate` measured on this machine and what was learned from measured runs"
    parser.add_argument("--no-calibration", action="store_true", help=words)


def limits_from(arguments: argparse.Namespace) -> TraceLimits:
    return TraceLimits(arguments.time_limit, int(arguments.memory_limit * GIB))
