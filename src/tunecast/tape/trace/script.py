"""An unmodified training script, run as `python script.py args` would run it, until it has taken the steps asked for.

It is stopped by an exception no ordinary code catches, raised where the next step, an evaluation or a checkpoint
would begin. What the script could not do here (write, start programs, reach a network, save tensors without
contents) goes into the answer, a sentence each.
"""

from __future__ import annotations

import os
import runpy
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode, UnsupportedOperatorException
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from tunecast.errors import NotResolved, TunecastError, Unsupported, UsageError
from tunecast.tape.file import write_tape
from tunecast.tape.trace.recorder import Recorder
from tunecast.tape.trace.request import Answer, ScriptRequest
from tunecast.tape.trace.sandbox import Sandbox

OWN_FOLDERS = (str(Path(__file__).parent), str(Path(runpy.__file__)), "<frozen runpy>")
MOST_DETAIL = 4000
MOST_IGNORED_STOPS = 50
"""A loop with a bare `except:` swallows the stop; after so many the answer is written and the process left."""


class Stop(BaseException):
    """Enough steps were taken."""


def trace_script(request: ScriptRequest, recorder: Recorder) -> Answer:
    sandbox = Sandbox(request.folder)
    run = Run(request, recorder, sandbox)
    sandbox.enter()
    run.watch()
    try:
        run_as_main(request)
    except Stop:
        return run.answer()
    except SystemExit as end:
        if end.code in (None, 0):
            return run.answer(finished=True)
        return run.failed(end, f"the script ended with {'code ' if isinstance(end.code, int) else ''}{end.code}")
    except BaseException as error:  # noqa: BLE001  whatever a user's program raises is reported
        return run.failed(error, f"{type(error).__name__}: {error}")
    return run.answer(finished=True)
