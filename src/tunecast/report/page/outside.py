"""What a run needs outside its step, for the page: host memory, disk, loading, saving, evaluation, resuming."""

from __future__ import annotations

from tunecast.prediction.outside.needs import Outside
from tunecast.report.page.document import panel
from tunecast.report.page.markup import Markup, tag
from tunecast.report.page.verdict import number_cards
from tunecast.units import MIB, gib

SHOWN_FROM_BYTES = MIB
UNKNOWN = "not known"


def outside_panel(around: Outside | None) -> Markup:
    if around is None:
        return Markup()
    head = tag("tr", *(tag("th", name) for name in ("", "Host memory", "Mapped file", "On the GPU")))
    rows = (
        tag("tr", tag("td", name), *(tag("td", cell, class_="number", data_name=of) for of, cell in cells.items()))
        for name, cells in _rows(around)
    )
    table = tag("table", tag("thead", head), tag("tbody", *rows), class_="blocks around")
    return panel("Outside the training step", number_cards(_numbers(around)), table)


def _numbers(around: Outside) -> list[tuple[str, str, str]]:
    several = around.machine_ram_bytes is not None and around.machine_ram_bytes > around.host_bytes
    host_bytes = around.machine_ram_bytes if several and around.machine_ram_bytes is not None else around.host_bytes
    whose = f"of each machine, all processes; {gib(around.host_bytes)} of the first" if several else "at most"
    if around.host_resident_bytes > around.host_bytes:
        whose += f"; {gib(around.host_resident_bytes)} with mapped files, which Linux can take back"
    cards = [("Host memory", gib(host_bytes), whose)]
    if around.nvme_bytes:
        cards.append(("NVMe drives", gib(around.nvme_bytes), "of each machine, while it trains"))
    disk = around.disk
    each = f"weights {gib(disk.weights_bytes)}, optimizer {gib(disk.optimizer_bytes)}"
    cards.append(("Disk per checkpoint", gib(disk.checkpoint_bytes), each))
    if disk.most is None or disk.peak_bytes is None:
        cards.append(("Disk for all checkpoints", "grows", "all are kept unless save_total_limit is set"))
    elif disk.most > 1:
        cards.append(("Disk for all checkpoints", gib(disk.peak_bytes), f"{disk.most} at once"))
    return cards


def _rows(around: Outside) -> list[tuple[str, dict[str, str]]]:
    """What each phase holds; on the GPU what loading and evaluation hold, and what saving and resuming add."""
    loading, saving, evaluation, resuming = around.loading, around.saving, around.evaluation, around.resuming
    loads, saves = around.process_bytes + loading.host_bytes, around.training_process_bytes + saving.host_bytes
    resumes = around.process_bytes + resuming.host_bytes
    known = not around.in_parts
    rows = [
        ("Loading", loads, loading.host_mapped_bytes, gib(loading.card_reserved_bytes) if known else UNKNOWN),
        ("Saving", saves, 0, _more(saving.card_bytes) if known else UNKNOWN),
        ("Resuming", resumes, resuming.host_mapped_bytes, _more(resuming.card_bytes) if known else UNKNOWN),
    ]
    if evaluation is not None:
        of = f"Evaluation, {evaluation.batch} x {evaluation.seq_len} tokens"
        rows.insert(2, (of, around.training_process_bytes, 0, gib(evaluation.card_allocated_bytes)))
    return [
        (
            name,
            {
                "host memory": gib(host_bytes),
                "mapped file": gib(mapped_bytes) if mapped_bytes else "",
                "on the GPU": on_card,
            },
        )
        for name, host_bytes, mapped_bytes, on_card in rows
    ]


def _more(nbytes: int) -> str:
    return f"+{gib(nbytes)}" if nbytes >= SHOWN_FROM_BYTES else ""
