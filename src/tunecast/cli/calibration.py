"""`tunecast calibration show|diff|reset`: what was learned from measured runs, what it changes, and taking it back."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence

from tunecast.cli.answers import print_answer
from tunecast.cli.arguments import Parser, add_json_flag
from tunecast.door.learned import calibration, diff_calibration, reset_calibration
from tunecast.errors import UsageError, nearest_hint
from tunecast.job.flags import COMMON, add_job_flags, overrides_from
from tunecast.report.runs.learned import calibration_text, diff_text, reset_text

USAGE = "tunecast calibration [show] | diff JOB [--since DAY] | reset --gpu NAME | --all [--undo]   [options]"
DESCRIPTION = """\
Shows what predictions learned from measured runs (`tunecast runs`): how much longer or shorter steps were than
predicted, by card, stack, model and host, and which runs do not count and why. This is not `tunecast calibrate`, which
measures this machine's GPU in under two minutes. Both are used; --no-calibration (predict, plan, fit, compare) ignores
both.

  show        show what was learned, and from which runs; --gpu: for one card
  diff JOB    predict a job with and without it; --since DAY: also with what runs before that day had taught
  reset       stop counting earlier runs, of one card or --all; they stay in the store, and --undo reverts the reset"""
EPILOG = """\
examples:
  tunecast calibration show
  tunecast calibration diff job.yaml --gpu rtx-4090
  tunecast calibration reset --gpu rtx-4090           after a new cooler
  tunecast calibration reset --gpu rtx-4090 --undo
"""
SHORT = (*COMMON, "--set", "--since", "--all", "--undo", "--json", "--help-all")
TAKES: Mapping[str, frozenset[str]] = {
    "show": frozenset(),
    "diff": frozenset({"since"}),
    "reset": frozenset({"all", "undo"}),
}
"""Flags of each action beside --gpu and --json."""


def parser() -> Parser:
    made = Parser("calibration", USAGE, DESCRIPTION, EPILOG, SHORT)
    made.add_argument("words", metavar="ACTION", nargs="*", help=f"{', '.join(TAKES)} (default: show)")
    made.add_argument(
        "--since", metavar="DAY", help="diff: also with what runs before that day had taught: a day, or 30d"
    )
    made.add_argument("--all", action="store_true", help="reset: for every card")
    made.add_argument("--undo", action="store_true", help="reset: revert the last reset")
    add_json_flag(made)
    add_job_flags(made)
    return made


def run(argv: Sequence[str]) -> int:
    arguments = parser().read(argv)
    action, *rest = arguments.words or ["show"]
    if action not in TAKES:
        raise UsageError(f"got {action[:64]!r}; allowed: {', '.join(TAKES)}{nearest_hint(action, TAKES)}")
    overrides = overrides_from(arguments)
    _check(action, rest, arguments, overrides)
    gpu = overrides.get("hardware.gpu")
    card = None if gpu is None else str(gpu)
    if action == "show":
        shown = calibration(card)
        print_answer(shown, arguments, lambda terminal: calibration_text(shown.to_dict()))
    elif action == "diff":
        diff = diff_calibration(rest[0], overrides, since=_moment(arguments.since))
        print_answer(diff, arguments, lambda terminal: diff_text(diff.to_dict()))
    else:
        done = reset_calibration(card, everything=arguments.all, undo=arguments.undo)
        print_answer(done, arguments, lambda terminal: reset_text(done.to_dict()))
    return 0


def _check(action: str, rest: Sequence[str], arguments: argparse.Namespace, overrides: Mapping[str, object]) -> None:
    given = {name for name in ("since", "all", "undo") if getattr(arguments, name)}
    for name in sorted(given - TAKES[action]):
        raise UsageError(f"--{name}: not for calibration {action}", field=f"--{name}")
    wanted = int(action == "diff")
    if len(rest) != wanted:
        needs = "one JOB" if wanted else "nothing more"
        raise UsageError(
            f"calibration {action}: got {len(rest)} words; allowed: {needs}. See tunecast calibration --help"
        )
    others = sorted(set(overrides) - {"hardware.gpu"})
    if action != "diff" and others:
        raise UsageError(f"{others[0]}: not for calibration {action}; it belongs to calibration diff", field=others[0])


def _moment(since: str | None) -> str | None:
    if since is None:
        return None
    from tunecast.learn.runs_store.rows import moment_of, now_text

    return moment_of(since, now_text(), "--since")
