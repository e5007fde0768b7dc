"""A few thousand inputs at every door, each time: `./dev system fuzz` throws a million."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from fuzz.doors import DOORS
from fuzz.outcomes import BROKEN, ENDED, HANG, INTERNAL, MEMORY, RAW, TRACEBACK, Input, Said
from fuzz.recipes import readers_without_a_file
from fuzz.workers import Door, Part, run, the_input

SEED = 7
INPUTS = {
    "fields": 2000, "trainers' keys": 1000, "trainers' files": 300,
    "job files": 200, "config.json": 1000, "lengths": 300, "OOM logs": 150, "calibrations": 300,
    "price lists": 150, "command lines": 25, "environment": 25, "servers": 10, "predictions": 10,
    "config.json, predicted": 10, "plans and other searches": 0,
}  # fmt: skip


@pytest.mark.parametrize("name", INPUTS)
def test_no_input_ends_it_otherwise_than_documented(name: str) -> None:
    failures = [row for done in run([Part(DOORS[name], range(INPUTS[name]), SEED)]) for row in done.failures]
    assert not failures, "\n".join(f"--only {row.door}:{row.number} --seed {SEED}: {row.place}" for row in failures)


def test_every_door_is_tried_here() -> None:
    assert set(INPUTS) == set(DOORS)
    assert sum(door.share for door in DOORS.values()) == pytest.approx(1.0)


@pytest.mark.parametrize("name", DOORS)
def test_an_input_is_made_of_its_door_number_and_seed_alone(name: str) -> None:
    first = [the_input(DOORS[name], number, 1).shown for number in range(80)]
    again = [the_input(DOORS[name], number, 1).shown for number in reversed(range(80))]
    assert first == again[::-1], "nothing of one input is left in the next"
    assert first != [the_input(DOORS[name], number, 2).shown for number in range(80)]


def test_every_reader_of_trainers_files_is_reached() -> None:
    assert list(readers_without_a_file()) == []


# what it would find


def spin() -> Said:
    while True:
        pass


def grow() -> Said:
    held = []
    while True:
        held.append(bytearray(2**26))


def fail() -> Said:
    raise KeyError("x")


FOUND = {
    HANG: spin,
    MEMORY: grow,
    INTERNAL: fail,
    TRACEBACK: lambda: Said(1, "", "Traceback (most recent call last):\n"),
    RAW: lambda: Said(0, "\x1b[31m"),
    BROKEN: lambda: Said(0, '{"a": NaN}', "", as_json=True),
    ENDED: lambda: Said(120),
}


@pytest.mark.parametrize("name", FOUND)
def test_what_may_not_happen_is_found_and_what_comes_after_is_asked(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def make(rng: object, number: int) -> Input:
        return Input(f"input {number}", FOUND[name] if number == 1 else lambda: Said(0))

    most_cpu_s = 1 if name == HANG else 20  # a gigabyte takes longer than a second on a busy machine
    done = list(run([Part(Door("door", 1.0, 3, make, most_cpu_s=most_cpu_s), range(3), SEED)]))
    (failure,) = [row for each in done for row in each.failures]
    assert (failure.number, failure.outcome, failure.input) == (1, name, "input 1")
    assert sum(each.outcomes["answered"] for each in done) == 2
