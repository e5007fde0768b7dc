"""A PostgreSQL server of its own: Debian's package, on a socket in a folder that goes with it."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path

PASSWORD = "s3cret-of-the-test"
USER = "tunecast"


def programs() -> Path | None:
    """The folder of the newest server that is installed."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    if found:
        return found[-1].parent
    named = shutil.which("initdb")
    return None if named is None else Path(named).resolve().parent


def why_not() -> str:
    """What is missing to start one; '' where nothing is."""
    if programs() is None:
        return "needs a PostgreSQL server (Debian: postgresql)"
    if os.getuid() == 0 and (shutil.which("setpriv") is None or not _account()):
        return "PostgreSQL does not run as root, and there is no setpriv or no user postgres"
    return ""


def _account() -> str:
    try:
        return pwd.getpwnam("postgres").pw_name
    except KeyError:
        return ""


class Server:
    """Started, stopped, and lost as by a crash. `folder`: where its data lies; a new one where none is given."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="tunecast-pg-")) if folder is None else folder
        self._words: list[str] = []
        if os.getuid() == 0:
            entry = pwd.getpwnam("postgres")
            os.chown(self.folder, entry.pw_uid, entry.pw_gid)
            self._words = ["setpriv", f"--reuid={entry.pw_uid}", f"--regid={entry.pw_gid}", "--clear-groups"]
        secret = self.folder / "password"
        secret.write_text(PASSWORD)
        secret.chmod(0o644)
        self._run(
            "initdb", "-D", self.data, "-U", USER, "--auth=scram-sha-256", f"--pwfile={secret}", "--no-sync", "-N"
        )
        secret.unlink()

    @property
    def data(self) -> str:
        return str(self.folder / "data")

    @property
    def url(self) -> str:
        return f"postgresql://{USER}:{PASSWORD}@/postgres?host={self.folder}"

    def start(self) -> Server:
        settings = (
            f"-c listen_addresses='' -k {self.folder} -c max_connections=80 -c shared_buffers=16MB "
            "-c min_wal_size=32MB -c max_wal_size=48MB"
        )
        self._run("pg_ctl", "-D", self.data, "-w", "-l", str(self.folder / "log"), "-o", settings, "start")
        return self

    def stop(self, how: str = "fast") -> None:
        """`immediate`: as a crash does, with nothing written that was not."""
        self._run("pg_ctl", "-D", self.data, "-w", "-m", how, "stop")

    def remove(self) -> None:
        with suppress(subprocess.CalledProcessError):
            self.stop("immediate")
        shutil.rmtree(self.folder, ignore_errors=True)

    def wait(self, seconds: float = 30.0) -> None:
        """Until it takes connections."""
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            try:
                self._run("pg_isready", "-h", str(self.folder), "-q")
                return
            except subprocess.CalledProcessError:
                time.sleep(0.1)

    def _run(self, name: str, *words: str) -> None:
        folder = programs()
        assert folder is not None
        subprocess.run(
            [*self._words, str(folder / name), *words], check=True, cwd=self.folder, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ, "LC_ALL": "C", "TZ": "UTC"},
        )  # fmt: skip
