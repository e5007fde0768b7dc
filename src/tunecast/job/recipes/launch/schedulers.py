"""Files that order machines for a training: Slurm's batch scripts and SkyPilot's tasks.

Options: sbatch(1), of which a script holds `#SBATCH` lines; SkyPilot's docs/source/reference/yaml-spec.rst.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tunecast.job.recipes.document import Document
from tunecast.job.recipes.recipe import Place
from tunecast.job.recipes.request import Launch
from tunecast.job.recipes.words import Word
from tunecast.records import NamedTuple

SBATCH = re.compile(r"#SBATCH[ \t]+(-[^\n]*)")
OPTION = re.compile(r"--?([A-Za-z][\w-]*)(?:[= ]*)([^ \t#]*)")
SHORT = {"N": "nodes", "n": "ntasks", "G": "gpus", "C": "constraint"}
CARD = re.compile(r"(?:gpu:)?(?:([A-Za-z][\w.-]*):)?(\d{1,4})(?:\([^)]*\))?")
"""`gpu:h100:8`, `h100:8`, `gpu:8`, `8`."""


class Ordered(NamedTuple):
    """A script with what is ordered for it."""

    text: str
    launch: Launch
    variables: Mapping[str, str]
    """What the scheduler sets, as far as the order tells."""
    first_line: int = 1
    """Of the text, in its file."""


# Slurm


def of_slurm(text: str, file: str) -> Ordered:
    """A script without `#SBATCH` orders nothing."""
    options: dict[str, Word] = {}
    for number, line in enumerate(text.splitlines(), 1):
        found = SBATCH.match(line)
        if found is None:
            continue
        option = OPTION.match(found[1])
        if option is not None:
            name = SHORT.get(option[1], option[1].replace("-", "_"))
            options[name] = Word(option[2].strip("\"'"), number)
    said = slurm_cards(options)
    return Ordered(text, _launch(said, file), slurm_variables(said, options))


def slurm_cards(options: Mapping[str, Word]) -> dict[str, tuple[Any, str, int]]:
    """Of `sbatch`'s or `srun`'s options."""
    options = {SHORT.get(name, name): word for name, word in options.items()}
    said: dict[str, tuple[Any, str, int]] = {}
    nodes = options.get("nodes")
    if nodes is not None and nodes.isdecimal() and int(nodes[:7]) > 0:
        said["nodes"] = (int(nodes[:7]), "--nodes", nodes.line)
    for name, of_all in (("gpus_per_node", False), ("gres", False), ("gpus", True), ("gpus_per_task", False)):
        word = options.get(name)
        card = CARD.fullmatch(_gpu_part(word, name == "gres")) if word is not None else None
        if word is None or card is None or not int(card[2]):
            continue
        count = int(card[2])
        if name == "gpus_per_task":
            count *= _tasks_per_node(options, said)
        if of_all:
            count = max(count // said.get("nodes", (1, "", 0))[0], 1)
        said["gpus"] = (count, f"--{name.replace('_', '-')}", word.line)
        if card[1] is not None:
            said["gpu"] = (card[1], f"--{name.replace('_', '-')}", word.line)
        break
    return said


def _gpu_part(word: Word, is_gres: bool) -> str:
    """`--gres` orders other things too: gpu:8,tmp:10G."""
    return next((each for each in word.split(",") if each.startswith("gpu:")), "") if is_gres else word


def _tasks_per_node(options: Mapping[str, Word], said: Mapping[str, tuple[Any, str, int]]) -> int:
    each = options.get("ntasks_per_node", "")
    if each.isdecimal():
        return int(each[:4]) or 1
    tasks = options.get("ntasks", "")
    return max(int(tasks[:6]) // said.get("nodes", (1, "", 0))[0], 1) if tasks.isdecimal() else 1


def slurm_variables(said: Mapping[str, tuple[Any, str, int]], options: Mapping[str, Word]) -> dict[str, str]:
    """srun(1), "output environment variables"."""
    made: dict[str, str] = {}
    if "nodes" in said:
        made |= dict.fromkeys(("SLURM_NNODES", "SLURM_JOB_NUM_NODES"), str(said["nodes"][0]))
    if "gpus" in said:
        made |= dict.fromkeys(("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE"), str(said["gpus"][0]))
    for name in ("ntasks", "ntasks_per_node"):
        if options.get(name, "").isdecimal():
            made[f"SLURM_{name.upper()}"] = str(options[name])
    if "nodes" in said and "SLURM_NTASKS_PER_NODE" in made:
        made.setdefault("SLURM_NTASKS", str(said["nodes"][0] * int(made["SLURM_NTASKS_PER_NODE"])))
    return made


def _launch(said: Mapping[str, tuple[Any, str, int]], file: str) -> Launch:
    places = {f"hardware.{what}": Place(file, line, key) for what, (_, key, line) in said.items()}
    return Launch(**{what: value for what, (value, _, _) in said.items()}, places=places)


# SkyPilot


def is_task(document: Document) -> bool:
    """Whether it is a task of SkyPilot."""
    return isinstance(document.get("run"), str) and any(map(document.has, ("resources", "num_nodes", "file_mounts")))


def of_skypilot(document: Document) -> Ordered:
    said: dict[str, tuple[Any, str, int]] = {}
    key, card, count = _accelerator(document)
    if card:
        line = document.line(key)
        said["gpu"] = (card, key, line)
        said["gpus"] = (count, key, line)
    nodes = document.get("num_nodes")
    if type(nodes) is int and 0 < nodes < 10**6:
        said["nodes"] = (nodes, "num_nodes", document.line("num_nodes"))
    variables = {
        name: str(value)
        for name, value in _mapping(document.get("envs")).items()
        if isinstance(value, (str, int, float)) and not isinstance(value, bool)
    }
    if "gpus" in said:
        variables["SKYPILOT_NUM_GPUS_PER_NODE"] = str(said["gpus"][0])
    variables["SKYPILOT_NUM_NODES"] = str(said["nodes"][0] if "nodes" in said else 1)
    return Ordered(str(document.get("run")), _launch(said, document.file), variables, document.line("run") + 1)


def _accelerator(document: Document) -> tuple[str, str, int]:
    """`A100-80GB:8`, `{A100-80GB: 8}`, or the first of several that would do."""
    for key in ("resources.accelerators", "resources.any_of.0.accelerators", "resources.ordered.0.accelerators"):
        wanted = document.get(key)
        if isinstance(wanted, list) and wanted:
            wanted = wanted[0]
        if isinstance(wanted, Mapping) and wanted:
            name, count = next(iter(wanted.items()))
            wanted = f"{name}:{count}"
        if isinstance(wanted, str) and wanted and "$" not in wanted:
            name, _, number = wanted.partition(":")
            return key, name, max(int(number), 1) if number.isdecimal() and len(number) < 5 else 1
    return "", "", 0


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
