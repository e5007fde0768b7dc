"""The cards of a traced script: what a tape takes of one, and which others it talks to."""

from __future__ import annotations

from collections.abc import Mapping

from tunecast.door.launchers import ScriptLaunch
from tunecast.hardware.cluster import Cluster, cards_of
from tunecast.hardware.spec import Gpu
from tunecast.prediction.memory.allocator import AllocatorSettings
from tunecast.prediction.on_card import OnCard, on_card
from tunecast.prediction.script_run import WholeScript, script_settings
from tunecast.records import replace
from tunecast.tape.op import COLLECTIVES, Tape


def other_cards(launch: ScriptLaunch, gpu: Gpu) -> Cluster | None:
    """The cards a script is launched on, where they are several."""
    each, machines = launch.nproc_per_node or 1, launch.nnodes or 1
    return cards_of(gpu, each, machines) if each * machines > 1 else None


def exchanging_cards(tapes: Mapping[int, Tape], gpu: Gpu) -> Cluster | None:
    """The cards of one process, where NCCL moves data between them (nn.DataParallel): it has buffers on each."""
    talks = any(op.name in COLLECTIVES for tape in tapes.values() for op in tape.ops())
    return cards_of(gpu, len(tapes), 1) if talks and len(tapes) > 1 else None


def held_on_card(
    tape: Tape,
    run: WholeScript,
    gpu: Gpu,
    allocator: str | None,
    configured: AllocatorSettings | None,
    capacity_bytes: int | None,
    reserve_bytes: int,
    cluster: Cluster | None,
) -> OnCard:
    settings = script_settings(tape, gpu, allocator, configured, pretended=capacity_bytes is not None)
    held = on_card(
        tape, gpu, settings, capacity_bytes, reserve_bytes, cluster=cluster, managed_bytes=tape.managed_bytes,
        script=run.rows,
    )  # fmt: skip
    if run.whole is None:
        return held
    return replace(held, make_tape=lambda: run.tape_of(held.shown) or tape, find_op=run.op_without_room)
