"""What the documents tell can be done: links lead somewhere, commands parse, files are there, output is compared."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from tunecast.cli import trace
from tunecast.cli.main import COMMANDS
from tunecast.door.launchers import launch_from

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "examples").glob("*.md")),
]
FENCES = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
FILE = re.compile(r"[\w./-]+\.(?:yaml|yml|jsonl|json|py|toml|txt|log)")
GENERATED = ("claims.md",)
"""Pages a program writes: their commands are made with the figures beside them."""


def fences() -> Iterator[tuple[Path, str, str]]:
    for page in PAGES:
        for kind, body in FENCES.findall(page.read_text(encoding="utf-8")):
            yield page, kind, body.replace("\\\n", " ")


def commands() -> Iterator[tuple[str, str]]:
    """(page, command) of every line of a code block that calls tunecast."""
    for page, kind, body in fences():
        for line in body.splitlines():
            if kind == "console" and not line.startswith("$ "):
                continue
            plain = re.sub(r"\s#.*|[|<>].*", "", line.strip().removeprefix("$ ").removeprefix("if ")).split(";")[0]
            if plain.startswith("tunecast "):
                yield page.name, plain


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8"))
    missing = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert not missing


def anchors(page: Path) -> set[str]:
    """The anchors GitHub makes of a page's headings, and those a page names itself."""
    text = page.read_text(encoding="utf-8")
    headings = re.findall(r"^#+ (.*)$", FENCES.sub("", text), re.MULTILINE)
    made = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    return made | set(re.findall(r'<a (?:id|name)="([^"]+)"', text))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_to_a_heading_find_it(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:]*)#([^)]+)\)", page.read_text(encoding="utf-8"))
    wanted = [(page.parent / name if name else page, anchor) for name, anchor in links]
    assert not [anchor for target, anchor in wanted if target.suffix == ".md" and anchor not in anchors(target)]


@pytest.mark.parametrize(("page", "command"), list(commands()))
def test_commands_parse(page: str, command: str) -> None:
    _, name, *argv = shlex.split(command)
    module = COMMANDS[name].module
    if "--" not in argv:
        import_module(module).parser().read(argv)
    else:
        options, script = trace.split_command(argv)
        import_module(module if name in ("trace", "watch") else f"{module}_script").parser().read(options)
        if name != "watch" and "--config_file" not in script:
            launch_from(script)


@pytest.mark.parametrize("page", [page for page in PAGES if page.name not in GENERATED], ids=lambda page: page.name)
def test_files_that_commands_read_are_there(page: Path) -> None:
    """A command can be copied as it stands: what it reads is in examples/, or made on the same page."""
    text = page.read_text(encoding="utf-8")
    made = set(re.findall(r"(?:> |--\w+ |open\(\")([\w./-]+)", text)) - set(re.findall(r"< ([\w./-]+)", text))
    missing = {
        file
        for name, command in commands()
        if name == page.name
        for file in FILE.findall(command)
        if not (ROOT / file).exists() and file not in made
    }
    assert not missing


def test_output_stands_in_blocks_that_are_run() -> None:
    """A prompt outside ```console and ```pycon would be output that nothing compares."""
    for page, kind, body in fences():
        if kind not in ("console", "pycon"):
            assert not re.search(r"^(\$|>>>) ", body, re.MULTILINE), f"{page.name}:\n{body}"


def test_output_does_not_change_with_the_day() -> None:
    for page, kind, body in fences():
        if kind == "console":
            for command in re.findall(r"^\$ (tunecast (?:plan|offers) .*)", body, re.MULTILINE):
                assert "--as-of" in command, f"{page.name}: {command}"


def test_there_are_commands_to_check() -> None:
    assert len({page for page, _ in commands()}) >= 2
    assert len(list(commands())) >= 15
