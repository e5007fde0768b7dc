"""Files the user asks for. Where they cannot be written is said before the tracing, not after it."""

from __future__ import annotations

import os
from pathlib import Path

from tunecast.errors import NotResolved, UsageError
from tunecast.predict import memory
from tunecast.predict.prediction import OnCard
from tunecast.report.figures import Figures
from tunecast.report.html import Beside, timeline_html


def require_writable(flag: str, name: str | None) -> None:
    if name is None:
        return
    path = Path(name)
    folder = path.parent
    if not name.strip() or path.is_dir():
        raise UsageError(f"{flag}: got {name!r}; allowed: the name of a file", field=flag)
    if not folder.is_dir():
        raise NotResolved(f"{flag}: there is no folder {str(folder)!r}", field=flag)
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise NotResolved(f"{flag}: {name!r} cannot be written", field=flag)


def write_asked(figures: Figures, held: OnCard, html: str | None, snapshot: str | None, beside: Beside) -> None:
    """The page and the pickle, where asked for. That of a run that does not fit ends with the allocation that fails."""
    try:
        if html is not None:
            from tunecast.report.traced import SAMPLES, traced_timeline

            samples = memory.timeline(held.tape, held.settings, SAMPLES)
            page = timeline_html(figures, traced_timeline(held.tape, samples, held.peak.event), beside)
            Path(html).write_text(page, encoding="utf-8")
        if snapshot is not None:
            from tunecast.report.snapshot import write_snapshot

            write_snapshot(snapshot, held.tape, held.settings, held.capacity_bytes)
    except OSError as error:
        raise NotResolved(f"{error.filename} could not be written: {error.strerror}") from None
