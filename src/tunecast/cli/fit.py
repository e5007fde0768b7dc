"""`tunecast fit JOB --gpu 4090`: the smallest changes after which it fits, as a patch to the job's file."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path

from tunecast.cli.arguments import Parser
from tunecast.cli.asking import QUIET_S, say_card
from tunecast.cli.terminal import Progress, terminal_of
from tunecast.errors import DoesNotFit, NotResolved, UsageError, nearest, printable, printable_lines
from tunecast.job.flags import COMMON, add_job_flags, job_flags, overrides_from
from tunecast.job.job import Job
from tunecast.job.readers import is_job_file
from tunecast.plan.fit import Fit, Solution, fitted
from tunecast.plan.fit_patch import Patch, patch_of, write
from tunecast.predict import engines
from tunecast.predict.ladder import ALLOWED, Harm
from tunecast.predict.prediction import Predicted
from tunecast.report.advice import as_flags, in_yaml
from tunecast.report.fit import fit_dict, fit_short, fit_text

USAGE = "tunecast fit JOB [options]"
DESCRIPTION = """\
The smallest changes, least harm first, after which a job fits its card, and other hardware that holds it as it is; of a
job that fits, what makes it faster. Each is predicted, memory and time. A JOB is a file, which gets a patch, or a model
with flags, which gets flags to add."""
EPILOG = """\
examples:
  tunecast fit job.yaml --gpu rtx-4090                 what to change, and the patch
  tunecast fit job.yaml --gpu rtx-4090 --patch | patch -p0
  tunecast fit job.yaml --write                        the same; the file as it was stays beside it, as job.yaml.orig
  tunecast fit job.yaml --allow method,rank            LoRA or QLoRA may be chosen like any other change
  tunecast fit llama-3.1-8b --method lora --seq-len 16384 --gpu l40s

First what keeps the mathematics (checkpointing, fused kernels, a smaller micro-batch with more accumulation, sharding),
then what only rounds (8-bit optimizer states, 16-bit weights), and what trains something else (LoRA, QLoRA, a lower
rank, shorter rows) only where nothing else fits or --allow names it. The global batch stays as it is. What a change
does to the result is told where somebody published it, and by whom.

Exit code 0 where it fits or can be made to, 3 where nothing does: then it says which hardware would do.
"""

SHORT = ("--allow", "--patch", "--write", "--short", "--details", "--json", *COMMON, "--set", "--help-all")
"""Flags that --help shows."""


def parser() -> Parser:
    made = Parser("fit", USAGE, DESCRIPTION, EPILOG, SHORT)
    made.add_argument("source", metavar="JOB", help="a job file, or a model")
    made.add_argument(
        "--allow",
        metavar="WHAT,…",
        default="",
        help=f"changes of what is trained that may be chosen: {', '.join(ALLOWED)}",
    )
    output = made.add_mutually_exclusive_group()
    output.add_argument("--patch", action="store_true", help="print only the patch to the job's file")
    output.add_argument("--write", action="store_true", help="change the job's file; keeps the old one as .orig")
    output.add_argument("--json", action="store_true", help="JSON instead of text")
    output.add_argument("--short", action="store_true", help="one line instead of the whole answer")
    made.add_argument("--details", action="store_true", help="every combination, and what was published of each change")
    made.add_argument(
        "--no-calibration", action="store_true", help="leave out what `tunecast calibrate` measured on this machine"
    )
    add_job_flags(made)
    return made


def run(argv: Sequence[str]) -> int:
    arguments = parser().read(argv)
    source: str = arguments.source
    allow = allowed(arguments.allow)
    flags = overrides_from(arguments)
    wants_file = "--patch" if arguments.patch else "--write" if arguments.write else None
    if wants_file and not is_job_file(source):
        raise UsageError(f"{wants_file}: {source} is no job file; allowed: with one", field=wants_file)
    job = engines.the_job(source, flags)
    say_card(job)
    found = answer(job, allow, calibrated=not arguments.no_calibration)
    chosen = found.chosen
    patch = None
    if chosen is not None and is_job_file(source):
        patch = patch_of(Path(source), chosen.overrides, chosen.state.job, flags)
    if wants_file is not None:
        changed(found, patch, source, allow, writing=arguments.write)
        if chosen is not None and (over := masked(chosen, flags)):
            print(f"tunecast: leave out {over}, which would win over the file", file=sys.stderr)
    elif arguments.json:
        print(json.dumps(fit_dict(found, patch.diff if patch else None)))
    else:
        from tunecast.cli.told import title_of

        by_flags = not is_job_file(source)
        if arguments.short:
            print(fit_short(found, title_of(job), flags=by_flags), end="")
        else:
            told = printable_lines(how_to(chosen, patch, source, masked(chosen, flags)))
            terminal, details = terminal_of(sys.stdout), arguments.details
            print(fit_text(found, title_of(job), told, terminal, flags=by_flags, details=details), end="")
    return 0 if found.fits else DoesNotFit.exit_code


def allowed(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    for name in names:
        if name not in ALLOWED:
            near = nearest(name, ALLOWED)
            hint = f"; nearest: {near}" if near else ""
            raise UsageError(f"--allow: got {name!r}; allowed: {', '.join(ALLOWED)}{hint}", field="--allow")
    return names


def answer(job: Job, allow: Sequence[str], *, calibrated: bool) -> Fit:
    from tunecast.cli.predict import extra, own_prices
    from tunecast.plan.fit_hardware import other_hardware

    own, today = own_prices(job) if calibrated else None, date.today()
    began_s = time.monotonic()
    with Progress(f"trying changes to {job.id or job.model}") as progress:

        def seen() -> None:
            passed_s = time.monotonic() - began_s
            if passed_s >= QUIET_S:
                progress(passed_s)

        def quick(job: Job) -> Predicted:
            seen()
            return engines.predicted(job)

        def full(job: Job) -> Predicted:
            seen()
            return engines.predicted(job, timed=True, calibration=own)

        found = fitted(job, quick, full, allow)
        if found.faster:
            return found
        return found._replace(
            elsewhere=extra("other hardware", lambda: other_hardware(found, quick, full, today)) or ()
        )


def masked(chosen: Solution | None, flags: Mapping[str, object]) -> str:
    """Flags that were given for what is to change."""
    names = {flag.field: flag.flag for flag in job_flags()}
    return "" if chosen is None else ", ".join(names[field] for field in chosen.overrides if field in flags)


def how_to(chosen: Solution | None, patch: Patch | None, source: str, over: str) -> str:
    """The patch; the flags; or the fields, where the file cannot be changed in place."""
    if chosen is None:
        return ""
    if patch is not None:
        return patch.diff + (f"and leave out {over}, which would win over the file" if over else "")
    if is_job_file(source):
        return f"{source} cannot be changed in its place; set there\n  {in_yaml(chosen.overrides)}"
    return f"Add\n  {as_flags(chosen.overrides)}"


def changed(found: Fit, patch: Patch | None, source: str, allow: Sequence[str], *, writing: bool) -> None:
    """The patch to stdout, or into the file; why there is none to stderr."""
    chosen = found.chosen
    if chosen is None:
        why = "nothing to change" if found.fits else "nothing makes it fit; tunecast fit without it says what would"
        print(f"tunecast: {why}", file=sys.stderr)
        return
    if patch is None:
        told = f"{source} cannot be changed in its place. To fix: set there {in_yaml(chosen.overrides)}"
        raise NotResolved(told, field=source)
    other = [option.rung.group for option in chosen.options if option.rung.harm is Harm.OTHER]
    missing = [group for group in other if group not in allow]
    if writing and missing:
        told = f"--write: only other training fits ({in_yaml(chosen.overrides)}), which is not written unasked"
        raise UsageError(f"{told}. To fix: --allow {','.join(missing)}, or --patch", field="--write")
    if not writing:
        print(patch.diff, end="")
        if missing:
            print(f"tunecast: only other training fits: {in_yaml(chosen.overrides)}", file=sys.stderr)
        return
    backup = write(patch)
    print(patch.diff, end="")
    print(printable(f"tunecast: {source} changed; as it was: {backup.name} beside it"), file=sys.stderr)
