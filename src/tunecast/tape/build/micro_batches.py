"""The structures of a job's own micro-batches, which have many lengths: what `tape/compose.py` makes its run of."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from tunecast.errors import TunecastError
from tunecast.job.job import Job
from tunecast.records import replace_unchecked
from tunecast.tape.build.fill_in import fill_in
from tunecast.tape.build.job_runs import SHARED, Builder
from tunecast.tape.build.request import BuildRequest, Contents, counted, structure_key
from tunecast.tape.build.sharding.layers import candidates
from tunecast.tape.build.stacks import program_of
from tunecast.tape.card import Card
from tunecast.tape.pattern import Values
from tunecast.tape.structure import COUNTED, Structure


def micro_batch_structures(
    job: Job, config: Mapping[str, Any], card: Card, *, masked: bool = False, evaluates: bool = False, most: int = 24,
    builder: Builder = SHARED,
) -> MicroBatchStructures | None:  # fmt: skip
    """Structures for the job's own micro-batches, those with a mask or those without, or for the batches it is
    evaluated on; None where several cards hold different layers and take turns."""
    job = fill_in(job, config)
    cards = candidates(job, config, program_of(job).model)
    if len(cards) > 1 or job.parallel.pipeline > 1:
        return None
    request = BuildRequest(job, cards[0], card, job.seq_len, masked=masked, evaluates=evaluates)
    return MicroBatchStructures(builder, request, most)


class MicroBatchStructures:
    """The structures of one job's micro-batches, by their rows and length."""

    def __init__(self, builder: Builder, request: BuildRequest, most: int) -> None:
        """At most so many are built; beyond, the nearest one stands in."""
        self._builder, self._request, self._most = builder, request, most
        self._key = structure_key(request, per_micro_batch=True)
        self._rest = request.values[2:-COUNTED]
        keys = [self._key]
        if not request.masked and not request.evaluates:
            whole = self._key._replace(per_micro_batch=False)
            keys += [whole._replace(contents=contents) for contents in (Contents.PROGRAM, Contents.BOTH)]
        self._known = [structure for key in keys for structure in builder.structures(key)]
        self._built = 0
        self.strangers = 0
        """Micro-batches that another structure stands in for, since there are too many."""

    def of(
        self, rows: int, length: int, padding: int = 0, answers: tuple[int, int] | None = None
    ) -> tuple[Structure, tuple[int, ...]] | None:
        """The structure of such a micro-batch and the values of its expressions; None where a plain number is needed
        somewhere, or the job is refused with such rows."""
        values = (rows, length, *self._rest, *counted(padding, answers))
        structure = self._among_known(values)
        if structure is None and not self._builder.needs_numbers(self._key):
            if self._built >= self._most:
                return self._stand_in(values, rows * length)
            job = replace_unchecked(self._request.job, micro_batch=rows)
            request = self._request._replace(job=job, length=length, padding=padding, answers=answers)
            structure = self._build(values, request)
        return None if structure is None else (structure, structure.sizes(values))

    def _build(self, values: Values, request: BuildRequest) -> Structure | None:
        self._built += 1
        with contextlib.suppress(TunecastError):
            self._builder.build(self._key, request, sized=False)
            self._known += [each for each in self._builder.structures(self._key) if each not in self._known]
            structure = self._among_known(values)
            if structure is not None:
                structure.tokens = request.job.micro_batch * request.length
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
