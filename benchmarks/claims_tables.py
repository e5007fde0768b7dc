"""Claims of guides' tables: columns of recommended memory, the cards beside them, what settings save, what adapters
weigh."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from claims_jobs import (
    BF16,
    LEAN,
    MASTER,
    ONE_ROW,
    PRECISIONS,
    SETTINGS,
    USUAL,
    Row,
    ask,
    device_gb,
    job,
    lora,
    qlora,
    time_of,
)
from claims_jobs import tokens_per_s as rate_of
from claims_memory import FSDP, NO_UPCAST, fits_told, fitting, memory_saved, total
from claims_rule import Case
from claims_time import A100, B200, H100, ratio

from tunecast.job.model import resolve_model
from tunecast.prediction.outside.needs import outside_of

Cases = Iterator[Case]
MB = 1e6
UNSLOTH: Row = {"stack": "unsloth"}
LAYERS: Row = {"parallel": {"layers": 2}}
A100_40 = "a100-pcie-40gb"


def full_recommended() -> Cases:
    for part, size in enumerate(("13B", "34B", "70B")):
        for label, precision in PRECISIONS.items():
            yield total(f"{size}, {label}, 1 x 2,048 tokens", job(size, precision, ONE_ROW))._replace(part=part)


def full_7b() -> Cases:
    for label, precision in PRECISIONS.items():
        yield total(f"{label}, 1 x 2,048 tokens", job("7B", precision, ONE_ROW))


def full_examples() -> Cases:
    """The guide's cards for each size, sharded over all of them."""
    examples = (
        ("7B", A100, 8),
        ("13B", A100, 2),
        ("13B", H100, 8),
        ("34B", A100, 4),
        ("34B", H100, 8),
        ("70B", A100, 8),
        ("70B", H100, 8),
    )
    for size, gpu, gpus in examples:
        for label, precision in PRECISIONS.items():
            asked = job(size, precision, FSDP, ONE_ROW, gpu=gpu, gpus=gpus)
            yield fitting(f"{size} on {gpus} {gpu}, {label}", asked)


def lora_recommended() -> Cases:
    for part, size in enumerate(("7B", "13B")):
        for label, setting in SETTINGS.items():
            yield total(f"{size}, {label}", job(size, lora(8), setting))._replace(part=part)


def lora_examples() -> Cases:
    for size, gpus in {"7B": ("rtx-4090", "l40s"), "13B": ("a100-pcie-80gb", "l40s")}.items():
        for gpu in gpus:
            for label, setting in SETTINGS.items():
                yield fitting(f"{size} LoRA on {gpu}, {label}", job(size, lora(8), setting, gpu=gpu))


def lora_70b_examples() -> Cases:
    yield fitting("one H100", job("70B", lora(8), LEAN, gpu=H100))
    for gpu in (A100, H100):
        for label, setting in SETTINGS.items():
            yield fitting(f"8 {gpu}, FSDP, {label} a card", job("70B", lora(8), FSDP, setting, gpu=gpu, gpus=8))


def low_ranks() -> Cases:
    for part, rank in enumerate((4, 8)):
        for label, setting in SETTINGS.items():
            yield total(f"rank {rank}, {label}", job("7B", lora(rank), setting))._replace(part=part)


def a100_40gb() -> Cases:
    """That it is too small: it holds where 70B does not fit."""
    ways: Mapping[str, tuple[Row, ...]] = {
        "Llama 3.1 70B, prepared for k-bit training": (qlora(),), "Llama 3.1 70B, embeddings in 16 bits": (NO_UPCAST,),
        "Llama 3.1 70B, Unsloth": (qlora(), UNSLOTH),
    }  # fmt: skip
    for label, parts in ways.items():
        asked = job("70B", *parts, LEAN, gpu=A100_40)
        found = fitting(f"one card, {label}, 1 x 512 tokens", asked)
        yield found._replace(value=not found.value)
    for label, parts in list(ways.items())[:2]:
        found = fitting(
            f"two cards, {label}, layers over both, 1 x 512 tokens",
            job("70B", *parts, LAYERS, LEAN, gpu=A100_40, gpus=2),
        )
        yield found._replace(value=not found.value)


def two_a100() -> Cases:
    for tokens in (4096, 8192):
        for label, spread in {"layers over both cards": LAYERS, "FSDP": FSDP}.items():
            setting = {"micro_batch": 1, "seq_len": tokens}
            yield fitting(f"1 x {tokens:,} tokens, {label}", job("70B", qlora(), setting, spread, gpu=A100, gpus=2))


def blackwell_405b() -> Cases:
    fp4 = qlora(format="fp4")
    yield fitting("FP4 base weights, one B200, 1 x 512 tokens", job("llama-3.1-405b", fp4, LEAN, gpu=B200))
    yield fitting(
        "FP4 base weights, 8 B200, FSDP, 1 x 2,048 tokens", job("llama-3.1-405b", fp4, FSDP, ONE_ROW, gpu=B200, gpus=8)
    )
    older = job("llama-3.1-405b", qlora(), FSDP, ONE_ROW, gpu=H100, gpus=8)
    yield fitting("NF4 base weights, 8 H100, without Blackwell", older, aside=True)


def l40s_70b() -> Cases:
    """An L40S has room for the smallest of these alone; the others are timed as if it had more."""
    ways: Mapping[str, tuple[Row, ...]] = {
        "1 x 512 tokens, embeddings in 16 bits": (NO_UPCAST, LEAN), "1 x 2,048 tokens, prepared": (qlora(), ONE_ROW),
    }  # fmt: skip
    for label, parts in ways.items():
        slow, fast = (job("70B", *parts, gpu=gpu) for gpu in ("l40s", A100))
        yield ratio(label, slow, fast, words=f"; the L40S {fits_told(slow)}")


def lora_against_full() -> Cases:
    for size in ("1B", "8B"):
        for label, setting in SETTINGS.items():
            adapted, full = (job(size, method, setting) for method in (lora(8), BF16))
            yield ratio(f"{size}, {label}, both recomputed", adapted, full)
    kept = {**ONE_ROW, "gradient_checkpointing": False}
    adapted, full = (job("8B", method, kept) for method in (lora(8), BF16))
    yield ratio("8B, 1 x 2,048 tokens, activations kept", adapted, full)


def mixed_precision() -> Cases:
    whole: Row = {**MASTER, "autocast": None}
    for size, setting, words in (("7B", ONE_ROW, "1 x 2,048 tokens"), ("1B", USUAL, "4 x 2,048 tokens")):
        high = job(size, whole, setting)
        yield memory_saved(f"{size} full, autocast to bf16, {words}", job(size, MASTER, setting), high)
        yield memory_saved(f"{size} full, bf16 throughout, {words}", job(size, BF16, setting), high)


def four_bits() -> Cases:
    for size in ("7B", "13B", "70B"):
        for label, setting in SETTINGS.items():
            yield memory_saved(f"{size}, {label}", job(size, qlora(), setting), job(size, lora(), setting))


def flash_attention() -> Cases:
    """FlashAttention 2 against what one has without it: PyTorch's SDPA, the default, or eager attention."""
    for other, words in {"eager": "eager attention", "sdpa": "PyTorch's SDPA, the default"}.items():
        for tokens in (2048, 8192):
            flash, plain = (
                job("7B", lora(), {"micro_batch": 1, "seq_len": tokens, "attention": name})
                for name in ("flash_attention_2", other)
            )
            gb, rates = (device_gb(flash), device_gb(plain)), (rate_of(flash), rate_of(plain))
            told = f"{gb[0]:.1f} instead of {gb[1]:.1f} GB, {rates[0]:,.0f} instead of {rates[1]:,.0f} tokens a second"
            # Within 1 % nothing is saved.
            value = gb[0] < 0.99 * gb[1] or rates[0] > 1.01 * rates[1]
            yield Case(f"against {words}, 1 x {tokens:,} tokens", value, (flash, plain), told)


def static_batches() -> Cases:
    """The share of a batch's tokens that are padding, which activations are held for like for any other."""
    spread = {"samples": 2000, "lengths": "lognormal(median=300, p90=1200)"}
    ways: Mapping[str, Row] = {
        "rows of 300 tokens (median; 1,200 at the 90th percentile), 8 a batch": spread,
        "the same, rows of like length together": {**spread, "group_by_length": True},
        "rows of one length": {"samples": 2000},
    }
    fields: Row = {"micro_batch": 8, "seq_len": 2048}
    for label, data in ways.items():
        asked = job("8B", lora(), {**fields, "data": data}, gpu=H100)
        yield _padding(label, asked)
    capped = {**fields, "data": {**spread, "group_by_length": True, "max_tokens_per_batch": 16384}}
    yield _padding(
        "as many rows a batch as make 16,384 tokens, of like length", job("8B", lora(), capped, gpu=H100)
    )._replace(aside=True)
    packed = {**fields, "data": {**spread, "packing": True}}
    yield _padding("packed rows", job("8B", lora(), packed, gpu=H100))._replace(aside=True)


def _padding(label: str, asked: Row) -> Case:
    rate, share = rate_of(asked), time_of(asked).padding_fraction
    return Case(label, share, (asked,), f"{share:.0%} of all tokens are padding; {rate:,.0f} real tokens a second")


def adapter_files() -> Cases:
    narrow = {"method": "lora", "lora": {"rank": 8, "dropout": 0.0, "targets": ["q_proj", "v_proj"]}}
    ways: Mapping[str, tuple[str, Row]] = {
        "7B, rank 8, queries and values": ("7B", narrow),
        "7B, rank 8, all linear layers": ("7B", lora(8)),
        "13B, rank 16, all linear layers": ("13B", lora(16)),
        "70B, rank 8, all linear layers": ("70B", lora(8)),
        "70B, rank 16, all linear layers": ("70B", lora(16)),
    }
    for label, (size, method) in ways.items():
        asked = job(size, method, LEAN)
        found = ask(asked)
        held = outside_of(found.job, found.model).disk.weights_bytes / MB
        yield Case(label, held, (asked,), f"adapter_model.safetensors, float32: {held:,.0f} MB")


def sample_tokens() -> Cases:
    """50B tokens of 10,000 samples, trained once."""
    each = 50e9 / 10_000
    for name in ("mistral-7b-v0.1", "llama-3.1-8b"):
        longest = resolve_model(name).raw["max_position_embeddings"]
        told = f"50,000,000,000 / 10,000 = {each:,.0f} tokens a sample; {name} takes {longest:,} at most"
        yield Case(f"a sample is no longer than {name} reads", each <= longest, (), told)


CASES: Mapping[str, Callable[[], Cases]] = {
    "full-recommended": full_recommended,
    "full-7b-64gb": full_7b,
    "full-70b-160gb": lambda: (
        total(f"{label}, 1 x 2,048 tokens", job("70B", p, ONE_ROW)) for label, p in PRECISIONS.items()
    ),
    "full-gpu-examples": full_examples,
    "lora-recommended": lora_recommended,
    "lora-gpu-examples": lora_examples,
    "lora-70b-examples": lora_70b_examples,
    "lora-rank-4": low_ranks,
    "a100-40-too-small": a100_40gb,
    "2xa100-sweet-spot": two_a100,
    "405b-blackwell": blackwell_405b,
    "70b-l40s-2-3x": l40s_70b,
    "lora-as-long-as-full": lora_against_full,
    "mixed-precision-half": mixed_precision,
    "4bit-50-60pct": four_bits,
    "flash-attention": flash_attention,
    "static-batches": static_batches,
    "adapters-100mb": adapter_files,
    "5m-tokens-a-sample": sample_tokens,
}
