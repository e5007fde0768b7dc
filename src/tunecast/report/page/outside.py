"""What a run needs outside its step, for the page: host memory, disk, loading, saving, evaluation, resuming."""

from __future__ import annotations

from collections.abc import Iterator

from tunecast.prediction.outside.needs import Outside
from tunecast.report.page.document import panel
from tunecast.report.page.markup import Markup, table, tag
from tunecast.report.page.verdict import number_cards
from tunecast.report.run.outside import has_several, phases
from tunecast.units import gib

HEAD = ("", "Host memory", "Mapped file", "On the GPU")


def outside_panel(around: Outside | None) -> Markup:
    if around is None:
        return Markup()
    rows = (tag("tr", tag("td", name), *cells) for name, cells in _rows(around))
    return panel("Outside the training step", number_cards(_numbers(around)), table(HEAD, rows, "blocks around"))


def _numbers(around: Outside) -> list[tuple[str, str, str]]:
    host_bytes, whose = around.host_bytes, "at most"
    if has_several(around):
        host_bytes = around.machine_ram_bytes or 0
        whose = f"of each machine, all processes; {gib(around.host_bytes)} of the first"
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


def _rows(around: Outside) -> Iterator[tuple[str, Iterator[Markup]]]:
    """What each phase holds; on the GPU what loading and evaluation hold, and what saving and resuming add."""
    for phase in phases(around):
        name = phase.name.capitalize()
        if phase.name == "evaluation" and (held := around.evaluation) is not None:
            name += f", {held.batch} x {held.seq_len} tokens"
        cells = {"host memory": phase.host, "mapped file": phase.mapped, "on the GPU": phase.on_card}
        yield name, (tag("td", text, class_="number", data_name=of) for of, text in cells.items())
