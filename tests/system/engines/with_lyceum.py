"""Run by lyceum's Python: python with_lyceum.py CASES. Answers on its last line, in JSON, what went wrong.

Its parser reads each command; nothing is called.
"""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import typer
from lyceum.main import app


def read(words: list[str]) -> dict[str, Any]:
    """The values of the command's parameters. Raises what the parser raises."""
    command: Any = typer.main.get_command(app)
    context = command.make_context("lyceum", words[1:], resilient_parsing=False)
    while hasattr(command, "commands"):
        rest = [*context._protected_args, *context.args]
        _, command, rest = command.resolve_command(context, rest)
        context = command.make_context(command.name, rest, parent=context)
    return dict(context.params)


def checked(case: dict[str, Any]) -> dict[str, Any]:
    *uploads, run = [read(words) for words in case["commands"]]
    wrong = []
    if run["timeout"] <= 300 or run["machine_type"] != "gpu.l40s" or not run["detach"]:
        wrong.append(f"not as asked for: {run}")
    words = shlex.split(run["command"])
    if words[:2] != ["bash", "-c"] or len(words) != 3:
        wrong.append(f"its command: {words}")
    taken = [each["local_path"] for each in uploads]
    if taken != [".", case["data"]]:
        wrong.append(f"uploads: {taken}")
    return {"image": run["image"], "timeout": run["timeout"], "wrong": wrong}


def main() -> None:
    answers = []
    for case in json.loads(Path(sys.argv[1]).read_text("utf-8"))["cases"]:
        try:
            answers.append({**checked(case), "case": case["case"]})
        except BaseException as error:  # click leaves by SystemExit
            answers.append({"case": case["case"], "wrong": [f"{type(error).__name__}: {error}"[:600]]})
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
