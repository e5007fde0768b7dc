"""A limit that a traced process reaches is told with its remedy, and a crash for what it was: exit code 5 each."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from tunecast.errors import NotResolved
from tunecast.tape.trace import folders
from tunecast.tape.trace.guard import over_disk, over_size, over_time
from tunecast.tape.trace.limits import TraceLimits
from tunecast.tape.trace.request import ScriptRequest
from tunecast.tape.trace.run import _ask, _crash_of_script


def test_a_limit_is_told_with_its_remedy(tmp_path: Path) -> None:
    assert over_time(1.0, TraceLimits()) == over_size(os.getpid(), TraceLimits()) == ""
    assert over_disk(tmp_path, TraceLimits()) == ""
    (tmp_path / "x").write_bytes(bytes(100_000))
    told = over_time(0.1, TraceLimits(seconds=0.01))
    assert told.startswith("tracing took longer than 0 s and was stopped. To fix: --time-limit SECONDS")
    assert over_disk(tmp_path, TraceLimits(disk_bytes=10)).startswith("the script wrote more than 10 B and was stopped")
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        told = over_size(os.getpid(), TraceLimits(memory_bytes=1))
        assert "of host memory, more than 1 B, and was stopped. To fix: --memory-limit GIB" in told
        assert "more than 0 processes" in over_size(os.getpid(), TraceLimits(processes=0))
    finally:
        child.kill()
        child.wait()


def test_a_limit_that_is_reached_is_no_internal_error(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    request = ScriptRequest(tmp_path, script="none.py")
    with pytest.raises(NotResolved, match="tracing took longer than 0 s") as stopped:
        _ask(request, sys.executable, TraceLimits(seconds=0.001), None, quiet=True)
    assert stopped.value.exit_code == 5


@pytest.mark.parametrize(
    ("code", "steps", "told"),
    [
        (0, "", "the script ended with code 0 before its first step was done; what was traced is lost"),
        (-signal.SIGSEGV, "2", "crashed with SIGSEGV (Segmentation fault) after 2 optimizer steps; "),
        (-signal.SIGKILL, "1", "most likely by the kernel for want of memory, after 1 optimizer step; "),
        (-signal.SIGSEGV, "2", "To fix: --steps 2 answers for what came before; see whether it does so without"),
        (None, "", "was ended before its first step was done"),
    ],
)  # fmt: skip
def test_a_crash_is_told_for_what_it_was(code: int | None, steps: str, told: str, tmp_path: Path) -> None:
    request = ScriptRequest(tmp_path)
    if steps:
        request.steps_path.write_text(steps)
    error = _crash_of_script(request, "python", code, tmp_path / "log.txt")
    assert told in error.message and error.exit_code == 5


def test_a_folder_nobody_uses_is_removed_by_the_next_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    old, new, other = (tmp_path / name for name in (f"{folders.PREFIX}old", f"{folders.PREFIX}new", "mine"))
    for folder in (old, new, other):
        (folder / "files" / "closed").mkdir(parents=True)
    (old / "files" / "closed").chmod(0)
    (old / "link").symlink_to(other)
    for folder in (old, other):
        os.utime(folder, (time.time() - 1000,) * 2)
    with folders.run_folder() as folder:
        assert not old.exists() and new.exists() and other.is_dir()
        os.utime(folder, (time.time() - 1000,) * 2)
        folders.remove_what_was_left()
        assert folder.exists(), "it is in use"
    assert not folder.exists() and (other / "files").is_dir()


def test_a_folder_nested_too_deeply_for_python_is_removed(tmp_path: Path) -> None:
    here, folder = os.getcwd(), tmp_path / "run"
    folder.mkdir()
    try:
        os.chdir(folder)
        for _ in range(1200):
            os.mkdir("d")
            os.chdir("d")
    finally:
        os.chdir(here)
    folders.remove(folder)
    assert not folder.exists()
