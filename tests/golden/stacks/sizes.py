"""What a traced or a built run does to the allocator, in the form the golden files keep."""

from __future__ import annotations

from tunecast.tape.op import Alloc, Begin, Event, Free, Phase


def told(events: tuple[Event, ...]) -> list[int]:
    """Sizes asked for, and between two of them the sizes let go as negative numbers, sorted; from the first forward
    pass to the last request."""
    out: list[int] = []
    sizes: dict[int, int] = {}
    frees: list[int] = []
    started = False
    for event in events:
        if isinstance(event, Begin):
            started = started or event.phase is Phase.FORWARD
        elif isinstance(event, Free):
            if started:
                frees.append(-sizes[event.block])
        elif isinstance(event, Alloc):
            sizes[event.block] = event.nbytes
            if started and event.nbytes:
                out += sorted(size for size in frees if size)
                frees.clear()
                out.append(event.nbytes)
    return out
