"""A recipe in the making: a reader takes the keys of a file one by one, and what it leaves is reported.

keys.get("micro_batch_size", "batch_size")      the value of the first that is set; both count as read
draft.take("micro_batch", keys, "micro_batch_size")
draft.assume("micro_batch", 1)                  the framework's default, where nothing was taken
draft.not_modelled(keys, "lisa_n_layers", "layers are frozen in turns")
draft.put_global_batch(keys, "global_batch_size")   rows of a step on all cards: `grad_accum` follows from their number
draft.refuse("dpo", "preference tuning")
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from fnmatch import translate
from functools import cache
from typing import Any

from tunecast.job.foreign import WITHOUT_EFFECT
from tunecast.job.job import nested
from tunecast.job.recipes.cards import is_count, with_accumulation
from tunecast.job.recipes.document import Document, leaves
from tunecast.job.recipes.recipe import Assumed, NotUnderstood, Place, Recipe

UNKNOWN_KEY = "nothing here reads this key"
_LIST_PLACES = re.compile(r"(?<=.)(\.\d+)+$")
"""Values of a list that nothing reads are told once, by its key."""
MOST_REPORTED = 200
"""Of keys a file leaves; the rest is counted."""


class Keys:
    """One file's keys: each is read, ignored, or left."""

    def __init__(self, document: Document, without_effect: Iterable[str] = ()) -> None:
        self.document = document
        self.ignored: set[str] = set()
        self._read: set[str] = set()
        self._patterns = (*without_effect, *WITHOUT_EFFECT)

    def get(self, *names: str, default: Any = None) -> Any:
        """The value of the first of these names that is set to something; all of them count as read."""
        self._read.update(names)
        for name in names:
            value = self.document.get(name)
            if value is not None:
                return value
        return default

    def has(self, name: str) -> bool:
        return self.document.has(name)

    def ignore(self, *names: str) -> None:
        """Keys (and all inside them) that move nothing."""
        self._read.update(names)
        self.ignored.update(name for name in names if self.document.has(name))

    def without(self, *patterns: str) -> None:
        """Further keys that move nothing, as it turned out."""
        self._patterns = (*patterns, *self._patterns)

    def place(self, *names: str) -> Place:
        """Of the first that is set, else of the first."""
        name = next((name for name in names if self.document.get(name) is not None), names[0])
        return Place(*self.document.place(name), name)

    def left(self) -> Iterator[tuple[str, Any]]:
        """Values nobody read, by dotted name; those that say nothing (null, false, empty) are ignored."""
        for name, value in leaves(self.document.tree):
            if not name or self._is_read(name):
                continue
            if value is None or value is False or value in ("", [], {}) or self.moves_nothing(name):
                self.ignored.add(name)
            else:
                yield name, value

    @property
    def looked_at(self) -> frozenset[str]:
        """Names that were asked for, be they written or not."""
        return frozenset(self._read)

    def used(self) -> Iterator[str]:
        """Values that were read, by dotted name; whoever reads a mapping reads all of it."""
        for name, value in leaves(self.document.tree):
            if name and value is not None and self._is_read(name) and not self._within(self.ignored, name):
                yield name

    def _is_read(self, name: str) -> bool:
        return self._within(self._read, name)

    @staticmethod
    def _within(names: set[str], name: str) -> bool:
        parts = name.split(".")
        return any(".".join(parts[:count]) in names for count in range(1, len(parts) + 1))

    def moves_nothing(self, name: str) -> bool:
        """It, or what it stands in: of `report_to` each item too."""
        parts = name.split(".")
        matches = _matcher(self._patterns)
        return any(part in self._patterns or matches(".".join(parts[:count])) for count, part in enumerate(parts, 1))


@cache
def _matcher(patterns: tuple[str, ...]) -> Callable[[str], object]:
    """Whether a name is like one of these, as `fnmatch` has it."""
    return re.compile("|".join(map(translate, patterns))).match


class Draft:
    """Fields by dotted name, and where they come from."""

    def __init__(self, framework: str, release: str) -> None:
        self.framework, self.release = framework, release
        self.fields: dict[str, Any] = {}
        self.places: dict[str, Place] = {}
        self.assumed: dict[str, Assumed] = {}
        self.refused: str | None = None
        self.global_batch: int | None = None
        self.data_sets: dict[str, str] = {}
        """By key, as the file names them."""
        self._not_understood: dict[tuple[str, str], NotUnderstood] = {}
        self._files: list[Keys] = []

    def keys(self, document: Document, without_effect: Iterable[str] = ()) -> Keys:
        """Of a file that belongs to the recipe; what is left of them is reported in the end."""
        made = Keys(document, without_effect)
        self._files.append(made)
        return made

    def looked_at(self, file: str) -> frozenset[str]:
        """Of one file's keys, what was asked for."""
        return frozenset().union(*(keys.looked_at for keys in self._files if keys.document.file == file))

    def has_read(self, document: Document) -> bool:
        return any(keys.document is document for keys in self._files)

    def put(self, field: str, value: Any, keys: Keys, *names: str) -> None:
        """A field that these keys say."""
        self.fields[field] = value
        self.places[field] = keys.place(*names)
        self.assumed.pop(field, None)

    def take(self, field: str, keys: Keys, *names: str, read: Callable[[Any], Any] | None = None) -> bool:
        """A field that the first of these keys says, where one does."""
        value = keys.get(*names)
        if value is None:
            return False
        self.put(field, value if read is None else read(value), keys, *names)
        return True

    def offer(self, field: str, value: Any, keys: Keys, *names: str) -> None:
        """A field that these keys say, where nobody said or took another: what a file says that another points to."""
        keys.get(*names)
        if field not in self.fields:
            self.put(field, value, keys, *names)

    def assume(self, field: str, value: Any, whose: str = "") -> None:
        """Where nothing was taken."""
        if field not in self.fields:
            self.fields[field] = value
            self.assumed[field] = Assumed(value, whose or f"{self.framework} {self.release}")

    def drop(self, field: str) -> None:
        """Of a field that was taken or assumed before something else decided it."""
        for told in (self.fields, self.places, self.assumed):
            told.pop(field, None)

    def put_global_batch(self, keys: Keys, *names: str, default: int | None = None) -> None:
        """Rows of one optimizer step on all cards, where the first of these keys, or the framework's default, says it.
        A value that is no number of rows is told as one of `grad_accum`."""
        rows = keys.get(*names)
        if is_count(rows):
            self.global_batch = rows
            self.places["grad_accum"] = keys.place(*names)
        elif rows is not None:
            self.put("grad_accum", rows, keys, *names)
        else:
            self.global_batch = default

    def not_modelled(self, keys: Keys, name: str, why: str) -> None:
        """A key that was read and that no field tells: the answer is an estimate, and says so."""
        keys.get(name)
        place = keys.place(name)
        self._not_understood[place.file, name] = NotUnderstood(name, place.file, place.line, why)

    def note(self, place: Place, why: str) -> None:
        """Something of a file that is no key of it: another command, on other cards."""
        self._not_understood[place.file, place.key] = NotUnderstood(place.key, place.file, place.line, why)

    def refuse(self, task: str, why: str = "") -> None:
        """A task that nothing can be predicted of. The first is told."""
        if self.refused is None:
            self.refused = f"{task}: {why}" if why else task

    def finish(self) -> Recipe:
        missing = self._not_understood
        for keys in self._files:
            for name in dict.fromkeys(_LIST_PLACES.sub("", name) for name, _ in keys.left()):
                if len(missing) < MOST_REPORTED and (keys.place(name).file, name) not in missing:
                    place = keys.place(name)
                    missing[place.file, name] = NotUnderstood(name, place.file, place.line, UNKNOWN_KEY)
        ignored = sorted({name for keys in self._files for name in keys.ignored} - set(self.data_sets))
        used = sorted(
            {name for keys in self._files for name in keys.used() if (keys.place(name).file, name) not in missing}
        )
        job = with_accumulation(nested(self.fields), self.global_batch)
        places = {field: place for field, place in self.places.items() if field in self.fields or field in job}
        if self.global_batch is not None and "grad_accum" not in places:
            whose = f"{self.framework} {self.release}, a global batch of {self.global_batch}"
            self.assumed["grad_accum"] = Assumed(job["grad_accum"], whose)
        return Recipe(
            job, self.framework, self.release, places, dict(self.assumed), tuple(missing.values()),
            tuple(ignored), self.refused, tuple(used), self.global_batch, tuple(self.data_sets.values()),
        )  # fmt: skip
