"""What became of an input, and what a program may not do whatever it is given."""

from __future__ import annotations

import io
import json
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

from tunecast.cli.main import main
from tunecast.errors import DEBUG, TunecastError

ANSWERED, INTERNAL, TRACEBACK, HANG, MEMORY, RAW, BROKEN, ENDED = (
    "answered", "internal error", "traceback", "hang", "memory", "raw characters", "broken answer", "ended",
)  # fmt: skip
REFUSED = {2: "refused (2)", 3: "refused (3)", 4: "refused (4)", 5: "refused (5)"}
"""By exit code. 3 and 4 are answers too: it does not fit, it is over the budget."""
OUTCOMES = (ANSWERED, *REFUSED.values(), INTERNAL, TRACEBACK, HANG, MEMORY, RAW, BROKEN, ENDED)
FAILURES = frozenset((INTERNAL, TRACEBACK, HANG, MEMORY, RAW, BROKEN, ENDED))

SOURCE = str(Path(sys.modules["tunecast"].__file__ or "").parent)


class Said(NamedTuple):
    code: int
    out: str = ""
    errors: str = ""
    as_json: bool = False


class Input(NamedTuple):
    shown: str
    ask: Callable[[], Said]


class Outcome(NamedTuple):
    name: str
    place: str = ""
    """Where in the source, or what was printed."""


def outcome_of(asked: Input) -> Outcome:
    try:
        said = asked.ask()
    except TunecastError as error:
        name = REFUSED.get(error.exit_code, INTERNAL)
        return Outcome(name, error.message[:300] if name == INTERNAL else "")
    except MemoryError as error:
        return Outcome(MEMORY, place_of(error))
    except Exception as error:
        return Outcome(INTERNAL, place_of(error))
    if "MemoryError" in said.errors:
        return Outcome(MEMORY, said.errors[-300:])
    if "Traceback (most recent call last)" in said.errors:
        return Outcome(TRACEBACK, said.errors[-300:])
    if said.code == 1 or "internal error" in said.errors:
        return Outcome(INTERNAL, _place_again(asked))
    if said.code not in (0, *REFUSED):
        return Outcome(ENDED, f"exit {said.code}")
    raw = {char for char in said.out + said.errors if not char.isprintable() and char != "\n"}
    if raw:
        return Outcome(RAW, ascii(sorted(raw))[:100])
    if said.as_json and said.out and not _is_json(said.out):
        return Outcome(BROKEN, said.out[:200])
    return Outcome(ANSWERED if said.code == 0 else REFUSED[said.code])


def place_of(error: BaseException) -> str:
    """`KeyError: 'x' (prediction/memory/expandable.py:157)`: the innermost line of ours."""
    ours = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.startswith(SOURCE)]
    where = f"{ours[-1].filename[len(SOURCE) + 1 :]}:{ours[-1].lineno}" if ours else "outside tunecast"
    return f"{type(error).__name__}: {str(error)[:160]} ({where})"


def _place_again(asked: Input) -> str:
    """Of what the command caught: with debugging on it comes through."""
    os.environ[DEBUG] = "1"
    try:
        said = asked.ask()
    except BaseException as error:
        return place_of(error)
    finally:
        os.environ.pop(DEBUG, None)
    return f"exit {said.code}: {said.errors[-300:]}"


def said_by_main(words: Sequence[str], stdin: bytes = b"") -> Said:
    """What `tunecast WORDS` prints, in this process."""
    before = sys.stdin, sys.stdout, sys.stderr
    out, errors = (io.TextIOWrapper(io.BytesIO(), "utf-8", errors=how) for how in ("strict", "backslashreplace"))
    sys.stdin, sys.stdout, sys.stderr = io.TextIOWrapper(io.BytesIO(stdin), "utf-8"), out, errors
    try:
        code = main(words)
    finally:
        sys.stdin, sys.stdout, sys.stderr = before
    return Said(code, _text(out), _text(errors), "--json" in words and not {"-h", "--help", "--help-all"} & set(words))


def _text(stream: io.TextIOWrapper) -> str:
    stream.flush()
    return stream.detach().getvalue().decode("utf-8", "replace")  # type: ignore[attr-defined, no-any-return]


def _is_json(text: str) -> bool:
    """One value, or one a line; no NaN, which JSON does not know."""
    try:
        _strict(text)
    except ValueError:
        try:
            for line in text.splitlines():
                _strict(line)
        except ValueError:
            return False
    return True


def _strict(text: str) -> None:
    def refuse(name: str) -> NoReturn:
        raise ValueError(name)

    json.loads(text, parse_constant=refuse)
