"""What a run needs outside its step, for the terminal: a section of the report of `tunecast predict`."""

from __future__ import annotations

import textwrap

from tunecast.predict.evaluation import Evaluation
from tunecast.predict.outside import Outside
from tunecast.predict.saving import Disk, Resuming
from tunecast.report.columns import columns
from tunecast.report.text import DEFAULT, Terminal
from tunecast.units import MIB, gib

TITLE = "Outside the step"
SHOWN_FROM_BYTES = MIB
"""Less on top of what the card holds anyway is not worth a reader's time."""


def outside_text(said: Outside, terminal: Terminal = DEFAULT, *, capacity_bytes: int | None = None) -> str:
    """A table of what happens around the step, and a sentence each about what its figures leave open.

    `capacity_bytes`: what PyTorch may hold on the card; an evaluation or a load that needs more is told.
    """
    return terminal.plain("\n".join(outside_lines(said, terminal, capacity_bytes=capacity_bytes)))


def outside_lines(said: Outside, terminal: Terminal = DEFAULT, *, capacity_bytes: int | None = None) -> list[str]:
    head, *rows = columns(_rows(said))
    on_card = [] if said.in_parts else [_evaluation(said.evaluation), *_resuming(said.resuming)]
    sentences = [*on_card, _host(said), _disk(said.disk)]
    warnings = _warnings(said, capacity_bytes)
    return [
        terminal.paint(TITLE, "bold"),
        terminal.paint(head, "dim"),
        *rows,
        *(line for sentence in sentences for line in _wrapped(sentence, terminal)),
        *(terminal.paint(line, "warn") for sentence in warnings for line in _wrapped(sentence, terminal)),
    ]


def _rows(said: Outside) -> list[tuple[str, str, str, str]]:
    """Host figures with the process itself, of several the first; what a phase adds to a full card has a plus."""
    host = "host, first process" if _has_several(said) else "host memory"
    loading, saving, resuming = said.loading, said.saving, said.resuming
    loads, saves = said.process_bytes + loading.host_bytes, said.training_process_bytes + saving.host_bytes
    resumes = said.process_bytes + resuming.host_bytes
    if said.in_parts:
        return [
            ("", host, "mapped file", ""),
            ("loading", gib(loads), gib(loading.host_mapped_bytes), ""),
            ("saving", gib(saves), "", ""),
            ("resuming", gib(resumes), gib(resuming.host_mapped_bytes) if resuming.host_mapped_bytes else "", ""),
        ]
    return [
        ("", host, "mapped file", "on the card"),
        ("loading", gib(loads), gib(loading.host_mapped_bytes), gib(loading.card_reserved_bytes)),
        ("saving", gib(saves), "", _more(saving.card_bytes)),
        ("evaluation", gib(said.training_process_bytes), "", gib(said.evaluation.card_allocated_bytes)),
        ("resuming", gib(resumes), gib(resuming.host_mapped_bytes), _more(resuming.card_bytes)),
    ]


def _more(nbytes: int) -> str:
    return f"+{gib(nbytes)}" if nbytes >= SHOWN_FROM_BYTES else ""


def _evaluation(held: Evaluation) -> str:
    over = held.above_training_bytes
    told = f"evaluation: {held.batch} x {held.seq_len} tokens"
    if over is not None:
        told += f", {gib(abs(over))} {'more' if over > 0 else 'less'} than training"
    return told + (f"; reserved grows by {gib(held.cache_growth_bytes)}" if held.cache_growth_bytes else "")


def _resuming(held: Resuming) -> list[str]:
    stays = held.card_lasting_bytes
    return [f"resuming: the card holds {gib(stays)} more than before"] if stays >= SHOWN_FROM_BYTES else []


def _host(said: Outside) -> str:
    resident = said.host_resident_bytes
    mapped = f", {gib(resident)} with mapped pages, which Linux takes back" if resident > said.host_bytes else ""
    most = f"{gib(said.host_bytes)} at most{mapped}"
    if not _has_several(said):
        return f"host memory: {most}"
    return f"host memory: {gib(said.machine_bytes or 0)} of a machine, all its processes together; of the first {most}"


def _has_several(said: Outside) -> bool:
    """Processes on a machine: one alone is the machine's."""
    return said.machine_bytes is not None and said.machine_bytes > said.host_bytes


def _disk(space: Disk) -> str:
    each = f"weights {gib(space.weights_bytes)}, optimizer {gib(space.optimizer_bytes)}"
    told = f"disk: {gib(space.checkpoint_bytes)} a checkpoint ({each})"
    if space.most is None or space.peak_bytes is None:
        return f"{told}; every one is kept unless save_total_limit is set"
    if space.most <= 1:
        return f"{told}; {'one' if space.most else 'none'} is written"
    return f"{told}; {space.most} at once: {gib(space.peak_bytes)}"


def _warnings(said: Outside, capacity_bytes: int | None) -> list[str]:
    if capacity_bytes is None or said.in_parts:
        return []
    told = []
    if said.loading.card_allocated_bytes > capacity_bytes:
        told.append(f"loading does not fit: the card has {gib(capacity_bytes)} for PyTorch")
    if (need := said.evaluation.card_allocated_bytes) > capacity_bytes:
        told.append(
            f"evaluation does not fit: {gib(need)} of {gib(capacity_bytes)}. To fix: a smaller "
            f"per_device_eval_batch_size than {said.evaluation.batch}"
        )
    return told


def _wrapped(sentence: str, terminal: Terminal) -> list[str]:
    return textwrap.wrap(sentence, max(40, terminal.width), initial_indent="  ", subsequent_indent="    ")
