"""What the pages print is what the commands print: every ```console and ```pycon block is made by running it.

    python docs/blocks.py                  rewrite all blocks in place (./dev docs does, in an environment with torch)
    python docs/blocks.py README.md        those of one page
    python docs/blocks.py --check          name the blocks that differ, and change nothing

A ```console block holds commands, each after "$ ", and what they print; ```pycon the same after ">>> ". The commands
of a page run one after another in one empty folder with a copy of examples/, 100 columns wide, without colours, a GPU
or a configuration of the user. A comment on the line before a block says what else there is to know:

    <!-- lines: 1-6, "What to change"+3 -->   which lines to show: by number; the first one further down that holds a
                                              text, and three more; "a".."b" up to the next that holds b; "a"..
                                              up to the next empty line. Of several commands, separated by ";", each
                                              its own; "all", and what is not said, is everything.
    <!-- needs: torch jq -->                  packages and programs without which the block is left as it is
    <!-- not run: needs the network -->       never run
    <!-- exits: 2 -->                         the last command is refused so; what it writes to stderr is shown too

Shown is stdout, without progress and what a traced script prints itself. Lines left out become "…". A selection that
finds nothing is an error, so that a block cannot become empty unseen.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FENCE = re.compile(
    r"(?P<notes>(?:^<!--(?:(?!-->)[^\n])*-->\n)*)^```(?P<kind>console|pycon)\n(?P<body>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)
NOTE = re.compile(r"<!-- (lines|needs|not run|exits): (.*?) -->")
PIECE = re.compile(
    r'\s*(?:(?P<first>\d+)(?:-(?P<last>\d+))?|"(?P<text>[^"]*)"(?:\+(?P<more>\d+)|(?P<to>\.\.)(?:"(?P<end>[^"]*)")?)?)\s*'
)
LEFT_OUT = "…"
COLUMNS = 100
CPU_S, WAIT_S = 600, 3600
"""Of one process of a command, and of a command that hangs: busy machines make nothing fail."""
SESSION = """
import code, contextlib, io, sys
shell = code.InteractiveInterpreter({"__name__": "__main__"})
for statement in sys.stdin.read().split("\\0"):
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        if shell.runsource(statement + "\\n", "<block>"):
            raise SystemExit("not a whole statement: " + statement)
    sys.stdout.write(out.getvalue() + "\\0")
"""
_PRINTED: dict[str, Future[subprocess.CompletedProcess[str]]] = {}
_STARTING = threading.Lock()


class BlockError(Exception):
    """A block that cannot be made: its note is wrong, or its command does not print what is to be shown."""


@dataclass(frozen=True, slots=True)
class Block:
    page: str
    line: int
    kind: str
    commands: tuple[str, ...]  # as they stand in the page, prompts and continuations included
    notes: dict[str, str]
    text: str  # between the fences

    @property
    def name(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def why_not(self) -> str | None:
        """Why it cannot be run here, or None."""
        if "not run" in self.notes:
            return self.notes["not run"]
        missing = [name for name in self.notes.get("needs", "").replace(",", " ").split() if not _is_installed(name)]
        return f"needs {', '.join(missing)}" if missing else None


def pages() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "examples").glob("*.md"))]


def blocks(page: str, text: str) -> list[Block]:
    return [
        Block(
            page,
            text.count("\n", 0, match.start("body")),
            match["kind"],
            _commands(match["kind"], match["body"]),
            dict(NOTE.findall(match["notes"])),
            match["body"],
        )
        for match in FENCE.finditer(text)
    ]


def new_texts(found: Sequence[Block]) -> list[str | BlockError | None]:
    """What each block of one page ought to hold; None for those that cannot be run here."""
    with tempfile.TemporaryDirectory(prefix="tunecast-docs-") as name:
        home = Path(name)
        folder, tools = home / "folder", home / "bin"
        shutil.copytree(ROOT / "examples", folder / "examples", ignore=shutil.ignore_patterns("__pycache__"))
        tools.mkdir()
        for tool, call in (("tunecast", "-m tunecast"), ("python", "")):
            (tools / tool).write_text(f'#!/bin/sh\nexec "{sys.executable}" {call} "$@"\n')
            (tools / tool).chmod(0o755)
        return [None if block.why_not else _new_text(block, folder, _environment(home, tools)) for block in found]


def shown_lines(printed: str, selection: str) -> list[str]:
    """The lines of a command's output that a selection names, with … for what is left out."""
    lines = [line.rstrip() for line in printed.splitlines()]
    if selection.strip() in ("", "all"):
        return lines
    spans = list(_spans(lines, selection))
    out: list[str] = []
    after = 0
    for first, last in [*spans, (len(lines), len(lines))]:
        if any(lines[after:first]):
            while out and not out[-1]:
                out.pop()
            out.append(LEFT_OUT)
        elif first < len(lines):
            out += lines[after:first]
        out += lines[first:last]
        after = last
    return out


def _spans(lines: Sequence[str], selection: str) -> Iterator[tuple[int, int]]:
    """(first, last + 1) of each piece, from 0; pieces follow one another downwards."""
    at, after = 0, 0
    while at < len(selection):
        piece = PIECE.match(selection, at)
        if piece is None or not piece[0].strip():
            raise BlockError(f"not a selection: {selection[at:]!r}")
        at = piece.end() + 1  # the comma
        if piece["first"]:
            first, last = int(piece["first"]) - 1, int(piece["last"] or piece["first"])
        else:
            first = _line_with(lines, piece["text"], after)
            last = first + 1 + int(piece["more"] or 0)
            if piece["end"] is not None:
                last = _line_with(lines, piece["end"], first) + 1
            elif piece["to"]:
                last = next((i for i in range(first, len(lines)) if not lines[i]), len(lines))
        if not after <= first < last <= len(lines):
            raise BlockError(f"{piece[0].strip()}: lines {first + 1} to {last} after line {after} of {len(lines)}")
        yield first, last
        after = last


def _line_with(lines: Sequence[str], text: str, after: int) -> int:
    for at in range(after, len(lines)):
        if text in lines[at]:
            return at
    raise BlockError(f"no line holds {text!r}" + (f" after line {after}" if after else "") + ":\n" + "\n".join(lines))


def _new_text(block: Block, folder: Path, environment: dict[str, str]) -> str | BlockError:
    if not block.commands:
        return BlockError(f"{block.name}: no command; a line that begins with a prompt is one")
    selections = block.notes.get("lines", "").split(";")
    selections += [""] * (len(block.commands) - len(selections))
    run = _session_prints if block.kind == "pycon" else _shell_prints
    out: list[str] = []
    try:
        for command, printed, selection in zip(
            block.commands, run(block, folder, environment), selections, strict=True
        ):
            out += [*command.splitlines(), *shown_lines(printed, selection)]
    except (BlockError, subprocess.TimeoutExpired) as error:
        return BlockError(f"{block.name}: {error}")
    return "".join(f"{line}\n" for line in out)


def _shell_prints(block: Block, folder: Path, environment: dict[str, str]) -> Iterator[str]:
    for number, command in enumerate(block.commands, 1):
        plain = command.removeprefix("$ ")
        told = _run_once(plain, folder, environment)
        refused = "exits" in block.notes and number == len(block.commands)
        allowed = (int(block.notes["exits"]),) if refused else (0, 3, 4)
        if told.returncode not in allowed or "Traceback (most recent call last)" in told.stdout:
            raise BlockError(f"{plain} ended with {told.returncode}:\n{told.stdout}{told.stderr}")
        yield told.stdout + (told.stderr if refused else "")


def _run_once(command: str, folder: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """A command that several blocks show runs once, where nothing but the examples is in its page's folder."""
    if any(path.name != "examples" for path in folder.iterdir()):
        return _run(command, folder, environment)
    with _STARTING:
        mine = command not in _PRINTED
        future = _PRINTED.setdefault(command, Future())
    if mine:
        try:
            future.set_result(_run(command, folder, environment))
        except subprocess.TimeoutExpired as error:
            future.set_exception(error)
    return future.result()


def _run(command: str, folder: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", f"ulimit -t {CPU_S}; {command}"], cwd=folder, env=environment, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, encoding="utf-8", timeout=WAIT_S,
    )  # fmt: skip


def _session_prints(block: Block, folder: Path, environment: dict[str, str]) -> list[str]:
    plain = ["\n".join(line[4:] for line in statement.splitlines()) for statement in block.commands]
    told = subprocess.run(
        [sys.executable, "-c", SESSION], cwd=folder, env=environment, input="\0".join(plain), capture_output=True,
        text=True, encoding="utf-8", timeout=WAIT_S,
    )  # fmt: skip
    if told.returncode or "Traceback (most recent call last)" in told.stdout:
        raise BlockError(told.stdout.replace("\0", "") + told.stderr)
    return told.stdout.split("\0")[:-1]


def _commands(kind: str, body: str) -> tuple[str, ...]:
    """Every command with the lines it goes on in: after a backslash in a shell, with "... " in Python."""
    found: list[str] = []
    goes_on = False
    prompt, more = ("$ ", None) if kind == "console" else (">>> ", "...")
    for line in body.splitlines():
        if line.startswith(prompt):
            found.append(line)
        elif found and (goes_on or (more and line.startswith(more))):
            found[-1] += "\n" + line
        else:
            goes_on = False
            continue
        goes_on = kind == "console" and line.endswith("\\")
    return tuple(found)


def _environment(home: Path, tools: Path) -> dict[str, str]:
    """A shell of nobody in particular: what a user has set, installed or measured changes no page."""
    return {
        "PATH": f"{tools}:/usr/local/bin:/usr/bin:/bin", "HOME": str(home), "XDG_DATA_HOME": str(home / "data"),
        "XDG_CACHE_HOME": str(home / "cache"), "COLUMNS": str(COLUMNS), "NO_COLOR": "1", "LANG": "C.UTF-8",
        "PYTHONPATH": str(ROOT / "src"), "PYTHONDONTWRITEBYTECODE": "1", "HF_HUB_OFFLINE": "1", "TZ": "UTC",
    }  # fmt: skip


def _is_installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None or shutil.which(name) is not None


def rewrite(page: Path, *, check: bool) -> list[str]:
    """Put what the commands print into a page; what is to be told about it, one line a block."""
    text = page.read_text(encoding="utf-8")
    name = str(page.relative_to(ROOT))
    found = blocks(name, text)
    told = []
    for block, new in reversed(list(zip(found, new_texts(found), strict=True))):
        if new is None:
            told.append(f"skipped  {block.name}: {block.why_not}")
        elif isinstance(new, BlockError):
            told.append(f"FAILED   {new}")
        elif new != block.text:
            told.append(f"{'differs' if check else 'changed'}  {block.name}")
            start = sum(len(line) for line in text.splitlines(keepends=True)[: block.line])
            text = text[:start] + new + text[start + len(block.text) :]
    if not check:
        page.write_text(text, encoding="utf-8")
    return told[::-1]


def main(arguments: Sequence[str]) -> int:
    check = "--check" in arguments
    named = [Path(name).resolve() for name in arguments if name != "--check"] or pages()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        told = [line for lines in pool.map(lambda page: rewrite(page, check=check), named) for line in lines]
    print("\n".join(told) or "nothing to change")
    return 1 if any(line.startswith(("FAILED", "differs")) for line in told) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
