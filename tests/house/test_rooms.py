"""A newcomer finds the room for a change: every package lists its files, the map of the rooms is true, rooms are small,
and the glossary's words are those of the code."""

from __future__ import annotations

import importlib.util
import re
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "tunecast"
MOST_FILES = 14
"""A dozen and the package's own file, in rooms that were too full to find anything in; one to spare for a table."""

spec = importlib.util.spec_from_file_location("rooms", ROOT / "docs" / "rooms.py")
assert spec is not None and spec.loader is not None
rooms = importlib.util.module_from_spec(spec)
spec.loader.exec_module(rooms)


@pytest.mark.parametrize("package", rooms.packages(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_package_lists_its_files(package: Path) -> None:
    said = set(rooms.entries(rooms.docstring(package / "__init__.py")))
    assert said == set(rooms.members(package)), "python docs/rooms.py mends it"


def test_a_file_that_is_not_listed_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "__init__.py").write_text('"""A room.\n\nlamp.py  light\n"""\n', encoding="utf-8")
    (tmp_path / "lamp.py").write_text('"""Light."""\n', encoding="utf-8")
    assert set(rooms.entries(rooms.docstring(tmp_path / "__init__.py"))) == set(rooms.members(tmp_path))
    (tmp_path / "chair.py").write_text('"""A seat. For one."""\n', encoding="utf-8")
    assert "chair.py  A seat\nlamp.py   light" in rooms.with_listing(tmp_path)


@pytest.mark.parametrize("room", ["prediction", "report"])
def test_rooms_are_small(room: str) -> None:
    counts = {path: len(list(path.glob("*.py"))) for path in [SOURCE / room, *(SOURCE / room).glob("*/")]}
    assert counts and max(counts.values()) <= MOST_FILES


def test_the_map_of_the_rooms_names_every_one() -> None:
    text = (ROOT / "docs" / "contributing.md").read_text(encoding="utf-8")
    drawn = text.split("src/tunecast/\n", 1)[1].split("```", 1)[0]
    named = re.findall(r"^  (\w+)/", drawn, re.M)
    assert set(named) == {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    for path in re.findall(r"\b([a-z_]+(?:/[a-z_]+)*\.(?:py|toml))\b", drawn):
        assert list(SOURCE.rglob(path)), path


def test_the_glossary_speaks_of_what_there_is() -> None:
    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| `([\w./]+)` \|", text, re.M)
    assert len(rows) >= 25
    for name, place in rows:
        module = import_module("tunecast." + place.removesuffix(".py").replace("/", "."))
        assert hasattr(module, name), f"{name} is not in {place}"
    words = re.findall(r"^\| ([a-z][^|`]*?) \|", text, re.M)
    assert len(words) == len(set(words)) >= 20
