"""`tunecast runs [list|show|compare|export|import|publish|prune]`: what was measured, and how near predictions were."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tunecast.cli.arguments import Parser, add_json_flag, count
from tunecast.cli.terminal import terminal_of
from tunecast.door.runs import exported_lines, import_file, plotted_runs, prune, publish, run_of, runs
from tunecast.errors import UsageError, nearest_hint
from tunecast.job.names import METHODS
from tunecast.learn.record import STATES
from tunecast.learn.recordable import ran_as_planned
from tunecast.learn.runs_store.rows import RunFilters, filters_from, now_text
from tunecast.report.runs.text import imported_text, published_text, run_text, runs_text

USAGE = "tunecast runs [list] | show ID | compare JOB | export | import FILE | publish | prune --keep 365d   [options]"
DESCRIPTION = """\
Measured runs: memory and time, next to what was predicted, newest first. They are kept in one file, or on a PostgreSQL
server: TUNECAST_STORE=postgresql://USER@HOST/DATABASE. Paths, data, host and user names are not recorded.

  list        list stored runs, and how close predictions were; --plot and --html draw it
  show ID     show one run in full; the first digits of its id are enough
  compare JOB compare a job with the measured runs most like it (runs compare --help)
  export      write JSON Lines, to stdout or --out FILE; --shipped: the runs that come with tunecast
  import FILE read such a file (- is stdin); runs already stored are skipped, lines that are not runs are reported
  publish     write an anonymised file for others to --out FILE; without it, show what it would hold. Sends nothing
  prune       delete runs that began longer ago than --keep 365d, or before a day"""
EPILOG = """\
examples:
  tunecast runs
  tunecast runs --gpu h100 --method qlora --since 30d --plot
  tunecast runs show 4f1c0a2b --json | jq .memory
  tunecast runs export --state done --out runs.jsonl
  tunecast runs publish --out for-everybody.jsonl
"""
SHOWN = 30
FILTERS = frozenset({"gpu", "model", "method", "state", "since"})
TAKES: Mapping[str, frozenset[str]] = {
    "list": FILTERS | {"limit", "json", "html", "plot"},
    "show": frozenset({"json"}),
    "export": FILTERS | {"out", "shipped"},
    "import": frozenset({"json"}),
    "publish": FILTERS | {"out", "json"},
    "prune": frozenset({"keep", "dry_run", "json"}),
}
"""Flags of each action."""
WORDS = {"show": "ID", "import": "FILE"}
"""Actions that need a word of their own."""


def parser() -> Parser:
    made = Parser("runs", USAGE, DESCRIPTION, EPILOG)
    made.add_argument("words", metavar="ACTION", nargs="*", help=f"{', '.join(TAKES)} (default: list)")
    group = made.add_argument_group("which runs")
    group.add_argument("--gpu", metavar="NAME", help="only runs on this card")
    group.add_argument("--model", metavar="NAME", help="only runs of this model: a bundled name or a Hub id")
    group.add_argument("--method", choices=METHODS, help="only runs with this method")
    group.add_argument("--state", choices=STATES, help="only runs in this state")
    group.add_argument("--since", metavar="WHEN", help="only runs that began since: a day, or 30d, 8w, 1y")
    group.add_argument("--limit", metavar="N", type=count, help=f"most runs to list (default: {SHOWN}; --json: all)")
    add_json_flag(made)
    made.add_argument("--plot", action="store_true", help="plot predicted against measured, in the terminal")
    made.add_argument("--html", metavar="FILE", help="write the same as an HTML page")
    made.add_argument("--out", metavar="FILE", help="export and publish: write to this file")
    made.add_argument("--shipped", action="store_true", help="export: the runs that come with tunecast")
    made.add_argument("--keep", metavar="HOW-LONG", help="prune: keep runs this recent: 365d, 2y, or since a day")
    made.add_argument("--dry-run", action="store_true", help="prune: only count what would be deleted")
    return made


def run(argv: Sequence[str]) -> int:
    if argv[:1] == ["compare"]:  # takes a job's flags, of which some are called as those of runs are
        from tunecast.cli.runs_compare import run as compare

        return compare(argv[1:])
    arguments = parser().read(argv)
    action, *rest = arguments.words or ["list"]
    if action not in TAKES:
        raise UsageError(f"got {action[:64]!r}; allowed: {', '.join(TAKES)}{nearest_hint(action, TAKES)}")
    _refuse_flags(action, arguments)
    wanted = 1 if action in WORDS else 0
    if len(rest) != wanted:
        needs = f"one {WORDS[action]}" if wanted else "nothing more"
        raise UsageError(f"runs {action}: got {len(rest)} words; allowed: {needs}. See tunecast runs --help")
    return ACTIONS[action](arguments, rest[0] if rest else "", argv)


def _refuse_flags(action: str, arguments: argparse.Namespace) -> None:
    given = {name for name, value in vars(arguments).items() if name != "words" and value not in (None, False)}
    for name in sorted(given - TAKES[action]):
        others = ", ".join(f"runs {each}" for each, takes in TAKES.items() if name in takes)
        flag = f"--{name.replace('_', '-')}"
        raise UsageError(f"{flag}: not for runs {action}; it belongs to {others}", field=flag)


def _require_writable(flag: str, name: str | None) -> None:
    if name is not None:
        from tunecast.cli.files import require_writable  # it loads what draws pages

        require_writable(flag, name)


def _filters(arguments: argparse.Namespace) -> RunFilters:
    return filters_from(**{name: getattr(arguments, name) for name in FILTERS}, now=now_text())


def _list(arguments: argparse.Namespace, word: str, argv: Sequence[str]) -> int:
    _require_writable("--html", arguments.html)
    limit = arguments.limit or (None if arguments.json else SHOWN)
    found = runs(**{name: getattr(arguments, name) for name in FILTERS}, limit=limit)
    plotted = plotted_runs(_filters(arguments)) if arguments.html or arguments.plot else []
    if arguments.html:
        from tunecast.cli.pages import provenance
        from tunecast.job.writer import write_file
        from tunecast.report.runs.plot import runs_page

        write_file(Path(arguments.html), runs_page(found.shown(), plotted, provenance("runs", argv)), flag="--html")
    if arguments.json:
        print(json.dumps(found.to_dict()), flush=True)
        return 0
    terminal = terminal_of(sys.stdout)
    text = runs_text(found.shown(), terminal)
    if arguments.plot:
        from tunecast.report.runs.plot import plot_text

        text += f"\n{plot_text(plotted, terminal)}"
    print(text, end="", flush=True)
    return 0


def _show(arguments: argparse.Namespace, word: str, argv: Sequence[str]) -> int:
    told = run_of(word).to_dict()
    if arguments.json:
        print(json.dumps(told), flush=True)
        return 0
    planned = ran_as_planned(told["job"] or {}, told["hardware"] or {})
    print(run_text(told, terminal_of(sys.stdout), as_planned=planned), end="", flush=True)
    return 0


def _export(arguments: argparse.Namespace, word: str, argv: Sequence[str]) -> int:
    lines = exported_lines(_filters(arguments), shipped=arguments.shipped)
    if arguments.out is not None:
        from tunecast.job.writer import write_file

        _require_writable("--out", arguments.out)
        write_file(Path(arguments.out), lines, flag="--out")
    else:
        for line in lines:
            print(line, end="")
        sys.stdout.flush()
    return 0


def _import(arguments: argparse.Namespace, word: str, argv: Sequence[str]) -> int:
    """Exit code 2 where a line was no run: all others are stored."""
    told = import_file(word).to_dict()
    print(json.dumps(told) + "\n" if arguments.json else imported_text(told, word), end="", flush=True)
    return UsageError.exit_code if told["bad_lines"] else 0


def _publish(arguments: argparse.Namespace, word: str, argv: Sequence[str]) -> int:
    """Exit code 2 where a run was refused: all others are in the file."""
    _require_writable("--out", arguments.out)
    told = publish(_filters(arguments), arguments.out).to_dict()
    print(json.dumps(told) + "\n" if arguments.json else published_text(told), end="", flush=True)
    return UsageError.exit_code if told["refused"] else 0


def _prune(arguments: argparse.Namespace, word: str, argv: Sequence[str]) -> int:
    if arguments.keep is None:
        raise UsageError("runs prune: needs --keep, such as --keep 365d", field="--keep")
    number = prune(arguments.keep, dry_run=arguments.dry_run)
    verb = "would be forgotten" if arguments.dry_run else "forgotten"
    text = f"{number:,} {'run' if number == 1 else 'runs'} {verb}, those that began longer ago than {arguments.keep}"
    print(json.dumps({"schema": "tunecast.runs-pruned/1", "runs": number}) if arguments.json else text, flush=True)
    return 0


ACTIONS: Mapping[str, Callable[[argparse.Namespace, str, Sequence[str]], int]] = {
    "list": _list, "show": _show, "export": _export, "import": _import, "publish": _publish, "prune": _prune,
}  # fmt: skip
