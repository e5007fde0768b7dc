"""ZeRO on paper: what DeepSpeed's documents say a rank holds, from a tape that follows its source."""

from __future__ import annotations

from typing import Any

import pytest

import tunecast
from tunecast.errors import UsageError
from tunecast.job import job_from_dict
from tunecast.tape.build.job_runs import build, fold_job
from tunecast.tape.build.sharding.zero_sizes import (
    MAX_IN_CPU,
    DeepSpeedSettings,
    kept_in_memory,
    settings_of,
    sub_groups,
)
from tunecast.tape.card import Card
from tunecast.tape.op import Alloc, Begin, Free, Op, Phase, Role, Tape
from tunecast.tape.program import program
from tunecast.tape.shorten import steps_of

RANKS = 4
CONFIG: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 512, "max_position_embeddings": 512,
    "tie_word_embeddings": False,
}  # fmt: skip
LAYER = [64 * 64, 32 * 64, 32 * 64, 64 * 64, 160 * 64, 160 * 64, 160 * 64, 64, 64]
ELEMENTS = 2 * 512 * 64 + 3 * sum(LAYER) + 64
TABLES_BYTES = 2 * 8 * 4
BUCKET_BYTES = 2 * 500_000_000


def tape_of(data: str, offload: str = "none", **job: Any) -> Tape:
    values = {
        "model": "small", "weights_dtype": "bfloat16", "autocast": "bfloat16", "seq_len": 32, "micro_batch": 1,
        "optimizer": "adamw_torch", "gradient_checkpointing": False, "hardware": {"gpus": RANKS},
        "parallel": {"data": data, "offload": offload}, **job,
    }  # fmt: skip
    return build(job_from_dict(values), CONFIG, [32, 32, 32], Card())


def held(tape: Tape, at: tuple[Phase, int]) -> dict[Role, int]:
    """Bytes by role when a phase ends."""
    alive: dict[int, Alloc] = {}
    now = None
    for event in tape.events:
        if isinstance(event, Begin):
            if now == at:
                break
            now = (event.phase, event.step)
        elif isinstance(event, Alloc):
            alive[event.block] = event
        elif isinstance(event, Free):
            del alive[event.block]
    found: dict[Role, int] = dict.fromkeys(Role, 0)
    for block in alive.values():
        found[block.role] += block.nbytes
    return found


def sent(tape: Tape, name: str, step: int = 1) -> int:
    return sum(e.read_bytes for e in tape.steps()[step] if isinstance(e, Op) and e.name == name)


@pytest.mark.parametrize("data", ["zero1", "zero2"])
def test_weights_are_whole_and_twelve_bytes_each_are_cut(data: str) -> None:
    """2 bytes a weight; a fourth of: master, two moments of 4 bytes each."""
    tape = tape_of(data)
    after = held(tape, (Phase.OPTIMIZER, 1))
    assert after[Role.WEIGHTS] == 2 * ELEMENTS + TABLES_BYTES
    assert after[Role.OPTIMIZER] == 12 * ELEMENTS // RANKS
    assert sent(tape, "all_reduce") == 2 * ELEMENTS + 4 + 1  # and the norm, and whether anything overflowed
    assert sent(tape, "all_gather") == 2 * ELEMENTS // RANKS


def test_stage_2_lets_gradients_go_as_they_come() -> None:
    """Of the bucket, and of what stays of the gradients, while the backward pass runs."""

    def most(tape: Tape) -> int:
        alive: dict[int, int] = {}
        peak = 0
        for event in tape.steps()[2]:
            if isinstance(event, Alloc) and event.role is Role.GRADIENTS and event.nbytes < BUCKET_BYTES:
                alive[event.block] = event.nbytes
                peak = max(peak, sum(alive.values()))
            elif isinstance(event, Free):
                alive.pop(event.block, None)
        return peak

    whole, cut = most(tape_of("zero1", grad_accum=2)), most(tape_of("zero2", grad_accum=2))
    assert whole >= 2 * ELEMENTS
    assert cut < 2 * ELEMENTS


def test_the_bucket_is_there_while_gradients_come() -> None:
    tape = tape_of("zero2")
    buckets = [e for e in tape.steps()[1] if isinstance(e, Alloc) and e.nbytes == BUCKET_BYTES]
    assert len(buckets) == 1
    assert any(isinstance(e, Free) and e.block == buckets[0].block for e in tape.steps()[1])


def test_stage_3_cuts_weights_too() -> None:
    """Parts in one buffer; norms, and all up to 100,000 elements, are also whole; here that is everything."""
    small = held(tape_of("zero3"), (Phase.OPTIMIZER, 1))
    parts = sum(-(-n // RANKS) for n in [512 * 64] * 2 + LAYER * 3 + [64])
    assert small[Role.OPTIMIZER] == 12 * parts
    whole = sum(-(-n // RANKS) * RANKS for n in [512 * 64] * 2 + LAYER * 3 + [64])
    assert small[Role.WEIGHTS] == 2 * parts + 2 * whole + TABLES_BYTES


def test_stage_3_gives_weights_back() -> None:
    """Axolotl's file keeps what has 10 times the hidden size or less, fetches nothing ahead and keeps nothing."""
    tape = tape_of("zero3", stack="axolotl")
    parts = sum(-(-n // RANKS) for n in [512 * 64] * 2 + LAYER * 3 + [64])
    norms = 2 * 3 + 1
    after = held(tape, (Phase.OPTIMIZER, 1))
    assert after[Role.WEIGHTS] == 2 * parts + 2 * 64 * norms + TABLES_BYTES
    large = 2 * (parts - 64 // RANKS * norms)
    small = 2 * 64 // RANKS * norms
    assert sent(tape, "all_gather") - 8 == 2 * large + small  # forward, backward, the step; and the count of tokens
    assert sent(tape, "reduce_scatter") == 2 * parts * RANKS


@pytest.mark.parametrize(("data", "offload"), [("zero2", "optimizer"), ("zero3", "optimizer"), ("zero3", "parameters")])
def test_what_is_offloaded_is_not_on_the_card(data: str, offload: str) -> None:
    tape = tape_of(data, offload, stack="axolotl")
    after = held(tape, (Phase.BACKWARD, 2))
    assert after[Role.OPTIMIZER] == 0
    if offload == "parameters":
        assert after[Role.WEIGHTS] == 2 * 64 * 7 + TABLES_BYTES
    assert any(isinstance(e, Op) and e.name == "copy_to_host" for e in tape.events)
    assert any(isinstance(e, Op) and e.name == "copy_from_host" for e in tape.events)


@pytest.mark.parametrize(
    ("data", "job", "told"),
    [
        ("zero1", {}, ()),
        ("zero2", {}, ()),
        ("zero3", {}, ("record_stream",)),
        ("zero3", {"method": "lora"}, ("record_stream",)),
        ("zero3", {"method": "lora", "lora": {"dora": True}}, ("DoRA", "record_stream")),
        ("zero3", {"method": "lora", "stack": "axolotl"}, ("zero.Init", "record_stream", "Trainer")),
        ("zero3", {"stack": "llama-factory"}, ("Trainer",)),  # whose file has one stream
    ],
)
def test_what_was_not_traced_is_told_as_a_guess(data: str, job: dict[str, Any], told: tuple[str, ...]) -> None:
    tape = tape_of(data, **job)
    assert len(tape.guesses) == len(told)
    assert all(word in guess for word, guess in zip(told, tape.guesses, strict=True))
    assert any("ZeRO's buckets" in text for text in tape.assumptions)


def sizes(stack: str, stage: int, **said: Any) -> DeepSpeedSettings:
    return settings_of(job_from_dict({"model": "small", "stack": stack, "parallel": said}), stage, 4096)


def test_sizes_are_those_of_the_file_people_start_from() -> None:
    assert sizes("transformers", 3) == DeepSpeedSettings()
    assert sizes("llama-factory", 3).reduce_bucket_size == 4096**2
    assert sizes("llama-factory", 3).overlap_comm is False
    assert sizes("llama-factory", 2).round_robin_gradients
    axolotl = sizes("axolotl", 3)
    assert (axolotl.max_live_parameters, axolotl.param_persistence_threshold) == (0, 40960)
    assert sizes("axolotl", 2).overlap_comm


def test_sizes_that_the_job_says_take_the_place_of_the_files() -> None:
    said = sizes("axolotl", 3, reduce_bucket_size=2e8, max_live_parameters="1G", overlap_comm=False)
    assert (said.reduce_bucket_size, said.max_live_parameters, said.overlap_comm) == (2 * 10**8, 10**9, False)
    assert said.prefetch_bucket_size == int(0.9 * 4096**2) and said.sub_group_size == 0
    assert said.told.startswith("the job (reduce_bucket_size, max_live_parameters, overlap_comm)")
    auto = dict.fromkeys(("reduce_bucket_size", "prefetch_bucket_size", "param_persistence_threshold"), "auto")
    found = sizes("transformers", 3, **auto)
    assert (found.reduce_bucket_size, found.prefetch_bucket_size) == (4096**2, int(0.9 * 4096**2))
    assert found.param_persistence_threshold == 40960


@pytest.mark.parametrize("said", [{"reduce_bucket_size": "some"}, {"max_live_parameters": "auto"}, {"overlap_comm": 7}])
def test_sizes_that_are_none(said: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"parallel\.\w+: got .*; allowed: "):
        sizes("transformers", 3, **said)


def test_a_smaller_bucket_is_less_memory() -> None:
    """Of stage 3 it is always there: so many elements of 16 bits."""
    parts = ({"data": "zero3", "reduce_bucket_size": size} for size in (10**6, 10**6 + 10**5))
    small, large = (held(tape_of("zero3", parallel=part), (Phase.OPTIMIZER, 0))[Role.GRADIENTS] for part in parts)
    assert large - small == 2 * 10**5


@pytest.mark.parametrize(
    ("size", "groups"), [(10, [[4, 8], [8, 5]]), (0, [[4], [8], [8], [5]]), (1000, [[4, 8, 8, 5]])]
)
def test_masters_step_in_groups(size: int, groups: list[list[int]]) -> None:
    assert sub_groups([4, 8, 8, 5], size) == groups


@pytest.mark.parametrize("data", ["zero1", "zero2", "zero3"])
def test_steps_that_repeat_are_taken_from_one(data: str) -> None:
    """No layer stands for another, but the second step stands for all that follow; and twice the same job is one."""
    job = job_from_dict(
        {
            "model": "small", "weights_dtype": "bfloat16", "seq_len": 32, "micro_batch": 1, "hardware": {"gpus": RANKS},
            "parallel": {"data": data}, "grad_accum": 2,
        }
    )  # fmt: skip
    folded, whole = fold_job(job, CONFIG, Card()), build(job, CONFIG, steps_of(job), Card(), keeps_ops=False)
    assert list(folded.program.written_out()) == list(program(whole).written_out())


# ------------------------------------------------------------------------------------------------------ ZeRO-Infinity

WIDE = {**CONFIG, "vocab_size": 32768, "hidden_size": 256, "num_attention_heads": 8, "head_dim": 32}
TABLE = 32768 * 256 // RANKS
"""A rank's part of the embedding, and of the head: 4 MiB in bfloat16. Of everything else, less than a file is worth."""


def on_drives(offload: str, stack: str = "axolotl", **parallel: Any) -> Tape:
    values = {
        "model": "small", "weights_dtype": "bfloat16", "autocast": "bfloat16", "seq_len": 32, "micro_batch": 1,
        "optimizer": "adamw_torch", "gradient_checkpointing": False, "hardware": {"gpus": RANKS}, "stack": stack,
        "parallel": {"data": "zero3", "offload": offload, **parallel},
    }  # fmt: skip
    return build(job_from_dict(values), WIDE, [32, 32, 32], Card())


def moved(tape: Tape, name: str) -> int:
    return sum(max(e.read_bytes, e.written_bytes) for e in tape.steps()[2] if isinstance(e, Op) and e.name == name)


def test_an_optimizer_on_drives_is_read_stepped_and_written() -> None:
    """Axolotl's sub-groups are a weight each. Of those with a MiB of float32 or more, read: masters, two moments and
    gradients of 4 bytes; written: the same, gradients when backward is done."""
    tape = on_drives("optimizer", offload_device="nvme")
    assert moved(tape, "read_from_nvme") == moved(tape, "write_to_nvme") == 16 * 2 * TABLE
    assert moved(on_drives("optimizer"), "read_from_nvme") == 0


def test_weights_on_drives_are_read_when_they_are_gathered(monkeypatch: pytest.MonkeyPatch) -> None:
    """With no room in host memory: both tables, 2 bytes, in both passes; the new ones are written."""
    kept = on_drives("parameters", offload_device="nvme")
    assert moved(kept, "read_from_nvme") == 16 * 2 * TABLE
    monkeypatch.setattr("tunecast.tape.build.sharding.zero_sizes.MAX_IN_CPU", 0)
    tape = on_drives("parameters", offload_device="nvme")
    assert moved(tape, "read_from_nvme") == 16 * 2 * TABLE + 2 * 2 * 2 * TABLE
    assert moved(tape, "write_to_nvme") == 16 * 2 * TABLE + 2 * 2 * TABLE


def test_a_bucket_s_gradients_are_wide_on_the_card_on_their_way_to_drives() -> None:
    """In one bucket with all others: 4 bytes of each of the two tables at once; in host memory one after the other."""

    def most(tape: Tape) -> int:
        alive: set[int] = set()
        counts = [0]
        for event in tape.steps()[2]:
            if isinstance(event, Alloc) and event.stream == 2 and event.nbytes == 4 * TABLE:
                alive.add(event.block)
                counts.append(len(alive))
            elif isinstance(event, Free):
                alive.discard(event.block)
        return max(counts)

    assert most(on_drives("optimizer", stack="transformers", offload_device="nvme")) == 2
    assert most(on_drives("optimizer", stack="transformers")) == 1


def test_gradients_go_to_the_host_come_back_and_go_once_more_in_float32() -> None:
    parts = sum(-(-n // RANKS) for n in [e.shapes[0][0] for e in ops_of(on_drives("optimizer"), "reduce_scatter")])
    tape = on_drives("optimizer")
    assert moved(tape, "copy_to_host") == (2 + 4) * parts
    assert moved(tape, "copy_from_host") >= 2 * parts


def ops_of(tape: Tape, name: str) -> list[Op]:
    return [e for e in tape.steps()[2] if isinstance(e, Op) and e.name == name]


@pytest.mark.parametrize(
    ("numels", "size", "kept"),
    [
        ([4, 8], 1, [True, True]),
        ([MAX_IN_CPU, 1], 1, [True, False]),
        ([MAX_IN_CPU - 1, 2], MAX_IN_CPU, [False, False]),  # a sub-group stays or leaves as one
        ([1, MAX_IN_CPU, 1], 2, [False, False, False]),
    ],
)
def test_sub_groups_with_room_stay_in_host_memory(numels: list[int], size: int, kept: list[bool]) -> None:
    assert kept_in_memory(numels, size) == kept


def test_quantised_weights_are_whole_on_every_card_while_they_load() -> None:
    """zero.Init is for others; DeepSpeed cuts what is there. Of the seven weights of each layer half a byte a value,
    of which four ranks then have a quarter."""
    packed = 3 * sum(LAYER[:7]) // 2
    tape = tape_of("zero3", method="qlora", lora={"rank": 2, "targets": ["q_proj"]})
    most, now, blocks = 0, 0, dict[int, int]()
    for event in tape.events:
        if isinstance(event, Begin) and event.phase is not Phase.LOAD:
            break
        if isinstance(event, Alloc):
            blocks[event.block] = event.nbytes
            now += event.nbytes
        elif isinstance(event, Free):
            now -= blocks.pop(event.block)
        most = max(most, now)
    plain = 2 * (2 * 512 * 64 + 3 * 128 + 64)
    assert most > packed + plain
    assert held(tape, (Phase.LOAD, 0))[Role.WEIGHTS] < packed + plain


def test_steps_of_zero_3_are_built_three_times_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the third on all are alike: what is whole at a step's end is let go in the next."""
    from tunecast.tape.build import job_runs

    asked: list[int] = []
    built = job_runs.build

    def counting(job: Any, config: Any, lengths: Any, card: Any, **more: Any) -> Tape:
        asked.append(len(lengths))
        return built(job, config, lengths, card, **more)

    monkeypatch.setattr(job_runs, "build", counting)
    values = {"model": "small", "seq_len": 32, "hardware": {"gpus": RANKS}, "parallel": {"data": "zero3"}}
    fold_job(job_from_dict(values), CONFIG, Card(), builder=job_runs.Builder(symbolic=False))
    assert asked == [3]


def test_a_bias_that_a_4_bit_layer_casts_is_let_go_with_the_rest() -> None:
    """bitsandbytes gives it other data in the forward pass: it is there all the same, until DeepSpeed frees it."""
    job = {"method": "qlora", "seq_len": 128, "micro_batch": 1, "parallel": {"data": "zero3"}, "hardware": {"gpus": 8}}
    for model in ("pythia-70m", "llama-3.2-1b"):  # with biases, and without
        found = tunecast.predict(tunecast.read({**job, "model": model}))
        assert 0 < found.memory.allocated_bytes < 4e9
