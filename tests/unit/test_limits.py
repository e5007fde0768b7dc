"""A traced process that outlives its time or outgrows its memory is stopped, and that has exit code 5."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tunecast.errors import NotResolved
from tunecast.tape.trace.limits import TraceLimits
from tunecast.tape.trace.run import _end, _watch


@pytest.mark.parametrize(
    ("limits", "told"),
    [
        (TraceLimits(seconds=0.01), "tracing took longer than 0 s and was stopped. To fix: --time-limit SECONDS"),
        (TraceLimits(memory_bytes=1), "of host memory, more than 1 B, and was stopped. To fix: --memory-limit GIB"),
    ],
)
def test_a_limit_that_is_reached_is_no_internal_error(limits: TraceLimits, told: str) -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
    try:
        with pytest.raises(NotResolved) as stopped:
            _watch(child, limits, None)
    finally:
        _end(child)
    assert told in stopped.value.message
    assert stopped.value.exit_code == 5
