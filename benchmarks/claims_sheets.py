"""Claims that data sheets answer, and claims about what a card's step waits for: bandwidths, links, ZeRO's stages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from claims_jobs import BF16, GB, LEAN, MASTER, ONE_ROW, USUAL, Row, job, lora, memory, qlora, time_of
from claims_memory import FSDP, ZERO3, memory_saved
from claims_rule import Case
from claims_time import A100, B200, FULL_8B, H100, nemo_70b

from tunecast.hardware.catalog import gpu as gpu_named
from tunecast.hardware.links import links

Cases = Iterator[Case]


def bandwidth(gpu: str, part: int = 0) -> Case:
    rate = (gpu_named(gpu).memory_bytes_per_s or 0) / GB
    return Case(f"{gpu}, memory", rate, (), f"{rate:,.0f} GB/s by the data sheet", part)


def h100_bandwidth() -> Cases:
    yield bandwidth(H100)
    yield bandwidth("h100-pcie-80gb")._replace(aside=True)


def printed_bandwidths() -> Cases:
    """The two figures of the guide's GPU table that differ from the vendor's."""
    yield bandwidth("a100-pcie-80gb", 0)
    yield bandwidth(H100, 1)
    yield bandwidth(A100, 0)._replace(aside=True, label="a100-sxm-80gb, whose figure it is")


def both_ways(gpu: str, part: int) -> Iterator[Case]:
    """What vendors print is both directions of all links together; a collective moves one."""
    each = (gpu_named(gpu).link_bytes_per_s or 0) / GB
    yield Case(f"{gpu}, both ways", 2 * each, (), f"2 x {each:,.0f} GB/s", part)
    link = next(found for found in links().values() if any(gpu.startswith(card) for card in found.cards))
    got = link.bytes_per_s / GB
    told = f"{got:,.0f} GB/s in ring collectives ({link.name})"
    yield Case(f"{gpu}, what a card gets one way", got, (), told, part, aside=True)


def nvlink_rates() -> Cases:
    yield from both_ways(H100, 0)
    yield from both_ways(B200, 1)


def a100_nvlink() -> Cases:
    yield from both_ways(A100, 0)


def pcie5() -> Cases:
    link = links()["pcie5-x16"]
    each = (link.peak_bytes_per_s or 0) / GB
    yield Case("16 lanes, both ways", 2 * each, (), f"2 x {each:.0f} GB/s")
    got = link.bytes_per_s / GB
    yield Case("what a card gets one way", got, (), f"{got:.0f} GB/s in ring collectives", aside=True)


TRAINED: Mapping[str, tuple[str, tuple[Row, ...], int]] = {
    "8B LoRA, 4 x 2,048 tokens": ("8B", (lora(), USUAL), 1),
    "8B full, 2 x 2,048 tokens": ("8B", (BF16, FULL_8B), 1),
    "8B full, 1 x 512 tokens": ("8B", (BF16, LEAN), 1),
    "70B QLoRA, 1 x 2,048 tokens": ("70B", (qlora(), ONE_ROW), 1),
    "70B full, ZeRO-3 on 8 cards": ("70B", (MASTER, ONE_ROW, ZERO3), 8),
}


def moving_share(asked: Row) -> tuple[float, str]:
    """Of a step, what the card's memory bandwidth decides: kernels that move data and the optimizer."""
    time = time_of(asked)
    moving = time.breakdown_s["memory_bound"] + time.breakdown_s["optimizer"]
    told = f"{moving:.2f} of {time.step_s:.2f} s are kernels that wait for memory; the step is {time.bound_by}-bound"
    return moving / time.step_s, told


def memory_bound() -> Cases:
    for gpu in (A100, H100, B200):
        for label, (size, parts, gpus) in TRAINED.items():
            asked = job(size, *parts, gpu=gpu, gpus=gpus)
            share, told = moving_share(asked)
            yield Case(f"{label}, {gpu}", share, (asked,), told)


def b200_70b_full() -> Cases:
    """Of the step of 70B full on 8 B200, what 8 TB/s decide."""
    spreads = {"ZeRO-3, 1 x 2,048 tokens a card": (ZERO3, ONE_ROW), "FSDP, 4 x 2,048 tokens a card": (FSDP, USUAL)}
    for label, (spread, setting) in spreads.items():
        asked = job("70B", MASTER, spread, setting, gpu=B200, gpus=8)
        share, told = moving_share(asked)
        yield Case(label, share, (asked,), told)


def zero_stages() -> Cases:
    """7B with DeepSpeed on 8 cards: bytes a parameter on a card, by what they are. Whole: 2 of weights, 2 of gradients
    (and buckets), 12 of optimizer and master weights."""
    held: dict[int, tuple[Row, dict[str, float]]] = {}
    for stage in (1, 2, 3):
        asked = job("7B", MASTER, {"parallel": {"data": f"zero{stage}"}}, ONE_ROW, gpus=8)
        parts = memory(asked).breakdown_bytes
        held[stage] = asked, {name: parts[name] / GB for name in ("weights", "gradients", "optimizer")}
    whole = held[1][1]["weights"]
    cut: Mapping[int, tuple[str, float]] = {1: ("optimizer", 12 / 2), 2: ("gradients", 4 / 2), 3: ("weights", 1.0)}
    for stage, (name, widths) in cut.items():
        asked, parts = held[stage]
        before = held[stage - 1][1][name] if stage > 1 else widths * whole
        told = " + ".join(f"{part} {gb:.1f}" for part, gb in parts.items())
        told += f" GB a card; {name} {before:.1f} GB before this stage"
        yield Case(f"ZeRO-{stage} splits the {name}", parts[name] < before / 2, (asked,), told, stage - 1)


def fp8_memory() -> Cases:
    """What FP8 products leave of the memory of the same job in bfloat16."""

    def torchao(size: str, setting: Row) -> tuple[Row, Row]:
        return job(size, BF16, setting, {"matmul_dtype": "float8"}, gpu=H100), job(size, BF16, setting, gpu=H100)

    pairs = {
        "70B LoRA, NeMo on 8 H100, 1 x 8,192 tokens": (nemo_70b(H100, "float8"), nemo_70b(H100, None)),
        "8B full, torchao, 1 x 2,048 tokens": torchao("8B", ONE_ROW),
        "1B full, torchao, 4 x 2,048 tokens": torchao("1B", USUAL),
    }
    for label, (low, plain) in pairs.items():
        yield memory_saved(label, low, plain)


CASES: Mapping[str, Callable[[], Cases]] = {
    "h100-3350": h100_bandwidth,
    "pcie5-128": pcie5,
    "nvlink-900-1800": nvlink_rates,
    "a100-nvlink-600": a100_nvlink,
    "gpu-table-bandwidths": printed_bandwidths,
    "training-memory-bound": memory_bound,
    "b200-70b-full-bandwidth": b200_70b_full,
    "zero-stages": zero_stages,
    "fp8-less-vram": fp8_memory,
}
