"""Launchers that a script starts itself, and cards that its launcher shows it."""

from __future__ import annotations

import os
from collections.abc import Sequence

from tunecast.door.launchers import ScriptLaunch, launch_from
from tunecast.job.recipes.launch.launchers import VISIBLE, cards_of_environment
from tunecast.records import replace
from tunecast.tape.trace.request import Answer

MOST_COMMAND = 160
"""Characters of a command that is told beside others."""


def following(launch: ScriptLaunch, answer: Answer, nproc_per_node: int | None, nnodes: int | None) -> ScriptLaunch:
    """What a script starts that is a launcher itself, with the environment the script has made for it."""
    inner = launch_from(answer.launches, nproc_per_node=nproc_per_node)
    return replace(
        inner,
        environment={**launch.environment, **answer.environment, **inner.environment},
        folder=answer.folder,
        nproc_per_node=nproc_per_node or inner.nproc_per_node or launch.nproc_per_node,
        nnodes=nnodes or inner.nnodes or launch.nnodes,
        notes=(*launch.notes, f"{os.path.basename(launch.script)} starts this itself: {in_brief(answer.launches)}"),
    )


def in_brief(command: Sequence[str]) -> str:
    words = [os.path.basename(word) if os.path.isabs(word) else word for word in command]
    text = " ".join(words)
    return text if len(text) <= MOST_COMMAND else f"{text[:MOST_COMMAND].rpartition(' ')[0]} …"


def cards_unseen(launch: ScriptLaunch) -> tuple[str, ...]:
    """One process that sees several cards is traced on one of them."""
    said = cards_of_environment({name: value for name, value in launch.environment.items() if name in VISIBLE})
    count = said["gpus"][0] if "gpus" in said else 1
    if count < 2 or (launch.nproc_per_node or 1) > 1:
        return ()
    return (
        f"{said['gpus'][1]} shows one process {count} cards, and it is traced on one of them; "
        f"--nproc-per-node {count} traces one of {count} processes",
    )
