"""llm-foundry's MPT on paper: its parameters counted by hand, and what its program is known to do."""

from __future__ import annotations

from typing import Any

import pytest

from tunecast.errors import TunecastError
from tunecast.job.mapping import job_from_dict
from tunecast.tape.build.job_runs import build
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.stacks.foundry import model
from tunecast.tape.card import Card
from tunecast.tape.op import Alloc, Op, Phase, Role

CONFIG: dict[str, Any] = {
    "model_type": "mpt", "d_model": 128, "n_heads": 4, "n_layers": 2, "expansion_ratio": 4, "max_seq_len": 64,
    "vocab_size": 512, "no_bias": False, "learned_pos_emb": True,
}  # fmt: skip
JOB = {
    "model": "mpt-7b", "stack": "llm-foundry", "method": "full", "attention": "flash_attention_2", "seq_len": 64,
    "micro_batch": 2, "weights_dtype": "float32", "autocast": "bfloat16", "gradient_checkpointing": False,
}  # fmt: skip


def test_parameters_are_those_of_the_published_formula() -> None:
    made = model(Machine(Card()), CONFIG)
    width, inner = 128, 512
    norms = 2 * 2 * width
    attention = (width + 1) * 3 * width + (width + 1) * width
    mlp = (width + 1) * inner + (inner + 1) * width
    whole = 512 * width + 64 * width + 2 * (norms + attention + mlp) + 2 * width
    assert sum(p.numel() for p in made.parameters()) == whole


def ops_of(**changes: Any) -> list[tuple[Phase, str]]:
    from tunecast.tape.op import Begin

    job = job_from_dict({**JOB, **changes})
    tape = build(job, CONFIG, [64, 64], Card())
    found, phase = [], Phase.LOAD
    for event in tape.events:
        if isinstance(event, Begin):
            phase = event.phase
        elif isinstance(event, Op):
            found.append((phase, event.name))
    return found


def test_every_layer_packs_its_rows_anew() -> None:
    """unpad_input thrice a layer (query, key, value), each with a nonzero the host waits for."""
    forward = [name for phase, name in ops_of() if phase is Phase.FORWARD]
    assert forward.count("nonzero") == 2 * 3 * 2  # steps, tensors, layers
    assert forward.count("flash_attn::fwd") == 2 * 2
    assert forward.count("cross_entropy_fwd") == 2


def test_recomputation_runs_every_layer_twice() -> None:
    plain, again = ops_of(), ops_of(gradient_checkpointing=True)
    name = "flash_attn::fwd"
    assert [n for _, n in again].count(name) == 2 * [n for _, n in plain].count(name)


def test_the_optimizer_goes_through_the_weights_one_by_one() -> None:
    weights = 2 + 2 * (4 + 4 + 4) + 2
    optimizer = [name for phase, name in ops_of() if phase is Phase.OPTIMIZER]
    assert optimizer.count("addcdiv_") == 2 * weights


def test_gradients_and_moments_are_as_large_as_the_weights() -> None:
    tape = build(job_from_dict(JOB), CONFIG, [64, 64], Card())
    sizes: dict[Role, int] = {}
    for event in tape.events:
        if isinstance(event, Alloc):
            sizes[event.role] = sizes.get(event.role, 0) + event.nbytes
    assert sizes[Role.GRADIENTS] >= 2 * sizes[Role.WEIGHTS]  # of two steps
    moments = sizes[Role.OPTIMIZER]
    assert 0 <= moments - 2 * sizes[Role.WEIGHTS] < 1000  # and a count a weight


def test_other_models_are_refused() -> None:
    job = job_from_dict({**JOB, "model": "llama-3.2-1b"})
    with pytest.raises(TunecastError, match="'llama' is not written down"):
        build(job, {"model_type": "llama"}, [64], Card())
