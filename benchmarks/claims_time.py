"""Claims about time: how fast cards are, what links, settings and kernels cost or save."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from claims_jobs import (
    BF16,
    LEAN,
    MASTER,
    ONE_ROW,
    SETTINGS,
    USUAL,
    Row,
    busy,
    device_gb,
    fits,
    job,
    lora,
    qlora,
    step_s,
    tokens_per_s,
    waiting,
)
from claims_memory import memory_saved
from claims_rule import Case, NotComputed

Cases = Iterator[Case]
HOUR_S = 3600
FSDP: Row = {"parallel": {"data": "fsdp"}}
ZERO3: Row = {"parallel": {"data": "zero3"}}
KEPT: Row = {"gradient_checkpointing": False}
NVLINK, SWITCHED, THROUGH_HOST = "nvlink3", "pcie4-x16", "host-pcie4-x16"
PCIE: Mapping[str, str] = {"PCIe 4.0 through switches": SWITCHED, "PCIe 4.0 through the host": THROUGH_HOST}
A100, H100, B200 = "a100-sxm-80gb", "h100-sxm-80gb", "b200-sxm-180gb"
FULL_8B: Row = {"micro_batch": 2, "seq_len": 2048}
WORK: Mapping[str, tuple[str, Row, Row]] = {
    "8B LoRA, 2 x 2,048 tokens": ("8B", lora(), FULL_8B), "8B full, 2 x 2,048 tokens": ("8B", BF16, FULL_8B),
    "1B full, 4 x 2,048 tokens": ("1B", BF16, USUAL), "7B LoRA, 1 x 512 tokens": ("7B", lora(), LEAN),
}  # fmt: skip
"""What cards are compared on: the last one waits for the host on every card."""


def ratio(label: str, over: Row, under: Row, *, part: int = 0, aside: bool = False, words: str = "") -> Case:
    """How many times as long `over` takes a token as `under`."""
    rates = tokens_per_s(over), tokens_per_s(under)
    told = f"{rates[1]:,.0f} / {rates[0]:,.0f} tokens a second{words}"
    return Case(label, rates[1] / rates[0], (over, under), told, part, aside)


def hours(tokens: float, claimed_h: float, own_rate: float, rows: int, model: str, rank: int, gpu: str) -> Cases:
    """How long so many tokens take: at the guide's own rate where it gives one, and at ours."""
    if own_rate:
        told = f"{tokens:.3g} tokens / {own_rate:,.0f} a second / 3,600; in {claimed_h} h that rate does "
        told += f"{own_rate * claimed_h * HOUR_S:,.0f} tokens"
        yield Case("at the guide's own rate", tokens / own_rate / HOUR_S, (), told)
    for length in (512, 2048):
        asked = job(model, lora(rank), {"micro_batch": rows, "seq_len": length}, gpu=gpu)
        rate = tokens_per_s(asked)
        told = f"{tokens:.3g} tokens / {rate:,.0f} a second / 3,600; the claim takes {tokens / claimed_h / HOUR_S:,.0f}"
        if not fits(asked):
            told += f"; it does not fit: {device_gb(asked):.0f} GB are needed, the rate is that of a card with more"
        yield Case(f"{rows} x {length:,} tokens", tokens / rate / HOUR_S, (asked,), told)


def speed_7b() -> Cases:
    for part, gpu in enumerate(("rtx-4090", "l40s", "a100-pcie-80gb", "h100-pcie-80gb")):
        for tokens in (512, 2048):
            asked = job("7B", lora(8), {"micro_batch": 4, "seq_len": tokens}, gpu=gpu)
            told = f"4 x {tokens:,} tokens in {step_s(asked):.2f} s"
            yield Case(f"{gpu}, 4 x {tokens:,} tokens", tokens_per_s(asked), (asked,), told, part)


def scaling_13b() -> Cases:
    for part, gpus in enumerate((1, 2, 4)):
        for gpu in ("a100-sxm-80gb", "a100-pcie-80gb"):
            asked = job("13B", lora(8), USUAL, gpu=gpu, gpus=gpus)
            told = f"{gpus} x 8,192 tokens in {step_s(asked):.2f} s; only adapters' gradients travel"
            yield Case(f"{gpus} {gpu}, 4 x 2,048 tokens a card", tokens_per_s(asked), (asked,), told, part)


def communication_over_pcie() -> Cases:
    for label, link in PCIE.items():
        for tokens in (512, 2048, 8192):
            asked = job("7B", BF16, FSDP, {"micro_batch": 1, "seq_len": tokens}, gpu=A100, gpus=8, link=link)
            told = f"cards compute {busy(asked):.0%} of a step of {step_s(asked):.2f} s"
            yield Case(f"7B full, FSDP, {label}, 1 x {tokens:,} tokens a card", waiting(asked), (asked,), told)


def zero3_over_pcie() -> Cases:
    for label, link in PCIE.items():
        for tokens in (512, 2048):
            asked = job("7B", MASTER, ZERO3, {"micro_batch": 1, "seq_len": tokens}, gpu=A100, gpus=8, link=link)
            told = f"a card computes {busy(asked):.0%} of a step of {step_s(asked):.2f} s, and waits the rest"
            yield Case(f"7B full, {label}, 1 x {tokens:,} tokens a card", busy(asked), (asked,), told)


def nvlink_70b() -> Cases:
    for label, method in {"full": BF16, "LoRA": lora()}.items():
        for tokens in (512, 2048, 4096):
            setting = {"micro_batch": 1, "seq_len": tokens}
            for words, link in PCIE.items():
                slow, fast = (job("70B", method, FSDP, setting, gpu=A100, gpus=8, link=via) for via in (link, NVLINK))
                yield ratio(f"{label}, FSDP on 8 A100, 1 x {tokens:,} tokens a card, against {words}", slow, fast)


def efficiency() -> Cases:
    """What a card does beside others, for each card added."""
    ways: Mapping[str, tuple[str, Row, Row, Row, str]] = {
        "13B LoRA, DDP, PCIe": ("13B", lora(8), {}, USUAL, SWITCHED),
        "7B full, FSDP, NVLink": ("7B", BF16, FSDP, ONE_ROW, NVLINK),
        "7B full, FSDP, PCIe": ("7B", BF16, FSDP, ONE_ROW, SWITCHED),
        "7B full, FSDP, PCIe through the host": ("7B", BF16, FSDP, LEAN, THROUGH_HOST),
    }
    for label, (size, method, spread, setting, link) in ways.items():
        alone = job(size, method, setting, gpu=A100)
        for gpus in (2, 8):
            asked = job(size, method, spread, setting, gpu=A100, gpus=gpus, link=link)
            each = tokens_per_s(asked) / gpus / tokens_per_s(alone)
            told = f"a card of {gpus} does {each:.3f} of what one alone does; to the power 1/{gpus - 1}"
            tokens = f"{setting['micro_batch']} x {setting['seq_len']:,} tokens"
            yield Case(f"{label}, {tokens}, {gpus} cards", each ** (1 / (gpus - 1)), (alone, asked), told)


def card_against(new: str, old: str) -> Callable[[], Cases]:
    def cases() -> Cases:
        for label, (size, method, setting) in WORK.items():
            yield ratio(label, job(size, method, setting, gpu=old), job(size, method, setting, gpu=new))

    return cases


def nemo_70b(gpu: str, dtype: str | None, micro_batch: int = 1) -> Row:
    fields = {"stack": "nemo", "matmul_dtype": dtype, "parallel": {"tensor": 4}, "seq_len": 8192}
    return job("llama-2-70b", lora(), {**fields, "micro_batch": micro_batch}, gpu=gpu, gpus=8)


def b200_against_h100() -> Cases:
    """MLPerf's Llama 2 70B LoRA: 8 cards, rows of 8,192 tokens, FP8."""
    yield ratio("NeMo, FP8 on both, 1 x 8,192 tokens", nemo_70b(H100, "float8"), nemo_70b(B200, "float8"))
    yield ratio("NeMo, bf16 on both", nemo_70b(H100, None), nemo_70b(B200, None), aside=True)
    yield ratio("NeMo, FP4 on B200, FP8 on H100", nemo_70b(H100, "float8"), nemo_70b(B200, "float4"), aside=True)


def b200_twice_the_batch() -> Cases:
    for label, method in {"8B LoRA": lora(), "8B full": BF16}.items():
        slow = job("8B", method, {"micro_batch": 1, "seq_len": 2048}, gpu=H100)
        fast = job("8B", method, {"micro_batch": 2, "seq_len": 2048}, gpu=B200)
        yield ratio(f"{label}, 2 rows on B200, 1 on H100", slow, fast)


def l40s_against_a100() -> Cases:
    """Its 16-bit rate against the A100's, and its FP8 against the A100's 16 bits, which has no FP8."""
    low: Row = {"matmul_dtype": "float8"}
    nemo: Row = {"stack": "nemo"}
    for label, (size, method, setting) in WORK.items():
        for old in ("a100-pcie-40gb", "a100-sxm-80gb"):
            mine, theirs = (job(size, method, setting, gpu=gpu) for gpu in ("l40s", old))
            if fits(mine):
                yield ratio(f"bf16: {label}, against {old}", theirs, mine)
    for label, (size, method, setting) in list(WORK.items())[::2]:
        theirs = job(size, method, setting, nemo, gpu=A100)
        mine = job(size, method, setting, nemo, low, gpu="l40s")
        yield ratio(f"FP8 (Transformer Engine, NeMo): {label}, against bf16 on {A100}", theirs, mine, part=1)
        theirs, mine = job(size, method, setting, gpu=A100), job(size, method, setting, low, gpu="l40s")
        yield ratio(
            f"FP8 (torchao in eager PyTorch): {label}, against bf16 on {A100}", theirs, mine, part=1, aside=True
        )


def fp8_against_bf16() -> Cases:
    yield ratio("70B LoRA, NeMo on 8 H100", nemo_70b(H100, None), nemo_70b(H100, "float8"))
    for setting in ({"micro_batch": 1, "seq_len": 8192}, {"micro_batch": 1, "seq_len": 2048}):
        nemo = {**setting, "stack": "nemo", "parallel": {"data": "zero1"}}
        plain, low = (job("8B", BF16, nemo, {"matmul_dtype": dtype}, gpu=H100, gpus=8) for dtype in (None, "float8"))
        yield ratio(f"8B full, NeMo on 8 H100, 1 x {setting['seq_len']:,} tokens", plain, low)
    plain, low = (job("8B", BF16, FULL_8B, {"matmul_dtype": dtype}, gpu=H100) for dtype in (None, "float8"))
    yield ratio(
        "8B full, torchao in eager PyTorch, 2 x 2,048 tokens", plain, low, words="; casts are kernels of their own"
    )


def checkpointing() -> Cases:
    for label, (size, method, setting) in list(WORK.items())[:3]:
        with_it, without = (job(size, method, setting, part) for part in ({}, KEPT))
        yield memory_saved(f"memory: {label}", with_it, without)
        yield ratio(f"time: {label}", with_it, without, part=1)


def qlora_against_lora() -> Cases:
    for gpu in ("rtx-4090", H100):
        for label, setting in SETTINGS.items():
            quantised, plain = (job("7B", method, setting, gpu=gpu) for method in (qlora(), lora()))
            yield ratio(f"7B on {gpu}, {label}", quantised, plain)


def int8_against_bf16() -> Cases:
    int8 = qlora(format="int8", double_quant=False)
    for label, setting in SETTINGS.items():
        quantised, plain = (job("7B", method, setting, gpu=A100) for method in (int8, lora()))
        yield memory_saved(f"memory: 7B, {label}", quantised, plain)
        yield ratio(f"time: 7B, {label}", quantised, plain, part=1)


def unsloth() -> Cases:
    for name, method in {"LoRA": lora(), "QLoRA": qlora()}.items():
        for label, setting in SETTINGS.items():
            ours, plain = (job("8B", method, setting, part, gpu=H100) for part in ({"stack": "unsloth"}, {}))
            yield memory_saved(f"memory: 8B {name}, {label}", ours, plain)._replace(part=1)
            try:
                yield ratio(f"speed: 8B {name}, {label}", plain, ours)
            except NotComputed as why:
                yield Case(f"speed: 8B {name}, {label}", None, (ours, plain), str(why))


def compiled() -> Cases:
    for gpu in (A100, H100):
        for label, (size, method, setting) in list(WORK.items())[:3]:
            eager, made = (job(size, method, setting, part, gpu=gpu) for part in ({}, {"compile": True}))
            yield ratio(f"{label}, {gpu}", eager, made)


def zero3(offload: str) -> Row:
    return {"parallel": {"data": "zero3", "offload": offload}}


def offloaded() -> Cases:
    """Once a step the moments' owner works, however many tokens the step has."""
    for rows in (1, 16):
        for gpus in (2, 8):
            asked = [
                job("8B", MASTER, ONE_ROW, {"grad_accum": rows}, zero3(where), gpu=A100, gpus=gpus)
                for where in ("optimizer", "none")
            ]
            if step_s(asked[0]) <= step_s(asked[1]):
                raise NotComputed("what moves over PCIe and what the CPU computes is not priced")
            label = f"8B full, ZeRO-3 on {gpus} A100, {rows} x 2,048 tokens a card and step, optimizer on the CPU"
            yield ratio(label, asked[0], asked[1])


CASES: Mapping[str, Callable[[], Cases]] = {
    "tokens-10b-4090": lambda: hours(10e9, 5.8, 480, 4, "7B", 8, "rtx-4090"),
    "speed-7b-lora": speed_7b,
    "scaling-13b-a100": scaling_13b,
    "pcie-70pct": communication_over_pcie,
    "zero3-pcie-20pct": zero3_over_pcie,
    "nvlink-2-3x": nvlink_70b,
    "h100-vs-a100": card_against(H100, A100),
    "b200-vs-h100": b200_against_h100,
    "fp8-2x": fp8_against_bf16,
    "checkpoint-memory": checkpointing,
    "qlora-slower": qlora_against_lora,
    "qlora-2.5x": qlora_against_lora,
    "unsloth-60pct": unsloth,
    "l40s-beats-a100": l40s_against_a100,
    "b200-batch-57pct": b200_twice_the_batch,
    "offload-latency": offloaded,
    "compile-10-15pct": compiled,
    "efficiency-per-gpu": efficiency,
    "8bit-quant": int8_against_bf16,
    "mistral-7b-50b-tokens": lambda: hours(50e9, 60, 0, 4, "mistral-7b-v0.1", 8, "l40s"),
    "llama70b-100b-tokens": lambda: hours(100e9, 70, 0, 2, "llama-2-70b", 16, "h100-pcie-80gb"),
}
