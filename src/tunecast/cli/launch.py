"""`tunecast launch JOB --on slurm`: a job, a plan or a trainer's file, started; `--dry-run` shows what would be."""

from __future__ import annotations

from collections.abc import Sequence

from tunecast.cli.answers import print_answer
from tunecast.cli.arguments import Parser, add_json_flag
from tunecast.cli.read import values_from
from tunecast.door.launch import launch
from tunecast.errors import UsageError
from tunecast.job.flags import add_job_flags, overrides_from
from tunecast.launching.rendering import Rendering
from tunecast.report.lists.launch import launched_text, rendering_text

USAGE = "tunecast launch JOB --on ENGINE [options]"
DESCRIPTION = """\
Starts a job on an engine. The training program is not tunecast's: a file you train with is started as it is, other
values going on its command line; a job is rendered for TRL, Axolotl or LLaMA-Factory (--stack), with the settings of
the prediction and no others and the releases that were predicted. What was rendered is read back first, and refused
where it would train another job.

--dry-run shows every file and command, and starts nothing; --out writes the files. A job without data (--data-path) is
shown with a placeholder, and not started. Tokens and keys stay in the environment and with the engine."""
EPILOG = """\
examples:
  tunecast launch llama-3.1-8b --method lora --stack trl --gpu h100 --on slurm --dry-run
  tunecast launch job.yaml --data-path train.jsonl --on slurm --option partition=gpu --option gres=gpu:h100:8
  tunecast plan job.yaml --json > plan.json && tunecast launch plan.json --on slurm
  tunecast launch axolotl.yml --gpu h100 --gpus 1 --micro-batch 2 --on local    a file you train with, as it is
  tunecast launch job.yaml --on local --with learning_rate=2e-4          a setting that moves no memory
  tunecast jobs; tunecast logs ID; tunecast cancel ID
"""
SHORT = (
    *("--on", "--dry-run", "--out", "--option", "--with", "--cpu", "--again", "--json", "--data-path", "--stack"),
    *("--method", "--rank", "--seq-len", "--micro-batch", "--grad-accum", "--gpu", "--gpus", "--set", "--help-all"),
)
"""Flags that --help shows."""


def parser() -> Parser:
    made = Parser("launch", USAGE, DESCRIPTION, EPILOG, SHORT)
    made.add_argument(
        "source", metavar="JOB", help="the file you train with, a job file, what `plan --json` wrote, or a model"
    )
    made.add_argument("--on", metavar="ENGINE", required=True, help="local, slurm or ssh:HOST")
    made.add_argument("--dry-run", action="store_true", help="show every file and command, and start nothing")
    made.add_argument("--out", metavar="DIR", help="write the files there")
    made.add_argument(
        "--option", metavar="KEY=VALUE", action="append", default=[], help="of the engine, such as partition=gpu"
    )
    made.add_argument(
        "--with", metavar="KEY=VALUE", action="append", default=[], dest="extra",
        help="a further setting of the trainer's, such as learning_rate=2e-4",
    )  # fmt: skip
    made.add_argument("--cpu", action="store_true", default=None, help="without cards, as a rehearsal")
    made.add_argument("--again", action="store_true", help="start it also where the same is running already")
    add_json_flag(made)
    add_job_flags(made)
    return made


def run(argv: Sequence[str]) -> int:
    arguments = parser().read(argv)
    found = launch(
        arguments.source,
        overrides_from(arguments),
        on=arguments.on,
        dry_run=arguments.dry_run,
        out=arguments.out,
        again=arguments.again,
        cpu=arguments.cpu,
        options=options_from(arguments.option),
        extra=values_from(arguments.extra),
    )
    if isinstance(found, Rendering):
        print_answer(found, arguments, lambda terminal: rendering_text(found))
    else:
        print_answer(found, arguments, lambda terminal: launched_text(found))
    return 0


def options_from(words: Sequence[str]) -> dict[str, str]:
    for word in words:
        if "=" not in word:
            raise UsageError(f"--option: got {word[:80]!r}; allowed: KEY=VALUE, such as partition=gpu", field="option")
    return {name: value for name, _, value in (word.partition("=") for word in words)}
