"""Claims about memory: what weights, states and whole runs hold, and which cards take them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from claims_jobs import (
    BF16,
    GB,
    LEAN,
    MASTER,
    ONE_ROW,
    PRECISIONS,
    SETTINGS,
    USUAL,
    Row,
    ask,
    device_gb,
    fits,
    job,
    least_count,
    lora,
    memory,
    model_gb,
    qlora,
)
from claims_rule import Case

Cases = Iterator[Case]
FSDP: Row = {"parallel": {"data": "fsdp"}}
ZERO3: Row = {"parallel": {"data": "zero3"}}
NO_UPCAST = qlora(prepare_kbit=False)
"""Without prepare_model_for_kbit_training: embeddings and head stay in 16 bits, as TRL leaves them."""
LIGER: Row = {"kernels": ["liger"], "allocator": "expandable_segments"}


def weights_told(asked: Row) -> str:
    return f"{model_gb(asked):.1f} GB are on the card once the model is loaded"


def peak_told(asked: Row) -> str:
    """Where the memory at the peak is, by what holds it."""
    held = memory(asked)
    parts = [(name, nbytes / GB) for name, nbytes in held.breakdown_bytes.items() if nbytes >= 0.02 * held.device_bytes]
    shown = " + ".join(f"{name.replace('_', ' ')} {gb:.1f}" for name, gb in sorted(parts, key=lambda part: -part[1]))
    return f"{shown}, the rest less; peak in the {held.peak_phase}"


def fits_told(asked: Row) -> str:
    found = ask(asked).on_card
    return (
        f"needs {found.smallest_capacity_bytes / GB:.1f} GB of the {found.capacity_bytes / GB:.1f} GB PyTorch may hold "
        f"on the {asked['hardware']['gpu']}"
    )


def total(label: str, asked: Row, *, aside: bool = False) -> Case:
    return Case(label, device_gb(asked), (asked,), peak_told(asked), aside=aside)


def fitting(label: str, asked: Row, *, aside: bool = False) -> Case:
    return Case(label, fits(asked), (asked,), fits_told(asked), aside=aside)


def memory_saved(label: str, low: Row, high: Row) -> Case:
    """The share of memory that one setting saves on another."""
    gb = device_gb(low), device_gb(high)
    return Case(label, 1 - gb[0] / gb[1], (low, high), f"{gb[0]:.1f} instead of {gb[1]:.1f} GB")


def weights_70b() -> Cases:
    for model in ("llama-3.1-70b", "llama-2-70b"):
        asked = job(model, BF16, LEAN)
        yield Case(model, model_gb(asked), (asked,), weights_told(asked))


def weights_70b_nf4() -> Cases:
    cases = {
        "Llama 3.1 70B, prepared for k-bit training": job("70B", qlora(), LEAN),
        "Llama 3.1 70B, embeddings and head left in 16 bits": job("70B", NO_UPCAST, LEAN),
        "Llama 2 70B, prepared for k-bit training (a vocabulary a quarter as large)": job("llama-2-70b", qlora(), LEAN),
        "Llama 2 70B, left in 16 bits": job("llama-2-70b", NO_UPCAST, LEAN),
    }
    for label, asked in cases.items():
        yield Case(label, model_gb(asked), (asked,), weights_told(asked))


def lora_frees_nothing() -> Cases:
    for size in ("8B", "70B"):
        plain, adapted = job(size, BF16, LEAN), job(size, lora(), LEAN)
        held = memory(adapted).breakdown_bytes["weights"] / GB
        told = f"{held:.2f} GB of base weights with LoRA, {model_gb(plain):.2f} GB without"
        yield Case(f"{size}, base weights", held / model_gb(plain), (plain, adapted), told)


def full_states(size: str) -> Cases:
    asked = job(size, MASTER, ONE_ROW)
    parts = memory(asked).breakdown_bytes
    held = {name: parts[name] / GB for name in ("weights", "gradients", "optimizer")}
    told = " + ".join(f"{name} {gb:.0f}" for name, gb in held.items()) + " GB at the peak"
    yield Case("fp32 weights, gradients and two moments", sum(held.values()), (asked,), told)


def full_total(size: str) -> Callable[[], Cases]:
    def cases() -> Cases:
        for label, precision in PRECISIONS.items():
            yield total(f"{label}, 1 x 2,048 tokens", job(size, precision, ONE_ROW))

    return cases


def adapter_total(size: str, method: Row) -> Callable[[], Cases]:
    def cases() -> Cases:
        for label, setting in SETTINGS.items():
            yield total(label, job(size, method, setting))

    return cases


def qlora_total(size: str) -> Callable[[], Cases]:
    """QLoRA's claims name no trainer: with PEFT's preparation, and with Unsloth's kernels, which hold the least."""

    def cases() -> Cases:
        for label, setting in SETTINGS.items():
            yield total(f"transformers and PEFT, {label}", job(size, qlora(), setting))
            yield total(f"Unsloth, {label}", job(size, qlora(), {"stack": "unsloth"}, setting))

    return cases


def least_cards() -> Cases:
    """How many cards of 80 GB hold full fine-tuning of 70B, one row of 2,048 tokens a card."""
    ways = {
        "FSDP, bf16 throughout": (BF16, FSDP), "FSDP, fp32 master weights": (MASTER, FSDP),
        "ZeRO-3, bf16 with fp32 master weights": (MASTER, ZERO3),
    }  # fmt: skip
    for label, parts in ways.items():

        def made(count: int, parts: tuple[Row, Row] = parts) -> Row:
            return job("70B", *parts, ONE_ROW, gpu="h100-sxm-80gb", gpus=count)

        count = least_count(made, 4, 32)
        told = f"{count} cards: {fits_told(made(count))}; {count - 1} cards: {fits_told(made(count - 1))}"
        yield Case(label, count, (made(count), made(count - 1)), told)
    yield from _accumulated()


def _accumulated() -> Cases:
    """With gradients of two micro-batches added up: whole ones, or cut after each (sync_each_batch)."""

    def made(count: int) -> Row:
        cut = {"parallel": {"data": "fsdp", "sync_each_batch": True}}
        return job("70B", BF16, cut, ONE_ROW, {"grad_accum": 2}, gpu="h100-sxm-80gb", gpus=count)

    whole = job("70B", BF16, FSDP, ONE_ROW, {"grad_accum": 2}, gpu="h100-sxm-80gb", gpus=32)
    count = least_count(made, 4, 32)
    told = f"{count} cards: {fits_told(made(count))}; without sync_each_batch, 32 cards: {fits_told(whole)}"
    yield Case(
        "FSDP, bf16 throughout, two micro-batches, sync_each_batch", count, (made(count), whole), told, aside=True
    )


def one_node() -> Cases:
    for gpu in ("h100-sxm-80gb", "b200-sxm-180gb"):
        yield fitting(f"8 {gpu}, ZeRO-3", job("70B", MASTER, ZERO3, ONE_ROW, gpu=gpu, gpus=8))
    bare = job("70B", BF16, FSDP, ONE_ROW, gpu="h100-sxm-80gb", gpus=8)
    yield fitting("8 h100-sxm-80gb, FSDP in bf16 throughout", bare, aside=True)


def full_on_two_a100() -> Cases:
    for size in ("7B", "13B"):
        for label, precision in PRECISIONS.items():
            yield fitting(f"{size}, {label}", job(size, precision, FSDP, ONE_ROW, gpu="a100-sxm-80gb", gpus=2))


def qlora_70b_48gb() -> Cases:
    for gpu in ("rtx-6000-ada", "l40s"):
        for label, method in {
            "prepared for k-bit training": qlora(),
            "embeddings and head in 16 bits": NO_UPCAST,
        }.items():
            yield fitting(f"Llama 3.1 70B, {label}, 1 x 512 tokens, {gpu}", job("70B", method, LEAN, gpu=gpu))
        yield fitting(f"Llama 2 70B, prepared, 1 x 512 tokens, {gpu}", job("llama-2-70b", qlora(), LEAN, gpu=gpu))
        yield fitting(f"Llama 3.1 70B, 16 bits, 1 x 2,048 tokens, {gpu}", job("70B", NO_UPCAST, ONE_ROW, gpu=gpu))
    unsloth = job("70B", qlora(), {"stack": "unsloth"}, ONE_ROW, gpu="l40s")
    yield fitting("Llama 3.1 70B, Unsloth, 1 x 2,048 tokens, l40s", unsloth)


def qlora_70b_unsloth() -> Cases:
    for label, setting in SETTINGS.items():
        yield total(label, job("llama-3-70b", qlora(), {"stack": "unsloth"}, setting))
    yield total("the same without Unsloth, 1 x 512 tokens", job("llama-3-70b", qlora(), LEAN), aside=True)


def qlora_70b_4090() -> Cases:
    for tokens in (512, 2048):
        asked = job("70B", qlora(8), {"micro_batch": 2, "seq_len": tokens}, gpu="rtx-4090")
        told = f"{weights_told(asked)}; {fits_told(asked)}"
        yield Case(f"2 x {tokens:,} tokens", device_gb(asked), (asked,), told)


def qlora_70b_80gb() -> Cases:
    for gpu in ("a100-sxm-80gb", "h100-sxm-80gb"):
        for label, setting in {"1 x 512 tokens": LEAN, "1 x 2,048 tokens": ONE_ROW}.items():
            yield fitting(f"{gpu}, {label}", job("70B", qlora(), setting, gpu=gpu))
    long = job("70B", qlora(), {"micro_batch": 1, "seq_len": 8192}, gpu="h100-sxm-80gb")
    yield fitting("h100-sxm-80gb, 1 x 8,192 tokens", long, aside=True)


def headroom() -> Cases:
    for label, method in {"prepared for k-bit training": qlora(), "embeddings and head in 16 bits": NO_UPCAST}.items():
        asked = job("70B", method, LEAN, gpu="h100-sxm-80gb")
        room = ask(asked).on_card.capacity_bytes / GB
        left = room - model_gb(asked)
        told = f"{room:.1f} GB for PyTorch less {model_gb(asked):.1f} GB of model"
        yield Case(f"Llama 3.1 70B, {label}", left, (asked,), told)


def two_48gb() -> Cases:
    spreads: Mapping[str, Row] = {"layers over both cards": {"parallel": {"layers": 2}}, "FSDP": FSDP}
    for tokens in (4096, 8192):
        for label, spread in spreads.items():
            setting = {"micro_batch": 1, "seq_len": tokens}
            yield fitting(
                f"1 x {tokens:,} tokens, {label}", job("70B", qlora(), setting, spread, gpu="rtx-6000-ada", gpus=2)
            )


def lora_on_b200() -> Cases:
    for label, setting in SETTINGS.items():
        yield fitting(f"LoRA, {label}", job("70B", lora(), setting, gpu="b200-sxm-180gb"))
    kept = {**USUAL, "gradient_checkpointing": False}
    yield fitting("LoRA, 4 x 2,048 tokens, activations kept", job("70B", lora(), kept, gpu="b200-sxm-180gb"))


def fp4_footprint() -> Cases:
    """FP4 against NF4 with doubly quantised scales, 70B."""
    nf4 = job("70B", qlora(), LEAN, gpu="b200-sxm-180gb")
    others = {
        "bitsandbytes fp4, scales doubly quantised": job("70B", qlora(format="fp4"), LEAN, gpu="b200-sxm-180gb"),
        "bitsandbytes fp4, scales in fp32": job(
            "70B", qlora(format="fp4", double_quant=False), LEAN, gpu="b200-sxm-180gb"
        ),
        "NVFP4 products while training (torchao)": job(
            "70B", lora(), {"matmul_dtype": "float4"}, LEAN, gpu="b200-sxm-180gb"
        ),
    }
    for label, asked in others.items():
        told = f"{model_gb(asked):.1f} GB loaded against {model_gb(nf4):.1f} GB in nf4"
        yield Case(label, round(model_gb(asked), 2) < round(model_gb(nf4), 2), (asked, nf4), told)


def eager_attention() -> Cases:
    """What eager attention holds beyond SDPA, which keeps no map of all pairs: those maps."""

    def activations(tokens: int, attention: str) -> float:
        fields = {"micro_batch": 1, "seq_len": tokens, "attention": attention, "gradient_checkpointing": False}
        return memory(job("7B", lora(8), fields)).breakdown_bytes["activations"] / GB

    def jobs(tokens: int, attention: str) -> tuple[Row, ...]:
        fields = {"attention": attention, "gradient_checkpointing": False, "micro_batch": 1}
        return tuple(job("7B", lora(8), {**fields, "seq_len": length}) for length in (tokens, 2 * tokens))

    for tokens in (1024, 2048):
        maps = [activations(n, "eager") - activations(n, "sdpa") for n in (tokens, 2 * tokens)]
        told = f"maps of all pairs hold {maps[0]:.1f} GB, then {maps[1]:.1f} GB"
        label = f"eager, {tokens:,} to {2 * tokens:,} tokens"
        yield Case(label, maps[1] / maps[0], (*jobs(tokens, "eager"), *jobs(tokens, "sdpa")), told)
    short, long = (activations(n, "sdpa") for n in (2048, 4096))
    told = f"all activations hold {short:.1f} GB, then {long:.1f} GB"
    yield Case("SDPA (the default), 2,048 to 4,096 tokens", long / short, jobs(2048, "sdpa"), told)


def kv_cache() -> Cases:
    """Keys and values of 32,768 tokens. Training keeps no cache: keys and values are there for the backward pass, those
    of one layer at a time with checkpointing, of all layers without."""
    for label, kept in {"checkpointed: keys and values of one layer": True, "not: of all 80 layers": False}.items():
        fields = {"micro_batch": 1, "seq_len": 32768, "gradient_checkpointing": kept}
        asked = job("70B", qlora(), fields)
        raw = ask(asked).model.raw
        width = raw["num_key_value_heads"] * (raw["hidden_size"] // raw["num_attention_heads"])
        layers = 1 if kept else raw["num_hidden_layers"]
        held = layers * 2 * width * 32768 * 2 / GB
        told = f"{layers} x 2 x {width:,} x 32,768 x 2 bytes = {held:.2f} GB of {device_gb(asked):,.0f} GB"
        yield Case(label, held / device_gb(asked), (asked,), told)


CASES: Mapping[str, Callable[[], Cases]] = {
    "weights-70b-bf16": weights_70b,
    "full-70b-states": lambda: full_states("70B"),
    "lora-70b": adapter_total("70B", lora()),
    "qlora-70b-weights": weights_70b_nf4,
    "qlora-70b-48gb": qlora_70b_48gb,
    "qlora-70b-unsloth": qlora_70b_unsloth,
    "full-70b-16-gpus": least_cards,
    "full-70b-14-gpus": least_cards,
    "full-70b-8-gpus": one_node,
    "full-70b-560gb": full_total("70B"),
    "full-7b-74gb": full_total("7B"),
    "full-13b-120gb": full_total("13B"),
    "full-34b-280gb": full_total("34B"),
    "lora-7b-16gb": adapter_total("7B", lora(8)),
    "lora-13b-24gb": adapter_total("13B", lora(8)),
    "lora-34b-48gb": adapter_total("34B", lora(8)),
    "lora-70b-80gb": adapter_total("70B", lora(8)),
    "qlora-7b-8gb": qlora_total("7B"),
    "qlora-13b-10gb": qlora_total("13B"),
    "qlora-34b-16gb": qlora_total("34B"),
    "qlora-70b-24gb": qlora_total("70B"),
    "qlora-70b-4090": qlora_70b_4090,
    "lora-frees-nothing": lora_frees_nothing,
    "seq-quadratic": eager_attention,
    "kv-cache-training": kv_cache,
    "70b-fp16-one-b200": lora_on_b200,
    "fp4-smaller-than-qlora": fp4_footprint,
    "dual-48gb-qlora": two_48gb,
    "qlora-70b-80gb-headroom": headroom,
    "7b-13b-full-2xa100": full_on_two_a100,
    "70b-qlora-one-80gb": qlora_70b_80gb,
}
