"""Every block of output in the README and the docs is what its commands print; ./dev docs rewrites them."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs"))

import blocks  # noqa: E402


@cache
def of_page(page: Path) -> list[blocks.Block]:
    return blocks.blocks(str(page.relative_to(ROOT)), page.read_text(encoding="utf-8"))


@cache
def new_texts(page: Path) -> list[str | blocks.BlockError | None]:
    return blocks.new_texts(of_page(page))


@pytest.mark.parametrize(
    ("page", "number"),
    [
        pytest.param(page, number, id=block.name)
        for page in blocks.pages()
        for number, block in enumerate(of_page(page))
    ],
)
def test_a_block_is_what_its_commands_print(page: Path, number: int) -> None:
    block = of_page(page)[number]
    if block.why_not:
        pytest.skip(f"{block.name}: {block.why_not}")
    new = new_texts(page)[number]
    assert not isinstance(new, blocks.BlockError), new
    assert block.text == new, "run ./dev docs, and read what changed"


PRINTED = "verdict\n\nfirst\n  one\n  two\n\nsecond\n  three\n"


@pytest.mark.parametrize(
    ("selection", "shown"),
    [
        ("", PRINTED.splitlines()),
        ("all", PRINTED.splitlines()),
        ("1", ["verdict", "…"]),
        ("3-4", ["…", "first", "  one", "…"]),
        ('1, "second"..', ["verdict", "…", "second", "  three"]),
        ('"first"+1', ["…", "first", "  one", "…"]),
        ('"first"..', ["…", "first", "  one", "  two", "…"]),
        ('"first".."three"', ["…", "first", "  one", "  two", "", "second", "  three"]),
        ('1, "first"', ["verdict", "", "first", "…"]),
        ("1-2", ["verdict", "…"]),
    ],
)
def test_selections_by_hand(selection: str, shown: list[str]) -> None:
    assert blocks.shown_lines(PRINTED, selection) == shown


@pytest.mark.parametrize("selection", ['"third"', "9", "2-99", '"second", "first"', "nonsense", '"first"..,"first"'])
def test_a_selection_that_finds_nothing_is_an_error(selection: str) -> None:
    with pytest.raises(blocks.BlockError):
        blocks.shown_lines(PRINTED, selection)


PAGE = """text

<!-- lines: all; 1 -->
```console
$ echo one \\
      two
old
$ printf 'a\\nb\\n'
```

```pycon
>>> numbers = [1,
...            2]
>>> print(sum(numbers))
```

<!-- not run: needs the network -->
```console
$ false
```
"""


def test_commands_go_on_and_notes_are_read() -> None:
    shell, python, network = blocks.blocks("PAGE.md", PAGE)
    assert shell.commands == ("$ echo one \\\n      two", "$ printf 'a\\nb\\n'")
    assert python.commands == (">>> numbers = [1,\n...            2]", ">>> print(sum(numbers))")
    assert network.why_not == "needs the network"
    assert blocks.new_texts([shell, python, network]) == [
        "$ echo one \\\n      two\none two\n$ printf 'a\\nb\\n'\na\n…\n",
        ">>> numbers = [1,\n...            2]\n>>> print(sum(numbers))\n3\n",
        None,
    ]


def test_a_command_that_fails_is_an_error_not_a_block() -> None:
    (failing,) = blocks.blocks("PAGE.md", "```console\n$ tunecast predict examples/nothing.yaml\n```\n")
    (new,) = blocks.new_texts([failing])
    assert isinstance(new, blocks.BlockError) and "ended with 5" in str(new)


def test_a_block_without_a_command_is_an_error_not_emptied() -> None:
    (empty,) = blocks.blocks("PAGE.md", "```console\ntunecast gpus\n```\n")
    assert isinstance(blocks.new_texts([empty])[0], blocks.BlockError)


def test_a_refusal_is_shown_where_it_is_meant() -> None:
    page = "<!-- exits: 5 -->\n```console\n$ tunecast predict examples/none.yaml\n```\n"
    (refused,) = blocks.blocks("PAGE.md", page)
    (new,) = blocks.new_texts([refused])
    assert isinstance(new, str) and "tunecast: error: " in new
