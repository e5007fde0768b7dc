"""A job, a plan or the file somebody trains with, started on an engine; and what was started."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar, cast

from tunecast.door.predict import predict
from tunecast.door.read import Source, dotted, read_on_card
from tunecast.errors import DoesNotFit, NotResolved, TunecastError, UsageError
from tunecast.job.job import Job
from tunecast.job.mapping import check_overrides, job_from_dict, with_overrides
from tunecast.job.model import resolve_model
from tunecast.job.readers.bounds import MOST_FILE_BYTES, bounded_text
from tunecast.job.readers.json import parsed
from tunecast.job.recipes import find_recipe
from tunecast.job.stacks import SFT_STACK
from tunecast.job.writer import write_file
from tunecast.launching import ledger
from tunecast.launching.engines import Engine, engine_of, rendering_of
from tunecast.launching.ledger import LedgerEntry
from tunecast.launching.programs import as_framework, program_of, program_of_file
from tunecast.launching.rendering import Order, Rendering, TrainingProgram
from tunecast.planning.choice import Choice, Plan
from tunecast.prediction.outside.needs import machine_ram_bytes
from tunecast.prediction.prediction import Prediction
from tunecast.records import dataclass, replace
from tunecast.result import Result

__all__ = ["Launched", "LaunchedJobs", "cancel", "jobs", "launch", "log_command", "logs"]

PLAN_SCHEMA = Plan.schema
CARDS = "/dev"
"""Where NVIDIA's driver puts a file for each card: nvidia0, nvidia1 and so on."""


@dataclass(frozen=True)
class Launched(Result):
    """A job that was started."""

    schema: ClassVar[str] = "tunecast.launched/1"
    KEYS: ClassVar[tuple[str, ...]] = (
        *("schema", "id", "engine", "framework", "state", "number", "folder", "submitted", "notes"),
    )
    FROM: ClassVar[Mapping[str, str]] = {"folder": "folder_name"}

    id: str
    engine: str
    framework: str
    state: str
    """queued, running, done, failed, cancelled, not started; ended: it is over, and nobody knows how; unknown: its
    engine does not answer."""
    number: str
    """What the engine calls it."""
    folder: Path
    submitted: str
    notes: tuple[str, ...] = ()

    @property
    def folder_name(self) -> str:
        return str(self.folder)


@dataclass(frozen=True)
class LaunchedJobs(Result):
    """Every launch of this user on this machine, the oldest first."""

    schema: ClassVar[str] = "tunecast.jobs/1"
    KEYS: ClassVar[tuple[str, ...]] = ("schema", "jobs")

    jobs: tuple[Launched, ...]


def launch(
    source: Source | Plan | Choice,
    overrides: Mapping[str, object] | None = None,
    *,
    on: str,
    dry_run: bool = False,
    out: str | os.PathLike[str] | None = None,
    again: bool = False,
    cpu: bool | None = None,
    options: Mapping[str, str] | None = None,
    extra: Mapping[str, object] | None = None,
) -> Rendering | Launched:
    """The files and commands that run a job, where `dry_run`; else they are run, and what was started comes back.

    on       local, slurm, or ssh:HOST
    out      a folder that gets the files too
    again    also where the same is running already
    cpu      without cards, as a rehearsal; None: locally, where this machine has none
    options  of the engine: `{"partition": "gpu"}`
    extra    further settings of the trainer's, such as `{"learning_rate": 2e-4}`; none that the job says

    Raises `UsageError` where the job names no data and is to be started, or the same is running already; `DoesNotFit`
    where the prediction does not fit its cards.
    """
    engine = engine_of(on)
    own = own_file(source)
    job, notes = (read_on_card(own, overrides), ()) if own is not None else job_of(source, overrides)
    rehearsed = cpu if cpu is not None else engine.name == "local" and not dry_run and not has_cards()
    if own is not None:
        changes = dotted(overrides)
        require_here(engine, extra)
        order = order_of(job, lambda: program_of_file(own, job, changes, bool(cpu)), cpu=bool(cpu))
        rehearsed = False
    else:
        further = extra or {}
        order = order_of(
            job, lambda: program_of(job, elsewhere=engine.elsewhere, cpu=rehearsed, extra=further), cpu=rehearsed
        )
    rendering = rendering_of(order, engine, options or {})
    if rehearsed:
        notes = (*notes, "rendered for CPUs, as a rehearsal: nothing of the prediction holds there")
    rendering = replace(rendering, notes=(*notes, *rendering.notes))
    if out is not None:
        for name, text in rendering.files.items():
            write_file(Path(out) / name, text, flag="--out", folder_too=True)
    return rendering if dry_run else submit(rendering, order, engine, options or {}, again=again)


def job_of(source: Source | Plan | Choice, overrides: Mapping[str, object] | None) -> tuple[Job, tuple[str, ...]]:
    """The job that is to be launched, and what was decided of it that nobody said."""
    job = read_on_card(_planned(source), overrides)
    notes: tuple[str, ...] = ()
    if not job.is_given("stack") and job.stack != SFT_STACK:
        job = replace(job, stack=SFT_STACK)
        notes = (f"the job names no stack: {SFT_STACK} trains it. Plans and predictions of it: --stack {SFT_STACK}",)
    job, decided = as_framework(job)
    return job, (*notes, *decided)


def _planned(source: Source | Plan | Choice) -> Source:
    if isinstance(source, Plan):
        if source.best is None:
            raise DoesNotFit(f"the plan has no pick: {source.failure.message if source.failure else 'nothing fits'}")
        source = source.best
    if isinstance(source, Choice):
        if source.job is None:
            raise UsageError("got the plan of a script; allowed: that of a job. To fix: launch the script's own file")
        return source.job
    if isinstance(source, (str, os.PathLike)) and (content := _plan_in(Path(source))):
        return _job_of_plan(content, str(source))
    return source


def _plan_in(path: Path) -> Mapping[str, Any] | None:
    """What a file of `tunecast plan --json` holds; None where it is none."""
    if path.suffix.lower() != ".json" or not path.is_file():
        return None
    content = parsed(bounded_text(path, MOST_FILE_BYTES), str(path))
    return content if isinstance(content, Mapping) and content.get("schema") == PLAN_SCHEMA else None


def _job_of_plan(content: Mapping[str, Any], file: str) -> Job:
    """As `tunecast plan --json` wrote it: the user's job with the settings of the pick it begins with."""
    job, best = content.get("job"), content.get("best")
    if not isinstance(job, Mapping):
        raise UsageError(f"{file}: a plan without its job. To fix: plan again, of a job", field="job")
    picks = content.get("picks")
    pick = picks.get(best) if isinstance(picks, Mapping) else None
    changes = pick.get("changes") if isinstance(pick, Mapping) else None
    if not isinstance(changes, Mapping):
        raise DoesNotFit(f"{file}: the plan has no pick")
    check_overrides(changes)
    return job_from_dict(with_overrides(job, changes))


def own_file(source: Source | Plan | Choice) -> Path | None:
    """The file somebody trains with, where that is what was given: it is started as it is."""
    if not isinstance(source, (str, os.PathLike)):
        return None
    path = Path(source)
    if path.name == "config.json" or not path.is_file() or _plan_in(path):
        return None
    return path if find_recipe(path) is not None else None


def require_here(engine: Engine, extra: Mapping[str, object] | None) -> None:
    if engine.elsewhere:
        raise UsageError(
            "a training file of your own is started where it lies: --on local or slurm, or copy it there", field="on"
        )
    if extra:
        raise UsageError("--with: your own file has settings of its own. To fix: write it there", field="extra")


def order_of(job: Job, render: Callable[[], TrainingProgram], *, cpu: bool) -> Order:
    """`render` is asked for once the prediction has said what is wrong with the job itself."""
    found = predict(job)
    program = render()
    if not (found.fits or cpu):
        raise DoesNotFit(
            f"{job.model} does not fit {job.hardware.gpus} x {job.hardware.gpu}. To fix: tunecast fit, or tunecast plan"
        )
    time, outside = found.time, found.outside
    host = None if found.utilization is None else found.utilization.host
    return Order(
        name_of(job),
        job,
        program,
        None if time is None or cpu else time.total_s,
        None if time is None or cpu or time.total_range_s is None else time.total_range_s[1],
        1 if host is None else host.cpu_cores,
        ram_of(job, found),
        None if outside is None else outside.disk.peak_bytes,
    )


def ram_of(job: Job, found: Prediction) -> int | None:
    """Of a machine: what it holds while it loads and saves or while it trains, and the checkpoints it begins from:
    they are read through the page cache, which a control group counts too."""
    host = None if found.utilization is None else found.utilization.host
    known = (machine_ram_bytes(job, resolve_model(job.model)), None if host is None else host.ram_bytes)
    held = max((each for each in known if each is not None), default=None)
    files = found.files
    return None if held is None or files is None else held + files.downloaded_bytes


def name_of(job: Job) -> str:
    """Letters, digits and dashes; of the job's own id, where it has one."""
    text = str(job.id) if job.id is not None else f"{os.path.basename(job.model.rstrip('/'))}-{job.method}"
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:40].strip("-") or "job"


def has_cards() -> bool:
    """Whether NVIDIA's driver has made a device."""
    try:
        return any(re.fullmatch(r"nvidia\d+", name) for name in os.listdir(CARDS))
    except OSError:
        return False


def submit(rendering: Rendering, order: Order, engine: Engine, options: Mapping[str, str], *, again: bool) -> Launched:
    """What is started is named after its launch, so that its engine knows it by that name."""
    for placeholder in rendering.placeholders:
        raise UsageError.at(
            placeholder.field, "a job without it is shown by --dry-run, and not started. To fix: --data-path FILE"
        )
    if not engine.submits:
        raise UsageError(f"--on: {engine.name} is rendered, and not started from here: --dry-run", field="on")
    digest = ledger.digest_of(rendering)
    same = [each for each in ledger.entries() if each.digest == digest and state_of(each) in ledger.ACTIVE]
    if same and not again:
        raise UsageError(
            f"the same is {state_of(same[-1])} already, as {same[-1].id}. To fix: --again starts it once more",
            field="again",
        )
    entry = ledger.reserve(rendering, datetime.now(UTC).isoformat(timespec="seconds"))
    named = rendering_of(replace(order, name=entry.id), engine, options)
    try:
        for name, text in named.files.items():
            write_file(entry.folder / name, text, folder_too=True)
        number = engine.module.submit(entry, named.commands, dict(os.environ))
    except TunecastError:
        ledger.drop(entry)
        raise
    entry = ledger.with_number(entry, number)
    return _launched(entry, rendering.notes)


def _launched(entry: LedgerEntry, notes: tuple[str, ...] = ()) -> Launched:
    return Launched(
        entry.id, entry.engine, entry.framework, state_of(entry), entry.number, entry.folder, entry.submitted, notes
    )


def state_of(entry: LedgerEntry) -> str:
    try:
        state = cast(str, engine_of(entry.engine).module.state(entry))
    except NotResolved:
        return "unknown"
    return "cancelled" if entry.cancelled and state in ("failed", "ended", "not started") else state


def jobs() -> LaunchedJobs:
    return LaunchedJobs(tuple(map(_launched, ledger.entries())))


def log_command(name: str, *, follow: bool = False) -> tuple[str, ...]:
    """What shows all that a job printed."""
    entry = ledger.entry_of(name)
    return tuple(engine_of(entry.engine).module.log_command(entry, follow=follow))


def logs(name: str) -> str:
    """All that a job printed so far."""
    done = subprocess.run(log_command(name), capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL)
    if done.returncode:
        raise NotResolved(f"{name}: there is no log yet ({' '.join(done.stderr.split())[:200]})", field="id")
    return done.stdout


def cancel(name: str) -> Launched:
    """Stop a job; one that is over stays as it is."""
    entry = ledger.entry_of(name)
    if state_of(entry) in (*ledger.ACTIVE, "unknown"):
        engine_of(entry.engine).module.cancel(entry)
        entry = ledger.as_cancelled(entry)
    return _launched(entry)
