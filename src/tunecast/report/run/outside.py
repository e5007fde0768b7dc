"""What a run needs outside its step, for the terminal: a section of the report of `tunecast predict`."""

from __future__ import annotations

from collections.abc import Sequence

from tunecast.prediction.outside.evaluation import Evaluation
from tunecast.prediction.outside.needs import Outside
from tunecast.prediction.outside.saving import Disk, Resuming
from tunecast.records import NamedTuple
from tunecast.report.draw.columns import columns
from tunecast.report.draw.text import DEFAULT, Terminal, wrapped
from tunecast.report.run.wording import Wording
from tunecast.units import MIB, gib

TITLE = "Outside the step"
HOST_TITLE = "Host"
SHOWN_FROM_BYTES = MIB
"""Less on top of what the card holds anyway is not worth a reader's time."""


def outside_text(said: Outside, terminal: Terminal = DEFAULT) -> str:
    """A table of what happens around the step, and a sentence each about what its figures leave open."""
    return terminal.plain("\n".join(outside_lines(said, terminal)))


def outside_lines(said: Outside, terminal: Terminal = DEFAULT) -> list[str]:
    head, *rows = columns(_rows(said))
    held = said.evaluation
    on_card = [] if held is None else [_evaluation(held), *_resuming(said.resuming)]
    return [
        terminal.paint(TITLE, "bold"),
        terminal.paint(head, "dim"),
        *rows,
        *wrapped([*on_card, _host(said), _checkpoint(said.disk)], "  ", terminal),
    ]


def host_text(said: Outside | None, needs: str, terminal: Terminal = DEFAULT, *, links: Sequence[str] = ()) -> str:
    """`Host: needs 5.27 GiB of RAM, 1 CPU core, ...`. `needs`: '' where not known; `links`: what joins its GPUs."""
    machine = ", ".join(filter(None, [needs, "" if said is None else _disk(said.disk)]))
    lines = [*wrapped([f"{HOST_TITLE}: {machine}"] if machine else [], "", terminal), *wrapped(links, "  ", terminal)]
    return terminal.plain("\n".join(line.replace(HOST_TITLE, terminal.paint(HOST_TITLE, "bold"), 1) for line in lines))


class OutsidePhase(NamedTuple):
    """What happens before, between or after the steps, and what it holds; with the process itself."""

    name: str
    host: str
    mapped: str
    """Of a file; '' for nothing."""
    on_card: str
    """With a plus what it adds to a full card."""


def phases(said: Outside) -> list[OutsidePhase]:
    """In the order they come; evaluation where it is known."""
    loading, saving, evaluation, resuming = said.loading, said.saving, said.evaluation, said.resuming
    process, training = said.process_bytes, said.training_process_bytes
    loads, saves, resumes = (
        ("not known",) * 3
        if said.in_parts
        else (gib(loading.card_reserved_bytes), _more(saving.card_bytes), _more(resuming.card_bytes))
    )
    rows = [
        ("loading", process + loading.host_bytes, loading.host_mapped_bytes, loads),
        ("saving", training + saving.host_bytes, 0, saves),
        ("resuming", process + resuming.host_bytes, resuming.host_mapped_bytes, resumes),
    ]
    if evaluation is not None:
        rows.insert(2, ("evaluation", training, 0, gib(evaluation.card_allocated_bytes)))
    return [
        OutsidePhase(name, gib(host_bytes), gib(mapped_bytes) if mapped_bytes else "", on_card)
        for name, host_bytes, mapped_bytes, on_card in rows
    ]


def _rows(said: Outside) -> list[OutsidePhase]:
    """Of several processes the first; nothing of the card where evaluation is not known."""
    head = OutsidePhase("", "host, first process" if has_several(said) else "host memory", "mapped file", "on the card")
    rows = [head, *phases(said)]
    return rows if said.evaluation is not None else [row._replace(on_card="") for row in rows]


def _more(nbytes: int) -> str:
    return f"+{gib(nbytes)}" if nbytes >= SHOWN_FROM_BYTES else ""


def _evaluation(held: Evaluation) -> str:
    over = held.above_training_bytes
    told = f"evaluation: {held.batch} x {held.seq_len:,} tokens"
    if over is not None:
        told += f", {gib(abs(over))} {'more' if over > 0 else 'less'} than training"
    return told + (f"; reserved grows by {gib(held.cache_growth_bytes)}" if held.cache_growth_bytes else "")


def _resuming(held: Resuming) -> list[str]:
    stays = held.card_lasting_bytes
    return [f"resuming: the card holds {gib(stays)} more than before"] if stays >= SHOWN_FROM_BYTES else []


def _host(said: Outside) -> str:
    resident = said.host_resident_bytes
    mapped = f", {gib(resident)} counting mapped pages, which Linux can take back" if resident > said.host_bytes else ""
    most = f"{gib(said.host_bytes)}{mapped}"
    if not has_several(said):
        return f"host memory: {most}"
    return (
        f"host memory: {gib(said.machine_ram_bytes or 0)} per machine, all its processes together; the first has {most}"
    )


def has_several(said: Outside) -> bool:
    """Processes on a machine: one alone is the machine's."""
    return said.machine_ram_bytes is not None and said.machine_ram_bytes > said.host_bytes


def _disk(space: Disk) -> str:
    told = f"{gib(space.checkpoint_bytes)} of disk per checkpoint"
    if space.most is None or space.peak_bytes is None:
        return f"{told} (all kept)"
    if space.most <= 1:
        return f"{told} ({'one' if space.most else 'none'} written)"
    return f"{told} ({space.most} kept: {gib(space.peak_bytes)})"


def _checkpoint(space: Disk) -> str:
    return f"checkpoint: weights {gib(space.weights_bytes)}, optimizer {gib(space.optimizer_bytes)}; {_disk(space)}"


def outside_warnings(said: Outside, capacity_bytes: int, *, evaluates: bool, wording: Wording) -> list[str]:
    """What runs out of memory before or between the steps of a run that fits, and what to change.

    `capacity_bytes`: what PyTorch can use.
    """
    held = said.evaluation
    if held is None:
        return []
    told = []
    if (need := said.loading.card_allocated_bytes) > capacity_bytes:
        told.append(f"loading does not fit: it takes {gib(need)} of the {gib(capacity_bytes)} PyTorch can use")
    if held.card_allocated_bytes > capacity_bytes:
        needs = f"{held.batch} x {held.seq_len:,} tokens take {gib(held.card_allocated_bytes)} of {gib(capacity_bytes)}"
        batch = _evaluation_batch(held, capacity_bytes)
        fix = f"{wording.change({'run.eval_batch': batch})} fits" if batch else "no batch is small enough"
        what = (
            "evaluation runs out of memory"
            if evaluates
            else "evaluation is off; if you evaluate, it runs out of memory"
        )
        told.append(f"{what}: {needs}; {fix}")
    return told


def _evaluation_batch(held: Evaluation, capacity_bytes: int) -> int:
    """The largest that fits, at most: what does not grow with the batch is counted as if it did."""
    left_bytes = capacity_bytes - (held.card_allocated_bytes - held.transient_bytes)
    return max(0, left_bytes * held.batch // held.transient_bytes) if held.transient_bytes else 0
