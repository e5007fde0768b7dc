"""`tunecast diff [PATH...]`: what changed training files of a git repository need and cost now, and did before."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from tunecast.cli.answers import print_answer
from tunecast.cli.arguments import Parser, add_json_flag, count
from tunecast.cli.files import require_writable
from tunecast.cli.plan import duration
from tunecast.door.diff import diff
from tunecast.errors import DoesNotFit, NotResolved
from tunecast.job.writer import write_file
from tunecast.planning.file_changes import FileChanges
from tunecast.report.lists.diff import diff_markdown, diff_text, headline

USAGE = "tunecast diff [PATH...] [--base REVISION] [options]"
DESCRIPTION = """\
Shows, for every training file that changed in a git repository, memory, time and cost before and now, and which fields
changed. Compares the last commit with the working tree, or what --base and --staged say. Nothing is checked out and no
file is executed."""
EPILOG = """\
examples:
  tunecast diff --gpu rtx-4090                       what edits since the last commit do
  tunecast diff --base main                          what this branch changed since it left main
  tunecast diff --base v1..v2 configs                two revisions, one folder
  tunecast diff --staged --fail-on does-not-fit      before a commit: exit code 3 if a file does not fit
  tunecast diff --base origin/main --md diff.md      as Markdown, for a pull request

A file names its card in a comment, # tunecast: gpu=rtx-4090 gpus=2 within=6h eu budget=50, which wins over --gpu; both
win over the keys of the file. Files that do not say how they are launched, their model or their card are reported with
the remedy and fail nothing. Files next to them (DeepSpeed's, accelerate's) are read from the same revision, and a
training file also counts as changed if a file that it names did.
"""
SHORT = (
    *("--base", "--staged", "--gpu", "--gpus", "--plan", "--quick", "--fail-on", "--short", "--json", "--md"),
    "--help-all",
)
"""Flags that --help shows."""
FAILURES = {"does-not-fit": ("does not fit",), "may-not-fit": ("does not fit", "may not fit")}
"""By what --fail-on says: verdicts that fail."""
NEVER, ANY = "never", "any"


def parser() -> Parser:
    made = Parser("diff", USAGE, DESCRIPTION, EPILOG, SHORT)
    made.add_argument("paths", metavar="PATH", nargs="*", help="files or folders (default: the whole repository)")
    which = made.add_argument_group("what is compared")
    which.add_argument(
        "--base", metavar="REVISION",
        help="branch, tag or commit: changes since the current branch left it; or A..B or A...B, as in git; default: "
        "the last commit",
    )  # fmt: skip
    which.add_argument(
        "--staged", action="store_true",
        help="staged changes instead of the working tree; under pre-commit's --from-ref, those revisions",
    )  # fmt: skip
    job = made.add_argument_group("the card and the machines")
    job.add_argument("--gpu", metavar="NAME", help="card for files whose comment names none")
    job.add_argument("--gpus", metavar="N", type=count, help="cards per machine, for files whose comment does not say")
    job.add_argument(
        "--plan", action="store_true", help="also the cheapest plan for each file; takes some seconds more per file"
    )
    job.add_argument("--within", metavar="TIME", type=duration, help="with --plan: deadline, such as 6h")
    job.add_argument("--eu", action="store_true", help="with --plan: only machines certain to be in the EU")
    output = made.add_argument_group("output")
    output.add_argument(
        "--quick", action="store_true", help="only the memory, of files as they are now; several times as fast"
    )
    output.add_argument(
        "--fail-on", metavar="WHAT", choices=(NEVER, *FAILURES, ANY), default=NEVER,
        help=f"exit code 3 if a file {' or '.join(FAILURES)}; {ANY}: also 5 if one has no answer; default: {NEVER}",
    )  # fmt: skip
    output.add_argument("--short", action="store_true", help="one line instead of the whole answer")
    add_json_flag(output)
    output.add_argument("--md", metavar="FILE", help="write it as Markdown, for a pull request")
    return made


def run(argv: Sequence[str]) -> int:
    arguments = parser().read(argv)
    require_writable("--md", arguments.md)
    base, staged = arguments.base, arguments.staged
    if staged and base is None and (asked := pre_commit_range()) is not None:
        base, staged = asked, False
    found = diff(
        base, arguments.paths, staged=staged, gpu=arguments.gpu, gpus=arguments.gpus, plan=arguments.plan,
        within=arguments.within, eu=arguments.eu, quick=arguments.quick,
    )  # fmt: skip
    print_answer(found, arguments, partial(diff_text, found), lambda: f"{headline(found)}\n")
    if arguments.md is not None:
        write_file(Path(arguments.md), diff_markdown(found), flag="--md")
    return exit_code(found, arguments.fail_on)


def pre_commit_range() -> str | None:
    """What `pre-commit run --from-ref A --to-ref B` tells its hooks."""
    old, new = (os.environ.get(f"PRE_COMMIT_{end}_REF") for end in ("FROM", "TO"))
    return f"{old}...{new}" if old and new else None


def exit_code(found: FileChanges, fail_on: str) -> int:
    if found.with_verdict(*FAILURES.get(fail_on, FAILURES["may-not-fit"] if fail_on == ANY else ())):
        return DoesNotFit.exit_code
    unknown = any(file.problem is not None for file in found.files) or found.left_out
    return NotResolved.exit_code if fail_on == ANY and unknown else 0
