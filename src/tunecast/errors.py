"""What can go wrong, as a tree. Every error carries its exit code; `cli` prints it and stops, with no traceback.

TunecastError                 exit 1
├── UsageError                exit 2   a field, flag or file's content is wrong: names the field and the remedy
├── DoesNotFit                exit 3   the run does not fit, or nothing satisfies the constraints
├── OverBudget                exit 4   over the budget or the deadline
└── NotResolved               exit 5   a model, file or configuration not found, read or written, or a limit was hit
    └── Unsupported           exit 5   the installed torch (or another package) cannot be traced
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Self

DEBUG = "TUNECAST_DEBUG"
"""The environment variable with which what is wrong with tunecast itself is shown in full."""
LONGEST_LINE = 4000
"""Characters of a line that is shown. The longest of our own lists what is allowed, in half of them."""
_UNSHOWN = "[\x00-\x1f\x7f-\x9f\u2028\u2029\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff\ud800-\udfff]"


def printable(text: str, longest: int = LONGEST_LINE) -> str:
    """The one way of a word that is not ours (a user's, a file's, the environment's, a server's) to a terminal: in it
    nothing moves the cursor, colours the screen or reverses a line, and it ends."""
    if len(text) > longest:
        text = f"{text[: longest - 1]}…"
    if text.isprintable():
        return text
    import re  # hardly any text needs it

    return re.sub(_UNSHOWN, "\N{REPLACEMENT CHARACTER}", text)


def printable_lines(text: str) -> str:
    """Line by line: a message may have several."""
    return "\n".join(printable(line) for line in text.split("\n"))


class TunecastError(Exception):
    exit_code = 1
    code = "internal"

    def __init__(self, message: str, *, field: str | None = None) -> None:
        self.message = message if message.isprintable() and len(message) <= LONGEST_LINE else printable_lines(message)
        super().__init__(self.message)
        self.field = field

    @classmethod
    def at(cls, field: str, told: str) -> Self:
        """About a field, which the message names first."""
        return cls(f"{field}: {told}", field=field)


class UsageError(TunecastError):
    exit_code = 2
    code = "usage"


class DoesNotFit(TunecastError):
    exit_code = 3
    code = "does_not_fit"


class OverBudget(TunecastError):
    exit_code = 4
    code = "over_budget"


class NotResolved(TunecastError):
    exit_code = 5
    code = "not_resolved"


class Unsupported(NotResolved):
    code = "unsupported"


def nearest(given: object, allowed: Iterable[str]) -> str | None:
    """The allowed spelling closest to what was given, if any is close."""
    import difflib  # only what is wrong needs it

    matches = difflib.get_close_matches(str(given).lower(), list(allowed), n=1, cutoff=0.5)
    return matches[0] if matches else None


def nearest_hint(given: object, allowed: Iterable[str]) -> str:
    """`; nearest: rtx-4090`, to be put behind what is allowed; '' where nothing is close."""
    near = nearest(given, allowed)
    return f"; nearest: {near}" if near else ""


def internal_error(error: BaseException) -> str:
    """One line, whatever the message holds."""
    told = printable(" ".join(f"{type(error).__name__}: {error}".split()), 500)
    return f"internal error: {told}. Please report this, with the traceback that {DEBUG}=1 shows."
