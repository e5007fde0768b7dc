"""Where runs are kept: a file of SQLite, or a PostgreSQL server that a team shares.

TUNECAST_STORE=/path/runs.db                          a file
TUNECAST_STORE=postgresql://user@host/database        a server; its password may stand in the URL, in ~/.pgpass or in
                                                      PGPASSWORD, and is never shown
without it                                            $XDG_DATA_HOME/tunecast/runs.db (else ~/.local/share, on Windows
                                                      %LOCALAPPDATA%)
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path

from tunecast.errors import UsageError
from tunecast.home import data_folder
from tunecast.records import dataclass, field

VARIABLE = "TUNECAST_STORE"
ALLOWED = f"{VARIABLE}: allowed: the path of a file, or postgresql://USER@HOST/DATABASE"
_SERVER = re.compile(r"postgres(?:ql)?://", re.IGNORECASE)
_SECRET_KEYS = ("password", "sslpassword")
_HOST_AND_DATABASE = re.compile(r"[A-Za-z0-9_.:\[\]%,-]*(?:/[A-Za-z0-9_.-]*)?")


@dataclass(frozen=True)
class StorePlace:
    shown: str
    """As messages name it: without user, password and options."""
    path: Path | None
    url: str = field(default="", repr=False)
    spool: Path = Path()
    """Where records wait for a server that is away."""

    @property
    def secrets(self) -> tuple[str, ...]:
        """What no message may hold, the longest first."""
        return tuple(sorted({self.url, *_passwords(self.url)} - {""}, key=len, reverse=True))


RUNNING = "running"
"""Folder of journals of runs that go on, in the data folder; one whose process is gone was killed."""


def store_place(environ: Mapping[str, str] = os.environ) -> StorePlace:
    """Raises `UsageError` that does not repeat what was given: it may hold a password."""
    given = environ.get(VARIABLE, "").strip()
    if not given:
        path = Path(data_folder(environ), "runs.db")
        return StorePlace(str(path), path)
    if "\0" in given or len(given) > 4096:
        raise UsageError(ALLOWED, field=VARIABLE)
    if _SERVER.match(given):
        if not _is_unambiguous(given):
            raise UsageError(f"{ALLOWED}; in a user or password @ is %40, / %2F, ? %3F, a space %20", field=VARIABLE)
        name = hashlib.sha256(_without_user(given).encode("utf-8", "replace")).hexdigest()[:16]
        return StorePlace(_shown(given), None, given, Path(data_folder(environ), "spool", name))
    if "://" in given:
        raise UsageError(ALLOWED, field=VARIABLE)
    path = Path(given).expanduser()
    return StorePlace(str(path), path)


def has_store(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether there is anything to read, without opening it: every prediction asks."""
    place = store_place(environ)
    return place.path is None or place.path.exists()


def _is_unambiguous(url: str) -> bool:
    """Whether libpq reads of it what was meant: of another it takes a part of the password for a host or port, and its
    messages name that (libpq's fe-connect.c, `conninfo_uri_parse_options`)."""
    rest = url.partition("://")[2]
    before, at, _ = rest.partition("@")
    return not re.search(r"\s", url) and rest.count("@") <= 1 and not (at and re.search("[/?]", before))


def _without_user(url: str) -> str:
    return url.partition("://")[2].rpartition("@")[2]


def _shown(url: str) -> str:
    """`postgresql://host/database`, or nothing but what it is where the URL is an odd one."""
    rest = _without_user(url).partition("?")[0]
    return f"postgresql://{rest}" if _HOST_AND_DATABASE.fullmatch(rest) else "the PostgreSQL store"


def _passwords(url: str) -> list[str]:
    """As they stand in the URL, and as they are sent."""
    from urllib.parse import unquote

    found = []
    rest = url.partition("://")[2]
    authority = rest.partition("?")[0].partition("/")[0]
    for user in (rest.rpartition("@")[0], authority.rpartition("@")[0]):  # the former of a password with a slash
        if ":" in user:
            found.append(user.partition(":")[2])
    for pair in rest.partition("?")[2].split("&"):
        key, _, value = pair.partition("=")
        if key.lower() in _SECRET_KEYS:
            found.append(value)
    return [*found, *map(unquote, found)]
