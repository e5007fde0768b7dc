"""`tunecast runs compare JOB`: the measured runs nearest to a job, and how far their predictions were off."""

from __future__ import annotations

from collections.abc import Sequence

from tunecast.cli.answers import print_answer
from tunecast.cli.arguments import Parser, add_json_flag
from tunecast.door.learned import compare_with_runs
from tunecast.job.flags import COMMON, add_job_flags, overrides_from
from tunecast.report.runs.learned import nearest_text

USAGE = "tunecast runs compare JOB [options]"
DESCRIPTION = """\
Shows the measured runs most like a job, among those that come with tunecast and in your store, and how far off their
predictions were: measured over predicted, the middle 80 %. Memory is compared with runs of the same family of stacks,
time with runs on the same card. Runs are alike in card, stack, number of cards, precision, method, task, model size,
tokens per micro-batch and recomputation (docs/learning.md)."""
EPILOG = """\
examples:
  tunecast runs compare job.yaml
  tunecast runs compare llama-3.1-8b --method lora --gpu h200 --details
"""
SHORT = (*COMMON, "--set", "--details", "--json", "--help-all")


def parser() -> Parser:
    made = Parser("runs compare", USAGE, DESCRIPTION, EPILOG, SHORT)
    made.add_argument("job", metavar="JOB", help="the file you train with, a job file, or a model")
    made.add_argument("--details", action="store_true", help="list the runs")
    add_json_flag(made)
    add_job_flags(made)
    return made


def run(argv: Sequence[str]) -> int:
    arguments = parser().read(argv)
    found = compare_with_runs(arguments.job, overrides_from(arguments))
    print_answer(found, arguments, lambda terminal: nearest_text(found.to_dict(), details=arguments.details))
    return 0
