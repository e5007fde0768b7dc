"""Measured runs: listed, shown, taken in, given away, forgotten."""

from __future__ import annotations

import os
import socket
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from tunecast.errors import NotResolved, UsageError
from tunecast.home import data_folder
from tunecast.job.knob import shown as shown_value
from tunecast.learn.record import MeasuredRun, run_from
from tunecast.learn.runs_store.exchange import ImportedRuns, import_runs, run_lines
from tunecast.learn.runs_store.place import RUNNING, has_store
from tunecast.learn.runs_store.rows import RunFilters, RunSummary, filters_from, moment_of, now_text, summary
from tunecast.learn.runs_store.store import SHORTEST_ID, RunStore, open_store, read_store
from tunecast.learn.shipped import shipped_records
from tunecast.records import NamedTuple, dataclass
from tunecast.report.runs.text import MOST_POINTS, RatioSpread, RunsShown
from tunecast.result import Result
from tunecast.units import gib

MOST_IN_NOTEBOOK = 12
PARTS = (0.1, 0.5, 0.9)
LEFT_OUT = "hosts, notes, countries, times of day, Hub ids of models that are not bundled, lists of lengths"


@dataclass(frozen=True)
class StoredRuns:
    """What is stored, the newest first; its JSON is the list of them."""

    runs: tuple[RunSummary, ...]
    states: Mapping[str, int]
    """How many there are of each state, those that are not listed included."""
    memory: RatioSpread | None
    """Measured over predicted."""
    time: RatioSpread | None
    place: str
    waiting: int = 0
    """Records that a server has not got yet."""
    filtered: bool = False
    """Whether it is of some runs only."""

    @property
    def count(self) -> int:
        return sum(self.states.values())

    def to_dict(self) -> list[dict[str, Any]]:
        return [run.to_dict() for run in self.runs]

    def shown(self) -> RunsShown:
        """As a report draws it."""
        return RunsShown(self.place, self.to_dict(), self.states, self.memory, self.time, self.waiting, self.filtered)

    def _repr_html_(self) -> str:
        from tunecast.report.page.notebook import fragment, note, table  # it loads everything that is drawn there

        rows = [
            (
                each.began[:10], each.state, each.gpu or "", each.model or "", each.method or "",
                "" if each.memory_bytes is None else gib(each.memory_bytes), each.id[:8],
            )
            for each in self.runs[:MOST_IN_NOTEBOOK]
        ]  # fmt: skip
        states = ", ".join(f"{count:,} {state}" for state, count in self.states.items())
        more = self.count - len(rows)
        head = ("began", "state", "card", "model", "method", "memory", "id")
        return fragment(f"{self.count:,} runs: {states}", table(head, rows), note(f"and {more:,} more" if more else ""))


class RefusedRun(NamedTuple):
    id: str
    reason: str


@dataclass(frozen=True)
class PublishedRuns(Result):
    """What is in a file of anonymised runs, or would be."""

    schema: ClassVar[str] = "tunecast.runs-published/1"
    KEYS: ClassVar[tuple[str, ...]] = (
        *("schema", "file", "runs", "first_day", "last_day", "states", "gpus", "models", "methods", "left_out"),
        *("refused", "example"),
    )

    file: str | None
    runs: int
    first_day: str | None
    last_day: str | None
    states: Mapping[str, int]
    gpus: Mapping[str, int]
    models: Mapping[str, int]
    methods: Mapping[str, int]
    refused: tuple[RefusedRun, ...]
    example: Mapping[str, Any] | None
    """One of them, whole."""
    left_out: str = LEFT_OUT


def runs(
    *,
    gpu: str | None = None,
    model: str | None = None,
    method: str | None = None,
    state: str | None = None,
    since: str | None = None,
    limit: int | None = None,
) -> StoredRuns:
    """The measured runs of the store (TUNECAST_STORE), the newest first. `since`: a day, or 30d for as long ago."""
    asked = filters_from(gpu, model, method, state, since, now_text())
    if _are_left_behind():
        from tunecast.door.recorded import take_left_behind  # it loads what reads journals

        take_left_behind()
    with _store_after_delivery() as store:
        listed = tuple(store.summaries(limit, asked))
        return StoredRuns(
            listed, store.counts(asked), _spread(store, "memory_ratio", asked), _spread(store, "time_ratio", asked),
            store.place.shown, store.waiting(), asked != RunFilters(),
        )  # fmt: skip


def _are_left_behind() -> bool:
    """Whether there are journals of runs that go on, or that were killed."""
    try:
        return bool(os.listdir(os.path.join(data_folder(), RUNNING)))
    except OSError:
        return False


def plotted_runs(asked: RunFilters) -> list[dict[str, Any]]:
    """Rows for a plot: more than a list shows."""
    with open_store() as store:
        return [each.to_dict() for each in store.summaries(MOST_POINTS, asked)]


def run_of(id: str) -> MeasuredRun:
    """By its id, or the first digits of it that no other begins with."""
    begin = id.lower()
    if len(begin) < SHORTEST_ID or not set(begin) <= set("0123456789abcdef"):
        allowed = f"at least {SHORTEST_ID} hex digits of an id that `tunecast runs` lists"
        raise UsageError(f"ID: got {shown_value(id)}; allowed: {allowed}", field="id")
    ids, found = list[str](), None
    if has_store():
        with read_store() as store:
            ids = store.ids(begin[:32])
            found = store.get(ids[0]) if len(ids) == 1 else None
    if found is None:
        told = f"{len(ids)} or more runs begin so" if ids else "no run is called so"
        raise UsageError(f"ID: got {shown_value(id)}: {told}. `tunecast runs` lists them", field="id")
    return found


def exported_lines(asked: RunFilters, *, shipped: bool = False) -> Iterator[str]:
    """JSON Lines, the oldest first; `shipped`: of the runs that come with the package."""
    if shipped:
        found = list(map(run_from, shipped_records()))
        if not found:
            raise NotResolved("no measured runs come with this installation of tunecast")
        yield from run_lines(run for run in found if is_asked(summary(run), asked))
        return
    with open_store() as store:
        yield from run_lines(store.records(asked))


def is_asked(run: RunSummary, asked: RunFilters) -> bool:
    """As the store's own filter has it."""
    same = all(getattr(asked, name) in (None, getattr(run, name)) for name in ("gpu", "model", "method", "state"))
    return same and (asked.since is None or run.began >= asked.since)


def import_file(path: str) -> ImportedRuns:
    """Runs of a file, or the one whose journal it is (a launched job's, from another machine)."""
    from tunecast.learn.journal import is_journal, record_of

    if is_journal(path):
        from tunecast.learn.intake import complete

        run = run_from(complete(record_of(path), here=False))
        with open_store() as store:
            return ImportedRuns(1, store.add_many([run]), 0)
    with open_store() as store:
        return import_runs(store, path)


def publish(asked: RunFilters, out: str | None = None) -> PublishedRuns:
    """Anonymised runs that are over, into a file, or counted where none is named. Nothing is sent anywhere."""
    from tunecast.job.writer import write_file
    from tunecast.learn.publishing import anonymised

    counts: dict[str, Counter[str]] = {name: Counter() for name in ("states", "gpus", "models", "methods")}
    refused: list[RefusedRun] = []
    days: list[str] = []
    example: list[Mapping[str, Any]] = []
    words = private_words()

    def chosen() -> Iterator[MeasuredRun]:
        with open_store() as store:
            for run in store.records(asked):
                if run.state == "running" or run.source == "shipped":
                    continue
                try:
                    made = anonymised(run, words)
                except UsageError as error:
                    refused.append(RefusedRun(run.id, error.message))
                    continue
                row = summary(made)
                values = {"states": row.state, "gpus": row.gpu, "models": row.model, "methods": row.method}
                for name, value in values.items():
                    counts[name][value or "not said"] += 1
                days[:] = [min([*days[:1], made.began[:10]]), max([*days[1:], made.began[:10]])]
                example[:] = example or [made.to_dict()]
                yield made

    if out is None:
        for _ in chosen():
            pass
    else:
        write_file(Path(out), run_lines(chosen()), flag="--out")
    first, last = days or (None, None)
    states, gpus, models, methods = (dict(count.most_common()) for count in counts.values())
    total, whole = sum(states.values()), next(iter(example), None)
    return PublishedRuns(out, total, first, last, states, gpus, models, methods, tuple(refused), whole)


def private_words(environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Names of this machine and its user, which nothing that is published may hold."""
    names = {environ.get(name, "") for name in ("USER", "LOGNAME", "USERNAME", "HOSTNAME")}
    names |= {os.path.basename(os.path.expanduser("~")), socket.gethostname(), *socket.gethostname().split(".")}
    return tuple(sorted(names - {""}))


def prune(keep: str, *, dry_run: bool = False) -> int:
    """Forgets runs that began longer ago than `keep` (365d, 2y) or before a day; how many they are."""
    moment = moment_of(keep, now_text(), "keep")
    with open_store() as store:
        return store.count_before(moment) if dry_run else store.delete_before(moment)


def _store_after_delivery() -> RunStore:
    """The store, with what waited for it delivered where that is possible now."""
    store = open_store()
    try:
        store.deliver()
    except BaseException:
        store.close()
        raise
    return store


def _spread(store: RunStore, name: str, asked: RunFilters) -> RatioSpread | None:
    count, parts = store.ratios(name, asked, PARTS)
    return RatioSpread(count, *parts) if count else None
