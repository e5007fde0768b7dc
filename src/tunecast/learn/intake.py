"""From a journal to the store: what only this machine knows of a record is filled in, and each is taken once.

$XDG_DATA_HOME/tunecast/running/PROCESS-…/     journals of runs that go on; one whose process is gone was killed
$XDG_DATA_HOME/tunecast/host_key               by which `hardware.host` is made; it never leaves this machine
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tunecast import __version__
from tunecast.errors import NotResolved, TunecastError, UsageError
from tunecast.hardware.catalog import gpu as gpu_named
from tunecast.home import data_folder
from tunecast.job.readers.bounds import bounded_text
from tunecast.learn.inside.measure import process_began
from tunecast.learn.inside.merge import RUN
from tunecast.learn.journal import record_of
from tunecast.learn.record import salvaged
from tunecast.learn.runs_store.place import RUNNING
from tunecast.learn.runs_store.store import open_store

KEY, TAKEN, BAD = "host_key", "taken", "bad"
MACHINE = ("/etc/machine-id", "/var/lib/dbus/machine-id")
MOST_BYTES = 1 << 16
SLACK_S = 2.0
"""Of a file system's clock."""


def new_folder(environ: Mapping[str, str] = os.environ) -> str:
    """Of a run that begins in this process; in the system's own folder where the user's cannot be written."""
    with contextlib.suppress(OSError):
        place = Path(data_folder(environ), RUNNING)
        place.mkdir(parents=True, exist_ok=True)
        return tempfile.mkdtemp(prefix=f"{os.getpid()}-", dir=place)
    return tempfile.mkdtemp(prefix="tunecast-")


def complete(
    record: Mapping[str, Any], environ: Mapping[str, str] = os.environ, *, here: bool = True
) -> dict[str, Any]:
    """With the card as the catalogue names it, this machine (`here`: it ran on it) and this release."""
    told = record.get("hardware") or {}
    if not isinstance(told, Mapping):  # whoever reads the record says so
        return dict(record)
    hardware = dict(told)
    if hardware.get("device") is None:
        hardware["gpus"] = None
    elif hardware.get("gpu") is None:
        with contextlib.suppress(TunecastError):
            hardware["gpu"] = gpu_named(str(hardware["device"])).name
    if here:
        hardware["host"] = host_of(environ)
    return {**record, "hardware": hardware, "tunecast": __version__}


def host_of(environ: Mapping[str, str] = os.environ) -> str | None:
    """12 hex digits that say nothing without the key."""
    key = _key(Path(data_folder(environ), KEY))
    if key is None:
        return None
    named = next((text for path in MACHINE if (text := _text(path))), None) or os.uname().nodename
    return hmac.new(key.encode(), named.encode(), hashlib.sha256).hexdigest()[:12]


def _key(path: Path) -> str | None:
    """Made whole or not at all, and by whoever is first: all runs of this machine have the same."""
    if not path.exists():
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, beside = tempfile.mkstemp(dir=path.parent, prefix=".tunecast-")
            try:
                with os.fdopen(handle, "w", encoding="ascii") as file:
                    file.write(secrets.token_hex(32))
                os.link(beside, path)
            except FileExistsError:
                pass
            except OSError:  # no room, or a file system without links
                if os.path.getsize(beside):
                    os.rename(beside, path)
            finally:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(beside)
    return _text(path)


def _text(path: str | Path) -> str | None:
    try:
        return bounded_text(Path(path), MOST_BYTES).strip() or None
    except TunecastError:
        return None


def add(record: Mapping[str, Any], environ: Mapping[str, str] = os.environ) -> bool:
    """To the store that `TUNECAST_STORE` names; False: it waits for a server that is away. Raises `TunecastError` where
    it is neither."""
    with open_store(environ) as store:
        return store.add(record)


def as_it_is(record: Mapping[str, Any], folder: str) -> Mapping[str, Any]:
    return record


Noted = Callable[[Mapping[str, Any], str], Mapping[str, Any]]
"""From a record and its folder to the record with a note of what would have made it fit."""


def take(
    folder: Path, environ: Mapping[str, str] = os.environ, *, here: bool = True, noted: Noted = as_it_is
) -> dict[str, Any] | None:
    """The record of a run that is over, added to the store; None where the folder holds no journal."""
    try:
        record, _ = salvaged(complete(noted(record_of(folder), str(folder)), environ, here=here))
    except NotResolved:
        return None
    add(record, environ)
    return record


def take_killed(environ: Mapping[str, str] = os.environ, *, noted: Noted = as_it_is) -> Iterator[dict[str, Any]]:
    """Runs of this machine whose process is gone and left its journal."""
    try:
        places = sorted(Path(data_folder(environ), RUNNING).iterdir())
    except OSError:
        return
    for place in places:
        if not place.name.partition("-")[0].isdecimal() or goes_on(place):
            continue
        try:
            record = take(place, environ, noted=noted)
        except UsageError:  # no record, whoever wrote it: kept, and not looked at again
            with contextlib.suppress(OSError):
                place.rename(place.with_name(f"{BAD}-{place.name}"))
            continue
        shutil.rmtree(place, ignore_errors=True)
        if record is not None:
            yield record


def goes_on(place: Path) -> bool:
    """Whether the process that its folder is called by still runs, or one of its ranks, though what watched them does
    not. One that began after the last line was written has the number of another, as after the machine started anew."""
    try:
        ranks = [path.stem.rpartition("-")[2] for path in place.glob("rank-*.jsonl")]
        written = max(path.stat().st_mtime for path in (place, *place.glob("*.jsonl")))
    except OSError:  # taken by another program this moment
        return False
    return any(
        each.isdecimal() and os.path.exists(f"/proc/{each}") and process_began(each) <= written + SLACK_S
        for each in (place.name.partition("-")[0], *ranks)
    )


def take_launched(
    folder: Path, environ: Mapping[str, str] = os.environ, *, here: bool = True, noted: Noted = as_it_is
) -> list[dict[str, Any]]:
    """Records of a launch that is over, those of its earlier starts too; each once."""
    found = []
    for journal in sorted(folder.glob(f"**/{RUN}")):
        marker = journal.parent / TAKEN
        if marker.exists():
            continue
        record = take(journal.parent, environ, here=here, noted=noted)
        if record is not None:
            found.append(record)
            with contextlib.suppress(OSError):
                marker.write_text(f"{record['id']}\n", encoding="ascii")
    return found
