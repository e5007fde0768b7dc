"""What is done to a store, and what must hold afterwards."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from losses.server import Server
from losses.writing import (
    acknowledged_runs,
    failures,
    fork,
    newest_failures,
    record,
    run_id,
    write_until_killed,
)
from tunecast.errors import NotResolved
from tunecast.learn.runs_store.store import open_store

Found = dict[str, Any]
LONGEST_LIFE_S = 1.5
"""Of a writer: some are killed while they open the store, most while they write."""


def killed(environ: Mapping[str, str], folder: Path, kills: int, at_once: int, seed: int) -> Found:
    """So many writers at once, each killed at a moment of its own, and another in its place; read all the while."""
    draw, told = random.Random(seed), []
    living: dict[int, float] = {}
    started = ended = 0
    reader = open_store(environ)
    if reader.place.path is None:
        __import__("psycopg")  # before any process is forked: each would take as long to import it as it lives
    while ended < kills:
        while len(living) < at_once and started < kills + at_once - 1:
            started += 1
            file = folder / f"acknowledged-{started}"
            child = fork(lambda number=started, to=file: write_until_killed(environ, number, to))  # type: ignore[misc]
            living[child] = time.monotonic() + LONGEST_LIFE_S * draw.random()
        for child in [child for child, ends in living.items() if ends <= time.monotonic()]:
            if ended < kills:
                _end(child, signal.SIGKILL)
                del living[child]
                ended += 1
                if ended % 25 == 0:  # while the others go on writing
                    told += newest_failures(reader)
        time.sleep(0.002)
    for child in living:
        _end(child, signal.SIGKILL)
    known = acknowledged_runs(folder)
    told += failures(reader, known)
    if reader.place.path is not None:
        import sqlite3

        with sqlite3.connect(reader.place.path) as connection:
            if connection.execute("PRAGMA integrity_check").fetchall() != [("ok",)]:
                told.append("SQLite finds the file damaged")
    stored = sum(reader.counts().values())
    reader.close()
    return {"kills": kills, "at_once": at_once, "acknowledged": len(known), "stored": stored, "failures": told}


def _end(child: int, number: int) -> None:
    os.kill(child, number)
    os.waitpid(child, 0)


@contextmanager
def small_disk(size: str) -> Iterator[Path]:
    """A file system of its own, as root."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], check=True)
        try:
            yield Path(folder)
        finally:
            subprocess.run(["umount", "-l", folder], check=True)


def can_mount() -> bool:
    """Whether this user may make a file system: root in most places, not in every container."""
    try:
        with small_disk("1m"):
            return True
    except (OSError, subprocess.CalledProcessError):
        return False


def full_disk(rounds: int) -> Found:
    """A store is written until the disk is full, refused by name, read, and written again once there is room."""
    told: list[str] = []
    acknowledged: dict[str, str] = {}
    refused = 0
    with small_disk("48m") as disk:
        environ = {"TUNECAST_STORE": str(disk / "runs.db"), "XDG_DATA_HOME": str(disk)}
        filler = disk / "filler"
        with open_store(environ) as store:
            for number in range(rounds):
                filler.write_bytes(b"x" * max(0, _free_bytes(disk) - 600_000))
                full = ""
                for part in range(2_000):
                    id = run_id(number, part)
                    try:
                        store.add(record(id, "done"))
                        acknowledged[id] = "done"
                    except NotResolved as error:
                        full = error.message
                        break
                if "no room" not in full and "the disk failed" not in full:
                    told.append(f"round {number}: a full disk was told as {full!r}")
                refused += bool(full)
                filler.unlink()
                told += [f"round {number}: {id} is lost" for id in acknowledged.keys() - set(store.ids("", 10**6))]
                if not store.add(record(run_id(number, 10**6), "done")):
                    told.append(f"round {number}: with room again it is not stored")
                acknowledged |= {run_id(number, 10**6): "done"}
        with open_store(environ) as again:
            told += failures(again, acknowledged)
    return {"rounds": rounds, "refused": refused, "acknowledged": len(acknowledged), "failures": told}


def _free_bytes(disk: Path) -> int:
    found = os.statvfs(disk)
    return found.f_bavail * found.f_frsize


def lost_server(server: Server, folder: Path, rounds: int, at_once: int, seed: int) -> Found:
    """Writers go on while the server crashes and comes back. What waited is delivered, and everything is there."""
    draw = random.Random(seed)
    environ = {"TUNECAST_STORE": server.url, "XDG_DATA_HOME": str(folder)}
    told: list[str] = []
    waited = 0
    for number in range(rounds):
        children = []
        for part in range(at_once):
            writer = 10**6 + number * at_once + part
            file = folder / f"acknowledged-{writer}"
            children.append(fork(lambda writer=writer, to=file: write_until_killed(environ, writer, to)))  # type: ignore[misc]
        time.sleep(0.3 + 0.5 * draw.random())
        server.stop("immediate")
        time.sleep(0.2 + 0.3 * draw.random())
        server.start()
        time.sleep(0.2)
        for child in children:
            _end(child, signal.SIGKILL)
        with open_store(environ) as store:
            waited += store.waiting()
            store.deliver()
            if store.waiting():
                told.append(f"round {number}: {store.waiting()} records were not delivered")
            told += failures(store, acknowledged_runs(folder))
    known = acknowledged_runs(folder)
    texts = [path.read_text() for path in folder.glob("acknowledged-*")]
    spooled = sum(text.count(" waits\n") for text in texts)
    return {
        "crashes": rounds, "at_once": at_once, "acknowledged": len(known), "acknowledged while it was away": spooled,
        "delivered by the reader": waited, "failures": told,
    }  # fmt: skip


def full_server(rounds: int) -> Found:
    """A server whose disk is full: records wait here, and are delivered when there is room."""
    told: list[str] = []
    waited = 0
    with small_disk("160m") as disk:
        disk.chmod(0o777)
        place = disk / "pg"
        place.mkdir()
        server = Server(place).start()
        try:
            with tempfile.TemporaryDirectory() as folder:
                environ = {"TUNECAST_STORE": server.url, "XDG_DATA_HOME": folder}
                acknowledged: dict[str, str] = {}
                for number in range(rounds):
                    with open_store(environ) as store:
                        filler = disk / "filler"
                        filler.write_bytes(b"x" * max(0, _free_bytes(disk) - 400_000))
                        for part in range(6_000):
                            id = run_id(10**8 + number, part)
                            stored = store.add(record(id, "done"))
                            acknowledged[id] = "done"
                            if not stored and part > 20 and store.waiting() > 20:
                                break
                        waited += store.waiting()
                        filler.unlink()
                    _restart(server)
                    with open_store(environ) as store:
                        store.deliver()
                        told += failures(store, acknowledged)
        finally:
            server.remove()
    if not waited:
        told.append("the disk was never full")
    return {"rounds": rounds, "waited": waited, "acknowledged": len(acknowledged), "failures": told}


def _restart(server: Server) -> None:
    """It may have ended by itself: PostgreSQL stops where it cannot write its log."""
    with suppress(subprocess.CalledProcessError):
        server.stop("immediate")
    server.start()
    server.wait()
