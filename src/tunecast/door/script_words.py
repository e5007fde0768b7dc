"""How a traced script went, in words: what is taken for granted, what is missing, where it failed."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

from tunecast.door.launchers import ScriptLaunch
from tunecast.errors import DEBUG
from tunecast.hardware.catalog import meant_by
from tunecast.prediction.modelled import others_hold
from tunecast.prediction.on_card import OnCard
from tunecast.tape.op import Alloc, Begin, Phase, Tape
from tunecast.tape.trace.request import Answer

DEFAULT_GPU = "h200-sxm-141gb"
COMPARED = "a number compared at "
"""How such a guess begins (tape/trace/unread.py, values.py)."""
CATCHES = re.compile(
    r"^\s*except\b.*(OutOfMemoryError|OOM)|out of memory[\"'] in|find_executable_batch_size"
    r"|auto_find_batch_size(?!\s*=\s*False)"
)
"""How programs say what they do when memory runs out."""
NO_TIME = "no time is predicted for several cards in one process"


def of_several_cards(on_cards: Mapping[int, OnCard], gpus: int | None) -> list[str]:
    """What is taken for granted of several cards in one process."""
    told = []
    if gpus is not None and gpus > len(on_cards):
        told.append(f"the process sees {gpus} cards and uses {len(on_cards)}")
    if len(on_cards) > 1:
        told.append("cards copy from each other directly (peer access); else copies of strided data need buffers")
        told.append(NO_TIME)
    return told


def assumptions_of(launch: ScriptLaunch, gpu: str | None, conf: str | None, reserve_bytes: int) -> list[str]:
    told = []
    world = (launch.nproc_per_node or 1) * (launch.nnodes or 1)
    if world > 1:
        told.append(f"rank 0 of {world} processes, {launch.nproc_per_node} on each machine")
    told += launch.notes
    if reserve_bytes:
        told.append(others_hold(reserve_bytes))
    if gpu is None:
        told.append(f"no --gpu was given: {DEFAULT_GPU} is taken")
    elif (taken := meant_by(gpu).note(gpu)) is not None:
        told.append(taken)
    if conf:
        told.append(f"the allocator is configured by the environment: {conf}")
    return told


def warnings_of(answer: Answer, guesses: Sequence[str], total_steps: int | None) -> list[str]:
    told = []
    decides = any(guess.startswith(COMPARED) for guess in guesses)
    if decides and answer.finished and total_steps is None and answer.facts.total_steps is None:
        told.append(
            f"the run took {answer.steps} steps with guessed numbers compared on the way; if one of them decides when "
            "it ends (early stopping), --total-steps N says how long it is"
        )
    if answer.steps == 1 and answer.error is None:
        told.append(
            "the script took one optimizer step; an optimizer's state exists from the second on, "
            "so longer training may need more"
        )
    return told


def retry_warnings(launch: ScriptLaunch, fits: bool) -> list[str]:
    """What does not fit may be a first try only, after which the script goes on with less."""
    path = os.path.join(launch.folder or "", launch.script)
    if fits or not os.path.isfile(path):
        return []
    with open(path, encoding="utf-8", errors="replace") as file:
        line = next((number for number, text in enumerate(file, 1) if CATCHES.search(text)), 0)
    if not line and not any(CATCHES.search(word) for word in launch.args):
        return []
    where = f"{launch.script}:{line}" if line else "its arguments"
    return [f"the script goes on with less where memory runs out ({where}); while tracing it never does: its first try"]


def unresolved(tape: Tape, answer: Answer) -> str:
    """Why the tape says nothing of a training run, or only of its first part; '' where it does."""
    if answer.error is not None:
        return failure_words(answer).splitlines()[0]
    if not answer.steps:
        phases = {event.phase for event in tape.events if isinstance(event, Begin)}
        return f"the script took no optimizer step: {_seen_instead(phases)}"
    if not any(isinstance(event, Alloc) for event in tape.events):
        return (
            f"the script used no GPU: its {answer.steps} optimizer steps ran on the host. "
            "To fix: pass the options with which it trains on cuda"
        )
    return ""


def _seen_instead(phases: set[Phase]) -> str:
    if Phase.BACKWARD in phases:
        return "it ran backward passes, but called step() of no torch optimizer. To fix: update weights with one"
    if Phase.FORWARD in phases:
        return "it ran a model forward, and never backward. To fix: pass the options with which it trains"
    return "it ended without running a model on the GPU. To fix: pass the options with which it trains"


def failure_words(answer: Answer) -> str:
    steps = "1 step" if answer.steps == 1 else f"{answer.steps} steps"
    return f"the script failed after {steps}: {in_short(answer)}"


def in_short(answer: Answer) -> str:
    """A script's failure without its traceback, with the line of its own code that it comes from."""
    if os.environ.get(DEBUG):
        return f"{answer.error}\n{answer.detail}"
    more = f"; {DEBUG}=1 shows more" if answer.detail else ""
    return f"{answer.error} ({answer.place}{more})" if answer.place else str(answer.error)
