"""Files the user asks for. Where they cannot be written is said before the tracing, not after it."""

from __future__ import annotations

import os
from pathlib import Path

from tunecast.errors import NotResolved, UsageError
from tunecast.job.knob import shown
from tunecast.job.writer import write_file
from tunecast.prediction.memory import needs as memory
from tunecast.prediction.on_card import OnCard
from tunecast.report.draw.figures import Figures
from tunecast.report.page.job import PageExtras, timeline_html


def require_writable(flag: str, name: str | None) -> None:
    if name is None:
        return
    path = Path(name)
    folder = path.parent
    try:
        if not name.strip() or path.is_dir():
            raise UsageError(f"{flag}: got {shown(name)}; allowed: the name of a file", field=flag)
        if not folder.is_dir():
            raise NotResolved(f"{flag}: there is no folder {shown(str(folder))}", field=flag)
        able = os.access(path if path.exists() else folder, os.W_OK)
    except OSError as error:  # a name too long, a folder one may not look into
        raise NotResolved(f"{flag}: {shown(name)} cannot be written: {error.strerror}", field=flag) from None
    except ValueError:
        raise UsageError(f"{flag}: got {shown(name)}; allowed: the name of a file", field=flag) from None
    if not able:
        raise NotResolved(f"{flag}: {shown(name)} cannot be written", field=flag)


def write_asked(figures: Figures, held: OnCard, html: str | None, snapshot: str | None, beside: PageExtras) -> None:
    """The page and the pickle, where asked for. That of a run that does not fit ends with the allocation that fails."""
    if html is not None:
        from tunecast.report.run.on_card import SAMPLES, run_timeline

        samples = memory.timeline(held.tape, held.settings, SAMPLES)
        page = timeline_html(figures, run_timeline(held.tape, samples, held.peak.event), beside)
        write_file(Path(html), page, flag="--html")
    if snapshot is not None:
        from tunecast.report.run.snapshot import pickled_snapshot

        content = pickled_snapshot(held.tape, held.settings, held.capacity_bytes)
        write_file(Path(snapshot), content, flag="--snapshot")
