"""`--help` and `--help-all`: what a command can be told, on one screen or in full, each flag with its default."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tunecast.cli.arguments import Parser

LONGEST_METAVAR = 20
"""Letters that leave a flag and its help on one line."""


def help_text(parser: Parser, *, everything: bool) -> str:
    formatter = parser._get_formatter()
    formatter.add_usage(parser.usage, parser._actions, parser._mutually_exclusive_groups)
    if everything:
        formatter.add_text(parser.description)
        for group in parser._action_groups:
            formatter.start_section(group.title)
            formatter.add_text(group.description)
            formatter.add_arguments([_with_default(action) for action in group._group_actions])
            formatter.end_section()
        formatter.add_text(parser.epilog)
        return formatter.format_help()
    formatter.add_text(first_paragraph(parser.description or ""))
    formatter.start_section("options")
    formatter.add_arguments(_chosen(parser))
    formatter.end_section()
    formatter.add_text(first_paragraph(parser.epilog or ""))
    flags = sum(1 for action in parser._actions if action.option_strings)
    formatter.add_text(f"All {flags} flags, in groups, and more on what it does: {parser.prog} --help-all")
    return formatter.format_help()


def first_paragraph(text: str) -> str:
    return text.partition("\n\n")[0]


def _chosen(parser: Parser) -> Iterable[argparse.Action]:
    """What --help shows: positional arguments, then the flags of `short`, a line each where that is possible."""
    yield from (action for action in parser._actions if not action.option_strings)
    known = parser._option_string_actions
    for flag in parser.short:
        yield _with_default(known[flag], briefly=True)


def _with_default(action: argparse.Action, *, briefly: bool = False) -> argparse.Action:
    """The same with its default in its help, and whose default that is. Briefly: up to the first semicolon."""
    from copy import copy

    told = copy(action)
    help = action.help or ""
    if briefly:
        help = help.partition(";")[0]
        if isinstance(action, argparse.BooleanOptionalAction):
            told.option_strings = [f"--[no-]{action.option_strings[0][2:]}"]
            told.nargs = 0
        elif isinstance(action.metavar, str) and len(action.metavar) > LONGEST_METAVAR:
            told.metavar = "NAME"
            help = f"{help}: {action.metavar.replace('|', ', ')}"
    default = _default(action.dest)
    told.help = f"{help} (default: {default})" if default else help
    return told


def _default(dest: str) -> str:
    """`8, transformers`: what is taken and who takes it too; empty for what is no field of a job, or nothing."""
    from tunecast.job.flags import PREFIX
    from tunecast.job.job import all_knobs
    from tunecast.job.knob import OURS, REQUIRED

    knob = all_knobs().get(dest.removeprefix(PREFIX)) if dest.startswith(PREFIX) else None
    if knob is None or knob.default is REQUIRED:
        return ""
    ours = knob.origin.package == OURS.package
    if knob.default is None:
        return "" if ours else f"as {knob.origin.package} does"
    return _shown(knob.default) + ("" if ours else f", {knob.origin.package}")


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return ",".join(map(str, value)) or "none"
    return f"{value:g}" if isinstance(value, float) else f"{value}".replace("%", "%%")
