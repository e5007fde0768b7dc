"""`tunecast data PATH`: how many samples and tokens training data has, how long they are, what a job makes of them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

from tunecast.cli.answers import print_answer
from tunecast.cli.arguments import Parser, add_json_flag
from tunecast.cli.terminal import Counting
from tunecast.door.data import data
from tunecast.job.flags import add_job_flags, overrides_from
from tunecast.report.lists.data import data_text

USAGE = "tunecast data PATH [options]"
DESCRIPTION = """\
Reads training data (a file, or a folder of them) and says how many samples and tokens it has and how long the
samples are; with settings of a job (--seq-len, --micro-batch, --packing, --gpus) also what is cut, packed and padded.
The data is read row by row and never leaves this machine."""
EPILOG = """\
examples:
  tunecast data train.jsonl
  tunecast data train.parquet --tokenizer ./Llama-3.1-8B --seq-len 4096 --packing
  tunecast data ./dataset --seq-len 2048 --micro-batch 4 --gpus 8 --json

Formats: .jsonl, .json, .csv, .tsv, .txt, each also .gz, .bz2, .xz or .zst; .parquet, .arrow and folders saved by
datasets need pip install 'tunecast[data]'. Rows: messages or conversations, prompt and completion, instruction and
output, chosen and rejected, input_ids, text. Without --tokenizer, tokens are estimated from characters, and the answer
says how accurately. A job takes the same file as data.path (--data-path).
"""
SHORT = ("--tokenizer", "--seq-len", "--micro-batch", "--grad-accum", "--packing", "--gpus", "--stack", "--json",
         "--help-all")  # fmt: skip
"""Flags that --help shows."""
AFTER_S = 1.0
MEGABYTE = 1_000_000


def parser() -> Parser:
    made = Parser("data", USAGE, DESCRIPTION, EPILOG, SHORT)
    made.add_argument("path", metavar="PATH", help="a file or a folder")
    add_json_flag(made)
    add_job_flags(made, without=("--data-path",))
    return made


def run(argv: Sequence[str]) -> int:
    arguments = parser().read(argv)
    overrides = overrides_from(arguments)
    began_s = time.monotonic()
    with Counting(f"reading {arguments.path}", "MB", after_s=AFTER_S) as counting:
        found = data(
            arguments.path,
            overrides,
            progress=lambda done, of: counting(time.monotonic() - began_s, done // MEGABYTE, of // MEGABYTE),
        )
    print_answer(found, arguments, partial(data_text, found))
    return 0
