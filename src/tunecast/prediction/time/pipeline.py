"""Pipeline schedules: how long a step takes, how long stages idle, how many micro-batches a stage holds. Pure.

A schedule is, for each rank, the order in which it runs forwards (F) and backwards (B); when one starts follows from
the order and from what it waits for, so a step is simulated exactly, whatever the stages cost:

    F of a stage waits for F of the stage before, and B for B of the stage after and its own F; crossing takes `hop_s`

    1f1b, 4 stages, 4 micro-batches          rank 0   F0 F1 F2 F3 .. .. .. B0 .. B1 .. B2 .. B3
    each rank runs a backward as soon        rank 3            F0 B0 F1 B1 F2 B2 F3 B3
    as it may, and holds few micro-batches

Source  GPipe: arXiv 1811.06965; 1F1B and interleaved: arXiv 2104.04473 (Megatron-LM), megatron/core/pipeline_parallel/
        schedules.py; in PyTorch ScheduleGPipe, Schedule1F1B, ScheduleInterleaved1F1B
Ignored a rank that waits for its own sends (they run beside the computing), split backwards (zero bubble)
"""

from __future__ import annotations

from collections.abc import Sequence

from tunecast.records import NamedTuple

GPIPE, ONE_F_ONE_B, INTERLEAVED = "gpipe", "1f1b", "interleaved"
SCHEDULES = (GPIPE, ONE_F_ONE_B, INTERLEAVED)


class StageWork(NamedTuple):
    """One pass of one micro-batch through one chunk of a rank's layers."""

    forward: bool
    micro_batch: int
    chunk: int


class PipelineTime(NamedTuple):
    step_s: float
    """Until the last rank is done."""
    busy_s: tuple[float, ...]
    """Of each rank."""
    in_flight: tuple[int, ...]
    """The most passes of each rank whose backward has not ended: what its activations are held for."""

    @property
    def bubble_s(self) -> float:
        """What the busiest rank waits."""
        return self.step_s - max(self.busy_s)


def pipeline_time(
    schedule: str,
    ranks: int,
    micro_batches: int,
    forward_s: Sequence[float],
    backward_s: Sequence[float],
    hop_s: float = 0.0,
) -> PipelineTime:
    """`forward_s` and `backward_s` are of one micro-batch, by stage in the model's order.

    With more stages than ranks, rank r has the stages r, r + ranks, r + 2 ranks, ... as chunks.
    """
    chunks = _chunks(schedule, ranks, micro_batches, len(forward_s), len(backward_s))
    orders = [order(schedule, rank, ranks, micro_batches, chunks) for rank in range(ranks)]
    done: dict[tuple[bool, int, int], float] = {}
    clocks = [0.0] * ranks
    places = [0] * ranks
    last = ranks * chunks - 1
    left = ranks
    while left:
        moved = False
        for rank, work in enumerate(orders):
            while places[rank] < len(work):
                forward, micro_batch, chunk = work[places[rank]]
                stage = chunk * ranks + rank
                ready = _ready(done, forward, micro_batch, stage, last, hop_s)
                if ready is None:
                    break
                took = forward_s[stage] if forward else backward_s[stage]
                clocks[rank] = max(clocks[rank], ready) + took
                done[forward, micro_batch, stage] = clocks[rank]
                places[rank] += 1
                moved = True
                left -= places[rank] == len(work)
        if not moved:
            raise AssertionError(f"{schedule} of {ranks} ranks waits for itself")
    busy = tuple(
        micro_batches * sum(forward_s[stage] + backward_s[stage] for stage in range(rank, last + 1, ranks))
        for rank in range(ranks)
    )
    return PipelineTime(max(clocks), busy, tuple(in_flight(work) for work in orders))


def order(schedule: str, rank: int, ranks: int, micro_batches: int, chunks: int = 1) -> list[StageWork]:
    """What a rank runs, one after another: forwards to warm up, one forward and one backward in turn, backwards."""
    passes = micro_batches * chunks
    forwards = [StageWork(True, *_pass(number, ranks, chunks)) for number in range(passes)]
    backwards = [StageWork(False, *_pass(number, ranks, chunks, backward=True)) for number in range(passes)]
    warm = min(passes, warmup(schedule, rank, ranks, micro_batches, chunks))
    steady = [work for pair in zip(forwards[warm:], backwards, strict=False) for work in pair]
    return [*forwards[:warm], *steady, *backwards[passes - warm :]]


def warmup(schedule: str, rank: int, ranks: int, micro_batches: int, chunks: int = 1) -> int:
    """Forwards before the first backward: enough for the first micro-batch to reach the end and come back.

    Interleaved: twice the ranks behind, since a backward comes back in two, and all chunks but the last.
    """
    behind = ranks - rank - 1
    if schedule == GPIPE:
        return micro_batches * chunks
    return behind if schedule == ONE_F_ONE_B else 2 * behind + (chunks - 1) * ranks


def in_flight(work: Sequence[StageWork]) -> int:
    """The most forwards without their backward; a backward holds its activations until it ends."""
    held = most = 0
    for each in work:
        held += 1 if each.forward else -1
        most = max(most, held)
    return most


def _pass(number: int, ranks: int, chunks: int, *, backward: bool = False) -> tuple[int, int]:
    """Micro-batch and chunk: as many micro-batches as there are ranks through one chunk, then through the next."""
    if chunks == 1:
        return number, 0
    turn, place = divmod(number, ranks * chunks)
    chunk = place // ranks
    return turn * ranks + place % ranks, chunks - 1 - chunk if backward else chunk


def _ready(
    done: dict[tuple[bool, int, int], float], forward: bool, micro_batch: int, stage: int, last: int, hop_s: float
) -> float | None:
    """When what it waits for is there; None while that has not run."""
    if forward:
        if stage == 0:
            return 0.0
        before = done.get((True, micro_batch, stage - 1))
        return None if before is None else before + hop_s
    own = done.get((True, micro_batch, stage))
    if own is None or stage == last:
        return own
    after = done.get((False, micro_batch, stage + 1))
    return None if after is None else max(own, after + hop_s)


def _chunks(schedule: str, ranks: int, micro_batches: int, forwards: int, backwards: int) -> int:
    if schedule not in SCHEDULES:
        raise ValueError(f"schedule: got {schedule!r}; allowed: {', '.join(SCHEDULES)}")
    if forwards != backwards or ranks < 1 or micro_batches < 1 or forwards % ranks or not forwards:
        raise ValueError(f"got {forwards} forward and {backwards} backward stages for {ranks} ranks")
    chunks = forwards // ranks
    if schedule != INTERLEAVED and chunks > 1:
        raise ValueError(f"got {chunks} stages a rank with {schedule}; allowed: 1, or interleaved")
    if chunks > 1 and micro_batches % ranks:
        raise ValueError(f"got {micro_batches} micro-batches; interleaved takes a multiple of its {ranks} ranks")
    return chunks
