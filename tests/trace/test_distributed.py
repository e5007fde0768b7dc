"""One rank of many: DDP, FSDP and tensor parallelism on a process group that is not there.

The programs of scripts_distributed/programs.py run twice, traced and with real tensors on the host. Below: the
same allocations in the same order, and the sizes as paper has them.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tunecast.door.accelerate import accelerate_config
from tunecast.prediction.memory.allocator import AllocatorSettings
from tunecast.prediction.memory.replay import replay
from tunecast.tape.card import Card
from tunecast.tape.file import read_tape
from tunecast.tape.op import Alloc, Begin, Event, Free, Op, Phase, Role, Tape
from tunecast.tape.trace.launch import rank_zero
from tunecast.tape.trace.run import trace_script

HERE = Path(__file__).parent / "scripts_distributed"
SOURCE = Path(__file__).parents[2] / "src"
KIB, MIB = 1 << 10, 1 << 20
ON_HOST = [
    "ddp", "ddp_views", "ddp_static", "ddp_unused", "ddp_accumulating", "fsdp_2", "fsdp_8", "fsdp_float32",
    "fsdp_kept", "fsdp_resharded_to_2", "fsdp_accumulating", "hsdp", "fsdp1",
]  # fmt: skip
ON_PAPER = [
    "fsdp_1024", "fsdp_uneven", "fsdp_offloaded", "tensor_2", "tensor_2_sequence", "tensor_2_data_4", "tensor_2_loss",
    "llama_2", "llama_8", "llama_128",
]  # fmt: skip
WORTH_COMPARING_BYTES = 64 * KIB
"""Below are activations, and tables that only a card's kernels need."""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory, run_programs: Callable[..., Any]) -> Path:
    folder = tmp_path_factory.mktemp("distributed")
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    names = {"traced": ON_HOST + ON_PAPER, "host": ON_HOST}
    commands = [[sys.executable, str(HERE / "programs.py"), how, str(folder), *names[how]] for how in names]
    for done in run_programs(*commands, env=environment):
        assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return folder


def tape_of(results: Path, name: str) -> Tape:
    return read_tape(results / f"{name}.gz")


def allocs(events: Iterable[Event]) -> list[Alloc]:
    """Those of libraries' workspaces and of nothing left out."""
    return [e for e in events if isinstance(e, Alloc) and e.nbytes and not e.module.endswith("_workspace")]


def collectives(events: Iterable[Event], *names: str) -> list[Op]:
    return [e for e in events if isinstance(e, Op) and e.name in names]


def alive(tape: Tape) -> Iterator[tuple[Begin, dict[int, Alloc]]]:
    """Before every phase and at the end: the blocks alive then, and the phase that was."""
    blocks: dict[int, Alloc] = {}
    now = Begin(Phase.LOAD)
    for event in tape.events:
        if isinstance(event, Alloc) and event.nbytes and not event.module.endswith("_workspace"):
            blocks[event.block] = event
        elif isinstance(event, Free):
            blocks.pop(event.block, None)
        elif isinstance(event, Begin):
            yield now, dict(blocks)
            now = event
    yield now, blocks


def alive_after(tape: Tape, phase: Phase, step: int, role: Role) -> int:
    """Bytes of a role still alive when the last such phase of the step ends."""
    return [
        sum(block.nbytes for block in blocks.values() if block.role is role)
        for begin, blocks in alive(tape)
        if (begin.phase, begin.step) == (phase, step)
    ][-1]


def most_alive(events: Iterable[Event], chosen: set[int]) -> int:
    """The most bytes of the chosen blocks that are alive at once."""
    sizes: dict[int, int] = {}
    most = 0
    for event in events:
        if isinstance(event, Alloc) and event.block in chosen:
            sizes[event.block] = event.nbytes
            most = max(most, sum(sizes.values()))
        elif isinstance(event, Free):
            sizes.pop(event.block, None)
    return most


# ---------------------------------------------------------------- against a card

OLD_BUCKETS_MIB = {"ddp": 8, "ddp_accumulating": 8, "ddp_static": 8}
"""NCCL's unfinished work holds DDP's first buckets a while after they were made anew, at the start of the second
forward pass. When it lets go is up to a thread, so it is not traced; a real model's peak lies elsewhere."""
ON_CARD = {row["program"]: row for row in map(json.loads, (HERE / "h200_peaks.jsonl").read_text().splitlines())}


@pytest.mark.parametrize("name", ON_HOST + ON_PAPER)
def test_as_much_as_an_h200_held(results: Path, name: str) -> None:
    """Allocated as torch 2.11.0 on an H200 says, one rank of a fake group (DDP: alone in a real one)."""
    held = replay(tape_of(results, name), AllocatorSettings())
    allowed = OLD_BUCKETS_MIB.get(name, 0) * MIB
    assert ON_CARD[name]["allocated_bytes"] - held.allocated_bytes in {0, allowed}


# ---------------------------------------------------------------- against real tensors


def in_order(births_and_deaths: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Blocks numbered by birth; deaths that follow each other directly sorted, those after the last birth left out."""
    numbers: dict[int, int] = {}
    out: list[tuple[int, int]] = []
    dead: list[tuple[int, int]] = []
    for block, size in births_and_deaths:
        if size:
            numbers[block] = len(numbers)
            out += [*sorted(dead), (numbers[block], size)]
            dead = []
        elif block in numbers:
            dead.append((numbers[block], 0))
    return out


@pytest.mark.parametrize("name", ON_HOST)
def test_same_allocations_as_real_tensors(results: Path, name: str) -> None:
    seen: list[tuple[int, int]] = []
    for event in tape_of(results, name).events:
        if isinstance(event, Free):
            seen.append((event.block, 0))
        elif isinstance(event, Alloc) and not event.module.endswith("_workspace"):
            seen.append((event.block, event.nbytes))
    real = [tuple(pair) for pair in json.loads((results / f"{name}.json").read_text())]
    large = [[(block, size) for block, size in pairs if not 0 < size < WORTH_COMPARING_BYTES] for pairs in (seen, real)]
    expected = in_order(large[1])
    assert len(expected) > 50
    assert in_order(large[0]) == expected


# ---------------------------------------------------------------- DDP on paper


def test_ddp_makes_one_bucket_then_one_of_1_mib_and_the_rest(results: Path) -> None:
    """8 weights of 1 MiB. The first pass has one bucket for all, the later ones 1 MiB and up to 25 MiB."""
    steps = tape_of(results, "ddp").steps()
    buckets = [
        [e.nbytes for e in allocs(steps[step]) if e.module == "DistributedDataParallel" and e.role is Role.GRADIENTS]
        for step in (-1, 0, 1, 2)
    ]
    assert buckets == [[8 * MIB], [], [1 * MIB, 7 * MIB], []]
    sent = [[op.read_bytes for op in collectives(steps[step], "all_reduce")] for step in (0, 1, 2)]
    assert sent == [[8 * MIB], [1 * MIB, 7 * MIB], [1 * MIB, 7 * MIB]]


def test_ddp_broadcasts_the_weights_through_a_copy(results: Path) -> None:
    load = tape_of(results, "ddp").steps()[-1]
    assert [op.written_bytes for op in collectives(load, "broadcast")] == [8 * MIB]
    assert [op.shapes for op in collectives(load, "broadcast")] == [((8 * MIB // 4,), (8,))]
    assert 8 * MIB in [e.nbytes for e in allocs(load) if e.role is Role.TEMPORARIES]


@pytest.mark.parametrize(("name", "mib"), [("ddp", 16), ("ddp_views", 8)])
def test_ddp_gradients_are_held_twice_unless_they_are_views(results: Path, name: str, mib: int) -> None:
    assert alive_after(tape_of(results, name), Phase.BACKWARD, 2, Role.GRADIENTS) == mib * MIB


# ---------------------------------------------------------------- FSDP on paper


@pytest.mark.parametrize(("world", "rows"), [(2, 256), (8, 64), (1024, 1)])
def test_a_shard_is_a_worlds_part_of_the_padded_parameter(results: Path, world: int, rows: int) -> None:
    """512 rows of 2 KiB; over 1,024 ranks they are padded to 1,024."""
    assert alive_after(tape_of(results, f"fsdp_{world}"), Phase.LOAD, 0, Role.WEIGHTS) == 8 * rows * 2 * KIB


def test_uneven_rows_are_padded(results: Path) -> None:
    """10 rows of 256 bytes over 8 ranks: 2 each. 3 rows of 40 bytes: 1 each."""
    assert alive_after(tape_of(results, "fsdp_uneven"), Phase.LOAD, 0, Role.WEIGHTS) == 2 * 256 + 40


def test_fsdp_buffers_of_one_block(results: Path) -> None:
    """Two weights of 512 by 512, over 8 ranks, computed in bfloat16 and reduced in float32.

    forward   this rank's shards in bfloat16   2 * 512 * 512 / 8 * 2 =  128 KiB   copy-in stream
              the gathered buffer              2 * 512 * 512 * 2     = 1024 KiB   copy-in stream
              the two whole weights                512 * 512 * 2     =  512 KiB   each, default stream
    backward  two whole gradients                  512 * 512 * 2     =  512 KiB   each, default stream
              what is scattered                2 * 512 * 512 * 4     = 2048 KiB   default stream
              the reduced shard                2 * 512 * 512 / 8 * 4 =  256 KiB   reduce-scatter stream
    """
    tape = tape_of(results, "fsdp_8")
    step = tape.steps()[1]
    large = [e for e in allocs(step) if e.nbytes >= 64 * KIB]
    turn = next(i for i, e in enumerate(step) if isinstance(e, Begin) and e.phase is Phase.BACKWARD)
    forward = [e for e in allocs(step[:turn]) if e.nbytes >= 64 * KIB]
    assert [e.nbytes // KIB for e in forward] == [128, 1024, 512, 512] * 4
    side = {e.stream for e in forward if e.nbytes in (128 * KIB, 1024 * KIB)}
    assert len(side) == 1 and 0 not in side
    assert {e.stream for e in large if e.nbytes in (512 * KIB, 2048 * KIB)} == {0}
    scattered = [e for e in large if e.nbytes == 256 * KIB]
    assert len(scattered) == 4 and {e.role for e in scattered} == {Role.GRADIENTS}
    assert len({e.stream for e in scattered} - side - {0}) == 1
    assert sum(e.nbytes == 2048 * KIB for e in large) == 4
    assert sum(e.nbytes == 512 * KIB and e.role is Role.GRADIENTS for e in large) == 8


def test_fsdp_collectives(results: Path) -> None:
    """Each block is gathered forward and backward, and scattered once, on streams of their own."""
    step = tape_of(results, "fsdp_8").steps()[1]
    gathers, scatters = collectives(step, "all_gather"), collectives(step, "reduce_scatter")
    assert [(op.read_bytes, op.written_bytes) for op in gathers] == [(128 * KIB, 1024 * KIB)] * 8
    assert [(op.read_bytes, op.written_bytes) for op in scatters] == [(2048 * KIB, 256 * KIB)] * 4
    assert {op.shapes for op in gathers} == {((64 * KIB,), (8,))}
    streams = {op.stream for op in gathers}, {op.stream for op in scatters}
    assert all(len(s) == 1 for s in streams) and len(set.union(*streams) | {0}) == 3


def test_a_gathered_buffer_waits_for_the_next_one(results: Path) -> None:
    """Forward, FSDP frees a block's buffer only when the next block's has been copied out, so two are alive; and of
    the whole weights one block's, for they are freed before the next is gathered."""
    step = tape_of(results, "fsdp_8").steps()[1]
    turn = next(i for i, e in enumerate(step) if isinstance(e, Begin) and e.phase is Phase.BACKWARD)
    buffers = {e.block for e in allocs(step[:turn]) if e.nbytes == 1024 * KIB and e.stream}
    weights = {e.block for e in allocs(step[:turn]) if e.nbytes == 512 * KIB and e.role is Role.WEIGHTS}
    assert most_alive(step[:turn], buffers) == 2 * MIB
    assert most_alive(step[:turn], weights) == 1 * MIB


def test_weights_not_resharded_stay_whole(results: Path) -> None:
    """4 blocks of 1 MiB in bfloat16, and 1 MiB of shards in float32."""
    kept, freed = (tape_of(results, name) for name in ("fsdp_kept", "fsdp_8"))
    assert alive_after(kept, Phase.FORWARD, 1, Role.WEIGHTS) == 5 * MIB
    assert alive_after(freed, Phase.FORWARD, 1, Role.WEIGHTS) == 1 * MIB


def test_unreduced_gradients_are_held_whole_in_float32(results: Path) -> None:
    """Between micro-batches: 8 gradients of 512 * 512 * 4 bytes."""
    tape = tape_of(results, "fsdp_accumulating")
    held = [
        sum(block.nbytes for block in blocks.values() if block.role is Role.GRADIENTS)
        for begin, blocks in alive(tape)
        if (begin.phase, begin.step) == (Phase.BACKWARD, 1)
    ]
    assert held == [8 * MIB, 1 * MIB]


def test_offloaded_shards_leave_nothing_between_steps(results: Path) -> None:
    tape = tape_of(results, "fsdp_offloaded")
    assert [alive_after(tape, Phase.BACKWARD, 1, role) for role in (Role.WEIGHTS, Role.GRADIENTS)] == [0, 0]
    assert collectives(tape.steps()[1], "all_gather")


def test_hybrid_shards_are_reduced_across_replicas(results: Path) -> None:
    """2 replicas of 4 shards: 2 MiB of gradients a block become 512 KiB, summed with the other replica's."""
    tape = tape_of(results, "hsdp")
    assert alive_after(tape, Phase.LOAD, 0, Role.WEIGHTS) == 2 * MIB
    step = tape.steps()[1]
    assert [op.shapes[1] for op in collectives(step, "reduce_scatter")] == [(4,)] * 4
    sums = collectives(step, "all_reduce")
    assert [(op.read_bytes, op.shapes[1]) for op in sums] == [(512 * KIB, (2,))] * 4
    assert {op.stream for op in sums}.isdisjoint({op.stream for op in collectives(step, "reduce_scatter")} | {0})


LAYER = [(256, 1024), (128, 1024), (128, 1024), (256, 1024), (512, 1024), (512, 1024), (256, 2048), (256, 4), (256, 4)]
LLAMA = [(2048, 1024), *LAYER, *LAYER, (256, 4), (2048, 1024)]
"""(rows, bytes a row) of the parameters of a llama of two layers, in float32."""


def test_more_ranks_need_less(results: Path) -> None:
    """Shards of all weights, and two moments of each in AdamW."""
    tapes = {world: tape_of(results, f"llama_{world}") for world in (2, 8, 128)}
    peaks = {world: replay(tape, AllocatorSettings()).allocated_bytes for world, tape in tapes.items()}
    assert peaks[2] > peaks[8] > peaks[128]
    for world, tape in tapes.items():
        shards = sum(-(-rows // world) * row_bytes for rows, row_bytes in LLAMA)
        assert alive_after(tape, Phase.OPTIMIZER, 1, Role.OPTIMIZER) == 2 * shards
        assert alive_after(tape, Phase.OPTIMIZER, 1, Role.WEIGHTS) - shards in ROTARY_BYTES
    assert all(not tape.guesses for tape in tapes.values())


ROTARY_BYTES = (128, 256)
"""Rotary frequencies, half a head of them, in one buffer or (transformers 5) two; buffers are not sharded."""


# ---------------------------------------------------------------- tensor parallel


def test_tensor_parallel_weights_are_halved(results: Path) -> None:
    """LayerNorm's 2 KiB whole, two matrices of 512 KiB each; no block as large as a matrix once training starts."""
    tape = tape_of(results, "tensor_2")
    assert alive_after(tape, Phase.OPTIMIZER, 0, Role.WEIGHTS) == 2 * KIB + 2 * 512 * KIB
    steps = tape.steps()
    assert max(e.nbytes for step in (0, 1, 2) for e in allocs(steps[step])) == 512 * KIB


def test_a_functional_all_reduce_makes_its_result(results: Path) -> None:
    """64 rows of 512 in float32, summed over 2 ranks: forward the output, backward the gradient of the input."""
    step = tape_of(results, "tensor_2").steps()[1]
    places = [i for i, e in enumerate(step) if isinstance(e, Op) and e.name == "all_reduce"]
    assert [step[i].shapes for i in places] == [((64 * 512,), (2,))] * 2  # type: ignore[union-attr]
    made = [step[i + 1] for i in places]
    assert [e.nbytes for e in made if isinstance(e, Alloc)] == [128 * KIB] * 2


def test_sequence_parallel_gathers_and_scatters(results: Path) -> None:
    """32 of 64 rows a rank: 64 KiB become 128 KiB, and back."""
    step = tape_of(results, "tensor_2_sequence").steps()[1]
    gathers, scatters = collectives(step, "all_gather"), collectives(step, "reduce_scatter")
    assert {(op.read_bytes, op.written_bytes) for op in gathers} == {(64 * KIB, 128 * KIB)}
    assert {(op.read_bytes, op.written_bytes) for op in scatters} == {(128 * KIB, 64 * KIB)}
    assert len(gathers) == len(scatters) == 2
    assert not collectives(step, "all_reduce") or {op.read_bytes for op in collectives(step, "all_reduce")} == {2 * KIB}


def test_two_dimensions_divide_twice(results: Path) -> None:
    """Over 2 columns and 4 rows of ranks a matrix of 1 MiB is 128 KiB a rank, LayerNorm's 2 KiB are 512 bytes."""
    tape = tape_of(results, "tensor_2_data_4")
    assert alive_after(tape, Phase.OPTIMIZER, 0, Role.WEIGHTS) == 2 * 128 * KIB + 512


def test_a_parallel_loss_never_sees_all_logits(results: Path) -> None:
    """32 tokens, 2048 of 4096 words a rank, in float32."""
    events = tape_of(results, "tensor_2_loss").steps()[0]
    sizes = [e.nbytes for e in allocs(events)]
    assert sizes.count(32 * 2048 * 4) >= 2
    assert 32 * 4096 * 4 not in sizes


# ---------------------------------------------------------------- scripts


def test_a_script_finds_its_group(tmp_path: Path) -> None:
    tape, answer = trace_script(str(HERE / "boilerplate.py"), (), Card(), nproc_per_node=4, nnodes=2)
    assert (answer.error, answer.steps) == (None, 3)
    assert any("NCCL" in text for text in tape.assumptions)
    assert not tape.guesses


def test_a_script_that_spawns_its_ranks(tmp_path: Path) -> None:
    _, answer = trace_script(str(HERE / "spawning.py"), (), Card(), nproc_per_node=4)
    assert (answer.error, answer.steps, answer.finished) == (None, 2, True)


ACCELERATE = """
distributed_type: {kind}
mixed_precision: bf16
num_machines: 1
num_processes: 8
fsdp_config:
  fsdp_version: 2
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_transformer_layer_cls_to_wrap: Layer
  fsdp_reshard_after_forward: true
  fsdp_cpu_ram_efficient_loading: {ram}
"""


@pytest.mark.parametrize(("kind", "ram", "mib"), [("MULTI_GPU", "false", 1.0), ("FSDP", "true", 0.125)])
def test_accelerate_shards_as_its_file_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, ram: str, mib: float
) -> None:
    """4 matrices of 256 KiB: replicas hold 1 MiB, one of 8 shards 128 KiB."""
    pytest.importorskip("accelerate")
    config = tmp_path / "accelerate.yaml"
    config.write_text(ACCELERATE.format(kind=kind, ram=ram))
    told = accelerate_config(str(config))
    for name, value in told.environment.items():
        monkeypatch.setenv(name, value)
    tape, answer = trace_script(
        str(HERE / "with_accelerate.py"), (), Card(), nproc_per_node=told.nproc_per_node, nnodes=told.nnodes
    )
    assert (answer.error, answer.steps) == (None, 3)
    assert alive_after(tape, Phase.OPTIMIZER, 1, Role.WEIGHTS) == mib * MIB
    assert alive_after(tape, Phase.OPTIMIZER, 1, Role.OPTIMIZER) == 2 * mib * MIB
    kinds = {op.name for op in tape.ops()}
    assert {"all_gather", "reduce_scatter"} <= kinds if kind == "FSDP" else {"all_reduce", "broadcast"} <= kinds


AGENTS_OWN = {"OMP_NUM_THREADS", "TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_SIGNALS_TO_HANDLE"}
"""What torchrun's agent tells itself and its children inherit."""


def test_rank_zero_is_told_what_torchrun_tells(tmp_path: Path, run_programs: Callable[..., Any]) -> None:
    script = tmp_path / "environment.py"
    script.write_text("import json, os, sys\njson.dump(dict(os.environ), open(sys.argv[1], 'w'))\n")
    before = {name: value for name, value in os.environ.items() if not name.startswith(("TORCH", "OMP"))}
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "1", str(script)]
    (done,) = run_programs([*command, str(tmp_path / "told.json")], env=before)
    assert done.returncode == 0, done.stderr
    told = json.loads((tmp_path / "told.json").read_text())
    expected = rank_zero(1)
    assert set(told) - set(before) - AGENTS_OWN <= set(expected)
    same = set(expected) - {"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID"}
    assert {name: told[name] for name in same} == {name: expected[name] for name in same}
