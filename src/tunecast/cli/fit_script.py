"""`tunecast fit --gpu 4090 -- train.py`: the smallest changes to a script's own arguments after which it fits."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial

from tunecast.advise.script_ladder import ALLOWED_OF_SCRIPTS, Sets
from tunecast.cli.answers import print_answer
from tunecast.cli.arguments import Parser, add_json_flag, add_tracing_flags
from tunecast.cli.fit import EPILOG
from tunecast.cli.plan_script import traces
from tunecast.cli.terminal import Progress
from tunecast.cli.trace import add_script_flags, split_command, title_of, traced
from tunecast.door.script_fit import allowed, fit_trace
from tunecast.door.trace import DEFAULT_GPU
from tunecast.errors import DoesNotFit, printable
from tunecast.planning.fit.script import MOST_TRACES
from tunecast.report.lists.script_fit import change_words, script_fit_short, script_fit_text

USAGE = "tunecast fit [options] -- train.py ARGS..."
DESCRIPTION = """\
Finds the smallest changes that make your own training script fit a card, least harmful first, in its own arguments:
options that argparse or HfArgumentParser parse, arguments of TrainingArguments and LoraConfig in the code, keys of a
YAML or JSON file it reads. Each is verified by tracing the script again with it. Your files are not changed."""


def parser() -> Parser:
    made = Parser("fit", USAGE, DESCRIPTION, EPILOG)
    made.add_argument("--gpu", metavar="NAME", help=f"the card that it has to fit (default: {DEFAULT_GPU})")
    made.add_argument(
        "--allow", metavar="WHAT,…", default="",
        help=f"also allow changes to what is trained: {', '.join(ALLOWED_OF_SCRIPTS)}",
    )  # fmt: skip
    made.add_argument(
        "--traces", metavar="N", type=traces, default=MOST_TRACES,
        help=f"most further traces, one for each change that is tried (default: {MOST_TRACES})",
    )  # fmt: skip
    add_script_flags(made)
    output = made.add_argument_group("output").add_mutually_exclusive_group()
    add_json_flag(output)
    output.add_argument("--short", action="store_true", help="one line instead of the whole answer")
    add_tracing_flags(made)
    return made


def run(argv: Sequence[str]) -> int:
    options, command = split_command(argv)
    arguments = parser().read(options)
    allow, name = allowed(arguments.allow), " ".join(command)
    with Progress(f"tracing {name}", aside=True) as progress:
        found = traced(command, arguments, arguments.gpu, progress)
    with Progress(f"tracing {name} with changes", aside=True) as progress:

        def tell(sets: Sets) -> None:
            what = ", ".join(change_words(each) for each in sets)
            print(printable(f"tunecast: tracing with {what}"), file=sys.stderr)

        fitted = fit_trace(found, allow=allow, traces=arguments.traces, tell=tell, progress=progress)
    title = title_of(found)
    text = partial(script_fit_text, fitted, title, command)
    print_answer(fitted, arguments, text, partial(script_fit_short, fitted, title))
    return 0 if fitted.fits else DoesNotFit.exit_code
