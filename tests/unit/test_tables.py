"""Our tables, read a table at a time, beside what tomllib reads."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

import tunecast
from tunecast import tables
from tunecast.tables import Tables, table

PACKAGE = Path(tunecast.__file__).parent
FILES = [
    "hardware/gpus.toml",
    "hardware/links.toml",
    "hardware/nodes.toml",
    "hardware/grids.toml",
    "job/models.toml",
    "job/lengths.toml",
]


@pytest.mark.parametrize("name", FILES)
def test_every_table_is_as_tomllib_reads_it(name: str) -> None:
    text = (PACKAGE / name).read_text("utf-8")
    assert repr(dict(Tables(text))) == repr(tomllib.loads(text)), "types too: 65 is not 65.0"


def test_a_card_needs_no_tomllib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tomllib, "loads", None)
    cards = Tables(tables.text_beside(str(PACKAGE / "hardware" / "catalog.py"), "gpus.toml"))
    assert len(cards) >= 40
    assert all(fields["vendor"] for fields in cards.values())


@pytest.mark.parametrize(
    "line",
    [
        'a = "one \\\\ two"',
        'a = "x" # a comment',
        "a = 'it''s'",
        "a = [\n 1,\n 2,\n]",
        "a = 0x1f",
        "a = +1",
        "a = 1.5e3",
        "a = inf",
        "a.b = 1",
        '"a b" = 1',
        'a = { b = "x, y" }',
        "a = {}",
        "a = []",
        "a = '''three\nlines\nof it'''",
        "a = 2026-11-15T10:00:00",
        "a = true",
        "a = [true, 1_000]",
        'a = "1_000"',
        "a=1",
        "# nothing",
    ],
)
def test_what_is_not_plain_is_read_by_tomllib(line: str) -> None:
    try:
        expected = repr(tomllib.loads(line))
    except tomllib.TOMLDecodeError:
        with pytest.raises(tomllib.TOMLDecodeError):
            table(line)
    else:
        assert repr(table(line)) == expected
