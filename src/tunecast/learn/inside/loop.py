"""Any training loop, measured: `with watching(...) as watch: ... watch.step(loss=loss)`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from tunecast.learn.inside.batches import CountedBatches
from tunecast.learn.inside.process import WatchedProcess, watched_from_outside


class Watch:
    """What a loop tells of itself."""

    def __init__(self, process: WatchedProcess | None, steps: int) -> None:
        self._process, self._of = process, steps
        self._steps = 0

    def step(self, *, tokens: int | None = None, padding: int = 0, loss: Any = None) -> None:
        """An optimizer step is over. A `loss` on the card is read later; tokens of `batches` are counted already."""
        self._steps += 1
        if self._process is None:
            return
        if tokens is not None:
            self._process.measures.count(int(tokens), int(padding))
        if loss is not None:
            self._process.loss = (self._steps, loss.detach() if hasattr(loss, "detach") else loss)
        self._process.measures.end_step(self._steps, self._of)

    def batches(self, loader: Iterable[Any]) -> Iterator[Any]:
        """The same batches, counted, and how long they are waited for."""
        return iter(CountedBatches(iter(loader), self._count)) if self._process is not None else iter(loader)

    def _count(self, waited_s: float, tokens: tuple[int, int] | None) -> None:
        assert self._process is not None
        self._process.measures.waited_s += waited_s
        if tokens is not None:
            self._process.measures.count(*tokens)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """`evaluation` or `save`: neither is part of a step."""
        if self._process is None:
            yield
            return
        before = self._process.measures.phase
        self._process.measures.enter(name)
        try:
            yield
        finally:
            self._process.measures.enter(before)

    @property
    def should_stop(self) -> bool:
        """Whether a budget or a deadline asks the loop to save and end: true of every rank after the same step."""
        return self._process is not None and self._process.stops(self._steps)


@contextmanager
def watched_loop(make: Callable[[], WatchedProcess | None], steps: int = 0) -> Iterator[Watch]:
    process = watched_from_outside() or make()
    watch = Watch(process, steps)
    if process is not None:
        process.measures.enter("first_step")
    try:
        yield watch
    except BaseException as error:
        if process is not None:
            process.failed(error)
        raise
    if process is not None:
        process.trained()
