"""What can go wrong, as a tree. Every error carries its exit code; `cli` prints it and stops, with no traceback.

TunecastError                 exit 1
├── UsageError                exit 2   a field, flag or file's content is wrong: names the field and the remedy
├── DoesNotFit                exit 3   the run does not fit, or nothing satisfies the constraints
├── OverBudget                exit 4   over the budget or the deadline
└── NotResolved               exit 5   a model, file or configuration could not be found or read, a limit was hit
    └── Unsupported           exit 5   the installed torch (or another package) cannot be traced
"""

from __future__ import annotations

from collections.abc import Iterable


class TunecastError(Exception):
    exit_code = 1
    code = "internal"

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.field = field


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
