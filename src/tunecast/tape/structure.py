"""A program whose sizes are expressions: built once with symbols, it serves other batches, lengths and cards.

A planner asks for the same model and method over and over, with other sizes on other cards; building the program takes
fifty times as long as computing its sizes. So it is built with symbols (`symbols.py`) for the batch, the length, the
rank, the number of cards and what code can ask of one, and every later job that answers its questions alike (is the
batch 1, is a row longer than the window, has the card Hopper's kernels) has its rows and operations, with other sizes.
"""

from __future__ import annotations

from tunecast.errors import TunecastError
from tunecast.records import NamedTuple
from tunecast.tape.columns import gathered, numbers
from tunecast.tape.fold import Operations
from tunecast.tape.pattern import Values
from tunecast.tape.program import BEGIN, EMPTY_CACHE, FREE, Program
from tunecast.tape.symbols import Guards

SYMBOLS = "batch, length, longest, rank, sms, capability, card_bytes, gpus, nodes, padding, chosen, rejected"
"""`length` is that of the rows, `longest` what the job says the longest are; `gpus` of each of `nodes`; `padding` the
tokens of a batch that have no label; of preferences, `chosen` and `rejected` those of either answer that have one."""
COUNTED = 3
"""The last ones, which are counted of each batch."""
MARKS = sorted((BEGIN, EMPTY_CACHE, FREE))
TURN = 1 << 32
"""In the rows of a structure, so many times the number of the micro-batch in its step is added to a size's place."""


class PaperRun(NamedTuple):
    """A run as it was built: its rows and, where they are wanted, its operations."""

    program: Program
    guesses: tuple[str, ...]
    assumptions: tuple[str, ...]
    operations: Operations | None = None


class _GuardCheck:
    """Whether other values answer all questions as those did that a program was built with."""

    def __init__(self, guards: Guards) -> None:
        self._expected = tuple(guards.answers.values())
        self._answers = guards.compile(guards.answers, SYMBOLS)

    def holds_for(self, values: Values) -> bool:
        try:
            return self._answers(*values) == self._expected
        except (ArithmeticError, LookupError, ValueError):  # a question that comes up after other answers only
            return False


class JobRefusal:
    """A job that no program could be built of, for a reason that holds for all that answer its questions alike."""

    rows = 0

    def __init__(self, guards: Guards, error: TunecastError) -> None:
        self._check, self._error = _GuardCheck(guards), (type(error), error.message, error.field)

    def run(self, values: Values, *, sized: bool = True) -> None:
        """Raises where the job's questions have the same answers."""
        if self._check.holds_for(values):
            error, message, field = (
                self._error
            )  # a new one: the one that was raised holds all that was built until then
            raise error(message, field=field)


class Structure:
    """In its rows a size is the place of an expression among the distinct ones; a mark, which is negative, is its own
    place from their end."""

    def __init__(self, built: PaperRun, guards: Guards) -> None:
        self._built = built
        self._check = _GuardCheck(guards)
        self._sizes = guards.compile([*guards.sizes, *map(str, MARKS)], SYMBOLS)
        self.rows = len(built.program.sizes)
        places = numbers(built.program.sizes)
        several = max(places, default=0) >= TURN
        self.turns = numbers([place // TURN if place > 0 else 0 for place in places]) if several else None
        """Of each row that asks for memory, the number of its micro-batch in the step; None: all are the first's."""
        self.places = numbers([place % TURN if place > 0 else place for place in places]) if several else places
        self._last: tuple[tuple[int, ...], Program] | None = None
        self.tokens = 0
        """Of the micro-batch it was built for, where that was one of many."""

    @property
    def program(self) -> Program:
        """Its rows; their sizes are places of expressions, not numbers of bytes."""
        return self._built.program

    def serves(self, values: Values) -> bool:
        return self._check.holds_for(values)

    def sizes(self, values: Values) -> tuple[int, ...]:
        """The values of the expressions and, at the end, the marks."""
        return self._sizes(*values)

    def run(self, values: Values, *, sized: bool = True) -> PaperRun | None:
        """The run with these values; None where its questions have other answers. `sized`: with the program's sizes,
        which nobody needs who prices its operations alone."""
        if not self._check.holds_for(values):
            return None
        operations = self._built.operations
        if operations is not None:
            operations = operations._replace(values=values, lengths=(values[1],) * len(operations.lengths))
        return self._built._replace(program=self._sized(values) if sized else self.program, operations=operations)

    def _sized(self, values: Values) -> Program:
        sizes = self._sizes(*values)
        if self._last is None or self._last[0] != sizes:  # on another card they are mostly the same
            self._last = sizes, self.program.with_sizes(gathered(sizes, self.places))
        return self._last[1]
