"""Many jobs on all cores: answers in the order of the jobs, as one process would print them.

    jobs ──► as far as `AHEAD` ──► a queue a process, like to like ──► answers, held back until it is their turn

What was built for one job serves those like it (`tape/build/job_runs.py`), so these go to the same process; one that
has nothing left to do takes over from the longest queue.
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from multiprocessing import connection, get_context
from typing import Any

from tunecast.errors import TunecastError
from tunecast.job.job import Job
from tunecast.job.readers import JobError
from tunecast.records import NamedTuple

AHEAD = 256
"""Jobs under way beyond the last answer printed: bounds what is held back, and lost when it is interrupted. With fewer
a process runs dry more often, and builds for others' jobs what those have built."""
AT_ONCE = 2
"""Jobs a process has: the one it answers, and the next, so that it need not wait."""
FEWEST_EACH = 8
"""Jobs to be worth another process."""
ENDED = "a process that answered jobs was ended from outside, perhaps for want of memory"

PR_SET_PDEATHSIG = 1
"""linux/prctl.h."""

Ask = Callable[[Job | JobError, int], int]
"""Prints the answer to the how-manieth job; its exit code."""


class Printed(NamedTuple):
    out: str
    errors: str
    code: int


def on_all_cores(ask: Ask, jobs: Sequence[Job | JobError]) -> Iterator[int]:
    """Exit codes; each answer is printed before its code comes."""
    workers = min(len(os.sched_getaffinity(0)), len(jobs) // FEWEST_EACH)
    if workers < 2:
        yield from (ask(job, number) for number, job in enumerate(jobs, start=1))
        return
    lanes: list[Lane] = []
    try:
        for _ in range(workers):
            lanes.append(Lane(ask, lanes))
        for answer in _in_order(lanes, jobs):
            sys.stderr.write(answer.errors)
            sys.stdout.write(answer.out)
            sys.stdout.flush()
            yield answer.code
    finally:
        for lane in lanes:
            lane.end()


class Lane:
    """A process, and the numbers of the jobs that are for it."""

    def __init__(self, ask: Ask, before: Sequence[Lane]) -> None:
        # What is imported by now is there at once; elsewhere than on Linux a forked process may not be sound.
        how = get_context("fork" if sys.platform == "linux" else None)
        self.pipe, other = how.Pipe()
        # A forked process must not hold its own end's counterpart, nor others': it would never see them closed.
        held = [self.pipe, *(lane.pipe for lane in before)] if how.get_start_method() == "fork" else []
        self.process: Any = how.Process(target=_answer_all, args=(ask, other, held), daemon=True)
        self.process.start()
        other.close()
        self.queue: deque[int] = deque()
        self.under_way = 0
        self.known: set[Hashable] = set()
        """What its jobs were like."""

    def give(self, jobs: Sequence[Job | JobError]) -> None:
        while self.queue and self.under_way < AT_ONCE:
            number = self.queue.popleft()
            try:
                self.pipe.send((number, jobs[number]))
            except OSError:
                raise TunecastError(ENDED) from None
            self.under_way += 1

    def take(self) -> tuple[int, Printed]:
        try:
            number, answer = self.pipe.recv()
        except (EOFError, OSError):
            raise TunecastError(ENDED) from None
        self.under_way -= 1
        return number, answer

    def end(self) -> None:
        self.pipe.close()
        self.process.terminate()
        self.process.join()


def _in_order(lanes: Sequence[Lane], jobs: Sequence[Job | JobError]) -> Iterator[Printed]:
    answers: dict[int, Printed] = {}
    lane_of: dict[Hashable, Lane] = {}
    read = 0
    for turn in range(len(jobs)):
        while turn not in answers:
            for number in range(read, min(turn + AHEAD, len(jobs))):
                likeness = _likeness(jobs[number])
                shortest = min(lanes, key=lambda lane: len(lane.queue) + lane.under_way)
                lane_of.setdefault(likeness, shortest).queue.append(number)
                lane_of[likeness].known.add(likeness)
                read = number + 1
            for lane in lanes:
                if not lane.queue and not lane.under_way:
                    _take_over(lane, max(lanes, key=lambda lane: len(lane.queue)), jobs)
                lane.give(jobs)
            for ready in connection.wait([lane.pipe for lane in lanes if lane.under_way]):
                number, answer = next(lane for lane in lanes if lane.pipe is ready).take()
                answers[number] = answer
        yield answers.pop(turn)


def _take_over(lane: Lane, longest: Lane, jobs: Sequence[Job | JobError]) -> None:
    """The last of the longest queue that is like one it had; else the last of all."""
    number = next((n for n in reversed(longest.queue) if _likeness(jobs[n]) in lane.known), None)
    if number is None and longest.queue:
        number = longest.queue[-1]
    if number is not None:
        longest.queue.remove(number)
        lane.queue.append(number)
        lane.known.add(_likeness(jobs[number]))


def _answer_all(ask: Ask, pipe: Any, held: Sequence[Any]) -> None:
    """In a process of its own, until the other end is closed."""
    for other in held:
        other.close()
    _let_the_parent_be_interrupted()
    with contextlib.suppress(EOFError, OSError):
        while True:
            number, job = pipe.recv()
            with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as errors:
                code = ask(job, number + 1)
            pipe.send((number, Printed(out.getvalue(), errors.getvalue(), code)))


def _likeness(job: Job | JobError) -> Hashable:
    """What is built anew where it differs; sizes are not among it."""
    if isinstance(job, JobError):
        return None
    kernels = job.attention, job.kernels, job.gradient_checkpointing, job.optimizer, job.weights_dtype, job.autocast
    return job.model, job.method, job.stack, job.hardware.gpu, job.hardware.gpus, job.parallel, *kernels


def _let_the_parent_be_interrupted() -> None:
    """It ends the others; they would each print a traceback. Where it is killed, they go with it."""
    import ctypes

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with contextlib.suppress(AttributeError, OSError):  # Linux alone has it
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
