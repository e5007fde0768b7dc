"""flash-attn's stand-in allocates and saves what the extension's source says; every number can be redone on paper.

The tracer changes torch for the rest of a process, so each program runs in one of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

SOURCE = Path(__file__).parents[2] / "src"
START = """
import json, sys
import torch
from tunecast.tape.op import Alloc, Begin, Free, Op
from tunecast.tape.card import Card
from tunecast.tape.trace.ending import LEAVE
from tunecast.tape.trace.session import tracing

def answer(**values):
    print("ANSWER" + json.dumps(values))

class Since:  # what the recorder saw from here on

    def __init__(self, recorder):
        self.recorder, self.place = recorder, len(recorder.tape({}).events)

    def events(self):
        return self.recorder.tape({}).events[self.place:]

    def allocations(self):
        return [e.nbytes for e in self.events() if isinstance(e, Alloc)]

    def alive(self):
        dead = {e.block for e in self.events() if isinstance(e, Free)}
        return sorted(e.nbytes for e in self.events() if isinstance(e, Alloc) and e.block not in dead)
"""
END = "\nsys.stdout.flush()\nLEAVE(0)\n"


def traced(program: str) -> dict[str, Any]:
    environment = os.environ | {"PYTHONPATH": str(SOURCE), "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    run = subprocess.run(
        [sys.executable, "-c", START + textwrap.dedent(program) + END], env=environment, capture_output=True, text=True
    )
    lines = [line for line in run.stdout.splitlines() if line.startswith("ANSWER")]
    assert lines, run.stderr[-3000:]
    result: dict[str, Any] = json.loads(lines[-1].removeprefix("ANSWER"))
    return result


def test_dense_attention_saves_and_allocates_what_mha_fwd_and_mha_bwd_do() -> None:
    # batch 2, length 200, 32 query heads, 8 key heads, width 64, bf16
    found = traced("""
    with tracing(Card()) as recorder:
        from flash_attn import flash_attn_func
        q = torch.empty(2, 200, 32, 64, dtype=torch.bfloat16, device="cuda", requires_grad=True)
        k, v = (torch.empty(2, 200, 8, 64, dtype=torch.bfloat16, device="cuda", requires_grad=True) for _ in range(2))
        dout = torch.empty(2, 200, 32, 64, dtype=torch.bfloat16, device="cuda")
        forward = Since(recorder)
        out = flash_attn_func(q, k, v, causal=True)
        allocated, kept = forward.allocations(), forward.alive()
        backward = Since(recorder)
        out.backward(dout)
        answer(forward=allocated, kept=kept, backward=backward.allocations(),
               assumptions=list(recorder.tape({}).assumptions))
    """)
    query, key, lse = 2 * 200 * 32 * 64 * 2, 2 * 200 * 8 * 64 * 2, 2 * 32 * 200 * 4
    random_state = 16
    # 2 * 32 heads * 4 blocks of 64 rows = 256 >= 0.8 * 2 * 132: keys are not split
    assert found["forward"] == [query, lse, 0, random_state]
    assert found["kept"] == sorted([query, lse, random_state])
    rounded = 256  # 200 rows, in blocks of 128
    softmax_d, dq_accum = 2 * 32 * rounded * 4, 2 * rounded * 32 * 64 * 4
    # dq, dk, dv, then the kernel's own: keys and values with all 32 heads, summed over 4 a group afterwards
    assert found["backward"] == [query, key, key, softmax_d, dq_accum, query, query]
    assert any("flash-attn 2.8.3" in text for text in found["assumptions"])


def test_few_long_rows_are_split_along_the_keys() -> None:
    # 1 sequence, 2 heads, 64 rows, 8192 keys, width 128: 2 units of work for 264 places, 64 blocks of 128 keys.
    # 64 splits fill 128 of 264 places, the best there is; 85 % of that is reached first with 64 (32 fill 64).
    found = traced("""
    with tracing(Card()) as recorder:
        from tunecast.tape.trace.packages.flash_kernels import Sizes, splits_2
        few = Sizes(1, 64, 8192, 64, 8192, 2, 2, 128, False)
        many = few._replace(heads=256)
        answer(few=splits_2(few, 132), many=splits_2(many, 132))
    """)
    assert found == {"few": 64, "many": 1}


def test_packed_rows_have_a_block_of_space_between_them() -> None:
    # three sequences of 100, 50 and 150 tokens end to end, 4 heads, width 40 (rounded up to 64 in fp32 sums)
    found = traced("""
    with tracing(Card()) as recorder:
        from flash_attn import flash_attn_varlen_func
        q, k, v = (torch.empty(300, 4, 40, dtype=torch.float16, device="cuda", requires_grad=True) for _ in range(3))
        ends = torch.tensor([0, 100, 150, 300], dtype=torch.int32, device="cuda")
        dout = torch.empty(300, 4, 40, dtype=torch.float16, device="cuda")
        forward = Since(recorder)
        out = flash_attn_varlen_func(q, k, v, ends, ends, 150, 150, causal=True)
        allocated = forward.allocations()
        flops = sum(e.flops for e in forward.events() if isinstance(e, Op))
        backward = Since(recorder)
        out.backward(dout)
        answer(forward=allocated, backward=backward.allocations(), flops=flops)
    """)
    whole, lse = 300 * 4 * 40 * 2, 4 * 300 * 4
    assert found["forward"] == [whole, lse, 0, 16]
    rows = 300 + 128 * 3
    assert found["backward"] == [whole, whole, whole, 4 * rows * 4, rows * 4 * 64 * 4]
    assert found["flops"] == 4 * 4 * 40 * (100**2 + 50**2 + 150**2)


def test_odd_widths_are_padded_to_eight_and_saved_so() -> None:
    found = traced("""
    with tracing(Card()) as recorder:
        from flash_attn import flash_attn_func
        q, k, v = (torch.empty(1, 256, 8, 20, dtype=torch.float16, device="cuda", requires_grad=True) for _ in range(3))
        forward = Since(recorder)
        out = flash_attn_func(q, k, v)
        answer(width=out.shape[-1], kept=forward.alive())
    """)
    padded = 256 * 8 * 24 * 2  # q, k, v and the output, 24 wide
    assert found["width"] == 20
    assert found["kept"] == sorted([padded] * 4 + [8 * 256 * 4, 16])


def test_flash_attention_3_sums_grouped_keys_in_fp32() -> None:
    found = traced("""
    with tracing(Card()) as recorder:
        from flash_attn_interface import flash_attn_func
        q = torch.empty(1, 512, 8, 128, dtype=torch.bfloat16, device="cuda", requires_grad=True)
        k, v = (torch.empty(1, 512, 2, 128, dtype=torch.bfloat16, device="cuda", requires_grad=True) for _ in range(2))
        dout = torch.empty(1, 512, 8, 128, dtype=torch.bfloat16, device="cuda")
        forward = Since(recorder)
        out = flash_attn_func(q, k, v, causal=True)
        allocated = forward.allocations()
        backward = Since(recorder)
        out.backward(dout)
        answer(forward=allocated, backward=backward.allocations())
    """)
    query, key, lse = 512 * 8 * 128 * 2, 512 * 2 * 128 * 2, 8 * 512 * 4
    assert found["forward"] == [query, lse, 4]  # one scheduler counter
    # causal, width 128: 64 rows of queries a block; softmax sum, logsumexp, dq; dk and dv in fp32; 8 blocks a head
    accumulators = [8 * 512 * 4, 8 * 512 * 4, 8 * 512 * 128 * 4, 2 * 512 * 128 * 4, 2 * 512 * 128 * 4]
    assert found["backward"] == [query, key, key, *accumulators, 8 * 8 * 4]


MODEL = """
    with tracing(Card()) as recorder:
        from transformers import AutoModelForCausalLM, LlamaConfig
        config = LlamaConfig(hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=8,
                             num_key_value_heads=2, vocab_size=1000, use_cache=False, dtype=torch.bfloat16)
        torch.set_default_dtype(torch.bfloat16)
        with torch.device("cuda"):
            model = AutoModelForCausalLM.from_config(config, attn_implementation="{implementation}")
        model.train()
        ids = torch.randint(0, 1000, {shape}, device="cuda")
        model(input_ids=ids, {more}).loss.backward()
        tape = recorder.tape({{}})
        calls = [e for e in tape.events if isinstance(e, Op) and "flash_attn" in e.name]
        answer(calls=[[e.name, e.module, list(e.shapes[0])] for e in calls], guesses=list(tape.guesses))
"""


@pytest.mark.parametrize("version", ["2", "3"])
def test_transformers_takes_it_for_the_real_one(version: str) -> None:
    pytest.importorskip("transformers")
    more = "attention_mask=torch.ones_like(ids), labels=ids"
    found = traced(MODEL.format(implementation=f"flash_attention_{version}", shape="(2, 128)", more=more))
    kind = "flash_attn" if version == "2" else "flash_attn_3"
    layers = ["model.layers.0.self_attn", "model.layers.1.self_attn"]
    forward = [[f"{kind}::fwd", layer, [2, 128, 8, 32]] for layer in layers]
    backward = [[f"{kind}::bwd", layer, [2, 128, 8, 32]] for layer in reversed(layers)]
    assert found["calls"] == forward + backward
    assert found["guesses"] == []


def test_positions_that_start_again_are_sequences_of_their_own() -> None:
    """Padding-free training: one row of 128 + 64 tokens, told apart by `position_ids` alone."""
    pytest.importorskip("transformers")
    positions = "torch.cat([torch.arange(128), torch.arange(64)])[None].cuda()"
    more = f"position_ids={positions}, labels=ids"
    found = traced(MODEL.format(implementation="flash_attention_2", shape="(1, 192)", more=more))
    assert [call[2] for call in found["calls"]] == [[192, 8, 32]] * 4
    assert found["guesses"] == []


def test_padded_rows_are_gathered_before_the_kernel() -> None:
    pytest.importorskip("transformers")
    more = "attention_mask=torch.tensor([[1] * 128, [1] * 100 + [0] * 28]).cuda(), labels=ids"
    found = traced(MODEL.format(implementation="flash_attention_2", shape="(2, 128)", more=more))
    assert [call[2] for call in found["calls"]] == [[228, 8, 32]] * 4
    assert found["guesses"] == []


def test_who_only_looks_is_told_the_truth() -> None:
    """Unsloth and xformers pick their kernels by what is installed; a trace must not change their choice."""
    if __import__("importlib.util").util.find_spec("flash_attn"):
        pytest.skip("flash-attn is installed here")
    found = traced("""
    import importlib.util
    with tracing(Card()):
        before = importlib.util.find_spec("flash_attn") is not None
        import flash_attn
        try:
            import flash_attn.ops.rms_norm
            message = ""
        except ImportError as error:
            message = str(error)
        answer(before=before, imported=flash_attn.__version__, message=message)
    """)
    assert found == {"before": False, "imported": "2.8.3", "message": found["message"]}
    assert "does not model" in found["message"]


def test_kernels_from_the_hub_are_refused_by_name() -> None:
    pytest.importorskip("transformers")
    found = traced("""
    with tracing(Card()):
        from transformers import AutoModelForCausalLM, LlamaConfig
        config = LlamaConfig(hidden_size=64, intermediate_size=64, num_hidden_layers=1,
                             num_attention_heads=2, vocab_size=9)
        try:
            AutoModelForCausalLM.from_config(config, attn_implementation="kernels-community/flash-attn2")
            message = ""
        except Exception as error:
            message = str(error)
        answer(message=message)
    """)
    assert "kernels-community/flash-attn2" in found["message"]
    assert "To fix" in found["message"]
