"""`tunecast plan -- train.py`: which machines to rent for a script, at what total cost."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from tunecast.cli.arguments import Parser, add_tracing_flags, count
from tunecast.cli.plan import EPILOG, add_question_flags, answer, plan_options, require_files
from tunecast.cli.terminal import Progress
from tunecast.cli.trace import add_script_flags, split_command, traced
from tunecast.door.script_plan import ScriptPlanner
from tunecast.hardware.spec import card_name
from tunecast.planning.script_plan import MOST_TRACES

USAGE = "tunecast plan [options] -- train.py ARGS..."
DESCRIPTION = """\
Finds which machines to rent for your own training script, how long it takes there and what it costs in total. The
script is traced once, without a GPU, and its operations are priced on every card for rent; picks whose kernels differ
are traced again as on their own cards. The script is not changed (tunecast fit -- train.py proposes changes), and it
runs on as many cards as it is launched on. The number of steps comes from its trainer, or from --total-steps."""


def parser() -> Parser:
    """Of `tunecast plan [options] -- train.py`."""
    made = Parser("plan", USAGE, DESCRIPTION, EPILOG)
    add_question_flags(made)
    script = made.add_argument_group("the script")
    add_script_flags(script)
    script.add_argument(
        "--traces", metavar="N", type=traces, default=MOST_TRACES,
        help=f"most further cards to trace it on: those that are picked (default: {MOST_TRACES})",
    )  # fmt: skip
    add_tracing_flags(made)
    return made


def traces(text: str) -> int:
    return 0 if text == "0" else count(text, ", or 0")


def run(argv: Sequence[str]) -> int:
    """Of a script: traced, then planned, and its picks traced on their own cards."""
    options, command = split_command(argv)
    arguments = parser().read(options)
    require_files(arguments)
    name = " ".join(command)
    with Progress(f"tracing {name}", aside=True) as progress:
        found = traced(command, arguments, arguments.gpu, progress)
    with Progress(f"tracing {name} on other cards", aside=True) as progress:

        def tell(card: str) -> None:
            if not arguments.quiet:
                print(f"tunecast: tracing on {card_name(card)}", file=sys.stderr)

        planner = ScriptPlanner(found, plan_options(arguments), tell, progress)
        plan = planner.plan(front_in_full=arguments.html is not None)
    return answer(plan, arguments, argv, None)
