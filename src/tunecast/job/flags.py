"""The command line's flags for a job, derived from its fields: no second list to keep.

A nested field is reached by its own name where that is unambiguous (`--rank` for lora.rank), else with its section
before it (`--parallel-data`); `--set lora.dropout=0.1` reaches any, by its dotted name or as its flag is called.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from functools import cache
from typing import NamedTuple

from tunecast.errors import UsageError
from tunecast.job.job import all_knobs, sections
from tunecast.job.knob import Kind, shown

_PREFIX = "job:"
"""Of an argument's name in the namespace, so that no command's own argument is taken for a field of the job."""

METAVARS: Mapping[str, str] = {
    "int": "N",
    "bytes": "SIZE",
    "float": "X",
    "ints": "N,N,…",
    "ints or text": "N,N,…|…",
    "names": "NAME,…",
}


class Flag(NamedTuple):
    flag: str
    """As typed, `--seq-len`; a bool also has `--no-…`."""
    field: str
    """The dotted name, `seq_len`."""
    kind: Kind
    help: str
    choices: tuple[str, ...]


@cache
def job_flags() -> tuple[Flag, ...]:
    knobs = all_knobs()
    taken = Counter(name.rpartition(".")[2] for name in knobs) + Counter(list(sections()))
    flags = []
    for name, knob in knobs.items():
        leaf = name.rpartition(".")[2]
        own = "." not in name or taken[leaf] == 1
        spelled = knob.flag or (leaf if own else name.replace(".", "-"))
        flags.append(Flag(f"--{spelled.replace('_', '-')}", name, knob.kind, knob.help, knob.choices))
    return tuple(flags)


def add_job_flags(parser: argparse.ArgumentParser, without: Collection[str] = ()) -> None:
    """A flag for every field, and `--set`. Values stay text: the knobs read them, and say what is wrong with them.

    `without`: flags the command has for its own; `--set` reaches those fields all the same.
    """
    group = parser.add_argument_group("the job (these win over the file)")
    for flag in job_flags():
        if flag.flag in without:
            continue
        help = flag.help.replace("%", "%%")
        dest = _PREFIX + flag.field
        if flag.kind == "bool":
            group.add_argument(
                flag.flag, dest=dest, action=argparse.BooleanOptionalAction, default=argparse.SUPPRESS, help=help
            )
            continue
        metavar = METAVARS.get(flag.kind, "…")
        if flag.kind == "choice" and len(flag.choices) <= 8:
            metavar = "|".join(flag.choices)
        group.add_argument(flag.flag, dest=dest, metavar=metavar, default=argparse.SUPPRESS, help=help)
    group.add_argument(
        "--set", dest=_PREFIX, metavar="FIELD=VALUE", action="append", default=[], help="any field, by its name"
    )


def overrides_from(arguments: argparse.Namespace) -> dict[str, object]:
    """What the flags set, by dotted name; `--set` comes last and wins."""
    given = vars(arguments)
    flags = {
        name.removeprefix(_PREFIX): value
        for name, value in given.items()
        if name.startswith(_PREFIX) and name != _PREFIX
    }
    return flags | assignments(given.get(_PREFIX, []))


def field_named(name: str) -> str:
    """The dotted name of the field that is meant: by that name, by what its flag is called (`rank`, `seq-len`), or by
    the last part of its name where no other field shares it. As it was given where it means none."""
    spelled = name.lstrip("-").replace("-", "_")
    if spelled in all_knobs():
        return spelled
    flag = f"--{spelled.replace('_', '-')}"
    found = [each.field for each in job_flags() if each.flag == flag]
    found = found or [field for field in all_knobs() if field.rpartition(".")[2] == spelled]
    return found[0] if len(found) == 1 else spelled


def assignments(texts: Iterable[str]) -> dict[str, object]:
    """`lora.dropout=0.1`, `rank=64` and their like, by dotted name. `lora=null` empties a section."""
    found: dict[str, object] = {}
    for text in texts:
        name, equals, value = (part.strip() for part in text.partition("="))
        if not equals or not name:
            raise UsageError(f"--set: got {shown(text)}; allowed: FIELD=VALUE, such as lora.dropout=0.1", field="--set")
        if name in sections() and value.lower() in ("null", "none", ""):
            found[name] = None
        else:
            found[field_named(name)] = value
    return found
