"""Which 4-bit product bitsandbytes runs: its own choice on cards of every kind, against the closed form's. And what its
library computes for a script."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("bitsandbytes")

from tunecast.tape.card import Card  # noqa: E402
from tunecast.tape.kernels.four_bit import takes_fused_kernel  # noqa: E402
from tunecast.tape.op import Begin, Op, Phase  # noqa: E402
from tunecast.tape.trace.packages.bitsandbytes import work_of  # noqa: E402
from tunecast.tape.trace.run import trace_script  # noqa: E402

CARDS = [
    ((6, 1), 20), ((7, 0), 80), ((7, 5), 40), ((8, 0), 108), ((8, 6), 28), ((8, 6), 84), ((8, 7), 16), ((8, 9), 24),
    ((8, 9), 76), ((8, 9), 128), ((9, 0), 132), ((10, 0), 148), ((11, 0), 20), ((12, 0), 36), ((12, 0), 170),
    ((12, 1), 48),
]  # fmt: skip
UNPACKED = """
import bitsandbytes, torch
frozen = bitsandbytes.nn.Linear4bit(512, 1024, bias=False, compute_dtype=torch.bfloat16, quant_type="nf4")
frozen = frozen.cuda()
trained = torch.nn.Linear(512, 512, bias=False, dtype=torch.bfloat16).cuda()
optimizer = bitsandbytes.optim.PagedAdamW8bit(trained.parameters())
for _ in range(2):
    frozen(trained(torch.ones(2048, 512, dtype=torch.bfloat16, device="cuda"))).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
WIDTHS = (64, 128, 256, 512, 704, 768, 1024, 1536, 2048, 3072, 4096, 5120, 8192, 11008, 12288, 14336, 28672)


@pytest.mark.parametrize(("capability", "sm_count"), CARDS)
def test_as_bitsandbytes_chooses(capability: tuple[int, int], sm_count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        from bitsandbytes.backends.cuda import ops
    except (ImportError, AttributeError) as error:
        pytest.skip(f"bitsandbytes has no CUDA side here: {error}")
    monkeypatch.setattr(ops, "_gpu_dispatch_props", lambda index: (sm_count, *capability))
    ops._gemm_4bit_use_custom_cuda.cache_clear()
    card, draw = Card(capability=capability, sm_count=sm_count), random.Random(0)
    for _ in range(3000):
        outputs = draw.choice(WIDTHS)
        inputs = draw.choice((*WIDTHS, outputs, 2 * outputs, 3 * outputs))
        rows = draw.choice((draw.randint(1, 12), draw.randint(1, 140), draw.randint(1, ops._gemm_4bit_custom_max_m)))
        dtype = draw.choice(("bfloat16", "float16", "float32"))
        theirs = ops._gemm_4bit_use_custom_cuda(0, getattr(torch, dtype), rows, outputs, inputs)
        assert takes_fused_kernel(card, dtype, rows, outputs, inputs) == bool(theirs), (dtype, rows, outputs, inputs)
    ops._gemm_4bit_use_custom_cuda.cache_clear()


def test_a_long_batch_or_an_odd_width_takes_a_copy() -> None:
    # 704 outputs are 11 blocks of 64, a twelfth of the card's 132: up to 512 rows the kernel runs
    assert takes_fused_kernel(Card(), "bfloat16", 512, 704, 256)
    assert not takes_fused_kernel(Card(), "bfloat16", 513, 704, 256)
    assert not takes_fused_kernel(Card(), "bfloat16", 4, 704, 250)
    assert takes_fused_kernel(Card(), "bfloat16", 4, 704, 256)


def test_what_the_library_computes_is_on_the_tape(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else 4-bit weights are unpacked in no time, and a step of an 8-bit optimizer, which allocates nothing after its
    first, is no step at all: such scripts had no time."""
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(UNPACKED)
    tape, answer = trace_script("train.py", (), Card(), steps=0)
    assert (answer.error, answer.finished, answer.steps) == (None, True, 2)
    second = [event for event in tape.steps()[1] if isinstance(event, (Begin, Op))]
    assert Begin(Phase.OPTIMIZER, 1) in second
    packed, blocks = 512 * 1024 // 2, 512 * 1024 // 64
    unpacked = 512 * 1024 * 2
    named = [op for op in second if isinstance(op, Op) and op.name.startswith(("dequantize", "optimizer_update"))]
    assert [(op.name, op.read_bytes, op.written_bytes) for op in named] == [
        ("dequantize_blockwise", blocks, 4 * blocks),
        ("dequantize_4bit", packed + 4 * blocks, unpacked),
        ("dequantize_blockwise", blocks + 4 * (blocks // 256 + 256), 4 * blocks),
        ("dequantize_4bit", packed + 4 * blocks, 2 * unpacked),
        ("optimizer_update_8bit_blockwise", 2 * 512 * 512 * 2, 512 * 512 * (2 + 2)),
    ]


@pytest.mark.parametrize(
    ("call", "flops"), [("cgemm_4bit_bf16", 2 * 6 * 8 * 16), ("cdequantize_blockwise_bf16_nf4", 0)]
)
def test_a_fused_product_unpacks_nothing(call: str, flops: int) -> None:
    x, packed, out = (torch.empty(size, device="meta", dtype=torch.bfloat16) for size in ((6, 8), (64,), (6, 16)))
    scales = torch.empty(2, device="meta")
    found = list(work_of("gemm_4bit", (call,), (x, packed, (16, 8), scales, 64, "nf4"), [x, packed, scales], [out]))
    assert [(op.name, op.flops) for op in found] == [("gemm_4bit" if flops else "dequantize_4bit", flops)]
