"""A tape survives the disk, and no file, however made, brings more than a TunecastError."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from typing import Any

import pytest

from tunecast.errors import NotResolved, TunecastError
from tunecast.tape.file import read_tape, write_tape
from tunecast.tape.op import Alloc, Begin, EmptyCache, Event, Free, Op, Phase, Role, Tape

MATMUL = Op("aten.mm", "model.layers.0", 12, 6, 2, 1, "bfloat16", ((2, 3), (3, 1)), "train.py:7", 1)
TAPE = Tape(
    events=(
        Begin(Phase.LOAD, 0),
        Alloc(0, 1024, Role.WEIGHTS, "model.layers.0"),
        Begin(Phase.FORWARD, 0),
        MATMUL,
        Alloc(1, 8, Role.ACTIVATIONS, "model.layers.0", 1),
        Free(1),
        EmptyCache(),
        Op("größer 🎈 \ud800", source='"C:\\n.py":1'),
        MATMUL._replace(by_engine=True),
        Begin(Phase.BACKWARD, 1),
        MATMUL,
        Alloc(2**40, 0),
    ),
    guesses=("flash-attn was not installed",),
    versions={"torch": "2.13.0"},
)
HEADER = {"format": "tunecast.tape/1", "guesses": [], "assumptions": [], "versions": {}}


def saved(path: Path, *lines: Any) -> Path:
    path.write_bytes(gzip.compress(b"".join(json.dumps(line).encode() + b"\n" for line in lines)))
    return path


def test_what_is_written_is_read(tmp_path: Path) -> None:
    write_tape(TAPE, tmp_path / "tape")
    assert read_tape(tmp_path / "tape") == TAPE
    write_tape(Tape(()), tmp_path / "empty")
    assert read_tape(tmp_path / "empty") == Tape(())


def test_the_same_tape_gives_the_same_bytes(tmp_path: Path) -> None:
    write_tape(TAPE, tmp_path / "tape")
    first = (tmp_path / "tape").read_bytes()
    write_tape(TAPE, tmp_path / "tape")
    assert (tmp_path / "tape").read_bytes() == first


def test_what_repeats_is_written_once(tmp_path: Path) -> None:
    """Ten thousand times the same operation: its name stands in the file once."""
    write_tape(Tape((MATMUL,) * 10_000), tmp_path / "tape")
    assert gzip.decompress((tmp_path / "tape").read_bytes()).count(b"aten.mm") == 1
    assert len(read_tape(tmp_path / "tape").events) == 10_000


def test_long_strings_are_spread_over_lines(tmp_path: Path) -> None:
    """Three names of 2 MiB exceed one line of at most 4 MiB."""
    tape = Tape(tuple(Op(letter * 2**21) for letter in "abc"))
    write_tape(tape, tmp_path / "tape")
    assert read_tape(tmp_path / "tape") == tape
    with pytest.raises(TunecastError, match="longer than 4 MiB"):
        write_tape(Tape((Op("a" * 2**22),)), tmp_path / "tape")


@pytest.mark.parametrize("event", [Alloc(0, -1), Alloc(0, True), Begin(Phase.LOAD, -1), Op("mm", flops=2**63)])
def test_no_unreadable_tape_is_written(tmp_path: Path, event: Event) -> None:
    with pytest.raises(TunecastError, match="cannot be written"):
        write_tape(Tape((event,)), tmp_path / "tape")


BLOCK = [["text", "weights", ""], ["blocks", [512, 0, 1, 0]]]
OP = [0, 0, 0, 0, 1, 1, 1, 1, 0, [[2, 3]], 0]


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ([], "does not begin"),
        ([{"format": "tunecast.tape/2"}], "does not begin"),
        ([[1, 2]], "does not begin"),
        ([HEADER], "cut short"),
        ([HEADER, ["events", 4], ["end", 2]], "count"),
        ([HEADER, ["events", 4], ["end", 1], ["events", 4]], "count"),
        ([HEADER, ["events", 9], ["end", 1]], "unknown kind"),
        ([HEADER, ["pickle", "cos"], ["end", 0]], "unknown kind"),
        ([HEADER, ["events", 4.0], ["end", 1]], "no integer"),
        ([HEADER, ["events", True], ["end", 1]], "no integer"),
        ([HEADER, ["events", -1], ["end", 1]], "negative"),
        ([HEADER, ["events", 0, 0], ["end", 1]], "damaged"),
        ([HEADER, ["events", 3, 0, 0], ["end", 1]], "damaged"),
        ([HEADER, ["text", "lunch"], ["events", 3, 0, 0], ["end", 1]], "damaged"),
        ([HEADER, ["text", "load"], ["events", 3, 0], ["end", 1]], "cut short"),
        ([HEADER, *BLOCK, ["events", 1, 7], ["end", 1]], "damaged"),
        ([HEADER, *BLOCK, ["events", 1, 7, 0, 1, 7, 0], ["end", 2]], "allocated twice"),
        ([HEADER, *BLOCK, ["events", 1, 7, 0, 2, 7, 1, 7, 0], ["end", 3]], "allocated twice"),
        ([HEADER, *BLOCK, ["events", 1, 7, 0, 2, 7, 2, 7], ["end", 3]], "freed but not allocated"),
        ([HEADER, ["events", 2, 7], ["end", 1]], "freed but not allocated"),
        ([HEADER, ["text", "w"], ["blocks", [512, 0, 0, 0]]], "damaged"),
        ([HEADER, ["text", 3]], "text was expected"),
        ([HEADER, ["text", "a"], ["ops", OP[:-1]]], "damaged"),
        ([HEADER, ["text", "a"], ["ops", [*OP[:-2], 3, 0]]], "damaged"),
        ([HEADER, ["text", "a"], ["ops", [*OP[:-2], ["ab"], 0]]], "no integer"),
        ([HEADER, ["text", "a"], ["ops", [9, *OP[1:]]]], "damaged"),
        ([HEADER, ["ops", 3]], "damaged"),
        ([HEADER, 3], "damaged"),
        ([HEADER, {}], "damaged"),
        ([HEADER, []], "damaged"),
        ([HEADER | {"guesses": "x"}, ["end", 0]], "text was expected"),
        ([HEADER | {"versions": [3]}, ["end", 0]], "damaged"),
        ([HEADER | {"versions": {"torch": 2}}, ["end", 0]], "text was expected"),
        ([{"format": HEADER["format"]}], "damaged"),
        ([HEADER, ["events", 10**30]], "absurd"),
    ],
)
def test_a_file_that_lies_is_refused(tmp_path: Path, lines: list[Any], why: str) -> None:
    with pytest.raises(NotResolved, match=why):
        read_tape(saved(tmp_path / "tape", *lines))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x80\x04]\x94.",
        gzip.compress(b"not json\n"),
        gzip.compress(b"\xff\xfe\n"),
        gzip.compress(b"[" * 100_000 + b"\n"),
        gzip.compress(b'{"format": ' + b"9" * 10_000 + b"}\n"),
        gzip.compress(json.dumps(HEADER).encode()) + b"tail",
    ],
)
def test_a_file_that_is_no_tape_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "tape").write_bytes(content)
    with pytest.raises(NotResolved):
        read_tape(tmp_path / "tape")


def test_a_missing_file_or_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotResolved, match="could not be read"):
        read_tape(tmp_path / "nowhere")
    with pytest.raises(NotResolved, match="could not be read"):
        read_tape(tmp_path)


def test_bounds_hold(tmp_path: Path) -> None:
    """64 MiB of spaces pack into 64 KiB; the reader stops at its line's bound without unpacking them all."""
    (tmp_path / "bomb").write_bytes(gzip.compress(b" " * 2**26))
    with pytest.raises(NotResolved, match="too long"):
        read_tape(tmp_path / "bomb")
    table = b'["text"' + b',""' * 1_000 + b"]\n"
    (tmp_path / "bomb").write_bytes(gzip.compress(json.dumps(HEADER).encode() + b"\n" + table * 1001, 1))
    with pytest.raises(NotResolved, match="more than 1,000,000 table entries"):
        read_tape(tmp_path / "bomb")
    table = json.dumps(["text", "x" * (2**22 - 100)]).encode() + b"\n"
    (tmp_path / "bomb").write_bytes(gzip.compress(json.dumps(HEADER).encode() + b"\n" + table * 17, 1))
    with pytest.raises(NotResolved, match="too long"):
        read_tape(tmp_path / "bomb")
    write_tape(TAPE, tmp_path / "tape")
    with pytest.raises(NotResolved, match="more than 5 events"):
        read_tape(tmp_path / "tape", max_events=5)
    with pytest.raises(NotResolved, match="too long"):
        read_tape(tmp_path / "tape", max_bytes=100)


def test_any_damage_is_a_refusal_or_harmless(tmp_path: Path) -> None:
    """A thousand tapes with a few changed bytes under the compression: each is refused or is still a tape."""
    write_tape(TAPE, tmp_path / "tape")
    plain = gzip.decompress((tmp_path / "tape").read_bytes())
    draw = random.Random(0)
    refused = 0
    for _ in range(1000):
        damaged = bytearray(plain)
        for _ in range(draw.randint(1, 4)):
            damaged[draw.randrange(len(damaged))] = draw.choice(b'0123456789,[]{}":-. eE\xff\n\\')
        (tmp_path / "damaged").write_bytes(gzip.compress(bytes(damaged), 1))
        try:
            assert isinstance(read_tape(tmp_path / "damaged"), Tape)
        except NotResolved:
            refused += 1
    assert refused > 500


def test_a_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    write_tape(TAPE, tmp_path / "tape")
    whole = (tmp_path / "tape").read_bytes()
    for size in range(len(whole)):
        (tmp_path / "cut").write_bytes(whole[:size])
        with pytest.raises(NotResolved):
            read_tape(tmp_path / "cut")
