"""Which command is meant, and how it ends: an exit code, and at most a few plain lines on stderr."""

from __future__ import annotations

import contextlib
import errno
import gc
import io
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import NoReturn, TypeGuard

from tunecast import __version__
from tunecast.errors import DEBUG, NotResolved, TunecastError, UsageError, internal_error

INTERRUPTED = 130
BROKEN_PIPE = 141
UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF, errno.ENXIO)
"""A full disk or quota, a file at its limit, a device that fails, a stream that is closed."""
GARBAGE_OBJECTS = 100_000
"""New ones before Python looks for cycles among them. A command builds what it keeps: at Python's own 700 it looked 56
times in a prediction of an 8B job and gave back 2,700 objects, for a twelfth of the time."""


class Command:
    def __init__(self, summary: str, example: str) -> None:
        self.summary, self.example = summary, example

    @property
    def module(self) -> str:
        """`tunecast.cli.explain_oom` of `tunecast explain-oom …`."""
        return f"tunecast.cli.{self.example.split()[1].replace('-', '_')}"


COMMANDS: Mapping[str, Command] = {
    "plan": Command(
        "find which machines to rent for a fine-tuning job, where, with which settings, at what total cost",
        "tunecast plan llama-3.1-8b --method lora --within 6h --eu",
    ),
    "predict": Command(
        "predict the GPU memory a fine-tuning job needs, whether it fits, and how long it takes",
        "tunecast predict llama-3.1-8b --method qlora --seq-len 2048 --micro-batch 1 --gpu rtx-4090",
    ),
    "read": Command(
        "show the job in the file you train with: what it says, what is assumed, what was not understood",
        "tunecast read config.yaml",
    ),
    "fit": Command(
        "find the smallest changes that make a job fit its card, or run faster, as a patch to its file",
        "tunecast fit job.yaml --gpu rtx-4090",
    ),
    "trace": Command(
        "predict the GPU memory and time of your own training script, line by line, without a GPU",
        "tunecast trace --gpu a100-sxm-80gb -- train.py --epochs 3",
    ),
    "launch": Command(
        "start a job, a plan or your training file: here, by ssh, on Slurm, Kubernetes, SkyPilot, dstack or lyceum",
        "tunecast launch llama-3.1-8b --method lora --stack trl --gpu h100 --on slurm --dry-run",
    ),
    "watch": Command(
        "run any training program, measure it, and compare it with its prediction",
        "tunecast watch train.yaml --gpu h100 -- accelerate launch train.py",
    ),
    "jobs": Command("list the jobs launched from this machine, with their state", "tunecast jobs"),
    "logs": Command("print what a launched job wrote so far", "tunecast logs ID --follow"),
    "cancel": Command("stop a launched job", "tunecast cancel ID"),
    "runs": Command(
        "list measured runs, and how close predictions were; export, import and publish them",
        "tunecast runs --gpu h100 --since 30d",
    ),
    "largest": Command(
        "find the longest sequence, the largest batch and the largest model that fit a card",
        "tunecast largest llama-3.1-8b --method qlora --gpu rtx-4090",
    ),
    "compare": Command(
        "show what differs between two jobs, and what each difference costs",
        "tunecast compare before.yaml after.yaml",
    ),
    "diff": Command(
        "show what changed training files in a git repository need and cost, before and now",
        "tunecast diff --base main --gpu rtx-4090",
    ),
    "explain-oom": Command(
        "explain what filled the card when PyTorch ran out of memory, and what to change",
        "tunecast explain-oom job.yaml train.log",
    ),
    "data": Command(
        "measure training data: how many samples and tokens, how long they are, what is cut and padded",
        "tunecast data train.jsonl --seq-len 2048 --micro-batch 4",
    ),
    "models": Command(
        "list the bundled models: sizes, parameters, Hub ids",
        "tunecast models qwen3 8b",
    ),
    "gpus": Command(
        "list the cards a job can name, with the memory that torch sees",
        "tunecast gpus --min-memory 40GB",
    ),
    "nodes": Command(
        "list machines, the links between their cards, and the bandwidth each card gets",
        "tunecast nodes aws h100",
    ),
    "offers": Command(
        "list what machines cost, where they are and under whose law, with the date and source of each price",
        "tunecast offers h100 sxm --gpus 8 --eu",
    ),
    "calibrate": Command(
        "measure this machine's GPU; predictions for it then use its own figures",
        "tunecast calibrate",
    ),
    "calibration": Command(
        "show what predictions learned from measured runs, see what it changes, reset it",
        "tunecast calibration show",
    ),
    "serve": Command(
        "serve a web page to plan a fine-tune on, and its HTTP API, on this machine",
        "tunecast serve",
    ),
    "lsp": Command(
        "run the language server, which shows in the editor whether a run fits and what each key costs",
        "tunecast lsp",
    ),
    "completion": Command(
        "print a script that completes commands, flags, models and cards in bash, zsh or fish",
        "tunecast completion bash > ~/.local/share/bash-completion/completions/tunecast",
    ),
}


def help_text() -> str:
    width = max(map(len, COMMANDS))
    purpose = "What to rent for a fine-tuning job, what it needs and what it costs, before it runs and without a GPU."
    lines = ["usage: tunecast COMMAND ...", "", purpose]
    for name, command in COMMANDS.items():
        lines += ["", f"  {name:<{width}}  {command.summary}", f"  {'':<{width}}  $ {command.example}"]
    lines += [
        "",
        "  tunecast COMMAND --help       its usual options; where there are more, --help-all has every one of them",
        "  tunecast --version            the version",
        "",
        "Exit codes: 0 done, and it fits; 1 internal error; 2 wrong usage; 3 it does not fit, or nothing satisfies the",
        "request; 4 over the budget or the deadline; 5 a model, file or configuration could not be resolved, an answer",
        "or file could not be written, or a traced script failed or reached a limit; 130 interrupted; 141 stdout was",
        "closed by its reader; 143 terminated. Results go to stdout, everything else to stderr.",
    ]
    return "\n".join(lines)


def command() -> NoReturn:
    """A process of its own: what a command needs of it is set here, and here alone.

    At its end all is said, and nothing is left open. Taking apart what the command built, object by
    object, would take a tenth as long as the command; a profiler that waits for the end gets its turn."""
    gc.set_threshold(GARBAGE_OBJECTS, 20)
    if sys.argv[1:2] in (["plan"], ["fit"]):
        gc.disable()  # they keep what they build until the end: looking for cycles in it takes a fifth of the time
    signal.signal(signal.SIGTERM, _terminate)
    if sys.stderr is None:  # closed by whoever started us: what would be said there is said to nobody
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115  for as long as the process lives
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a name the terminal cannot show is no reason to fail
    code = main()
    if sys.getprofile() is not None or sys.gettrace() is not None:
        sys.exit(code)
    with contextlib.suppress(OSError):
        sys.stderr.flush()
    os._exit(code)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and give its exit code; nothing but that leaves this function, and the process stays as it was."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        if sys.stdout is None:
            raise NotResolved("could not write the answer: stdout is closed")
        code = _run(arguments)
        sys.stdout.flush()
        return code
    except TunecastError as error:
        _say(f"error: {without_traceback(error.message)}")
        return error.exit_code
    except SystemExit as end:  # argparse after --help, and SIGTERM
        return end.code if isinstance(end.code, int) else 0
    except KeyboardInterrupt:
        _say("interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has gone.
        _write_no_more()
        return BROKEN_PIPE
    except Exception as error:
        if is_unwritable(error):
            _write_no_more()
            _say(f"error: could not write the answer: {os.strerror(error.errno or 0)}")
            return NotResolved.exit_code
        _say(internal_error(error))
        if os.environ.get(DEBUG):
            raise
        return TunecastError.exit_code


def without_traceback(message: str) -> str:
    """What failed inside the traced process is told by its last line; the rest is for whoever looks for the bug."""
    before, mark, after = message.partition("Traceback (most recent call last):")
    if not mark or os.environ.get(DEBUG):
        return message
    told = [line for line in after.splitlines() if line[:1].strip()]
    last = told[-1] if told and told[-1] not in before else ""
    return f"{before.strip()}{chr(10) if last else ''}{last} ({DEBUG}=1 shows where)"


def _run(arguments: list[str]) -> int:
    if not arguments:
        print(help_text(), file=sys.stderr)
        return UsageError.exit_code
    name, rest = arguments[0], arguments[1:]
    if name == "help" and rest and rest[0] in COMMANDS:
        name, rest = rest[0], ["--help"]
    if name in ("-h", "--help", "help"):
        print(help_text())
        return 0
    if name in ("-V", "-v", "--version", "version"):
        print(f"tunecast {__version__}")
        return 0
    if name not in COMMANDS:
        from tunecast.cli.hints import command_hint

        near = command_hint(name, COMMANDS)
        hint = f"; nearest: {near}" if near else ""
        raise UsageError(f"got {name!r}; allowed: {', '.join(COMMANDS)}{hint}. See tunecast --help", field="command")
    from importlib import import_module

    code: int = import_module(COMMANDS[name].module).run(rest)
    return code


def _terminate(number: int, frame: object) -> NoReturn:
    """As an exception, so that what we started is ended on the way out."""
    raise SystemExit(128 + number)


def is_unwritable(error: BaseException) -> TypeGuard[OSError]:
    """Whether what was printed found no room, or no place. Files tell their own failures, by name (job/writer.py)."""
    return isinstance(error, OSError) and error.filename is None and error.errno in UNWRITABLE


def _write_no_more() -> None:
    """Python writes what is left once more on its way out; let that go nowhere."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _say(text: str) -> None:
    with contextlib.suppress(OSError):  # where nobody can be told, the exit code is all there is
        print(f"tunecast: {text}", file=sys.stderr)
