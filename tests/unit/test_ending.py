"""A process that traced ends with its code and all it said; nothing runs behind that."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"
PROGRAM = """
import atexit, sys, threading, time
from tunecast.tape.trace.ending import run_and_leave
atexit.register(print, "taken apart", flush=True)
threading.Thread(target=time.sleep, args=(600,)).start()

def main():
    sys.stdout.write("said")
    {end}

run_and_leave(main)
"""


@pytest.mark.parametrize(
    ("end", "code", "told"), [("return 3", 3, ""), ("pass", 0, ""), ("raise TypeError('why')", 1, "TypeError: why\n")]
)
def test_code_and_output_are_kept(end: str, code: int, told: str) -> None:
    program = [sys.executable, "-c", PROGRAM.format(end=end)]
    done = subprocess.run(program, capture_output=True, text=True, env={"PYTHONPATH": str(SOURCE)}, check=False)
    assert (done.returncode, done.stdout) == (code, "said")
    assert done.stderr.endswith(told)
