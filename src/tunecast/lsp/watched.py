"""What is known of one open file: of the text as it is now, or nothing.

An edit forgets all of it and ends the work on what was there before; when typing rests for a moment the worker is
asked, and each piece of its answer is kept and shown as it comes.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tunecast.lsp.answerer import Answerer, NotAnswered
from tunecast.lsp.asked import Asked
from tunecast.lsp.positions import Text
from tunecast.lsp.scripts import TracedLine
from tunecast.records import NamedTuple

REST_S = 0.04
"""Without a key before the worker is asked: fingers are faster only within one word."""
MOST_BYTES = 2**20
"""Larger files are left alone."""
Answer = dict[str, Any]
Row = dict[str, Any]
"""A value and what it would cost (costs.Other)."""


class Traced(NamedTuple):
    """A script's trace, of the text it has now."""

    verdict: str
    """In words."""
    lines: tuple[TracedLine, ...]


class Watched:
    """One file. `show` is called with what has come: "look", "time", "cost", "remedies"."""

    def __init__(self, path: Path, units: str, answerer: Answerer, show: Callable[[Watched, str], None]) -> None:
        self.path, self.answerer, self.units, self._show = path, answerer, units, show
        self.text = Text("", units)
        self.asked = Asked()
        self.known = False
        """Whether it was a file of a training when it could be read last."""
        self.readable = ""
        """The last text that could be read."""
        self.look: Answer | None = None
        self.time: Answer | None = None
        self.costs: dict[str, list[Row]] = {}
        self.remedies: list[Answer] | None = None
        self.fault: str | None = None
        self.traced: Traced | None = None
        self._task: asyncio.Task[None] | None = None
        self._looked = asyncio.Event()
        self._done = asyncio.Event()

    def change(self, text: str, asked: Asked) -> None:
        self.stop()
        self.text, self.asked = Text(text, self.units), asked
        self.look = self.time = self.remedies = self.fault = self.traced = None
        self.costs = {}
        self._looked, self._done = asyncio.Event(), asyncio.Event()
        if len(text) > MOST_BYTES:
            self._looked.set()
            self._done.set()
            return
        self._task = asyncio.ensure_future(self._work(self._looked, self._done))

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
        self._task = None
        self._looked.set()
        self._done.set()

    def question(self, kind: str, text: str | None = None) -> Mapping[str, Any]:
        return {
            "kind": kind,
            "path": str(self.path),
            "text": self.text.text if text is None else text,
            "asked": list(self.asked),
            "known_before": self.known,
        }

    async def _work(self, looked: asyncio.Event, done: asyncio.Event) -> None:
        try:
            await asyncio.sleep(REST_S)
            async with contextlib.aclosing(self.answerer.ask(self.question("look"))) as events:
                async for name, content in events:
                    self._take(name, content)
                    if name == "look":
                        looked.set()
                    self._show(self, name)
        except NotAnswered as error:
            self.fault = None if error.expected else error.message
            self._show(self, "fault")
        finally:
            looked.set()
            done.set()

    def _take(self, name: str, content: Any) -> None:
        if name == "look":
            self.look = content
            self.known = self.known or content["known"]
            if content["places"]:
                self.readable = self.text.text
        elif name == "cost":
            self.costs[content["field"]] = content["others"]
        elif name == "time":
            self.time = content
        elif name == "remedies":
            self.remedies = content

    async def looked(self) -> Answer | None:
        """What the file says, as soon as it is known; None where an edit came in between, or there is nothing."""
        await self._looked.wait()
        return self.look if self.look is not None and self.look["known"] else None

    async def all_remedies(self) -> list[Answer]:
        """Found in the course of things where the job does not fit; else asked for now."""
        text = self.text
        await self._done.wait()
        if self.remedies is None and self.text is text and self.look is not None and self.look["verdict"] is not None:
            found = await self.ask("remedies")
            if self.text is text:
                self.remedies = found or []
        return self.remedies or [] if self.text is text else []

    async def ask(self, kind: str, text: str | None = None) -> Any:
        """The last piece of an answer. Raises `NotAnswered`."""
        last = None
        async with contextlib.aclosing(self.answerer.ask(self.question(kind, text))) as events:
            async for name, content in events:
                last = content if name != "look" else last
        return last

    @property
    def shown_at(self) -> tuple[int, str]:
        """Line and key of the verdict: what `fit` changes first, else what frees most, else the first that decides."""
        look = self.look or {}
        places = look.get("places", {})
        first = next((each["field"] for each in self.remedies or [] if each["field"] in places), None)
        frees = {field: frees_bytes(others) for field, others in self.costs.items() if field in places}
        most = max(frees, key=lambda field: frees[field], default="")
        if frees.get(most, 0) <= 0:
            most = ""
        line, key = places.get(first or most, (look.get("line", 0), look.get("key", "")))
        return line, key


def frees_bytes(others: list[Row]) -> int:
    return max(-int(other["more_bytes"]) for other in others)
