"""What a launch would run, what it started, and how it stands."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from tunecast.errors import printable
from tunecast.launching.rendering import Rendering
from tunecast.report.draw.columns import columns
from tunecast.result import Result


def rendering_text(rendering: Rendering) -> str:
    return "\n".join([*_rendering_lines(rendering), ""])


def _rendering_lines(rendering: Rendering) -> Iterator[str]:
    yield f"{rendering.name} by {rendering.framework}, on {rendering.engine}"
    for placeholder in rendering.placeholders:
        yield f"{placeholder.text} stands for {placeholder.field}: it is not started without"
    yield from (printable(f"Note: {note}", 400) for note in rendering.notes)
    for name, text in rendering.files.items():
        yield from ("", f"==> {name} <==", *(printable(line) for line in text.rstrip("\n").split("\n")))
    yield from ("", "Commands")
    yield from (f"  $ {printable(shlex.join(command))}" for command in rendering.commands)


def launched_text(launched: Result) -> str:
    told = launched.to_dict()
    lines = [f"{told['id']}: {told['state']} on {told['engine']}", f"  files and log: {told['folder']}"]
    lines += [f"  Note: {note}" for note in told["notes"]]
    lines.append(f"  tunecast logs {told['id']} --follow, tunecast cancel {told['id']}")
    return "\n".join([*map(printable, lines), ""])


def jobs_text(found: Result) -> str:
    rows = [
        (each["id"], each["state"], each["engine"], each["number"], each["submitted"])
        for each in found.to_dict()["jobs"]
    ]
    if not rows:
        return "Nothing was launched from this machine.\n"
    lines = columns([("id", "state", "on", "number", "submitted"), *rows], (0, 1, 2, 3, 4))
    return "\n".join([*map(printable, lines), ""])
