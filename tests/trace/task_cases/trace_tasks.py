"""Trace the trainers of many small jobs in one process: python trace_tasks.py CASES.json OUT.json

CASES is a list of [id, case]; a case names the module of programs/ that trains it (`program`), and holds what that
module asks for. OUT maps ids to events as build_cases/trace_all.py tells them, or to the error a case ended with.
"""

from __future__ import annotations

import gc
import importlib.util
import json
import os
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

from tunecast.tape.card import Card
from tunecast.tape.trace.ending import run_and_leave

HERE = Path(__file__).parent


def loaded(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main() -> None:
    from tunecast.tape.trace import tensor_files
    from tunecast.tape.trace.overlay import Overlay
    from tunecast.tape.trace.packages import transformers
    from tunecast.tape.trace.session import tracing

    told = loaded(HERE.parent / "build_cases" / "trace_all.py").told
    sys.path.insert(0, str(HERE / "programs"))  # before this folder, where cases have the same names
    cases = json.loads(Path(sys.argv[1]).read_text())
    cases.sort(key=lambda named: bool(named[1].get("kernels")))  # Liger's stay in the place of a family's modules
    os.chdir(tempfile.mkdtemp())
    found: dict[str, Any] = {}
    folder = Path(tempfile.mkdtemp())
    with tracing(Card()) as recorder:
        import torch

        # before transformers takes its names
        tensor_files.install(recorder, Overlay(folder), lambda: None, lambda nbytes: None)
        transformers.offer({}, folder)
        from common import prepare

        prepare(recorder)
        for name, case in cases:
            gc.collect()
            gc.freeze()  # torch and the rest are there to stay: looking through them again took a third of the time
            recorder.forget_all()
            try:
                torch.zeros(1, device="cuda")
                __import__(case["program"]).train(case)
                found[name] = told(recorder.tape({}).events)
            except Exception as error:
                found[name] = f"{type(error).__name__}: {error}\n{traceback.format_exc()[-3000:]}"
    Path(sys.argv[2]).write_text(json.dumps(found))


if __name__ == "__main__":
    run_and_leave(main)
