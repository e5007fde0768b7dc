"""From a request to its run: a structure that serves it, or a new one, kept for others that ask alike."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable

from tunecast.errors import TunecastError
from tunecast.records import replace_unchecked
from tunecast.tape.build.paper_run import paper_run
from tunecast.tape.build.request import BuildRequest, Contents, StructureKey, structure_key
from tunecast.tape.fold import Operations
from tunecast.tape.pattern import Values
from tunecast.tape.structure import JobRefusal, PaperRun, Structure
from tunecast.tape.symbols import Guards, NumberNeeded

SERVED_BY = {
    Contents.PROGRAM: (Contents.PROGRAM, Contents.BOTH),
    Contents.BOTH: (Contents.BOTH,),
    Contents.OPERATIONS: (Contents.BOTH, Contents.OPERATIONS),
}
"""What was built with more than a request needs serves it too."""


class _StructuresOfKey:
    """What there is for one key."""

    __slots__ = ("known", "numbers_only")

    def __init__(self) -> None:
        self.known: list[Structure | JobRefusal] = []
        self.numbers_only = False
        """Somewhere its code needs plain numbers: no use in trying symbols again."""

    @property
    def rows(self) -> int:
        return sum([each.rows for each in self.known])


class Builder:
    """Builds runs on paper, and owns the structures they came from.

    `symbolic`: runs are built with symbols, which takes a third longer and serves later requests of other sizes. A
    builder that is asked once does without.
    """

    def __init__(self, *, symbolic: bool = True, most_rows: int = 4_000_000, most_keys: int = 1000) -> None:
        """Structures are kept up to `most_rows` rows in all, at about a hundred bytes each, and of `most_keys` keys."""
        self.symbolic, self._most_rows, self._most_keys = symbolic, most_rows, most_keys
        self._entries: dict[StructureKey, _StructuresOfKey] = {}
        """By age: what was needed last is the last."""
        self.fallbacks: Counter[str] = Counter()
        """How often a run was built of plain numbers because symbols would not do, by the reason."""

    def run(self, request: BuildRequest) -> PaperRun:
        if request.job.lengths or not self.symbolic:
            return paper_run(request)
        return self._run(request)

    def operations(self, request: BuildRequest) -> Operations:
        """The operations alone. They are always built with symbols: who needs them alone has rows of many lengths."""
        operations = self._run(request._replace(contents=Contents.OPERATIONS)).operations
        assert operations is not None
        return operations

    def structures(self, key: StructureKey) -> list[Structure]:
        """Those that were built so far."""
        entry = self._entries.get(key)
        return [] if entry is None else [each for each in entry.known if isinstance(each, Structure)]

    def needs_numbers(self, key: StructureKey) -> bool:
        """Whether building with symbols was tried in vain."""
        entry = self._entries.get(key)
        return entry is not None and entry.numbers_only

    @property
    def keys(self) -> list[StructureKey]:
        return list(self._entries)

    def _run(self, request: BuildRequest) -> PaperRun:
        sized = request.contents is not Contents.OPERATIONS
        key = structure_key(request)
        keys = (key._replace(contents=contents) for contents in SERVED_BY[request.contents])
        return self._served(keys, request.values, sized) or self.build(key, request, sized=sized)

    def _served(self, keys: Iterable[StructureKey], values: Values, sized: bool) -> PaperRun | None:
        for key in keys:
            entry = self._entries.pop(key, None)
            if entry is not None:
                self._entries[key] = entry
                for each in entry.known:
                    run = each.run(values, sized=sized)
                    if run is not None:
                        return run
        return None

    def build(self, key: StructureKey, request: BuildRequest, *, sized: bool) -> PaperRun:
        """Anew, and kept under the key."""
        if self.needs_numbers(key):
            return paper_run(request)
        guards = Guards()
        try:
            structure = Structure(paper_run(request, request.with_symbols(guards)), guards)
        except (NumberNeeded, TunecastError) as error:
            return self._build_of_numbers(key, request, guards, error)
        self._entry(key).known.append(structure)
        self._forget()
        run = structure.run(request.values, sized=sized)
        assert run is not None
        return run

    def _build_of_numbers(
        self, key: StructureKey, request: BuildRequest, guards: Guards, error: NumberNeeded | TunecastError
    ) -> PaperRun:
        """Where symbols end in an error: one of theirs, or the job's own, which numbers end in too."""
        try:
            run = paper_run(request)
        except TunecastError as refusal:
            if type(refusal) is type(error) and str(refusal) == str(error):
                self._entry(key).known.append(JobRefusal(guards, refusal))
            raise
        self._entry(key).numbers_only = True
        self.fallbacks[f"{type(error).__name__}: {error}"] += 1
        return run

    def _entry(self, key: StructureKey) -> _StructuresOfKey:
        return self._entries.setdefault(key, _StructuresOfKey())

    def _forget(self) -> None:
        """What was not needed for the longest time."""
        rows = sum([entry.rows for entry in self._entries.values()])
        while len(self._entries) > 1 and (rows > self._most_rows or len(self._entries) > self._most_keys):
            rows -= self._entries.pop(next(iter(self._entries))).rows


SHARED = Builder()
"""For those who do not care whose structures serve them."""


class MicroBatchStructures:
    """The structures of one job's micro-batches, by their rows and length."""

    def __init__(self, builder: Builder, request: BuildRequest, most: int) -> None:
        """At most so many are built; beyond, the nearest one stands in."""
        self._builder, self._request, self._most = builder, request, most
        self._key = structure_key(request, per_micro_batch=True)
        _, _, *rest, _ = request.values
        self._rest = tuple(rest)
        keys = [self._key]
        if not request.masked and not request.evaluates:
            whole = self._key._replace(per_micro_batch=False)
            keys += [whole._replace(contents=contents) for contents in (Contents.PROGRAM, Contents.BOTH)]
        self._known = [structure for key in keys for structure in builder.structures(key)]
        self._built = 0
        self.strangers = 0
        """Micro-batches that another structure stands in for, since there are too many."""

    def of(self, rows: int, length: int, padding: int = 0) -> tuple[Structure, tuple[int, ...]] | None:
        """The structure of such a micro-batch and the values of its expressions; None where a plain number is needed
        somewhere, or the job is refused with such rows."""
        values = (rows, length, *self._rest, padding)
        structure = self._among_known(values)
        if structure is None and not self._builder.needs_numbers(self._key):
            if self._built >= self._most:
                return self._stand_in(values, rows * length)
            structure = self._build(values, rows, length, padding)
        return None if structure is None else (structure, structure.sizes(values))

    def _build(self, values: Values, rows: int, length: int, padding: int) -> Structure | None:
        self._built += 1
        job = replace_unchecked(self._request.job, micro_batch=rows)
        with contextlib.suppress(TunecastError):
            self._builder.build(self._key, self._request._replace(job=job, length=length, padding=padding), sized=False)
            self._known += [each for each in self._builder.structures(self._key) if each not in self._known]
            structure = self._among_known(values)
            if structure is not None:
                structure.tokens = rows * length
            return structure
        return None

    def _stand_in(self, values: Values, tokens: int) -> tuple[Structure, tuple[int, ...]] | None:
        self.strangers += 1
        nearest = min(self._known, key=lambda structure: abs(structure.tokens - tokens))
        try:
            return nearest, nearest.sizes(values)
        except (ArithmeticError, LookupError, ValueError):
            return None

    def _among_known(self, values: Values) -> Structure | None:
        for place, structure in enumerate(self._known):
            if structure.serves(values):
                self._known.insert(0, self._known.pop(place))  # the next one is mostly like it
                return structure
        return None
