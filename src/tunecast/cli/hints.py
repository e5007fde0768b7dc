"""What an unknown command or flag is answered: what it means here first, then what is spelled like it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tunecast.job.flags import job_flags
from tunecast.job.foreign import MEANINGS, POINTERS, called, plain, remark, spelling

COMMAND_FLAGS: Mapping[str, tuple[str, str]] = {
    **dict.fromkeys(("budget", "max_cost", "max_price", "cost", "usd"), ("--max-usd", "plan")),
    **dict.fromkeys(("deadline", "time", "max_time", "hours"), ("--within", "plan")),
    **dict.fromkeys(("region", "location", "zone"), ("--country", "plan")),
    **dict.fromkeys(("europe", "gdpr"), ("--eu", "plan")),
    **dict.fromkeys(("cloud", "providers"), ("--provider", "plan")),
    **dict.fromkeys(("currency", "euro"), ("--eur", "plan")),
    **dict.fromkeys(("verbose", "detail", "full_report", "all"), ("--details", "predict")),
    **dict.fromkeys(("format", "as_json"), ("--json", "predict")),
    **dict.fromkeys(("report", "page"), ("--html", "predict")),
    **dict.fromkeys(("markdown",), ("--md", "plan")),
    **dict.fromkeys(("min_vram", "min_memory_gb"), ("--min-memory", "gpus")),
}
"""Flags that are no fields of a job, by what else they are called: the flag, and a command that has it."""

COMMANDS: Mapping[str, str] = {
    **dict.fromkeys(("estimate", "memory", "vram", "mem", "check", "time", "prediction"), "predict"),
    **dict.fromkeys(("rent", "cost", "optimize", "recommend", "choose", "buy", "search"), "plan"),
    **dict.fromkeys(("fix", "reduce", "shrink", "tune", "suggest"), "fit"),
    **dict.fromkeys(("max", "longest", "biggest", "limits", "limit"), "largest"),
    **dict.fromkeys(("versus", "vs"), "compare"),
    **dict.fromkeys(("oom", "explain", "debug"), "explain-oom"),
    **dict.fromkeys(("prices", "price", "pricing", "providers", "clouds"), "offers"),
    **dict.fromkeys(("cards", "gpu", "hardware", "devices"), "gpus"),
    **dict.fromkeys(("profile", "script"), "trace"),
    **dict.fromkeys(("run", "start", "submit", "train"), "launch"),
    **dict.fromkeys(("queue", "status", "ps"), "jobs"),
    **dict.fromkeys(("stop", "kill"), "cancel"),
    **dict.fromkeys(("monitor", "record"), "watch"),
    **dict.fromkeys(("ui", "web", "page", "server"), "serve"),
    **dict.fromkeys(("history",), "runs"),
    **dict.fromkeys(("model", "list"), "models"),
    **dict.fromkeys(("machines", "instances", "links", "node"), "nodes"),
    **dict.fromkeys(("measure", "benchmark", "bench"), "calibrate"),
    **dict.fromkeys(("completions", "complete"), "completion"),
}


def our_flag(name: str) -> str | None:
    """The flag of the field a name means; of a switch also with `no_` before it."""
    flags = {flag.field: flag.flag for flag in job_flags()}
    field = called().get(name)
    if field is not None:
        return flags[field]
    field = called().get(name.removeprefix("no_"))
    return None if field is None else f"--no-{flags[field][2:]}"


def flag_hint(flag: str, known: Iterable[str]) -> str:
    """`unknown flag; nearest: --parallel-data fsdp`, or why it is not needed."""
    name, flags = plain(flag), list(known)
    idle = remark(name)
    if idle is not None:
        return idle
    near = _meant(name, flags)
    return f"unknown flag; nearest: {near}" if near else "unknown flag"


def _meant(name: str, known: list[str]) -> str | None:
    if name in COMMAND_FLAGS:
        ours, command = COMMAND_FLAGS[name]
        return ours if ours in known else f"{ours} of tunecast {command}"
    takes_jobs = "--set" in known
    if name in POINTERS and takes_jobs:
        field, value = POINTERS[name]
        ours = next(flag.flag for flag in job_flags() if flag.field == field)
        return f"{ours} {value}" if ours in known else f"--set {field}={value}"
    spelled = spelling(name, [*known, *(called() if takes_jobs else ()), *(MEANINGS if takes_jobs else ())])
    if spelled is None or spelled in known:
        return spelled
    return our_flag(spelled) or f"--{spelled.replace('_', '-')}"


def command_hint(name: str, commands: Iterable[str]) -> str | None:
    return COMMANDS.get(plain(name)) or spelling(name, commands)
