"""Claims about prices, cost and machines. Prices are those bundled with tunecast, each with its day."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from statistics import median

from claims_jobs import (
    BF16,
    GB,
    LEAN,
    MASTER,
    ONE_ROW,
    SETTINGS,
    USUAL,
    Row,
    ask,
    device_gb,
    fits,
    job,
    least_count,
    lora,
    qlora,
    timed,
)
from claims_jobs import tokens_per_s as rate_of
from claims_rule import Case
from claims_time import A100, B200, FSDP, H100, WORK

from tunecast.hardware.catalog import gpu as gpu_named
from tunecast.market.jurisdiction import EU27, area
from tunecast.market.offer import ON_DEMAND, Offer
from tunecast.market.provider import provider
from tunecast.market.store import bundled
from tunecast.prediction.outside.needs import outside_of

Cases = Iterator[Case]
HOUR_S = 3600
GIB = 2**30
CARDS = ("rtx-4090", "rtx-5090", "rtx-a6000", "rtx-6000-ada", "l4", "l40", "l40s", "a100-pcie-40gb", "a100-pcie-80gb",
         A100, H100, "h200-sxm-141gb", B200)  # fmt: skip
"""That a job on one card is tried on."""


def on_demand(gpu: str, of: str | None = None) -> list[Offer]:
    found = [offer for offer in bundled() if offer.kind == ON_DEMAND and offer.gpu == gpu]
    return [offer for offer in found if of is None or offer.provider == of]


def cheapest(gpu: str, of: str) -> Offer:
    """A provider's lowest price of one card."""
    return min(on_demand(gpu, of), key=lambda offer: (offer.usd_per_gpu_hour, offer.gpus))


def usd_per_hour(gpu: str) -> float:
    """Of one card: the median over providers of each one's lowest price on demand."""
    return median(cheapest(gpu, name).usd_per_gpu_hour for name in {offer.provider for offer in on_demand(gpu)})


def priced(gpu: str) -> str:
    found = on_demand(gpu)
    days = sorted(offer.dated for offer in found)
    names = len({offer.provider for offer in found})
    return f"{gpu} at {usd_per_hour(gpu):.2f} USD an hour (median of {names} providers, {days[0]} to {days[-1]})"


def usd_per_million(asked: Row) -> float:
    """Tokens trained, machine time alone."""
    hardware = asked["hardware"]
    cards = hardware.get("gpus", 1) * hardware.get("nodes", 1)
    return usd_per_hour(hardware["gpu"]) * int(cards) / HOUR_S / rate_of(asked) * 1e6


def cost_per_token() -> Cases:
    yield Case("the guide's own division", 82.16 / 100e9, (), "82.16 USD / 100,000,000,000 tokens")
    for label, setting in SETTINGS.items():
        asked = job("13B", lora(), setting, gpu="l40s", gpus=2)
        told = f"2 x {priced('l40s')} / {rate_of(asked):,.0f} tokens a second"
        yield Case(f"13B LoRA on 2 L40S, {label} a card", usd_per_million(asked) / 1e6, (asked,), told)


def cost_ratio(new: Row, old: Row) -> tuple[float, str]:
    names = new["hardware"]["gpu"], old["hardware"]["gpu"]
    value = usd_per_million(new) / usd_per_million(old)
    told = f"{usd_per_million(new):.3f} against {usd_per_million(old):.3f} USD a million tokens: {priced(names[0])}, "
    return value, told + priced(names[1])


def h100_cheaper_job() -> Cases:
    for label, (size, method, setting) in WORK.items():
        new, old = (job(size, method, setting, gpu=gpu) for gpu in (H100, A100))
        value, told = cost_ratio(new, old)
        yield Case(label, value, (new, old), told)


PRINTED_USD: Mapping[str, float] = {
    "rtx-4090": 0.34, "l40s": 0.79, "a100-pcie-80gb": 1.19, "h100-pcie-80gb": 1.99, "h100-sxm-80gb": 2.69,
    "h200-sxm-141gb": 3.59, "b200-sxm-180gb": 5.98,
}  # fmt: skip
"""RunPod's prices as the guide of March 2026 prints them. It divides the B200's by 192, as it calls the card."""


def price_per_gb() -> Cases:
    """The guide's division with its own prices, then with the bundled ones."""
    for part, (gpu, then) in enumerate(PRINTED_USD.items()):
        offer, size = cheapest(gpu, "runpod"), sold_gb(gpu)
        printed = 192 if gpu == B200 else size
        yield Case(f"{gpu}, as printed", then / printed, (), f"{then:.2f} USD / {printed} GB", part, then=True)
        told = f"{offer.usd_per_gpu_hour:.2f} USD an hour / {size} GB (RunPod, {offer.dated})"
        yield Case(f"{gpu}, bundled price", offer.usd_per_gpu_hour / size, (), told, part)


def sold_gb(gpu: str) -> int:
    """As it is sold: 80 of an H100, though torch sees 85 GB there."""
    found = gpu_named(gpu)
    return round((found.nominal_bytes or found.memory_bytes) / GB)


def coreweave_against_runpod() -> Cases:
    for gpu in ("a100-sxm-80gb", "h100-sxm-80gb", "h200-sxm-141gb", "b200-sxm-180gb", "l40s"):
        dear, cheap = cheapest(gpu, "coreweave"), cheapest(gpu, "runpod")
        told = (
            f"{dear.usd_per_gpu_hour:.2f} USD a card and hour at CoreWeave ({dear.dated}), "
            f"{cheap.usd_per_gpu_hour:.2f} at RunPod ({cheap.dated})"
        )
        yield Case(gpu, dear.usd_per_gpu_hour < cheap.usd_per_gpu_hour, (), told)


def eight_a100() -> Cases:
    found = [offer for gpu in ("a100-sxm-40gb", "a100-sxm-80gb") for offer in on_demand(gpu) if offer.gpus == 8]
    for label, offer in {
        "the dearest 8 A100 on demand": max(found, key=lambda offer: offer.usd_per_hour),
        "the cheapest": min(found, key=lambda offer: offer.usd_per_hour),
    }.items():
        told = f"{offer.gpu} at {offer.provider}, {offer.dated}; {len(found)} offers of 8 in one machine"
        yield Case(label, offer.usd_per_hour, (), told)


def l40s_for_qlora() -> Cases:
    """A card's cost a token against the cheapest single card that takes the job: of all, and of data-centre cards."""
    for size in ("7B", "13B"):
        asked = {gpu: job(size, qlora(), USUAL, gpu=gpu) for gpu in CARDS}
        costs = {gpu: usd_per_million(row) for gpu, row in asked.items() if fits(row)}
        for among, cards in {"of all": costs, "of data-centre cards": [g for g in costs if "rtx" not in g]}.items():
            best = min(cards, key=lambda gpu: costs[gpu])
            for gpu in ("l40s", "a100-pcie-40gb"):
                told = f"{costs[gpu]:.3f} USD a million tokens ({priced(gpu)}), the cheapest {among} {costs[best]:.3f} "
                label = f"{size} QLoRA, 4 x 2,048 tokens, {gpu}, against the cheapest {among}"
                jobs = asked[gpu], asked[best]
                yield Case(label, costs[gpu] / costs[best], jobs, told + f"({priced(best)})")


def b200_large_models() -> Cases:
    """Models above 150B, sharded over the fewest machines of 8 cards that hold them, of either card."""
    ways: Mapping[str, tuple[Row, int]] = {
        "LoRA": (lora(), 2048),
        "LoRA, long": (lora(), 8192),
        "QLoRA": (qlora(), 2048),
    }
    for label, (method, tokens) in ways.items():
        setting = {"micro_batch": 1, "seq_len": tokens}
        new, old = (fewest_machines("llama-3.1-405b", method, FSDP, setting, gpu=gpu) for gpu in (B200, H100))
        value, told = cost_ratio(new, old)
        sizes = " against ".join(
            f"{8 * asked['hardware'].get('nodes', 1)} {asked['hardware']['gpu']} with {device_gb(asked):.0f} GB each"
            for asked in (new, old)
        )
        yield Case(f"Llama 3.1 405B {label}, 1 x {tokens:,} tokens a card", value, (new, old), f"{sizes}; {told}")


def fewest_machines(model: str, *parts: Row, gpu: str) -> Row:
    def made(nodes: int) -> Row:
        return job(model, *parts, gpu=gpu, gpus=8, nodes=nodes)

    return made(least_count(made, 1, 8))


def b200_sheet() -> Cases:
    found = gpu_named(B200)
    for label, unit in {
        "memory in GB of 10^9 bytes": GB,
        "memory in GiB, as an H100 is called one of 80 GB": GIB,
    }.items():
        h100 = gpu_named(H100).memory_bytes / unit
        told = f"torch sees {found.memory_bytes:,} bytes; an H100 has {h100:.1f} by the same count"
        yield Case(label, found.memory_bytes / unit, (), told)
    bandwidth = (found.memory_bytes_per_s or 0) / GB
    yield Case("bandwidth", bandwidth, (), f"{bandwidth:,.0f} GB/s by the data sheet", 1)


def host_memory() -> Cases:
    ways = {
        "8B LoRA on one H100": job("8B", lora(), USUAL, gpu=H100),
        "70B QLoRA on one H100": job("70B", qlora(), LEAN, gpu=H100),
        "8B full on one H200, with what resuming takes": job("8B", BF16, LEAN),
        "8B LoRA on 8 H100, DDP": job("8B", lora(), USUAL, gpu=H100, gpus=8),
        "70B full on 8 B200, FSDP, every rank loads": job("70B", MASTER, FSDP, ONE_ROW, gpu=B200, gpus=8),
        "405B full on 16 machines of 8 H200, FSDP, every rank loads": job(
            "llama-3.1-405b", MASTER, FSDP, ONE_ROW, gpus=8, nodes=16
        ),
    }
    for label, asked in ways.items():
        used = timed(asked).utilization
        ram = None if used is None else used.host.ram_bytes
        cards = asked["hardware"].get("gpus", 1)
        held = gpu_named(asked["hardware"]["gpu"]).memory_bytes * cards
        if ram is None:
            yield Case(label, None, (asked,), "the host's memory is not told")
            continue
        told = f"the host needs {ram / GB:.0f} GB beside {held / GB:.0f} GB on {cards} card{'s' * (cards > 1)}"
        yield Case(label, ram / held, (asked,), told)


def checkpoint_size() -> Cases:
    for label, precision in {"bf16 weights": BF16, "fp32 master weights": MASTER}.items():
        asked = job("70B", precision, LEAN)
        found = ask(asked)
        disk = outside_of(found.job, found.model).disk
        told = f"weights {disk.weights_bytes / GB:.0f} + optimizer {disk.optimizer_bytes / GB:.0f} GB"
        yield Case(f"what the Trainer saves, {label}", disk.checkpoint_bytes / GB, (asked,), told)


def provisioning() -> Cases:
    of = provider("lyceum")
    for seconds in of.provisioning_s or ():
        told = f"{seconds:.0f} s from the order on ({of.sources['provisioning']})"
        yield Case("Lyceum, as somebody measured it", seconds, (), told, measured=True)


def zurich() -> Cases:
    for part, (place, country) in enumerate({"Berlin": "DE", "Zurich": "CH"}.items()):
        member = country in EU27
        told = f"{country} is {'one' if member else 'not one'} of the EU's 27 members (area: {area(country)})"
        yield Case(f"{place} is in the European Union", member, (), told, part)


CASES: Mapping[str, Callable[[], Cases]] = {
    "cost-per-token": cost_per_token,
    "tcc-h100-a100": h100_cheaper_job,
    "price-per-gb": price_per_gb,
    "coreweave-cheaper": coreweave_against_runpod,
    "8xa100-8640": eight_a100,
    "7b-13b-qlora-l40s": l40s_for_qlora,
    "b200-150b-half-cost": b200_large_models,
    "b200-192": b200_sheet,
    "host-ram": host_memory,
    "checkpoint-size-70b": checkpoint_size,
    "provision-18s": provisioning,
    "zurich-eu": zurich,
}
