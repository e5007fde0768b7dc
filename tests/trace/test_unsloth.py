"""Unsloth is followed by running it. What the tracer answers it is tested everywhere; whole runs where it is installed.

The tracer changes torch for the rest of a process, so each program runs in one of its own.
"""

from __future__ import annotations

import importlib.util
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
from tunecast.tape.op import Alloc, Free, Op
from tunecast.tape.card import Card
from tunecast.tape.trace.packages import unsloth as answers
from tunecast.tape.trace.ending import LEAVE
from tunecast.tape.trace.session import tracing

def answer(**values):
    print("ANSWER" + json.dumps(values))
"""
END = "\nsys.stdout.flush()\nLEAVE(0)\n"
installed = pytest.mark.skipif(importlib.util.find_spec("unsloth") is None, reason="Unsloth is not installed here")


def traced(program: str, **environment: str) -> dict[str, Any]:
    offline = {"PYTHONPATH": os.pathsep.join([str(SOURCE), os.environ.get("PYTHONPATH", "")]), "HF_HUB_OFFLINE": "1"}
    run = subprocess.run(
        [sys.executable, "-c", START + textwrap.dedent(program) + END],
        env=os.environ | offline | {"CUDA_VISIBLE_DEVICES": ""} | environment,
        capture_output=True,
        text=True,
    )
    lines = [line for line in run.stdout.splitlines() if line.startswith("ANSWER")]
    assert lines, run.stderr[-3000:]
    result: dict[str, Any] = json.loads(lines[-1].removeprefix("ANSWER"))
    return result


# ---------------------------------------------------------------- what Unsloth asks


def test_the_body_of_an_operation_written_in_python_is_run() -> None:
    """Its shape-only answer shows the 40 bytes of the result; the body also borrows 4000."""
    found = traced("""
    with tracing(Card()) as recorder:
        answers.run_custom_operations(recorder)

        @torch.library.custom_op("unsloth_zoo::toy_loss", mutates_args=())
        def toy_loss(x: torch.Tensor) -> torch.Tensor:
            borrowed = torch.empty(1000, dtype=torch.float32, device=x.device)
            return torch.empty(10, dtype=torch.float32, device=x.device)

        toy_loss.register_fake(lambda x: x.new_empty(10))
        x = torch.empty(5, device="cuda")
        toy_loss(x)
        answer(sizes=[e.nbytes for e in recorder.tape({}).events if isinstance(e, Alloc)])
    """)
    assert found["sizes"] == [20, 4000, 40]


def test_a_staging_buffer_that_grows_is_a_new_block_before_the_old_one_goes() -> None:
    """CUDA's resize copies the contents over: both live for a moment."""
    found = traced("""
    with tracing(Card()) as recorder:
        buffer = torch.empty(100, dtype=torch.bfloat16, device="cuda")
        buffer.resize_(1000)
        buffer.resize_(500)  # a storage never shrinks
        events = [e for e in recorder.tape({}).events if isinstance(e, (Alloc, Free))]
        answer(events=[e.nbytes if isinstance(e, Alloc) else "free" for e in events], left=recorder.allocated_bytes)
    """)
    assert found == {"events": [200, 2000, "free"], "left": 2000}


def test_attention_is_chosen_as_the_card_would_choose() -> None:
    """cuDNN on Hopper, for which Unsloth pads lengths to multiples of 128; flash on an RTX A6000."""
    program = """
    with tracing(Card(capability={capability})) as recorder:
        answers.answer_which_attention(recorder)
        q, k = (torch.empty(1, heads, 128, 64, dtype=torch.bfloat16, device="meta") for heads in (32, 8))
        answer(choice=torch._fused_sdp_choice(q, k, k, is_causal=True, enable_gqa=True))
    """
    flash, cudnn = 1, 3  # torch.nn.attention.SDPBackend
    assert traced(program.format(capability=(9, 0)))["choice"] == cudnn
    assert traced(program.format(capability=(8, 6)))["choice"] == flash


def test_fake_tensors_pass_for_plain_ones() -> None:
    found = traced("""
    import types
    module = types.ModuleType("asks")
    answers.see_plain_tensors(module)
    module.torch = torch
    questions = "[type(x) is torch.Tensor, type(x) is torch.nn.Parameter, isinstance(int, type)]"
    exec("asked = lambda x: " + questions, module.__dict__)
    with tracing(Card()):
        plain, parameter = torch.empty(2, device="cuda"), torch.nn.Parameter(torch.empty(2, device="cuda"))
        answer(plain=module.asked(plain), parameter=module.asked(parameter), number=module.asked(1))
    """)
    assert found == {"plain": [True, False, True], "parameter": [False, True, True], "number": [False, False, True]}


def test_no_token_is_found_untrained_and_the_search_still_runs() -> None:
    """As unsloth_zoo/tokenizer_utils.py searches: what `where` finds depends on weights that nobody has."""
    found = traced("""
    from types import SimpleNamespace

    def fix_untrained_tokens(weight):
        zero = torch.amax(weight, axis=1) <= 1e-16
        rows = torch.where(zero)[0]
        chosen = torch.where(zero, 1.0, 2.0)
        return [list(rows.shape), list(weight[rows].cpu().float().numpy().shape), rows.tolist(), list(chosen.shape)]

    module = SimpleNamespace(fix_untrained_tokens=fix_untrained_tokens)
    with tracing(Card()) as recorder:
        answers.find_all_tokens_trained(module, recorder)
        where = torch.where
        answer(found=module.fix_untrained_tokens(torch.empty(10, 4, device="cuda")), restored=torch.where is where,
               told=list(recorder.assumptions))
    """)
    assert found["found"] == [[0], [0, 4], [], [10]]
    assert found["restored"]
    assert any("without a trained embedding" in sentence for sentence in found["told"])


def test_without_unsloth_the_job_says_what_to_do() -> None:
    found = traced("""
    from tunecast.errors import NotResolved
    from tunecast.job.mapping import job_from_dict
    with tracing(Card()) as recorder:
        from tunecast.tape.trace import recipes_unsloth
        recipes_unsloth.importlib.util.find_spec = lambda name: None
        job = job_from_dict({"model": "llama-3.2-1b", "stack": "unsloth", "method": "qlora"})
        try:
            recipes_unsloth.train(job, {}, [8], recorder)
        except NotResolved as error:
            answer(message=error.message, field=error.field, code=error.exit_code)
    """)
    assert found["field"] == "stack" and found["code"] == 5
    assert "To fix: --python" in found["message"]


# ---------------------------------------------------------------- whole runs

TRAIN = """
from tunecast.job.mapping import job_from_dict
config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 512, "intermediate_size": 1024,
          "num_hidden_layers": 3, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64,
          "vocab_size": 40000, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
          "tie_word_embeddings": False, "hidden_act": "silu", "dtype": "bfloat16"}
fields = {"model": "llama-3.2-1b", "stack": "unsloth", "method": "qlora", "seq_len": 1500, "micro_batch": 2,
          "weights_dtype": "bfloat16", "optimizer": "adamw_8bit", "lora": {"rank": 16, "dropout": 0.0}}
with tracing(Card()) as recorder:
    from tunecast.tape.trace.recipes_unsloth import train
    train(job_from_dict(fields), config, [1500] * 3, recorder)
    tape = recorder.tape({})
    made = {e.block: (i, e) for i, e in enumerate(tape.events) if isinstance(e, Alloc)}
    freed = {e.block for e in tape.events if isinstance(e, Free)}
    ops = [e for e in tape.events if isinstance(e, Op)]
    answer(
        guesses=list(tape.guesses),
        kept=sorted(e.nbytes for b, (i, e) in made.items() if b not in freed and e.module == "base_model.model.model"),
        sizes=[e.nbytes for e in tape.events if isinstance(e, Alloc)],
        lengths=sorted({o.shapes[0][2] for o in ops if o.name.startswith("_scaled_dot_product")}),
        kernels=sorted({o.name for o in ops if o.name.startswith("triton::")}),
    )
"""


@installed
@pytest.mark.parametrize("compiled", [False, True])
def test_a_qlora_run_goes_through_unsloths_own_code(compiled: bool) -> None:
    found = traced(TRAIN, UNSLOTH_COMPILE_DISABLE="0" if compiled else "1")
    assert found["guesses"] == []
    # Checkpointed activations wait on the host; two staging buffers of one activation each bring them back.
    activation = 2 * 1500 * 512 * 2
    assert found["kept"].count(activation) == 2
    # The loss makes fp32 logits of so many rows at once that there are about 512 * 151936: 1024, a power of two.
    assert 1024 * 40000 * 4 in found["sizes"]
    # cuDNN's attention gets lengths of whole buckets of 128: 1500 is 1536.
    assert found["lengths"] == [1536]
    assert any("rope" in name for name in found["kernels"])
    assert any("nf4_dequant" in name for name in found["kernels"])
