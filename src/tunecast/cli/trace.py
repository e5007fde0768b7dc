"""`tunecast trace -- train.py`: an unmodified script, run by the user's own interpreter on a card that is not there."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from tunecast.cli.accelerate import accelerate_config
from tunecast.cli.arguments import (
    Parser,
    add_output_flags,
    add_tracing_flags,
    count,
    limits_from,
    number,
    positive,
    size,
)
from tunecast.cli.files import require_writable, write_asked
from tunecast.cli.launchers import Launch, launch_from, with_accelerate
from tunecast.cli.main import DEBUG
from tunecast.cli.pages import provenance, without_secrets
from tunecast.cli.terminal import Progress, terminal_of
from tunecast.errors import DoesNotFit, NotResolved, TunecastError, UsageError, printable_lines
from tunecast.hardware.catalog import gpu as gpu_named
from tunecast.hardware.catalog import meant_by
from tunecast.hardware.cluster import Cluster, cards_of
from tunecast.hardware.names import card_name
from tunecast.hardware.spec import Gpu
from tunecast.job.knob import shown
from tunecast.job.model import bundled_models, resolve_model
from tunecast.predict.allocator import AllocatorSettings, settings_from_alloc_conf
from tunecast.predict.evidence import evidence_for
from tunecast.predict.modelled import card_of, others_hold
from tunecast.predict.prediction import OnCard, Prediction, allocator_settings, on_card, prediction_of
from tunecast.predict.script_time import with_script_time
from tunecast.records import replace
from tunecast.report.answer import Sections, answer_text, details_text
from tunecast.report.evidence import trust
from tunecast.report.figures import Figures, grouped_blocks
from tunecast.report.html import Beside
from tunecast.report.time import time_text
from tunecast.report.traced import card_figures
from tunecast.report.verdict import short_line
from tunecast.tape.op import Tape
from tunecast.tape.trace.interpreter import has_torch, tracing_python
from tunecast.tape.trace.request import Answer
from tunecast.tape.trace.run import trace_script
from tunecast.units import GIB

USAGE = "tunecast trace [options] -- train.py ARGS..."
DESCRIPTION = """\
The GPU memory of your own training script: its first optimizer steps are run as they are, on tensors without contents,
and every allocation is recorded with the line that made it. Needs no GPU, no weights and no network, and writes
nothing into your folders. torch 2.8 or newer; plain loops, Trainer, TRL, accelerate, Lightning Fabric."""
EPILOG = """\
examples:
  tunecast trace -- train.py --epochs 3
  tunecast trace --gpu rtx-4090 --html memory.html -- train.py        does it fit, and what happens when
  tunecast trace --nproc-per-node 8 -- train.py                       one of eight processes: DDP, FSDP
  tunecast trace -- torchrun --nproc-per-node 8 train.py              the same, as you start it
  tunecast trace --accelerate-config fsdp.yaml -- train.py
  tunecast trace --model my-org/my-model=./config.json -- train.py    a model whose config.json is not in the cache
"""
DEFAULT_GPU = "h200-sxm-141gb"
DEFAULT_STEPS = 3
ALLOCATORS = ("native", "expandable_segments")
ALLOC_CONF = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""The newer name wins where both are set."""
MOST_BLOCKS = 20
_FRAME = re.compile(r'File "([^"\n]+)", line (\d+)')


def parser() -> Parser:
    made = Parser("trace", USAGE, DESCRIPTION, EPILOG)
    made.add_argument("--gpu", metavar="NAME", help=f"the card to run on (default: {DEFAULT_GPU})")
    made.add_argument(
        "--steps", metavar="N|all", type=steps, default=DEFAULT_STEPS,
        help=f"optimizer steps to take before stopping the script (default: {DEFAULT_STEPS}); all: let it end",
    )  # fmt: skip
    made.add_argument("--nproc-per-node", metavar="N", type=count, help="processes on each machine, one per GPU")
    made.add_argument("--nnodes", metavar="N", type=count, help="machines")
    made.add_argument("--accelerate-config", metavar="FILE", help="the YAML of `accelerate config`")
    made.add_argument(
        "--allocator", choices=ALLOCATORS, help="PyTorch's CUDA allocator (default: as PYTORCH_ALLOC_CONF says)"
    )
    made.add_argument(
        "--capacity", metavar="GIB", type=number(0, 1e6, "GiB"),
        help="give PyTorch this much of the card, whatever the card has",
    )  # fmt: skip
    made.add_argument(
        "--reserve", metavar="SIZE", type=size, default=0, help="held on the card by others: a display, another process"
    )
    made.add_argument(
        "--model", metavar="NAME=CONFIG", action="append", default=[],
        help="what the script loads as NAME has this config.json, bundled model or Hub id",
    )  # fmt: skip
    add_output_flags(made)
    add_tracing_flags(made)
    return made


def steps(text: str) -> int:
    """0 stands for all."""
    if text == "all":
        return 0
    number = positive(text)
    if number is None or number > 100_000:
        raise argparse.ArgumentTypeError(f"got {shown(text)}; allowed: a whole number from 1 to 100000, or all")
    return number


def run(argv: Sequence[str]) -> int:
    options, command = split_command(argv)
    arguments = parser().read(options)
    for flag, name in (("--html", arguments.html), ("--snapshot", arguments.snapshot)):
        require_writable(flag, name)
    if arguments.capacity is not None and arguments.reserve:
        told = "got a size with --capacity, which already says what is left for the allocator; allowed: one of them"
        raise UsageError(f"--reserve: {told}", field="--reserve")
    launch = launch_with(launch_from(command), arguments)
    gpu = gpu_named(arguments.gpu or DEFAULT_GPU)
    configured = allocator_from_environment(arguments)
    models = models_of(arguments.model)
    python = python_for(launch, arguments.python)
    os.environ.update(launch.environment)
    with Progress(f"tracing {launch.script}", aside=True) as progress:
        tape, answer = _traced(launch, arguments, gpu, models, python, progress)
    whole = replace(tape, guesses=(*tape.guesses, *answer.untraced))
    held = held_of(whole, gpu, arguments, configured, others_of(launch, gpu))
    memory = prediction_of(held, assumptions=assumptions_of(launch, answer, arguments), warnings=warnings_of(answer))
    said = with_script_time(memory, whole, gpu, held.cluster)
    figures = card_figures(held, said, title_of(launch, gpu))
    sections = sections_of(held, said, arguments)
    if arguments.json:
        print(json.dumps(said.to_dict() | {"trace": details(figures, answer)}), flush=True)
    elif arguments.short:
        print(short_line(figures, said.time), end="", flush=True)
    else:
        text = details_text if arguments.details else answer_text
        print(text(figures, terminal_of(sys.stdout), sections), end="", flush=True)
    beside = Beside(
        provenance("trace", argv, versions=held.versions, traced=True),
        said,
        remarks=tuple(sections.remarks),
        trust=sections.trust,
    )
    write_asked(figures, held, arguments.html, arguments.snapshot, beside)
    if answer.error is not None:
        print(f"tunecast: {printable_lines(script_stopped(answer))}", file=sys.stderr)
    return 0 if held.fits else DoesNotFit.exit_code


def split_command(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """What is ours, and what comes after the first `--`."""
    words = list(argv)
    if "--" in words:
        at = words.index("--")
        return words[:at], words[at + 1 :]
    if not any(word in ("-h", "--help", "--help-all") for word in words):
        raise UsageError(f"there is no -- before the script. To fix: {USAGE}", field="script")
    return words, []


def launch_with(launch: Launch, arguments: argparse.Namespace) -> Launch:
    """Our own flags win over the launcher's, and those over an accelerate file."""
    told = launch
    if arguments.accelerate_config is not None:
        told = with_accelerate(launch, accelerate_config(arguments.accelerate_config))
    if not launch.as_module and not os.path.isfile(launch.script):
        raise NotResolved(f"there is no script {launch.script!r}", field="script")
    return replace(
        told,
        nproc_per_node=arguments.nproc_per_node or launch.nproc_per_node or told.nproc_per_node or 1,
        nnodes=arguments.nnodes or launch.nnodes or told.nnodes or 1,
    )


def models_of(given: Sequence[str]) -> dict[str, Mapping[str, Any]]:
    """Configurations by the name a script loads them under: those given, and the bundled ones by their Hub ids.

    Of a bundled one the user's own copy in the local cache is taken, where there is one.
    """
    models: dict[str, Mapping[str, Any]] = {}
    for entry in bundled_models().values():
        with contextlib.suppress(NotResolved):  # a damaged copy in the user's cache is for the script to meet
            models[entry["hub"]] = resolve_model(entry["hub"], offline=True).raw
    for text in given:
        name, _, config = text.partition("=")
        if not name:
            raise UsageError(f"--model: got {text!r}; allowed: NAME=CONFIG, or NAME alone", field="--model")
        models[name] = resolve_model(config or name).raw
    return models


def python_for(launch: Launch, given: str | None) -> str:
    """`--python`; else the python that stands before the script, if it has torch; else as for every trace."""
    named = launch.python
    if given is None and named is not None and (os.sep in named or shutil.which(named)):
        found = tracing_python(named)
        if has_torch(found):
            return found
    return tracing_python(given)


def _traced(
    launch: Launch, arguments: argparse.Namespace, gpu: Gpu, models: Mapping[str, Any], python: str, progress: Progress
) -> tuple[Tape, Answer]:
    try:
        return trace_script(
            launch.script, launch.args, card_of(gpu), as_module=launch.as_module, steps=arguments.steps,
            nproc_per_node=launch.nproc_per_node or 1, nnodes=launch.nnodes or 1, models=models, python=python,
            limits=limits_from(arguments), progress=progress,
        )  # fmt: skip
    except TunecastError as error:
        if error.code != TunecastError.code or "\n" not in error.message:
            raise
        raise NotResolved(f"the script fails before its first step is done: {in_short(error.message)}") from None


def others_of(launch: Launch, gpu: Gpu) -> Cluster | None:
    """The cards a script is launched on, where they are several."""
    each, machines = launch.nproc_per_node or 1, launch.nnodes or 1
    return cards_of(gpu, each, machines) if each * machines > 1 else None


def held_of(
    tape: Tape,
    gpu: Gpu,
    arguments: argparse.Namespace,
    configured: AllocatorSettings | None = None,
    cluster: Cluster | None = None,
) -> OnCard:
    capacity_bytes = None if arguments.capacity is None else int(arguments.capacity * GIB)
    settings = allocator_settings(arguments.allocator or "native", gpu, tape, pretended=capacity_bytes is not None)
    if configured is not None:
        settings = replace(
            configured,
            device_total_bytes=settings.device_total_bytes,
            oldest_segment_first=settings.oldest_segment_first,
            capacity_is_physical=settings.capacity_is_physical,
        )
    held_by_others = arguments.reserve
    return on_card(
        tape, gpu, settings, capacity_bytes, held_by_others, cluster=cluster, managed_bytes=tape.managed_bytes
    )


def allocator_from_environment(arguments: argparse.Namespace) -> AllocatorSettings | None:
    """As the run itself would read it, unless --allocator says otherwise."""
    conf = alloc_conf()
    return settings_from_alloc_conf(conf) if arguments.allocator is None and conf else None


def alloc_conf() -> str | None:
    return next((os.environ[name] for name in ALLOC_CONF if os.environ.get(name)), None)


def assumptions_of(launch: Launch, answer: Answer, arguments: argparse.Namespace) -> list[str]:
    which = "all" if answer.finished else "the first"
    told = [f"{which} {answer.steps} optimizer steps of the script"]
    world = (launch.nproc_per_node or 1) * (launch.nnodes or 1)
    if world > 1:
        told.append(f"rank 0 of {world} processes, {launch.nproc_per_node} on each machine")
    if arguments.reserve:
        told.append(others_hold(arguments.reserve))
    if arguments.gpu is None:
        told.append(f"no --gpu was given: {DEFAULT_GPU} is taken")
    elif (taken := meant_by(arguments.gpu).note(arguments.gpu)) is not None:
        told.append(taken)
    if arguments.allocator is None and (conf := alloc_conf()):
        told.append(f"the allocator is configured by the environment: {conf}")
    return told


def warnings_of(answer: Answer) -> list[str]:
    told = []
    if answer.steps < 2 and answer.error is None:
        told.append(
            f"the script took {answer.steps} optimizer steps; an optimizer's state exists from the second on, "
            "so longer training may need more"
        )
    if answer.error is not None:
        told.append(script_stopped(answer).splitlines()[0])
    return told


def script_stopped(answer: Answer) -> str:
    return f"the script stopped after {answer.steps} steps: {in_short(f'{answer.error}{chr(10)}{answer.detail}')}"


def in_short(message: str) -> str:
    """A script's failure in one line, with the line of its own code: the last that lies in no installed package."""
    if os.environ.get(DEBUG):
        return message
    first, _, traceback = message.partition("\n")
    frames = _FRAME.findall(traceback)
    own = [frame for frame in frames if "site-packages" not in frame[0]] or frames
    return f"{first} ({own[-1][0]}:{own[-1][1]}; {DEBUG}=1 shows more)" if own else first


def title_of(launch: Launch, gpu: Gpu) -> str:
    """`train.py --epochs 3 on 8 x H100 SXM 80 GB`."""
    words = ("-m" if launch.as_module else "", launch.script, *without_secrets(launch.args))
    command = " ".join(filter(None, words))[:200]
    cards = (launch.nproc_per_node or 1) * (launch.nnodes or 1)
    return f"{command} on {cards} x {card_name(gpu.name)}"


def sections_of(held: OnCard, said: Prediction, arguments: argparse.Namespace) -> Sections:
    named = [] if arguments.gpu is not None else [f"no --gpu was given: {card_name(held.gpu.name)} is taken"]
    links = [] if held.cluster is None else [f"links: {told}" for told in held.cluster.assumptions]
    evidence = evidence_for(held.gpu.name, held.stack, None, held.cluster is not None)
    room = held.room.in_need(said.smallest_capacity_bytes)
    return Sections(
        remarks=[*named, *links],
        time=time_text(said.time, terminal=terminal_of(sys.stdout), fits=held.fits, details=arguments.details),
        trust=f"{trust(evidence, held.basis, room, None)}; your script's own allocations are followed one by one",
    )


def details(figures: Figures, answer: Answer) -> dict[str, Any]:
    """What a script's trace tells beyond a prediction."""
    return {
        "word": figures.word,
        "steps": answer.steps,
        "finished": answer.finished,
        "error": answer.error,
        "untraced": list(answer.untraced),
        "versions": dict(figures.versions),
        "phases": [peak._asdict() for peak in figures.phases],
        "modules_bytes": dict(figures.modules),
        "largest": [
            {"total_bytes": alike.nbytes, "times": alike.times, **alike.block._asdict()}
            for alike in grouped_blocks(figures.blocks)[:MOST_BLOCKS]
        ],
    }
