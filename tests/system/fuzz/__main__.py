"""`python -m fuzz`: see the package's own words."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import Any

from committed import commit

from .doors import DOORS
from .outcomes import ANSWERED, FAILURES, OUTCOMES, REFUSED
from .workers import MOST_BYTES, PROCESSES, Done, Failure, Part, run

ROOT = Path(__file__).parents[3]
RESULTS = ROOT / "tests" / "system" / "results" / "fuzz.json"
FULL = 1_000_000
SHORTEST = 1
MOST_TOLD = 2_000
"""Failures written with their inputs; of more, only the numbers."""


def parts(inputs: int, seed: int) -> Iterator[Part]:
    """Of all doors, quick ones first: most faults show in the first minutes."""
    for door in DOORS.values():
        most = max(SHORTEST, round(inputs * door.share))
        for start in range(0, most, door.at_once):
            yield Part(door, range(start, min(most, start + door.at_once)), seed)


class Tally:
    def __init__(self) -> None:
        self.outcomes: dict[str, Counter[str]] = defaultdict(Counter)
        self.failures: list[Failure] = []
        self.cpu_s: Counter[str] = Counter()
        self.slowest: dict[str, tuple[float, int]] = {}
        self.peak_bytes: dict[str, int] = {}

    def add(self, done: Done) -> None:
        self.outcomes[done.door] += done.outcomes
        self.failures += done.failures
        self.cpu_s[done.door] += done.cpu_s
        self.slowest[done.door] = max(self.slowest.get(done.door, (0.0, 0)), (done.slowest_s, done.slowest))
        self.peak_bytes[done.door] = max(self.peak_bytes.get(done.door, 0), done.peak_bytes)

    def rows(self) -> list[dict[str, Any]]:
        return [
            {
                "door": name,
                "inputs": self.outcomes[name].total(),
                "outcomes": {each: self.outcomes[name][each] for each in OUTCOMES if self.outcomes[name][each]},
                "most_cpu_s": DOORS[name].most_cpu_s,
                "cpu_s": round(self.cpu_s[name], 1),
                "slowest_s": round(self.slowest[name][0], 2),
                "slowest": self.slowest[name][1],
                "peak_bytes": self.peak_bytes[name],
            }
            for name in DOORS
            if name in self.outcomes
        ]


def table(rows: Sequence[dict[str, Any]]) -> str:
    failing = sorted(FAILURES, key=OUTCOMES.index)
    lines = [("door", "inputs", "yes", "no (3, 4)", "refused (2, 5)", *failing, "CPU s", "slowest s", "peak MB")]
    for row in rows:
        found = Counter(row["outcomes"])
        no, refused = (sum(found[REFUSED[code]] for code in codes) for codes in ((3, 4), (2, 5)))
        counts = (row["inputs"], found[ANSWERED], no, refused, *(found[name] for name in failing))
        figures = (f"{row['cpu_s']:.0f}", f"{row['slowest_s']:.1f}", f"{row['peak_bytes'] / 1e6:.0f}")
        lines.append((row["door"], *(f"{n:,}" for n in counts), *figures))
    widths = [max(len(str(line[place])) for line in lines) for place in range(len(lines[0]))]
    return "\n".join(
        "  ".join(
            f"{cell:<{width}}" if place == 0 else f"{cell:>{width}}"
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    )


def by_place(failures: Iterable[Failure]) -> str:
    """One line a cause, with the first input that shows it."""
    causes: dict[tuple[str, str, str], list[Failure]] = defaultdict(list)
    for row in failures:
        causes[row.door, row.outcome, row.place].append(row)
    ordered = sorted(causes.items(), key=lambda item: -len(item[1]))
    return "\n".join(f"{len(rows):>7,} x {door}: {what}: {place}; --only {door}:{rows[0].number}".replace("\n", " ")
                     for (door, what, place), rows in ordered)  # fmt: skip


def only(text: str) -> tuple[str, int | None]:
    name, colon, number = text.rpartition(":")
    if colon and number.isdecimal() and name in DOORS:
        return name, int(number)
    if text not in DOORS:
        raise argparse.ArgumentTypeError(f"got {text!r}; allowed: DOOR or DOOR:NUMBER, of {', '.join(DOORS)}")
    return text, None


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("./dev system fuzz", description="Bad inputs at every door; none may break it.")
    parser.add_argument(
        "--inputs", metavar="N", type=int, default=10_000, help=f"in all (default: 10000; the full run: {FULL})"
    )
    parser.add_argument("--seed", metavar="S", type=int, default=1, help="another seed, other inputs (default: 1)")
    parser.add_argument(
        "--only", metavar="DOOR[:NUMBER]", type=only, help="one door, or one input, which is then shown"
    )
    parser.add_argument("--processes", metavar="N", type=int, default=PROCESSES)
    parser.add_argument(
        "--out",
        metavar="FILE",
        type=Path,
        help=f"where the result goes (the committed one: {RESULTS.relative_to(ROOT)})",
    )
    given = parser.parse_args(argv)
    work = list(parts(given.inputs, given.seed))
    if given.only:
        name, number = given.only
        work = [part for part in work if part.door.name == name]
        if number is not None:
            work = [Part(DOORS[name], range(number, number + 1), given.seed, alone=True)]
            from .workers import the_input

            print(the_input(DOORS[name], number, given.seed).shown, "\n")
    tally, began_s, all_of_them = Tally(), time.monotonic(), sum(len(part.numbers) for part in work)
    shown_s, done_inputs = began_s, 0
    with contextlib.suppress(KeyboardInterrupt):  # what is done is told
        for done in run(work, given.processes):
            tally.add(done)
            done_inputs += done.outcomes.total()
            if time.monotonic() - shown_s > 30:
                shown_s = time.monotonic()
                told = f"{done_inputs:,} of {all_of_them:,}, {len(tally.failures)} failures"
                print(told, file=sys.stderr, flush=True)
    rows = tally.rows()
    print(table(rows))
    if tally.failures:
        print(f"\n{by_place(tally.failures)}")
    wall_s = time.monotonic() - began_s
    print(f"\n{done_inputs:,} inputs, seed {given.seed}, {len(tally.failures)} failures, {wall_s:.0f} s")
    if given.out is not None:
        failures = sorted(tally.failures)
        result = {
            "date": date.today().isoformat(), "commit": commit(), "seed": given.seed, "inputs": done_inputs,
            "most_bytes": MOST_BYTES, "wall_s": round(wall_s), "doors": rows,
            "failures": [row._asdict() if place < MOST_TOLD else {"door": row.door, "number": row.number,
            "outcome": row.outcome}
                         for place, row in enumerate(failures)],
        }  # fmt: skip
        given.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 1 if tally.failures else 0


if __name__ == "__main__":
    sys.exit(main())
