"""`tunecast trace -- train.py`: an unmodified script, run by the user's own interpreter on a card that is not there."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial

from tunecast.cli.answers import print_answer
from tunecast.cli.arguments import Parser, add_output_flags, add_tracing_flags, count, limits_from, number, size
from tunecast.cli.files import require_writable, write_asked
from tunecast.cli.pages import provenance
from tunecast.cli.terminal import Progress, terminal_of
from tunecast.door.script_words import NO_TIME
from tunecast.door.trace import DEFAULT_GPU, ScriptTrace, trace
from tunecast.errors import DoesNotFit, NotResolved, UsageError, printable_lines
from tunecast.hardware.spec import card_name
from tunecast.prediction.evidence import evidence_for
from tunecast.records import replace
from tunecast.report.page.job import PageExtras
from tunecast.report.run.answer import Sections, answer_text, details_text
from tunecast.report.run.evidence import trust
from tunecast.report.run.time import time_text
from tunecast.report.run.verdict import short_line
from tunecast.tape.trace.secrets import without_secrets
from tunecast.units import GIB, gib

USAGE = "tunecast trace [options] -- train.py ARGS..."
DESCRIPTION = """\
Predicts the GPU memory and time of your own training script. It runs to its end on tensors without contents, and every
allocation is recorded with the line that made it; steps like those already traced are replayed. Needs torch 2.8 or
newer, but no GPU, no weights and no network, and writes nothing into your folders. Plain loops, Trainer, TRL,
accelerate, DeepSpeed, Lightning. Launchers and shell scripts after -- are parsed, not run."""
EPILOG = """\
examples:
  tunecast trace -- train.py --epochs 3
  tunecast trace --gpu rtx-4090 --html memory.html -- train.py        does it fit, and what happens when
  tunecast trace -- torchrun --nproc-per-node 8 train.py              one of eight processes: DDP, FSDP
  tunecast trace --gpus 2 -- train.py                                 one process on two cards: device_map
  tunecast trace -- trl sft --config sft.yaml                         an installed program
  tunecast trace -- bash run.sh                                       a shell or Slurm script that starts a training
  tunecast trace -- train.ipynb                                       a notebook, cell by cell
  tunecast trace --accelerate-config fsdp.yaml -- train.py
  tunecast trace --model my-org/my-model=./config.json -- train.py    a model whose config.json is not in the cache
"""
MOST_COMMAND, MOST_SCRIPT = 80, 50
"""Characters of a headline for the command, and for the script's path in it."""
TOTAL_HINT = "the time of the whole run: --total-steps N"
ALLOCATORS = ("native", "expandable_segments")


def parser() -> Parser:
    made = Parser("trace", USAGE, DESCRIPTION, EPILOG)
    made.add_argument("--gpu", metavar="NAME", help=f"the card to predict for (default: {DEFAULT_GPU})")
    add_script_flags(made)
    made.add_argument(
        "--gpus", metavar="N", type=count, help="cards that one process uses: device_map, nn.DataParallel"
    )
    add_output_flags(made)
    add_tracing_flags(made)
    return made


def add_script_flags(parser: argparse._ActionsContainer) -> None:
    """How a script is run, for every command that traces one."""
    parser.add_argument(
        "--steps", metavar="N|all", type=steps,
        help="stop the script after N optimizer steps; all: trace every step (default: the whole run, replaying steps "
        "that are alike)",
    )  # fmt: skip
    parser.add_argument(
        "--total-steps", metavar="N", type=count, help="optimizer steps of the whole run, whatever the script says"
    )
    parser.add_argument("--nproc-per-node", metavar="N", type=count, help="processes per machine, one per GPU")
    parser.add_argument("--nnodes", metavar="N", type=count, help="number of machines")
    parser.add_argument("--accelerate-config", metavar="FILE", help="the YAML file that `accelerate config` wrote")
    parser.add_argument(
        "--allocator", choices=ALLOCATORS, help="PyTorch's CUDA allocator (default: as PYTORCH_ALLOC_CONF says)"
    )
    parser.add_argument(
        "--capacity", metavar="GIB", type=number(0, 1e6, "GiB"),
        help="give PyTorch this many GiB of the card, whatever the card has",
    )  # fmt: skip
    parser.add_argument(
        "--reserve",
        metavar="SIZE",
        type=size,
        default=0,
        help="memory on the card held by others: a display, another process",
    )
    parser.add_argument(
        "--model", metavar="NAME=CONFIG", action="append", default=[],
        help="for what the script loads as NAME: a config.json, bundled model or Hub id",
    )  # fmt: skip


def steps(text: str) -> int:
    """0 stands for all."""
    return 0 if text == "all" else count(text, ", or all")


def run(argv: Sequence[str]) -> int:
    options, command = split_command(argv)
    arguments = parser().read(options)
    for flag, name in (("--html", arguments.html), ("--snapshot", arguments.snapshot)):
        require_writable(flag, name)
    with Progress(f"tracing {' '.join(without_secrets(command))}", aside=True) as progress:
        found = traced(command, arguments, arguments.gpu, progress, arguments.gpus)
    figures = replace(found.figures, title=title_of(found))
    sections = sections_of(found, details=arguments.details)
    text = partial(details_text if arguments.details else answer_text, figures, sections=sections)
    print_answer(found, arguments, text, partial(short_line, figures, found.time))
    beside = PageExtras(
        provenance("trace", argv, versions=found.on_card.versions, traced=True),
        found,
        remarks=tuple(sections.remarks),
        trust=sections.trust,
    )
    write_asked(figures, found.on_card, arguments.html, arguments.snapshot, beside)
    if found.stop is not None:
        print(f"tunecast: {printable_lines(found.stop)}", file=sys.stderr)
    if not found.on_card.fits:
        return DoesNotFit.exit_code
    return NotResolved.exit_code if found.on_card.unresolved else 0


def traced(
    command: Sequence[str], arguments: argparse.Namespace, gpu: str | None, progress: Progress, gpus: int | None = None
) -> ScriptTrace:
    """As the flags of `add_script_flags` say."""
    return trace(
        command,
        gpu=gpu,
        steps=arguments.steps,
        nproc_per_node=arguments.nproc_per_node,
        nnodes=arguments.nnodes,
        gpus=gpus,
        accelerate=arguments.accelerate_config,
        allocator=arguments.allocator,
        capacity_bytes=None if arguments.capacity is None else int(arguments.capacity * GIB),
        reserve_bytes=arguments.reserve,
        models=arguments.model,
        python=arguments.python,
        limits=limits_from(arguments),
        total_steps=arguments.total_steps,
        progress=progress,
    )


def split_command(argv: Sequence[str], usage: str = USAGE) -> tuple[list[str], list[str]]:
    """What is ours, and what comes after the first `--`."""
    words = list(argv)
    if "--" in words:
        at = words.index("--")
        return words[:at], words[at + 1 :]
    if not any(word in ("-h", "--help", "--help-all") for word in words):
        raise UsageError(f"there is no -- before the script. To fix: {usage}", field="script")
    return words, []


def title_of(found: ScriptTrace) -> str:
    """`train.py --epochs 3 on 8 x H100 SXM 80 GB`."""
    launch = found.launch
    script = f"-m {launch.script}" if launch.as_module else launch.script
    command = in_brief(script, without_secrets(launch.args))
    cards = max((launch.nproc_per_node or 1) * (launch.nnodes or 1), len(found.on_cards))
    return f"{command} on {cards} x {card_name(found.on_card.gpu.name)}"


def in_brief(script: str, arguments: Sequence[str]) -> str:
    """As many whole arguments as a headline has room for, and how many more there are; of a long path its end."""
    folder, _, name = script.rpartition("/")
    text = script if len(script) <= MOST_SCRIPT else f"{'…/' if folder else ''}{name}"
    for at, word in enumerate(arguments):
        if len(text) + len(word) > MOST_COMMAND:
            return f"{text} … (+{len(arguments) - at} arguments)"
        text = f"{text} {word}"
    return text


def each_card(found: ScriptTrace) -> list[str]:
    """Where a process uses several: what is on each, and whose figures the rest is."""
    if len(found.on_cards) == 1:
        return []
    told = [
        f"cuda:{card} {'fits' if held.fits else 'does not fit'}: {gib(held.shown.allocated_bytes)} in use at its peak, "
        f"{gib(held.device.nbytes)} with cache and CUDA context"
        for card, held in found.on_cards.items()
    ]
    shown = next(card for card, held in found.on_cards.items() if held is found.on_card)
    fullest = f"all that follows is of cuda:{shown}, the fullest of {len(told)} cards in one process"
    return [*told, fullest, NO_TIME]


def of_links(told: str) -> str:
    """Without the fields of a job that would change it: a script has none."""
    return "; ".join(part for part in told.split("; ") if "hardware." not in part)


def sections_of(found: ScriptTrace, *, details: bool) -> Sections:
    held = found.on_card
    named = [] if found.gpu_given else [f"no --gpu was given: {card_name(held.gpu.name)} is taken"]
    if len(found.on_cards) > 1 and found.tracer.gpus is None:
        named.append(f"no --gpus was given: the script uses {len(found.on_cards)} cards, so as many are taken")
    links = [] if held.cluster is None else [f"links: {of_links(told)}" for told in held.cluster.assumptions]
    evidence = evidence_for(held.gpu.name, held.stack, None, held.cluster is not None)
    room = held.room.in_need(found.smallest_capacity_bytes)
    return Sections(
        remarks=[*each_card(found), *named, *links],
        time=time_text(
            found.time,
            found.utilization,
            terminal=terminal_of(sys.stdout),
            fits=held.fits,
            details=details,
            hint=TOTAL_HINT,
        ),
        trust=f"{trust(evidence, held.basis, room, None)}; your script's own allocations are followed one by one",
    )
