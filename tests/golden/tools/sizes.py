"""What a traced or a built run does to the allocator, in the form the golden files keep."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tunecast.tape.op import Alloc, Begin, Event, Free, Phase
from tunecast.tape.program import FREE, Program


def told(events: Iterable[Event], counts: Callable[[int], bool] = bool) -> list[int]:
    """Sizes asked for, and between two of them the sizes let go as negative numbers, sorted; from the first forward
    pass to the last request. Only sizes that count."""
    out: list[int] = []
    sizes: dict[int, int] = {}
    frees: list[int] = []
    started = False
    for event in events:
        if isinstance(event, Begin):
            started = started or event.phase is Phase.FORWARD
        elif isinstance(event, Free):
            if started and counts(sizes[event.block]):
                frees.append(-sizes[event.block])
        elif isinstance(event, Alloc):
            sizes[event.block] = event.nbytes
            if started and counts(event.nbytes):
                out += sorted(frees)
                frees.clear()
                out.append(event.nbytes)
    return out


def most_held(run: Program) -> int:
    """Bytes asked for and not let go of, at most."""
    sizes: dict[int, int] = {}
    held = most = 0
    for block, size in run.written_out():
        if size >= 0:
            sizes[block] = size
            held += size
            most = max(most, held)
        elif size == FREE:
            held -= sizes.pop(block)
    return most
