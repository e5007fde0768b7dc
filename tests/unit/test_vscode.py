"""What the extension for VS Code declares is what the language server takes; nothing of it needs Node here."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

import tunecast
from tunecast.lsp.asked import NAMES

ROOT = Path(__file__).parents[2]
EXTENSION = ROOT / "editors" / "vscode"
DECLARED: Any = json.loads((EXTENSION / "package.json").read_text("utf-8"))
OWN = {"watch", "page", "restart"}
"""Commands of the extension alone."""


def server_commands() -> set[str]:
    """Read, not imported: the server needs pygls."""
    path = ROOT / "src" / "tunecast" / "lsp" / "protocol" / "server.py"
    for each in ast.parse(path.read_text("utf-8")).body:
        if isinstance(each, ast.Assign) and ast.unparse(each.targets[0]) == "COMMANDS":
            return set(ast.literal_eval(each.value))
    raise AssertionError(f"{path} names no COMMANDS")


def test_its_commands_are_the_servers_and_its_own() -> None:
    names = {each["command"].removeprefix("tunecast.") for each in DECLARED["contributes"]["commands"]}
    assert names == server_commands() | OWN
    source = (EXTENSION / "src" / "extension.ts").read_text("utf-8")
    asked = re.search(r"const ASKED = \[(.*)\]", source)
    assert asked and set(re.findall(r"'(\w+)'", asked[1])) == server_commands()
    assert set(re.findall(r"^ +command\('(\w+)'", source, re.MULTILINE)) == OWN


def test_its_settings_are_what_the_server_reads() -> None:
    names = {name.removeprefix("tunecast.") for name in DECLARED["contributes"]["configuration"]["properties"]}
    assert names == {*NAMES, "enable", "path"}


def test_it_starts_for_the_languages_that_it_serves() -> None:
    languages = re.search(r"LANGUAGES = \[(.*)\]", (EXTENSION / "src" / "server.ts").read_text("utf-8"))
    assert languages
    assert DECLARED["activationEvents"] == [f"onLanguage:{name}" for name in re.findall(r"'(\w+)'", languages[1])]


def test_it_is_of_this_version_and_a_program_of_a_workspace_runs_only_where_that_is_trusted() -> None:
    assert DECLARED["version"] == tunecast.__version__
    assert DECLARED["capabilities"]["untrustedWorkspaces"]["supported"] is False


def test_what_a_terminal_takes_for_a_key_is_never_typed() -> None:
    source = (EXTENSION / "src" / "terminals.ts").read_text("utf-8")
    refused = re.search(r"if \(/(\[.*\])/\.test\(word\)\) throw", source)
    assert refused
    keys = {chr(number) for number in (*range(0x20), 0x7F, *range(0x80, 0xA0))}
    assert {letter for letter in map(chr, range(0x300)) if re.search(refused[1], letter)} == keys


def test_no_package_is_recorded_with_the_place_it_was_fetched_from() -> None:
    packages = json.loads((EXTENSION / "package-lock.json").read_text("utf-8"))["packages"]
    assert packages and not [name for name, each in packages.items() if "resolved" in each]
    assert all("integrity" in each for name, each in packages.items() if name)


def test_it_names_no_other_machine() -> None:
    for path in (EXTENSION / "src").glob("*.ts"):
        named = set(re.findall(r"https?://[^\s'\"`)]+", path.read_text("utf-8")))
        assert named <= {"http://www.w3.org/2000/svg"}, path
