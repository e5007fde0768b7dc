"""The command line's flags for a job, derived from its fields, and the groups they are shown in.

A nested field is reached by its own name where that is unambiguous (`--rank` for lora.rank), else with its section
before it (`--parallel-data`); `--set lora.dropout=0.1` reaches any, by its dotted name or as its flag is called.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import product

from tunecast.errors import UsageError
from tunecast.job.foreign import fields_meant, plain
from tunecast.job.job import all_knobs, sections
from tunecast.job.knob import Kind, shown
from tunecast.job.releases import FIELDS
from tunecast.records import NamedTuple

_BATCH, _PRECISION, _MODEL = "Batch, length and memory", "Precision and kernels", "Model and method"
_SECTIONS: Mapping[str, str] = {
    "lora": "Adapters (`lora`)", "quantization": "Quantised weights (`quantization`)", "data": "Data (`data`)",
    "run": "Evaluation and checkpoints (`run`)", "preference": "Preferences (`preference`)",
    "rl": "Rollouts (`rl`)", "head": "Heads (`head`)", "distill": "Distillation (`distill`)",
    "vision": "Images and videos (`vision`)", "hardware": "Hardware (`hardware`)",
    "parallel": "Several cards (`parallel`)",
}  # fmt: skip
_GROUPS: Mapping[str, str] = {
    **dict.fromkeys(("model", "id", "task", "method", "trained", "stack"), _MODEL),
    **dict.fromkeys((*FIELDS, "stack_version"), _MODEL),
    **dict.fromkeys(("weights_dtype", "autocast", "matmul_dtype", "attention", "kernels"), _PRECISION),
    **dict.fromkeys(("loss", "compile"), _PRECISION),
    **dict.fromkeys(("seq_len", "micro_batch", "grad_accum", "lengths", "gradient_checkpointing"), _BATCH),
    **dict.fromkeys(("checkpoint_reentrant", "recompute", "offload_activations", "allocator"), _BATCH),
    **dict.fromkeys(
        ("optimizer", "optimizer_state_dtype", "master_weights", "optimizer_in_backward", "max_grad_norm"), "Optimizer"
    ),
}
ORDER = (
    _MODEL, _SECTIONS["lora"], _SECTIONS["quantization"], _BATCH, _PRECISION, "Optimizer",
    *[_SECTIONS[name] for name in ("preference", "rl", "head", "distill", "vision")], _SECTIONS["data"],
    _SECTIONS["run"], _SECTIONS["hardware"], _SECTIONS["parallel"],
)  # fmt: skip


def group_of(name: str) -> str:
    """The group a field stands in."""
    section, dot, _ = name.partition(".")
    return _SECTIONS[section] if dot else _GROUPS[name]


PREFIX = "job:"
"""Of an argument's name in the namespace, so that no command's own argument is taken for a field of the job."""

METAVARS: Mapping[str, str] = {
    "int": "N",
    "int or choice": "N|NAME",
    "bytes": "SIZE",
    "float": "X",
    "ints": "N,N,…",
    "ints or text": "N,N,…|…",
    "names": "NAME,…",
    "choice": "NAME",
    "release": "X.Y",
}


COMMON = (
    *("--method", "--rank", "--targets", "--weights-dtype", "--seq-len", "--micro-batch", "--grad-accum"),
    *("--gradient-checkpointing", "--optimizer", "--attention", "--stack", "--samples", "--epochs", "--gpu", "--gpus"),
)
"""Of a job's flags those that people set most."""


class Flag(NamedTuple):
    flag: str
    """As typed, `--seq-len`; a bool also has `--no-…`."""
    field: str
    """The dotted name, `seq_len`."""
    kind: Kind
    help: str
    choices: tuple[str, ...]
    group: str
    """One of `groups.ORDER`."""


@cache
def job_flags() -> tuple[Flag, ...]:
    knobs = all_knobs()
    unnamed = [name.rpartition(".")[2] for name, knob in knobs.items() if not knob.flag]
    taken = Counter(unnamed) + Counter(list(sections()))
    flags = []
    for name, knob in knobs.items():
        leaf = name.rpartition(".")[2]
        own = "." not in name or taken[leaf] == 1
        spelled = knob.flag or (leaf if own else name.replace(".", "-"))
        flags.append(Flag(f"--{spelled.replace('_', '-')}", name, knob.kind, knob.help, knob.choices, group_of(name)))
    return tuple(flags)


def add_job_flags(parser: argparse.ArgumentParser, without: Collection[str] = ()) -> None:
    """A flag for every field, and `--set`. Values stay text: the knobs read them, and say what is wrong with them.

    `without`: flags the command has for its own; `--set` reaches those fields all the same.
    """
    groups = {title: parser.add_argument_group(f"job: {title}".replace("`", "")) for title in ORDER}
    for flag in job_flags():
        if flag.flag in without:
            continue
        group = groups[flag.group]
        help = flag.help.replace("%", "%%")
        dest = PREFIX + flag.field
        if flag.kind == "bool":
            group.add_argument(
                flag.flag, dest=dest, action=argparse.BooleanOptionalAction, default=argparse.SUPPRESS, help=help
            )
            continue
        metavar = METAVARS.get(flag.kind, "TEXT")
        if flag.kind == "choice" and len(flag.choices) <= 8:
            metavar = "|".join(flag.choices)
        group.add_argument(flag.flag, dest=dest, metavar=metavar, default=argparse.SUPPRESS, help=help)
    parser.add_argument(
        "--set", dest=PREFIX, metavar="FIELD=VALUE", action="append", default=[],
        help="any field of the job, by its dotted name or as trainers call it; A,B,C: a sweep, one job per value, for "
        "commands that take several jobs",
    )  # fmt: skip


def overrides_from(arguments: argparse.Namespace) -> dict[str, object]:
    """What the flags set, by dotted name; `--set` comes last and wins."""
    given = vars(arguments)
    flags = [
        (name.removeprefix(PREFIX), value)
        for name, value in given.items()
        if name.startswith(PREFIX) and name != PREFIX
    ]
    return fields_meant([*flags, *_pairs(given.get(PREFIX, []), "--set")])


class SweepPoint(NamedTuple):
    """One of the jobs that a sweep makes of one."""

    label: str
    """`rank-8-micro-batch-4`; '' where nothing is swept."""
    overrides: dict[str, object]
    words: tuple[str, ...] = ()
    """What was set, as it may be typed: `lora.rank=8`."""


SWEPT = ("int", "int or choice", "float", "choice", "bool", "bytes", "release")
"""Kinds of fields of which a comma separates values; of others it may be part of one."""


def sweep_from(arguments: argparse.Namespace) -> list[SweepPoint]:
    """What the flags set, once for every value of `--set lora.rank=8,16,64`; of several such, for all combinations."""
    texts: list[str] = vars(arguments).get(PREFIX, [])
    plain_ones = argparse.Namespace(**{**vars(arguments), PREFIX: [text for text in texts if not is_swept(text)]})
    return sweep_of(texts, rest=overrides_from(plain_ones))


def sweep_of(texts: Sequence[str], flag: str = "--set", rest: Mapping[str, object] | None = None) -> list[SweepPoint]:
    """Assignments, once for every combination of values. `rest`: what holds for all; None: those of one value."""
    swept = [text for text in texts if is_swept(text)]
    plain_ones = [text for text in texts if text not in swept]
    rest = assignments(plain_ones, flag) if rest is None else rest
    points = []
    for values in product(*(_values(text, flag) for text in swept)):
        label = "-".join(f"{name.rpartition('.')[2]}-{value}" for name, value in values)
        words = (*plain_ones, *(f"{name}={value}" for name, value in values))
        points.append(SweepPoint(_slug(label), {**rest, **fields_meant(values)}, words))
    return points


def is_swept(text: str) -> bool:
    name, equals, value = text.partition("=")
    if not equals or "," not in value:
        return False
    fields = fields_meant([(name, value.split(",")[0].strip())])
    knobs = all_knobs()
    return bool(fields) and all(each == "model" or (each in knobs and knobs[each].kind in SWEPT) for each in fields)


def _values(text: str, flag: str) -> list[tuple[str, object]]:
    name, _, values = text.partition("=")
    found = [value.strip() for value in values.split(",")]
    if not all(found) or len(set(found)) < len(found):
        raise UsageError(f"{flag}: got {shown(text)}; allowed: FIELD=A,B,C, each once", field=flag)
    return [(name.strip(), value) for value in found]


def _slug(text: str) -> str:
    letters = "".join(each if each.isalnum() and each.isascii() else "-" for each in text.lower())
    return "-".join(part for part in letters.split("-") if part)


def assignments(texts: Iterable[str], flag: str = "--set") -> dict[str, object]:
    """`lora.dropout=0.1` and its like, by dotted name; also `rank=8` and `lora_r=8`. `lora=null` empties a section."""
    return fields_meant(_pairs(texts, flag))


def _pairs(texts: Iterable[str], flag: str) -> Iterator[tuple[str, object]]:
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise UsageError(f"{flag}: got {shown(text)}; allowed: FIELD=VALUE, such as lora.dropout=0.1", field=flag)
        empty = plain(name) in sections() and value.strip().lower() in ("null", "none", "")
        yield name, None if empty else value.strip()
