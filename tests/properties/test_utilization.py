"""No card does more than it can: of a step's FLOPs, none are counted that nobody computes."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tunecast.door.predict import predict
from tunecast.hardware.catalog import gpus

MODELS = ("llama-3.2-1b", "qwen2.5-0.5b", "gemma-3-1b", "gpt2", "mistral-7b", "olmoe-1b-7b")
CARDS = sorted(
    name for name, card in gpus().items() if card.dense_flop_per_s.get("bf16") and card.vendor in ("NVIDIA", "AMD")
)


@settings(max_examples=25, deadline=None)
@given(
    model=st.sampled_from(MODELS),
    card=st.sampled_from(CARDS),
    length=st.sampled_from((64, 1000, 8192, 65536)),
    rows=st.sampled_from((1, 8, 64)),
    method=st.sampled_from(("full", "lora")),
    checkpointing=st.booleans(),
    attention=st.sampled_from(("sdpa", "eager")),
)
def test_utilisation_is_at_most_whole(
    model: str, card: str, length: int, rows: int, method: str, checkpointing: bool, attention: str
) -> None:
    length = min(length, 1024) if model == "gpt2" else length
    job = {
        "model": model, "method": method, "weights_dtype": "bfloat16", "seq_len": length, "micro_batch": rows,
        "gradient_checkpointing": checkpointing, "attention": attention, "hardware": {"gpu": card},
    }  # fmt: skip
    told = predict(job).utilization
    assert told is not None
    assert 0 < told.mfu <= told.hfu <= 1
    assert 0 < told.gpu_busy_fraction <= 1 + 1e-9
