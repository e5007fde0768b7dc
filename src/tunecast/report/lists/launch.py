"""What a launch would run, what it started, and how it stands."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tunecast.errors import printable
from tunecast.launching.rendering import (
    PREFLIGHT,
    PREFLIGHT_DATA,
    PREFLIGHT_LINKS,
    RECORDER,
    RECORDER_SOURCES,
    Rendering,
)
from tunecast.report.draw.columns import columns
from tunecast.report.run.time import duration
from tunecast.result import Result

THE_SAME = (PREFLIGHT, PREFLIGHT_DATA, PREFLIGHT_LINKS, RECORDER, RECORDER_SOURCES)
"""Files that are the same in every job, and long."""
OVER = ("done", "failed", "cancelled", "ended")
"""States of what has nothing left to follow or stop."""


def rendering_text(rendering: Rendering) -> str:
    return "\n".join([*_rendering_lines(rendering), ""])


def _rendering_lines(rendering: Rendering) -> Iterator[str]:
    yield f"{rendering.name} by {rendering.framework}, on {rendering.engine}"
    for placeholder in rendering.placeholders:
        yield f"{placeholder.text} stands for {placeholder.field}: it is not started without"
    yield from (printable(f"Note: {note}", 400) for note in rendering.notes)
    yield from _file_lines(rendering.files)
    yield from ("", "Commands")
    yield from (f"  $ {printable(shlex.join(command))}" for command in rendering.commands)


def launched_text(launched: Result) -> str:
    told = launched.to_dict()
    lines = [f"{told['id']}: {told['state']} on {told['engine']}", f"  files and log: {told['folder']}"]
    lines += [f"  Note: {note}" for note in told["notes"]]
    over = told["state"] in OVER
    lines.append(f"  tunecast logs {told['id']}" + ("" if over else f" --follow, tunecast cancel {told['id']}"))
    return "\n".join([*map(printable, lines), ""])


def jobs_text(found: Result) -> str:
    """The groups in the order of their first job, each under its name with what its jobs are."""
    jobs = found.to_dict()["jobs"]
    if not jobs:
        return "Nothing was launched from this machine.\n"
    table = list(columns([("id", "state", "on", "number", "submitted"), *map(_row, jobs)], (0, 1, 2, 3, 4)))
    lines, by_group = table[:1], dict[str, list[int]]()
    for n, job in enumerate(jobs):
        by_group.setdefault(job["group"] or f"/{n}", []).append(n)
    for group, numbers in by_group.items():
        if not group.startswith("/"):
            states = Counter(jobs[n]["state"] for n in numbers)
            told = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
            lines.append(f"{group}  {len(numbers)} jobs: {told}")
        lines += [table[n + 1] for n in numbers]
    lines += [f"{job['id']}: {note}" for job in jobs for note in job["notes"]]
    return "\n".join([*map(printable, lines), ""])


def _row(job: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(job[name] for name in ("id", "state", "engine", "number", "submitted"))


def rendered_together_text(shown: Result) -> str:
    told = shown.to_dict()
    lines = [f"{told['group']}: {len(told['jobs'])} jobs on {told['engine']}", *_together_lines(told)]
    for array in told["arrays"]:
        lines += ["", f"Array of {len(array['jobs'])}, in the folder of {array['jobs'][0]}"]
        lines += _file_lines(array["files"], f"{array['jobs'][0]}/")
        lines += _command_lines(array["commands"])
    for job in told["jobs"]:
        lines += ["", f"{job['name']} by {job['framework']}", *_placeholder_lines(job["placeholders"])]
        lines += _file_lines(job["files"], f"{job['name']}/")
        lines += _command_lines(job["commands"])
    return "\n".join([*(printable(line) for line in lines), ""])


def _file_lines(files: Mapping[str, str], folder: str = "") -> Iterator[str]:
    for name, text in files.items():
        lines = [printable(line) for line in text.rstrip("\n").split("\n")]
        if name in THE_SAME:
            first = "What record.py puts in their place." if name == RECORDER_SOURCES else lines[0].strip('"')
            lines = [first, f"# {len(lines):,} lines, the same for every job: --out DIR writes them"]
        yield from ("", f"==> {folder}{name} <==", *lines)


def _command_lines(commands: Sequence[Sequence[str]]) -> Iterator[str]:
    if commands:
        yield from ("", "Commands", *(f"  $ {shlex.join(command)}" for command in commands))


def _placeholder_lines(fields: Sequence[str]) -> Iterator[str]:
    yield from (f"{field} is missing: it is not started without" for field in fields)


def launched_together_text(found: Result) -> str:
    told = found.to_dict()
    before = told["there_before"]
    lines = [f"{told['group']}: {len(told['jobs'])} jobs on {told['engine']}", *_together_lines(told)]
    if before:
        new = len(told["jobs"]) - len(before)
        lines.append(f"  {len(before)} were there already and are left as they are; {new} started now (--again: all)")
    rows = [(each["id"], each["state"], each["number"]) for each in told["jobs"]]
    lines += columns([("id", "state", "number"), *rows], (0, 1, 2))
    lines.append(f"  tunecast jobs, tunecast logs ID --follow, tunecast cancel {told['group']}")
    return "\n".join([*map(printable, lines), ""])


def _together_lines(told: Mapping[str, Any]) -> Iterator[str]:
    yield from (f"  Note: {note}" for note in told["notes"])
    placed = told["placed"]
    if placed is None:
        return
    rows = [
        (
            each["name"],
            each["hardware"],
            each["provider"],
            start_text(each),
            duration(each["total_s"]),
            f"${each['total_usd']:.2f}",
        )
        for each in placed["jobs"]
    ]
    yield from columns([("job", "on", "at", "begins", "takes", "costs"), *rows], (0, 1, 2, 3, 4, 5))
    low, high = placed["longest_range_s"]
    ends = f"the last is over after {duration(placed['longest_s'])} ({duration(low)} to {duration(high)})"
    yield f"In all ${placed['total_usd']:.2f}; {ends}"
    if placed["shared"]:
        yield f"No way to share these machines ends before {duration(placed['least_s'])}"
    for what, single in (("the best single kind", placed["best_single"]), ("the usual kind", placed["default_single"])):
        if single is not None:
            yield _single_text(what, single, placed)


def start_text(placement: Mapping[str, Any]) -> str:
    return "at once" if not placement["starts_s"] else f"after {duration(placement['starts_s'])}"


def _single_text(what: str, single: Mapping[str, Any], placed: Mapping[str, Any]) -> str:
    name = f"All on {single['gpu']}, {what}"
    if single["total_usd"] is None:
        return f"{name}: {single['fits']} of {len(placed['jobs'])} jobs run there"
    less = single["total_usd"] - placed["total_usd"]
    share = f", {less / single['total_usd']:.0%}" if single["total_usd"] else ""
    saved = f"the picks save ${less:.2f}{share}" if less >= 0.005 else "the picks cost the same"
    return f"{name}: ${single['total_usd']:.2f}, {duration(single['longest_s'])}; {saved}"
