"""`tunecast fit JOB --gpu 4090`: the smallest changes after which it fits, as a patch to the job's file."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from functools import partial

from tunecast.advise.ladder import ALLOWED, Harm
from tunecast.cli.answers import print_answer
from tunecast.cli.arguments import Parser, add_calibration_flag, add_json_flag
from tunecast.cli.asking import counting_seconds, say_card, say_problems
from tunecast.cli.several import answer_each, is_several, jobs_of, refuse_one_file
from tunecast.door.fit import allowed, fit
from tunecast.door.read import read
from tunecast.errors import DoesNotFit, NotResolved, UsageError, printable, printable_lines
from tunecast.job.flags import COMMON, add_job_flags, sweep_from
from tunecast.job.job import Job
from tunecast.job.readers import is_job_file
from tunecast.planning.fit.patch import write
from tunecast.planning.fit.solution import Fit
from tunecast.report.lists.fit import fit_short, fit_text, how_to, winning_flags
from tunecast.report.run.job import title_of
from tunecast.report.run.wording import in_yaml, wording_of

USAGE = "tunecast fit JOB [options], or tunecast fit [options] -- train.py ARGS..."
DESCRIPTION = """\
Finds the smallest changes that make a job fit its card, least harmful first, and other hardware that it fits unchanged;
for a job that fits, what makes it faster. Memory and time of each change are predicted. If JOB is a file, you get a
patch; if it is a model with flags, you get flags to add."""
EPILOG = """\
examples:
  tunecast fit job.yaml --gpu rtx-4090                 what to change, and the patch
  tunecast fit job.yaml --gpu rtx-4090 --patch | patch -p0
  tunecast fit job.yaml --write                        apply it; the old file stays as job.yaml.orig
  tunecast fit job.yaml --allow method,rank            may also choose LoRA, QLoRA or a lower rank
  tunecast fit llama-3.1-8b --method lora --seq-len 16384 --gpu l40s
  tunecast fit jobs.jsonl --gpu l40s --json            one line per job; or --set lora.rank=8,16,64
  tunecast fit --gpu rtx-4090 -- train.py --bf16       your own script, in its own arguments (fit --help --)

First come changes that keep the mathematics (checkpointing, fused kernels, a smaller micro-batch with more
accumulation, sharding), then those that only round (8-bit optimizer states, 16-bit weights). Changes that train
something else (LoRA, QLoRA, a lower rank, shorter rows) come only if nothing else fits or --allow names them. The
global batch stays as it is. The effect of a change on the result is shown if it was published, with its source.

Exit code 0 if it fits or can be made to, 3 if nothing helps; then it says which hardware would do.
"""

SHORT = ("--allow", "--patch", "--write", "--short", "--details", "--json", *COMMON, "--set", "--help-all")
"""Flags that --help shows."""


def parser() -> Parser:
    made = Parser("fit", USAGE, DESCRIPTION, EPILOG, SHORT)
    made.add_argument("source", metavar="JOB", help="the file you train with, a job file, or a model")
    made.add_argument(
        "--allow",
        metavar="WHAT,…",
        default="",
        help=f"also allow changes to what is trained: {', '.join(ALLOWED)}",
    )
    output = made.add_mutually_exclusive_group()
    output.add_argument("--patch", action="store_true", help="print only the patch to the job's file")
    output.add_argument(
        "--write", action="store_true", help="apply the patch to the job's file; keeps the old one as .orig"
    )
    add_json_flag(output)
    output.add_argument("--short", action="store_true", help="one line instead of the whole answer")
    made.add_argument(
        "--details", action="store_true", help="also every combination, and what was published on each change"
    )
    add_calibration_flag(made)
    add_job_flags(made)
    return made


def run(argv: Sequence[str]) -> int:
    if "--" in argv:
        from tunecast.cli import fit_script

        return fit_script.run(argv)
    arguments = parser().read(argv)
    source: str = arguments.source
    points = sweep_from(arguments)
    wants_file = "--patch" if arguments.patch else "--write" if arguments.write else None
    if wants_file and not is_job_file(source):
        raise UsageError(f"{wants_file}: {source} is no job file; allowed: with one", field=wants_file)
    if not is_several(source, points):
        return answer_job(source, points[0].overrides, arguments)
    jobs = [each.named for each in jobs_of(source, points)]
    refuse_one_file(arguments, ("patch", "write"), len(jobs))

    return answer_each(jobs, lambda job, number: answer_job(job, {}, arguments), arguments)


def answer_job(asked: Job | str, flags: Mapping[str, object], arguments: argparse.Namespace) -> int:
    """`asked`: a job of several, or what the one was given as, which may get a patch."""
    source: str = arguments.source if asked is arguments.source or not is_job_file(arguments.source) else ""
    allow = allowed(arguments.allow)
    job = read(asked, flags)
    say_card(job.hardware.gpu)
    with counting_seconds(f"trying changes to {job.id or job.model}") as tick:
        found = fit(asked, flags, allow=allow, calibrated=not arguments.no_calibration, tick=tick)
    say_problems(found.problems)
    chosen, wording = found.chosen, wording_of(source)
    if arguments.patch or arguments.write:
        apply_changes(found, source, allow, writing=arguments.write)
        if chosen is not None and (over := winning_flags(chosen, flags)):
            print(f"tunecast: leave out {over}, which would win over the file", file=sys.stderr)
    else:
        steps = printable_lines(how_to(chosen, found.file_patch, source, winning_flags(chosen, flags)))
        text = partial(fit_text, found, title_of(job), steps, wording=wording, details=arguments.details)
        print_answer(found, arguments, text, partial(fit_short, found, title_of(job), wording=wording))
    return 0 if found.fits else DoesNotFit.exit_code


def apply_changes(found: Fit, source: str, allow: Sequence[str], *, writing: bool) -> None:
    """The patch to stdout, or into the file; why there is none to stderr."""
    chosen, patch = found.chosen, found.file_patch
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
    backup = write(patch) if writing else None
    print(patch.diff, end="")
    if backup is not None:
        print(printable(f"tunecast: {source} changed; as it was: {backup.name} beside it"), file=sys.stderr)
    elif missing:
        print(f"tunecast: only other training fits: {in_yaml(chosen.overrides)}", file=sys.stderr)
