"""On the path of a launched job's processes (launched_on_card.py): looks on, and writes down what each one took.

Where $LAUNCHED_INSIDE names a folder, a process that trains writes PID.json there when it ends: the allocator's
counters, and when each optimizer step ended. Nothing is imported that the process does not import itself.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import sys
import threading
import time
from pathlib import Path

BEGAN = time.time()
ENDS: list[float] = []


def look_for_torch() -> None:
    """A hook of every optimizer, as soon as the process has imported what takes it."""
    while True:
        module = sys.modules.get("torch.optim.optimizer")
        register = getattr(module, "register_optimizer_step_post_hook", None)
        if register is not None:
            with contextlib.suppress(Exception):
                register(lambda *_: ENDS.append(time.time()))
            return
        time.sleep(0.05)


def write() -> None:
    torch = sys.modules.get("torch")
    if torch is None or not ENDS:
        return
    row: dict[str, object] = {"steps": len(ENDS)}
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()
        row |= {
            "allocated_bytes": torch.cuda.max_memory_allocated(),
            "reserved_bytes": torch.cuda.max_memory_reserved(),
            "used_on_card_bytes": (lambda free, total: total - free)(*torch.cuda.mem_get_info()),
            "card": torch.cuda.get_device_name(),
        }
    done = time.time()
    row |= {
        "torch": torch.__version__,
        "process_s": round(done - BEGAN, 3),
        "to_first_step_s": round(ENDS[0] - BEGAN, 3),
        "training_s": round(ENDS[-1] - ENDS[0], 3),
        "after_last_step_s": round(done - ENDS[-1], 3),
        "step_ends_s": [round(end - ENDS[0], 3) for end in ENDS],
    }
    (Path(os.environ["LAUNCHED_INSIDE"]) / f"{os.getpid()}.json").write_text(json.dumps(row))


if os.environ.get("LAUNCHED_INSIDE"):
    atexit.register(write)
    threading.Thread(target=look_for_torch, daemon=True).start()
