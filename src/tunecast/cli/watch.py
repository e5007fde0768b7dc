"""`tunecast watch [JOB] -- COMMAND`: any program, run as it is and measured."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from tunecast.cli.arguments import Parser, number
from tunecast.cli.plan import duration
from tunecast.cli.trace import split_command
from tunecast.door.watch import watch
from tunecast.job.flags import COMMON, add_job_flags, overrides_from

USAGE = "tunecast watch [JOB] [options] -- COMMAND..."
DESCRIPTION = """\
Runs a program as it is: its input, output, signals and exit code are its own. The cards are measured from outside
(NVML); a Python program that uses transformers' Trainer (TRL, Axolotl, LLaMA-Factory) is also measured from inside:
peak memory by phase, step times, waiting for data, tokens and padding, loss. With the JOB that it trains (a file, or a
model with flags), one line on stderr compares it with the prediction, and says when it leaves the predicted range, and
why. Measurements are kept in the store (`tunecast runs`), without paths, text, host or user names."""
EPILOG = """\
examples:
  tunecast watch -- python train.py
  tunecast watch axolotl.yml --gpu h100 --gpus 1 -- axolotl train axolotl.yml
  tunecast watch job.yaml --within 6h -- torchrun --nproc-per-node 8 train.py      saves and stops in time
  tunecast watch --budget 20 --usd-per-hour 2.5 -- accelerate launch train.py      the same, by cost

To keep a limit, the Trainer is asked to save and stop; a program without a Trainer gets SIGTERM at the limit.
"""
SHORT = (*COMMON, "--within", "--budget", "--usd-per-hour", "--set", "--help-all")
"""Flags that --help shows."""


def parser() -> Parser:
    made = Parser("watch", USAGE, DESCRIPTION, EPILOG, SHORT)
    made.add_argument("source", metavar="JOB", nargs="?", help="what it trains: the file you train with, or a model")
    made.add_argument("--within", metavar="TIME", type=duration, help="save and stop within this time, such as 6h")
    made.add_argument(
        "--budget",
        metavar="USD",
        type=number(0, 1e9, "dollars"),
        help="save and stop before it costs more, with --usd-per-hour",
    )
    made.add_argument(
        "--usd-per-hour", metavar="USD", type=number(0, 1e6, "dollars"), help="price of all machines together"
    )
    add_job_flags(made)
    return made


def run(argv: Sequence[str]) -> int:
    words, command = split_command(argv, USAGE)
    arguments = parser().read(words)
    found = watch(
        command,
        arguments.source,
        overrides_from(arguments),
        within_s=arguments.within,
        budget_usd=arguments.budget,
        usd_per_hour=arguments.usd_per_hour,
        told=sys.stderr,
    )
    return found.exit_code
