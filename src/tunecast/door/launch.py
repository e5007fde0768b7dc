"""A job, a plan or the file somebody trains with, started on an engine; and what was started."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from tunecast.door.launch_source import OneSource, job_of, machines_in, own_file
from tunecast.door.launched import Launched, LaunchedJobs, cancel, jobs, launched_of, log_command, logs, states_of
from tunecast.door.predict import predict
from tunecast.door.read import dotted, read_on_card
from tunecast.errors import DoesNotFit, TunecastError, UsageError
from tunecast.hardware.catalog import gpu
from tunecast.job.job import Job
from tunecast.job.model import resolve_model
from tunecast.job.writer import write_file
from tunecast.launching import ledger
from tunecast.launching.engines import Engine, engine_of, installed_before, rendering_of
from tunecast.launching.ledger import LedgerEntry, NotKnown
from tunecast.launching.offers import with_offers
from tunecast.launching.pins import built_notes
from tunecast.launching.preflight.expected import preflight_s, with_preflight
from tunecast.launching.programs import as_installed, program_of, program_of_file
from tunecast.launching.programs.accelerate import start_share
from tunecast.launching.programs.own_folder import left_out_note, own_folder
from tunecast.launching.rendering import OUTPUT, VENDOR, Order, Rendering, TrainingProgram
from tunecast.learn.shipping import with_price, with_recorder
from tunecast.prediction.outside.needs import machine_ram_bytes
from tunecast.prediction.prediction import Prediction
from tunecast.prediction.time.whole import START_S
from tunecast.records import replace

if TYPE_CHECKING:
    from tunecast.door.launch_many import LaunchedTogether, RenderedTogether

__all__ = ["Launched", "LaunchedJobs", "cancel", "jobs", "launch", "log_command", "logs"]

CARDS = "/dev"
"""Where NVIDIA's driver puts a file for each card: nvidia0, nvidia1 and so on."""


class RunsAlready(UsageError):
    """The same job, on the same engine."""


@overload
def launch(
    source: OneSource,
    overrides: Mapping[str, object] | None = None,
    *,
    on: str,
    dry_run: bool = False,
    out: str | os.PathLike[str] | None = None,
    again: bool = False,
    cpu: bool | None = None,
    options: Mapping[str, str] | None = None,
    extra: Mapping[str, object] | None = None,
    preflight: bool = True,
    record: bool = True,
) -> Rendering | Launched: ...
@overload
def launch(
    source: list[OneSource] | tuple[OneSource, ...],
    overrides: Mapping[str, object] | None = None,
    *,
    on: str,
    dry_run: bool = False,
    out: str | os.PathLike[str] | None = None,
    again: bool = False,
    cpu: bool | None = None,
    options: Mapping[str, str] | None = None,
    extra: Mapping[str, object] | None = None,
    preflight: bool = True,
    record: bool = True,
    **many: Any,
) -> RenderedTogether | LaunchedTogether: ...
def launch(
    source: OneSource | list[OneSource] | tuple[OneSource, ...],
    overrides: Mapping[str, object] | None = None,
    *,
    on: str,
    dry_run: bool = False,
    out: str | os.PathLike[str] | None = None,
    again: bool = False,
    cpu: bool | None = None,
    options: Mapping[str, str] | None = None,
    extra: Mapping[str, object] | None = None,
    preflight: bool = True,
    record: bool = True,
    **many: Any,
) -> Rendering | Launched | RenderedTogether | LaunchedTogether:
    """The files and commands that run a job, where `dry_run`; else they are run, and what was started comes back.

    on         local, slurm, ssh:HOST, kubernetes, skypilot, dstack or lyceum
    out        a folder that gets the files too
    again      also where the same is running already
    cpu        without cards, as a rehearsal; None: locally, where this machine has none
    options    of the engine: `{"partition": "gpu"}`
    extra      further settings of the trainer's, such as `{"learning_rate": 2e-4}`; none that the job says
    preflight  whether the job checks its machine before it trains
    record     whether it is measured while it trains (`tunecast runs`)
    many       of a list of jobs, which are launched together: `at_once`, `share`, and the options of `plan`
               (door/launch_many.py, `launch_many`)

    Raises `UsageError` where the job names no data and is to be started, or the same is running already; `DoesNotFit`
    where the prediction does not fit its cards.
    """
    if isinstance(source, (list, tuple)):
        from tunecast.door.launch_many import Together, launch_many

        together = Together(overrides, cpu, options or {}, extra or {}, preflight, record)
        return launch_many(source, together, on=on, dry_run=dry_run, out=out, again=again, **many)
    if many:
        raise UsageError(f"launch: got {next(iter(many))!r}, which is of several jobs. To fix: launch([job], …)")
    engine = engine_of(on)
    order, notes = prepare(
        source, overrides, engine, cpu=cpu, extra=extra, dry_run=dry_run, preflight=preflight, record=record
    )
    rendering = rendering_of(order, engine, options or {})
    rendering = replace(rendering, notes=(*notes, *rendering.notes))
    if out is not None:
        for name, text in rendering.files.items():
            write_file(Path(out) / name, text, flag="--out", folder_too=True)
    return rendering if dry_run else submit(rendering, order, engine, options or {}, again=again)


def prepare(
    source: OneSource,
    overrides: Mapping[str, object] | None,
    engine: Engine,
    *,
    cpu: bool | None,
    extra: Mapping[str, object] | None,
    dry_run: bool,
    preflight: bool = True,
    record: bool = True,
    output: str = "",
) -> tuple[Order, tuple[str, ...]]:
    """What an engine is asked to run, and what was decided of it that nobody said. `output`: of several jobs of one
    training file the folder beside it that this one writes to."""
    own = own_file(source)
    job, notes = as_installed(read_on_card(own, overrides)) if own is not None else job_of(source, overrides)
    rehearsed = cpu if cpu is not None else engine.name == "local" and not dry_run and not has_cards()
    if not rehearsed:
        require_vendor(job, engine, preflight=preflight)
    if own is not None:
        changes = dotted(overrides)
        require_no_extra(extra)
        order = order_of(
            job,
            lambda: program_of_file(own, job, changes, bool(cpu), elsewhere=engine.elsewhere, output=output),
            cpu=bool(cpu),
            preflight=preflight,
            record=record,
        )
        if engine.elsewhere:
            notes += own_notes(own, job, order.program)
        elif output:
            notes += (f"each writes to a folder of its own name beside {own.name}",)
        rehearsed = False
    else:
        further = extra or {}
        order = order_of(
            job,
            lambda: program_of(job, elsewhere=engine.elsewhere, cpu=rehearsed, extra=further),
            cpu=rehearsed,
            preflight=preflight,
            record=record,
        )
    if engine.installs:
        notes = (*notes, *built_notes(order.program))
    if rehearsed:
        notes = (*notes, "rendered for CPUs, as a rehearsal: nothing of the prediction holds there")
    return with_price(with_offers(order, machines_in(source), predict)), notes


def own_notes(file: Path, job: Job, program: TrainingProgram) -> tuple[str, ...]:
    """What is said of a file that goes to another machine with its folder."""
    left_out = own_folder(file, job).left_out
    count = len(program.carried)
    kept = f"results go to {OUTPUT} there, beside the copy"
    if f"../{OUTPUT}" not in " ".join(program.command):
        kept = f"a script writes where it wants: what it writes to ../{OUTPUT} is kept"
    return (
        f"the folder of {file.name} is copied: {count} file{'s' if count > 1 else ''}; {kept}",
        *((left_out_note(left_out),) if left_out else ()),
    )


def require_vendor(job: Job, engine: Engine, *, preflight: bool) -> None:
    """Before a machine is rented whose torch would not see its cards."""
    card = gpu(job.hardware.gpu)
    if card.vendor == VENDOR or (not engine.installs and not preflight):
        return
    there = f"; or --no-preflight on {', '.join(installed_before())}, where a torch for {card.vendor} is installed"
    raise UsageError.at(
        "hardware.gpu",
        f"got {card.name}; what is rendered and checked is for {VENDOR}'s cards. To fix: another card (tunecast plan "
        f"--vendor {VENDOR}){there}",
    )


def require_no_extra(extra: Mapping[str, object] | None) -> None:
    if extra:
        raise UsageError("--with: your own file has settings of its own. To fix: write it there", field="extra")


def order_of(
    job: Job, render: Callable[[], TrainingProgram], *, cpu: bool, preflight: bool = True, record: bool = True
) -> Order:
    """`render` is asked for once the prediction has said what is wrong with the job itself."""
    found = predict(job)
    program = render()
    if not (found.fits or cpu):
        raise DoesNotFit(
            f"{job.model} does not fit {job.hardware.gpus} x {job.hardware.gpu}. To fix: tunecast fit, or tunecast plan"
        )
    time = found.time
    host = None if found.utilization is None else found.utilization.host
    if preflight:
        program = with_preflight(program, job, found, ram_of(job, found), cpu=cpu)
    if record:
        program = with_recorder(program, job, found, cpu=cpu)
    share = start_share(program.command)
    own_s = 0.0 if time is None or time.phases_s is None else time.phases_s["start"]
    launcher_s, launcher_high_s = share * own_s, share * max(own_s, START_S[-1])
    added_s = launcher_high_s + (preflight_s(job, found) if preflight else 0.0)
    return Order(
        name_of(job),
        job,
        program,
        None if time is None or time.total_s is None or cpu else time.total_s + launcher_s,
        None if time is None or cpu or time.total_range_s is None else time.total_range_s[1] + added_s,
        1 if host is None else host.cpu_cores,
        ram_of(job, found),
        disk_bytes_of(found),
    )


def ram_of(job: Job, found: Prediction) -> int | None:
    """Of a machine: what it holds while it loads and saves or while it trains, and the checkpoints it begins from:
    they are read through the page cache, which a control group counts too."""
    host = None if found.utilization is None else found.utilization.host
    known = (machine_ram_bytes(job, resolve_model(job.model)), None if host is None else host.ram_bytes)
    held = max((each for each in known if each is not None), default=None)
    files = found.files
    return None if held is None or files is None else held + files.downloaded_bytes


def disk_bytes_of(found: Prediction) -> int | None:
    """Of a machine: the checkpoints it begins from, and what it saves; of a run of unknown length one checkpoint."""
    outside, files = found.outside, found.files
    if outside is None or files is None:
        return None
    saved = outside.disk.peak_bytes
    return files.downloaded_bytes + (outside.disk.checkpoint_bytes if saved is None else saved)


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
    require_startable(rendering, engine)
    engine.require(order, options)
    with ExitStack() as held:
        with ledger.exclusive():
            for same in () if again else entries_like([rendering], ledger.ACTIVE).values():
                state = states_of([same])[same.id]
                raise RunsAlready(
                    f"the same is {state} already, as {same.id}. To fix: --again starts it once more", field="again"
                )
            entry = held.enter_context(ledger.submission(ledger.reserve(rendering, now())))
        entry, notes = start(entry, order, engine, options)
    return launched_of([entry], (*rendering.notes, *notes))[0]


def require_startable(rendering: Rendering, engine: Engine) -> None:
    for placeholder in rendering.placeholders:
        raise UsageError.at(
            placeholder.field, "a job without it is shown by --dry-run, and not started. To fix: --data-path FILE"
        )
    if not engine.submits:
        raise UsageError(f"--on: {engine.name} is rendered, and not started from here: --dry-run", field="on")


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def entries_like(renderings: Sequence[Rendering], wanted: Sequence[str]) -> dict[str, LedgerEntry]:
    """By digest, the newest launch of the same that is in one of these states. What a launch that was killed left
    behind, and never became a job, is cleared away."""
    digests = set(map(ledger.digest_of, renderings))
    same = [each for each in ledger.entries() if each.digest in digests]
    states = states_of(same)
    for entry in same:
        if states[entry.id] != "not started" or entry.number:
            continue
        if ledger.has_number(entry):  # another process has just submitted it
            states[entry.id] = "queued"
        else:
            ledger.drop(entry)
    return {each.digest: each for each in same if states[each.id] in wanted}


def start(
    entry: LedgerEntry, order: Order, engine: Engine, options: Mapping[str, str]
) -> tuple[LedgerEntry, tuple[str, ...]]:
    """What was reserved, while its submission is held; and what the engine says of it. Nothing of it is left where its
    engine refuses."""
    named, notes = rendering_of(replace(order, name=entry.id), engine, options), ""
    try:
        write_files(entry, named.files)
        if hasattr(engine.module, "begins"):
            notes = engine.module.begins(entry, named.commands, dict(os.environ))
        number = engine.module.submit(entry, named.commands, dict(os.environ))
    except NotKnown:
        raise
    except TunecastError:
        ledger.drop(entry)
        raise
    return ledger.with_number(entry, number), (notes,) if notes else ()


def write_files(entry: LedgerEntry, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        write_file(entry.folder / name, text, folder_too=True)
