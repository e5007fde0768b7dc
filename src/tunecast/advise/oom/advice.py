"""What to change after an out-of-memory error, the most effective first. Pure: a message in.

First what holds memory for nothing and would alone have sufficed; then the training itself; then what helps a little.
"""

from __future__ import annotations

from collections.abc import Iterator

from tunecast.advise.oom.message import Filling, OomMessage, filled, short_bytes
from tunecast.prediction.on_card import MOST_CONTEXT_BYTES
from tunecast.records import NamedTuple
from tunecast.units import MIB, gib

WORTH_BYTES = 64 * MIB
"""Below it nothing is said: sizes are printed with two decimals, of GiB mostly."""
UNNAMED_BYTES = 512 * MIB
"""The driver itself holds this much of a large card, so what belongs to no named process counts from here on."""

ROOM, PIECES, OWN = "room", "pieces", "own"
"""What it gives: room on the card beside what PyTorch could have, room that PyTorch had in pieces, or less that PyTorch
itself holds."""


class Advice(NamedTuple):
    what: str
    """What was found."""
    how: str
    """What to do about it."""
    frees_bytes: int | None
    """At most; None where that depends on what is trained."""
    enough: bool = False
    """It alone would have made room for the request."""
    enough_for_job: bool | None = None
    """With it the whole job completes, as predicted; None where no job is known that made the log."""
    training: bool = False
    """What is trained needs it; a job can say how to need less."""
    gives: str = OWN


def advice_for(message: OomMessage) -> list[Advice]:
    filling, short = filled(message), short_bytes(message)
    if filling is None or short is None:
        return [_rerun(message)]
    waste = sorted(_waste(message, filling, short), key=lambda found: -(found.frees_bytes or 0))
    enough = [found for found in waste if found.enough]
    return [*enough, _need(filling), *(found for found in waste if not found.enough)]


def _rerun(message: OomMessage) -> Advice:
    on = message.platform
    return Advice(
        f"the message carries no figures: {on.name} itself ran out of memory, not PyTorch's allocator",
        f"look for other processes with {on.lists_processes}, then run again: PyTorch's own message says more",
        None,
    )


def _waste(message: OomMessage, filling: Filling, short: int) -> Iterator[Advice]:
    requested, on = message.requested_bytes or 0, message.platform

    def advice(nbytes: int, what: str, how: str, gives: str = ROOM) -> Advice:
        return Advice(what, how, nbytes, nbytes >= (short or requested), gives=gives)

    if message.allowed_bytes is not None and message.allowed_bytes < filling.total_bytes - MOST_CONTEXT_BYTES:
        what = f"a limit is set: this process may use {gib(message.allowed_bytes)} of {gib(filling.total_bytes)}"
        how = "raise or drop torch.cuda.set_per_process_memory_fraction (some servers and trainers set it)"
        yield advice(filling.free_bytes, what, how)
    elif filling.free_bytes - requested >= UNNAMED_BYTES:
        what = f"the card had room: {gib(filling.free_bytes)} free for a request of {gib(requested)}"
        how = "another process has freed it since, or another limit applies: MIG, the container's, host memory"
        yield Advice(what, how, None)
    if filling.others_bytes >= (WORTH_BYTES if filling.others else UNNAMED_BYTES):
        named = ", ".join(f"{other.pid} ({gib(other.nbytes)})" for other in filling.others[:5]) or "not named"
        what = f"other processes hold {gib(filling.others_bytes)}: {named}"
        how = (
            f"end those you do not need ({on.lists_processes} lists them; a crashed run may linger), or predict with "
            f"what they leave: --reserve {filling.others_bytes // MIB + 1}MiB"
        )
        yield advice(filling.others_bytes, what, how)
    if filling.unallocated_bytes >= WORTH_BYTES:
        what = f"fragmentation: {gib(filling.unallocated_bytes)} are cached in pieces, none of them large enough"
        how = f"set {on.settings}={on.defragment} before the run; pad to fewer lengths, or pack"
        yield advice(filling.unallocated_bytes, what, how, PIECES)
    if message.private_bytes >= UNNAMED_BYTES:
        what = f"{gib(message.private_bytes)} are in private pools: {on.name} graphs, or a torch.cuda.MemPool"
        how = 'torch.compile(mode="default") instead of "reduce-overhead", or fewer shapes to capture'
        yield advice(message.private_bytes, what, how, OWN)
    extra = filling.outside_bytes - MOST_CONTEXT_BYTES
    if extra >= WORTH_BYTES:
        whose = "this process holds" if filling.split else "this process or others hold"
        context = f"a {on.name} context takes {gib(MOST_CONTEXT_BYTES)} at most"
        what = f"{whose} {gib(filling.outside_bytes)} outside PyTorch; {context}"
        how = f"look with {on.lists_processes}: another process, a display, or a library ({on.libraries})"
        yield advice(extra, what, how)


def _need(filling: Filling) -> Advice:
    share = 100 * filling.allocated_bytes / filling.total_bytes if filling.total_bytes else 0
    what = f"the training itself holds {gib(filling.allocated_bytes)}, {share:.0f} % of the card"
    if filling.spilled_bytes > MOST_CONTEXT_BYTES:
        what += f"; {gib(filling.spilled_bytes)} of it are in host memory, which the driver lends (Windows)"
    how = (
        "a smaller micro-batch with more gradient accumulation, gradient checkpointing, an 8-bit optimizer, LoRA; "
        "`tunecast explain-oom JOB train.log` tries each on your job"
    )
    return Advice(what, how, None, training=True)
