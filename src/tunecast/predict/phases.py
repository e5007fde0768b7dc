"""What each phase of a run holds when it holds most: one bar a phase for a report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tunecast.predict.memory import AtPeak, Program, Replay
from tunecast.tape.fold import BEGIN, FREE
from tunecast.tape.op import Begin, Phase, Role


def phase_peaks(rows: Program, run: Replay) -> tuple[AtPeak, ...]:
    """Of the part of the program the replay ran: each phase's highest moment over all steps, the first of equals, in
    the order the phases first began. What a phase starts with counts, as in `Replay.peaks`."""
    requests = iter(run.held)
    held: dict[int, int] = {}
    now = 0
    begin = Begin(Phase.LOAD)
    most: dict[Phase, tuple[int, int, int]] = {Phase.LOAD: (0, -1, 0)}  # bytes, row, step
    highest = 0
    for row, (block, size) in enumerate(zip(rows.blocks, rows.sizes, strict=True)):
        if size >= 0:
            given = next(requests, None)
            if given is None:
                break
            held[block] = given
            now += given
        elif size == FREE:
            now -= held.pop(block)
            continue
        elif size == BEGIN:
            begin = rows.begins[block]
            highest = most[begin.phase][0] if begin.phase in most else -1
        if now > highest:
            highest = now
            most[begin.phase] = (now, row, begin.step)
    parts = _roles_after(rows, run, {row for _, row, _ in most.values()})
    return tuple(
        AtPeak(nbytes, phase, step, parts[row]) for phase, (nbytes, row, step) in most.items() if nbytes or row >= 0
    )


def _roles_after(rows: Program, run: Replay, wanted: Iterable[int]) -> dict[int, Mapping[Role, int]]:
    """Bytes alive by role after each of these rows."""
    found: dict[int, Mapping[Role, int]] = {}
    requests = iter(run.held)
    alive: dict[int, int] = {}
    start = 0
    for end in sorted(wanted):
        for block, size in zip(rows.blocks[start : end + 1], rows.sizes[start : end + 1], strict=True):
            if size >= 0:
                alive[block] = next(requests)
            elif size == FREE:
                del alive[block]
        start = end + 1
        by_role = dict.fromkeys(Role, 0)
        for block, nbytes in alive.items():
            by_role[rows.roles[block]] += nbytes
        found[end] = by_role
    return found
