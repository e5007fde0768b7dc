"""What the documents tell can be done: links lead somewhere, commands parse, files named are there."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from tunecast.cli import trace
from tunecast.cli.launchers import launch_from
from tunecast.cli.main import COMMANDS

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]


def commands() -> Iterator[tuple[str, str]]:
    """(page, command) of every line of a code block that calls tunecast."""
    for page in PAGES:
        for block in re.findall(r"```\w*\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
            for line in block.replace("\\\n", " ").splitlines():
                plain = re.sub(r"\s#.*|[|<>].*", "", line.strip().removeprefix("$ ").removeprefix("if ")).split(";")[0]
                if plain.startswith("tunecast "):
                    yield page.name, plain


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8"))
    missing = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert not missing


@pytest.mark.parametrize(("page", "command"), list(commands()))
def test_commands_parse(page: str, command: str) -> None:
    _, name, *argv = shlex.split(command)
    if name != "trace":
        read = import_module(COMMANDS[name].module).parser().read(argv)
        jobs = getattr(read, "jobs", None) or []
        assert all((ROOT / job).exists() for job in jobs if job.startswith("examples/"))
    else:
        options, script = trace.split_command(argv)
        trace.parser().read(options)
        if "--config_file" not in script:
            launch_from(script)


def test_there_are_commands_to_check() -> None:
    assert len({page for page, _ in commands()}) >= 2
    assert len(list(commands())) >= 15
