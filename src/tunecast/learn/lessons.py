"""What the runs in the store teach of a card, brought to every prediction for it; and which runs were told to count no
longer.

Every prediction asks, so what was learned is kept beside the store, a file a card, with the store's size and time of
change: as long as both are the same, no run is read. Of a card's runs the newest `NEWEST` are.

    $XDG_DATA_HOME/tunecast/learned/CARD.json       may be deleted at any time
    $XDG_DATA_HOME/tunecast/learned/resets.json     `tunecast calibration reset`: runs before a moment do not count
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from os.path import expanduser, join
from typing import TYPE_CHECKING, Any

from tunecast.errors import NotResolved, TunecastError
from tunecast.home import data_folder
from tunecast.records import NamedTuple

if TYPE_CHECKING:
    from tunecast.prediction.lessons.correction import Learned

NEWEST = 500
"""Runs of a card that are read: what counts of a cell is its newest twenty."""
MOST_BYTES = 1 << 22
AGE_S = 300
"""Of a server's answer: nothing says whether it has new runs but asking it."""
AWAY_S = 60.0
"""A server that did not answer is not asked again so soon: one that hangs takes 10 s, and a fit asks often."""
_away: dict[str, tuple[float, str]] = {}
"""By `TUNECAST_STORE`: when it did not answer, and what was said."""
SCHEMA = "tunecast.learned/1"
RESETS = "tunecast.resets/1"
MOST_RESETS = 1000


class Reset(NamedTuple):
    """Runs that began before `before` do not count; `card` None: of any card."""

    card: str | None
    before: str


def has_runs(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether there is a store at all: hardly anybody has one, so nothing is imported to know."""
    if environ.get("TUNECAST_STORE", "").strip():
        return True
    try:
        os.stat(join(data_folder(environ), "runs.db"))
    except (OSError, ValueError):
        return False
    return True


def learned_of(card: str, environ: Mapping[str, str] = os.environ) -> Learned | None:
    """None where there is no store. Where it cannot be read, a value that says so: a prediction is made all the
    same."""
    if not has_runs(environ):
        return None
    from tunecast.prediction.lessons.correction import Learned

    if told := _still_away(environ):
        return Learned(problem=told)
    try:
        stamp = _stamp(environ)
        kept = _lesson_on_disk(card, stamp, environ)
        if kept is not None:
            return kept
        found = learn_card(card, environ)
        _keep(card, stamp, found, environ)
        return found
    except TunecastError as error:
        return Learned(problem=_problem_of(error, environ))


def _still_away(environ: Mapping[str, str]) -> str:
    """What was said of a server that did not answer a moment ago; empty where it may be asked."""
    if not _away:
        return ""
    import time

    since, told = _away.get(environ.get("TUNECAST_STORE", ""), (-AWAY_S, ""))
    return told if time.monotonic() - since < AWAY_S else ""


def _problem_of(error: TunecastError, environ: Mapping[str, str]) -> str:
    """What went wrong; of a server that does not answer it is remembered."""
    import time

    from tunecast.learn.runs_store.session import StoreAway

    if isinstance(error, StoreAway):
        _away[environ.get("TUNECAST_STORE", "")] = time.monotonic(), error.message
    return error.message


def learn_card(card: str, environ: Mapping[str, str] = os.environ, *, since: str = "", until: str = "") -> Learned:
    """From the store, without what was kept; of runs that began `since`, and before `until`, where those are given."""
    from tunecast.learn.learning import learn

    return learn(card_records(card, environ, since=since, until=until))


def card_records(
    card: str, environ: Mapping[str, str] = os.environ, *, since: str = "", until: str = ""
) -> list[dict[str, Any]]:
    """The card's newest runs that count, oldest first."""
    from tunecast.learn.runs_store.place import has_store
    from tunecast.learn.runs_store.rows import RunFilters
    from tunecast.learn.runs_store.store import read_store

    if not has_store(environ):
        return []
    start = max(since, *(each.before for each in resets(environ) if each.card in (None, card)), "")
    with read_store(environ) as store:
        newest = store.summaries(NEWEST, RunFilters(gpu=card, since=start or None))
        if not newest:
            return []
        bad: list[str] = []
        found = store.records(RunFilters(gpu=card, since=newest[-1].began), bad)
        return [run.to_dict() for run in found if not until or run.began < until][-NEWEST:]


def cards_with_runs(environ: Mapping[str, str] = os.environ) -> list[str]:
    from tunecast.learn.runs_store.place import has_store
    from tunecast.learn.runs_store.store import read_store

    if not has_store(environ):
        return []
    with read_store(environ) as store:
        return store.cards()


def learned_elsewhere(environ: Mapping[str, str] = os.environ) -> tuple[dict[str, Learned], str]:
    """By card, what holds of runs on other machines too; and why it does not, where they cannot be read."""
    if not has_runs(environ):
        return {}, ""
    from tunecast.prediction.lessons import correction

    made = {}
    if told := _still_away(environ):
        return {}, told
    try:
        cards = cards_with_runs(environ)
    except TunecastError as error:
        return {}, _problem_of(error, environ)
    for card in cards:
        found = learned_of(card, environ)
        if found is not None and found.problem:
            return {}, found.problem
        if found is not None and found.runs:
            made[card] = correction.learned_elsewhere(found)
    return made, ""


def resets(environ: Mapping[str, str] = os.environ) -> list[Reset]:
    """The oldest first."""
    from tunecast.job.readers.json import parsed

    path = _resets_path(environ)
    text = _text(path)
    if text is None:
        return []
    found = parsed(text, path)
    try:
        if found["schema"] != RESETS or len(found["resets"]) > MOST_RESETS:
            raise ValueError(RESETS)
        return [Reset(_card(each["card"]), _moment(each["before"])) for each in found["resets"]]
    except (KeyError, TypeError, ValueError) as error:
        raise NotResolved(f"{path}: this is no list of resets. To fix: delete it; all runs count then") from error


def _card(given: object) -> str | None:
    if given is not None and not isinstance(given, str):
        raise TypeError(given)
    return given


def _moment(given: object) -> str:
    if not isinstance(given, str) or len(given) != len("2026-11-18T07:00:00Z"):
        raise ValueError(given)
    return given


def reset(card: str | None, before: str, environ: Mapping[str, str] = os.environ) -> Reset:
    """Runs of the card, or of all, that began before then no longer count. They stay in the store."""
    made = Reset(card, before)
    _write_resets([*resets(environ), made][-MOST_RESETS:], environ)
    return made


def undo_reset(card: str | None, environ: Mapping[str, str] = os.environ) -> Reset:
    """Take the last reset of the card, or of all, back."""
    found = resets(environ)
    matching = [each for each in found if each.card == card]
    if not matching:
        of = "of all cards" if card is None else f"of {card}"
        raise NotResolved(f"there is no reset {of} to undo. `tunecast calibration show` names those that hold")
    found.reverse()
    found.remove(matching[-1])
    found.reverse()
    _write_resets(found, environ)
    return matching[-1]


def _write_resets(found: Sequence[Reset], environ: Mapping[str, str]) -> None:
    import json
    from pathlib import Path

    from tunecast.job.writer import write_file

    told = {"schema": RESETS, "resets": [each._asdict() for each in found]}
    write_file(Path(_resets_path(environ)), json.dumps(told, indent=1), folder_too=True)


def _resets_path(environ: Mapping[str, str]) -> str:
    return join(data_folder(environ), "learned", "resets.json")


def _text(path: str) -> str | None:
    """None where there is no such file."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError):  # whoever reads it says why
        pass
    from pathlib import Path

    from tunecast.job.readers.bounds import bounded_text

    return bounded_text(Path(path), MOST_BYTES)


def _stamp(environ: Mapping[str, str]) -> list[Any]:
    """What changes when runs are added or resets made."""
    from tunecast import __version__

    place = environ.get("TUNECAST_STORE", "").strip() or join(data_folder(environ), "runs.db")
    made: list[Any] = [__version__]
    if "://" in place:
        import time
        from hashlib import sha256

        made += [sha256(place.encode("utf-8", "replace")).hexdigest()[:16], int(time.time()) // AGE_S]
        files = [_resets_path(environ)]
    else:
        place = expanduser(place)
        made.append(place)
        files = [place, f"{place}-wal", _resets_path(environ)]
    for path in files:
        try:
            found = os.stat(path)
            made += [found.st_mtime_ns, found.st_size]
        except (OSError, ValueError):
            made.append(None)
    return made


def _path(card: str, environ: Mapping[str, str]) -> str:
    name = "".join(each if each.isalnum() or each in ".-" else "-" for each in card.lower())
    return join(data_folder(environ), "learned", f"{name}.json")


def _lesson_on_disk(card: str, stamp: Sequence[Any], environ: Mapping[str, str]) -> Learned | None:
    """None where the store has changed since, or the file is not as it was written: it is made again."""
    import json

    from tunecast.prediction.lessons.correction import Learned, LearnedContext, LeftOut, Observed

    try:
        text = _text(_path(card, environ))
        if text is None:
            return None
        found = json.loads(text)
        if found["schema"] != SCHEMA or found["stamp"] != list(stamp):
            return None
        return Learned(
            tuple(Observed(*each) for each in found["runs"]),
            tuple(LeftOut(*each) for each in found["left_out"]),
            {name: LearnedContext(*each) for name, each in found["contexts"].items()},
            {name: (float(each[0]), float(each[1]), float(each[2])) for name, each in found["starts"].items()},
        )
    except (TunecastError, ValueError, KeyError, TypeError, IndexError, AttributeError):
        return None


def _keep(card: str, stamp: Sequence[Any], found: Learned, environ: Mapping[str, str]) -> None:
    """Where there is no room or no right to write, it is learned again next time."""
    import json
    from contextlib import suppress
    from pathlib import Path

    from tunecast.job.writer import write_file

    told = {
        "schema": SCHEMA, "stamp": stamp, "runs": found.runs, "left_out": found.left_out,
        "contexts": found.contexts, "starts": found.starts,
    }  # fmt: skip
    with suppress(TunecastError, OSError):
        write_file(Path(_path(card, environ)), json.dumps(told), folder_too=True)
