"""Trace many small jobs in one process: python trace_all.py CASES.json OUT.json

CASES is a list of [id, job, config, lengths]; OUT maps ids to events: [step, phase, +bytes or -bytes, operation], frees
that follow each other sorted. Half a second a job instead of a process each.
"""

from __future__ import annotations

import gc
import json
import sys
from pathlib import Path
from typing import Any

from tunecast.job import job_from_dict
from tunecast.tape.card import Card
from tunecast.tape.op import Alloc, Begin, Event, Free, Op, Phase
from tunecast.tape.trace.ending import run_and_leave


def told(events: tuple[Event, ...]) -> list[list[Any]]:
    """Only what an allocator sees: requests with their step and phase, and between two requests the sizes let go,
    sorted; and the operation before each request for whoever reads a difference."""
    out: list[list[Any]] = []
    sizes: dict[int, int] = {}
    frees: list[int] = []
    op = ""
    place: list[Any] = [0, "load"]
    for event in events:
        if isinstance(event, Free):
            frees.append(-sizes[event.block])
        elif isinstance(event, Begin):
            # An optimizer that runs no operation of torch leaves no mark; what comes before it is not called clipping.
            place = [event.step, "other" if event.phase is Phase.CLIP else event.phase.value]
        elif isinstance(event, Op):
            op = f"{event.name} {event.module} {[list(shape) for shape in event.shapes]}"
        elif isinstance(event, Alloc):
            sizes[event.block] = event.nbytes
            if event.nbytes:
                out += [[*place, size, ""] for size in sorted(frees) if size]
                frees.clear()
                out.append([*place, event.nbytes, op])
    return out + [[*place, size, ""] for size in sorted(frees) if size]


def list_others() -> None:
    """Causal language models that transformers has and `AutoModelForCausalLM` does not list."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES["mistral4"] = "Mistral4ForCausalLM"


def main() -> None:
    from tunecast.tape.trace import recipe
    from tunecast.tape.trace.session import tracing

    sys.path.append(str(Path(__file__).parent / "stand_ins"))
    cases = json.loads(Path(sys.argv[1]).read_text())
    found: dict[str, Any] = {}
    with tracing(Card()) as recorder:
        list_others()
        for name, job, config, lengths in cases:
            gc.collect()
            gc.freeze()  # torch and the rest are there to stay: looking through them again took a third of the time
            recorder.forget_all()
            try:
                recipe.train(job_from_dict(job), config, lengths, recorder)
                found[name] = told(recorder.tape({}).events)
            except Exception as error:
                found[name] = f"{type(error).__name__}: {error}"
    Path(sys.argv[2]).write_text(json.dumps(found))


if __name__ == "__main__":
    run_and_leave(main)
