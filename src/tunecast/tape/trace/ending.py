"""How a process that traced ends: at once, without its interpreter being taken apart.

Autograd's engine has a thread for each card. Such a thread may be the last to let go of a backward pass, and with it of
the dispatch modes that were active then, which are Python objects: it waits for the interpreter's lock
(torch/csrc/PyInterpreter.cpp, `decref`, below `ThreadLocalState`'s destructor). Where the interpreter is being taken
apart meanwhile, CPython up to 3.13 ends the thread there and then, inside a destructor, and C++ aborts the process
("terminate called without an active exception"). A program that ends by an exception right after a backward pass did so
in one run of three.
"""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Callable
from typing import NoReturn

LEAVE = os._exit
"""Of the interpreter: a traced script's own is another."""


def run_and_leave(main: Callable[[], int | None]) -> NoReturn:
    """With the exit code `main` returns, 0 where it returns none; 1 where it fails, after its traceback."""
    code: int | None = 1
    try:
        code = main()
    except BaseException:
        traceback.print_exc()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    LEAVE(code or 0)
