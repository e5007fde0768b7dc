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
Runs a program as it is: its input, output, signals and exit code are its own. The cards are looked at from outside
(NVML); a Python program that uses transformers' Trainer (TRL, Axolotl, LLaMA-Factory) is measured from inside too: peak
memory by phase, step times, waiting for data, tokens and padding, loss. With the JOB that it trains (a file, or a model
with flags) one line on stderr compares it with the prediction, and says when it leaves its range, and why. What was
measured is kept in the store (`tunecast runs`); no path, text, host or user name is."""
EPILOG = """\
examples:
  tunecast watch -- python train.py
  tunecast watch axolotl.yml --gpu h100 --gpus 1 -- axolotl train axolotl.yml
  tunecast watch job.yaml --within 6h -- torchrun --nproc-per-node 8 train.py      saves and ends in time
  tunecast watch --budget 20 --usd-per-hour 2.5 -- accelerate launch train.py      the same, by money

A limit is kept by asking the Trainer to save and to end; a program without one gets SIGTERM when the limit is reached.
"""
SHORT = (*COMMON, "--within", "--budget", "--usd-per-hour", "--set", "--help-all")
"""Flags that --help shows."""


def parser() -> Parser:
    made = Parser("watch", USAGE, DESCRIPTION, EPILOG, SHORT)
    made.add_argument("source", metavar="JOB", nargs="?", help="what it trains: the file you train with, or a model")
    made.add_argument("--within", metavar="TIME", type=duration, help="save and end by then, such as 6h")
    made.add_argument(
        "--budget", metavar="USD", type=number(0, 1e9, "dollars"), help="save and end before it costs more"
    )
    made.add_argument("--usd-per-hour", metavar="USD", type=number(0, 1e6, "dollars"), help="of all machines together")
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
