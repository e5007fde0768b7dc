"""Claims of bills: what guides add up, divide and rank, by their own prices and by the bundled ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from claims_jobs import BF16, GB, LEAN, MASTER, ONE_ROW, SETTINGS, USUAL, Row, ask, fits, job, lora, qlora
from claims_jobs import tokens_per_s as rate_of
from claims_memory import FSDP, fits_told
from claims_money import CARDS, cheapest, on_demand, priced, usd_per_million
from claims_rule import Case
from claims_time import A100, B200, H100, HOUR_S, NVLINK, SWITCHED, card_against

from tunecast.market.provider import providers
from tunecast.prediction.data.preparation import TOKENS_PER_S
from tunecast.prediction.outside.needs import outside_of

Cases = Iterator[Case]
RUNPOD_USD: Mapping[str, float] = {
    "rtx-4090": 0.34, "l40s": 0.79, "a100-pcie-80gb": 1.19, "a100-sxm-80gb": 1.39, "h100-pcie-80gb": 1.99,
    "h100-sxm-80gb": 2.69,
}  # fmt: skip
LAMBDA_USD: Mapping[str, float] = {"h100-pcie-80gb": 2.86, "h100-sxm-80gb": 3.78}
RESERVED_USD: Mapping[str, float] = {"rtx-4090": 1700, "l40s": 3960, "a100-pcie-80gb": 5950, "h100-pcie-80gb": 9950}
"""A card and hour on demand at two providers, and a card and year reserved at RunPod, as the guide of March 2026 prints
them."""
COREWEAVE_8_A100 = 21.60
YEAR_H = 8760
PIPELINE_TOKENS = 100e9


def full_against_lora() -> Cases:
    """324.00 is 15 h of its 8 A100 (21.60), 11.85 is 15 h of its L40S (0.79): one L40S in the time of eight A100."""
    own = "1 - 11.85 / 324: 15 h x 21.60 and 15 h x 0.79 USD"
    yield Case("the guide's own quotient", 1 - 11.85 / 324, (), own, aside=True)
    for label, setting in SETTINGS.items():
        full = job("7B", MASTER, FSDP, setting, gpu=A100, gpus=8)
        adapted = job("7B", lora(8), setting, gpu="l40s")
        costs = [usd / rate_of(asked) for usd, asked in ((COREWEAVE_8_A100, full), (RUNPOD_USD["l40s"], adapted))]
        longer = rate_of(full) / rate_of(adapted)
        told = f"the same tokens take one L40S {longer:.1f} times as long as 8 A100: {15 * longer:,.0f} h, not 15"
        yield Case(f"7B, {label} a card, at the guide's prices", 1 - costs[1] / costs[0], (full, adapted), told)


def ten_hours() -> Cases:
    """3.78 is 1.9 h of its H100 PCIe (1.99); by its own speeds (480 and 1,440 tokens a second) 10 h become 3.3."""
    price = RUNPOD_USD["h100-pcie-80gb"]
    yield Case("at the guide's own speeds", 10 * 480 / 1440 * price, (), f"10 h x 480 / 1,440 x {price} USD")
    for label, setting in SETTINGS.items():
        slow, fast = (job("7B", lora(8), setting, gpu=gpu) for gpu in ("rtx-4090", "h100-pcie-80gb"))
        faster = rate_of(fast) / rate_of(slow)
        told = f"10 h / {faster:.2f} x {price} USD: {rate_of(fast):,.0f} against {rate_of(slow):,.0f} tokens a second"
        yield Case(f"7B LoRA, {label}", 10 / faster * price, (slow, fast), told)


def scaling_bill() -> Cases:
    price = RUNPOD_USD[A100]
    yield Case("2 A100 for 11 h", 2 * price * 11, (), f"2 x {price} USD x 11 h")
    yield Case("4 A100 for 6 h", 4 * price * 6, (), f"4 x {price} USD x 6 h", 1)


def scaling_hours() -> Cases:
    yield Case("by its own table", 11 - 6, (), "11 h with 2 cards less 6 h with 4")


def few_cards() -> Cases:
    """What a token costs more on 8 cards than on 2 of the same."""
    ways: Mapping[str, tuple[str, Row, Row, Row, str]] = {
        "13B LoRA, DDP, NVLink, 4 x 2,048 tokens a card": ("13B", lora(8), {}, USUAL, NVLINK),
        "13B LoRA, DDP, PCIe, 4 x 2,048 tokens a card": ("13B", lora(8), {}, USUAL, SWITCHED),
        "7B full, FSDP, NVLink, 1 x 2,048 tokens a card": ("7B", BF16, FSDP, ONE_ROW, NVLINK),
        "7B full, FSDP, PCIe, 1 x 2,048 tokens a card": ("7B", BF16, FSDP, ONE_ROW, SWITCHED),
    }
    for label, (size, method, spread, setting, link) in ways.items():
        two, eight = (job(size, method, spread, setting, gpu=A100, gpus=gpus, link=link) for gpus in (2, 8))
        each = rate_of(two) / 2, rate_of(eight) / 8
        told = f"a card does {each[0]:,.0f} tokens a second beside one other, {each[1]:,.0f} beside seven"
        yield Case(label, each[0] / each[1], (two, eight), told)


def reserved() -> Cases:
    for gpu, year in RESERVED_USD.items():
        hourly = RUNPOD_USD[gpu]
        told = f"1 - {year:,} / ({hourly} x {YEAR_H:,}); it pays from {year / hourly:,.0f} h of use a year"
        yield Case(gpu, 1 - year / hourly / YEAR_H, (), told)


def lambda_against_runpod() -> Cases:
    for gpu, dear in LAMBDA_USD.items():
        cheap = RUNPOD_USD[gpu]
        yield Case(f"{gpu}, as printed", dear / cheap, (), f"{dear} against {cheap} USD a card and hour", then=True)
    for gpu in ("h100-pcie-80gb", H100, B200):
        if on_demand(gpu, "lambda") and on_demand(gpu, "runpod"):
            here, there = cheapest(gpu, "lambda"), cheapest(gpu, "runpod")
            told = f"{here.usd_per_gpu_hour:.2f} ({here.dated}) against {there.usd_per_gpu_hour:.2f} ({there.dated})"
            yield Case(f"{gpu}, bundled prices", here.usd_per_gpu_hour / there.usd_per_gpu_hour, (), told)


def ranking_13b() -> Cases:
    """Whether the card ranked first holds the job at all; then, for comparison, the ranking of cards that do."""
    for label, setting in SETTINGS.items():
        asked = job("13B", lora(8), setting, gpu="rtx-4090")
        yield Case(f"13B LoRA on one RTX 4090, {label}", fits(asked), (asked,), fits_told(asked))
    jobs = {gpu: job("13B", lora(8), USUAL, gpu=gpu) for gpu in CARDS}
    costs = {gpu: usd_per_million(asked) for gpu, asked in jobs.items() if fits(asked)}
    ranked = sorted(costs, key=lambda gpu: costs[gpu])
    told = ", ".join(f"{gpu} {costs[gpu]:.3f}" for gpu in ranked)
    asked = tuple(jobs[gpu] for gpu in ranked[:2])
    yield Case("cards that hold it, USD a million tokens, 4 x 2,048", True, asked, told, aside=True)


def full_70b_bill() -> Cases:
    prices = {
        "the same guide's 8 A100 at CoreWeave": COREWEAVE_8_A100, "its 8 A100 at RunPod": 8 * RUNPOD_USD[A100],
        "the dearest 8 A100 bundled": max(offer.usd_per_hour for offer in on_demand(A100) if offer.gpus == 8),
    }  # fmt: skip
    for label, price in prices.items():
        yield Case(label, 40 * price, (), f"40 h x {price:.2f} USD")
    yield Case("its own factor", 40 * 86.40, (), "40 h x 86.40 USD, a price that is nowhere else", aside=True)


def pipeline_hours() -> Cases:
    """82.16 is 52 h of two L40S at 0.79."""
    for label, setting in SETTINGS.items():
        asked = job("13B", lora(), setting, gpu="l40s", gpus=2)
        told = f"{PIPELINE_TOKENS:.3g} tokens / {rate_of(asked):,.0f} a second / 3,600; 82.16 USD are 52 h x 2 x 0.79"
        yield Case(f"13B LoRA on 2 L40S, {label} a card", PIPELINE_TOKENS / rate_of(asked) / HOUR_S, (asked,), told)


def pipeline_a100() -> Cases:
    price = RUNPOD_USD["a100-pcie-80gb"]
    told = f"{PIPELINE_TOKENS:.3g} tokens / 850 a second / 3,600 x {price} USD"
    yield Case("at the guide's own 850 tokens a second", PIPELINE_TOKENS / 850 / HOUR_S * price, (), told)
    asked = job("13B", lora(), USUAL, gpu="a100-pcie-80gb")
    told = f"{PIPELINE_TOKENS:.3g} tokens / {rate_of(asked):,.0f} a second / 3,600 x {price} USD"
    yield Case("4 x 2,048 tokens", PIPELINE_TOKENS / rate_of(asked) / HOUR_S * price, (asked,), told)


def pipeline_preparation() -> Cases:
    """Tokenising, at the rate measured of one process (src/tunecast/prediction/data/preparation.py)."""
    for processes in (1, 16, 64):
        taken = PIPELINE_TOKENS / TOKENS_PER_S[0] / processes / HOUR_S
        told = f"{PIPELINE_TOKENS:.3g} tokens / {TOKENS_PER_S[0]:,.0f} a second and process / {processes} / 3,600"
        yield Case(f"{processes} process{'es' * (processes > 1)}", taken, (), told)


def egress() -> Cases:
    """Taking a 70B model in float32 away once, beyond what a month has free."""
    asked = job("70B", MASTER, LEAN)
    found = ask(asked)
    weights = outside_of(found.job, found.model).disk.weights_bytes / GB
    for name, of in sorted(providers().items()):
        if of.egress_usd_per_gb is None:
            continue
        bill = max(0.0, weights - of.egress_free_gb) * of.egress_usd_per_gb
        free = f" less {of.egress_free_gb:,.0f} GB free" if of.egress_free_gb else ""
        doubt = ", unverified" if "egress_usd_per_gb" in of.unverified else ""
        told = f"{weights:,.0f} GB{free} x {of.egress_usd_per_gb:g} USD{doubt}"
        yield Case(name, bill, (asked,), told)


def among(setups: Mapping[str, Row], mine: tuple[str, ...], words: str) -> Cases:
    """What the recommended set-ups cost a token, against the cheapest of those that hold the job."""
    costs = {label: usd_per_million(asked) for label, asked in setups.items() if fits(asked)}
    best = min(costs, key=lambda label: costs[label])
    for label in mine:
        asked = setups[label], setups[best]
        if label not in costs:
            yield Case(f"{label}, {words}", None, asked, f"does not fit: {fits_told(setups[label])}")
            continue
        told = f"{costs[label]:.2f} USD a million tokens ({priced(asked[0]['hardware']['gpu'])}), "
        told += f"the cheapest {costs[best]:.2f} with {best} ({priced(asked[1]['hardware']['gpu'])})"
        yield Case(f"{label}, {words}", costs[label] / costs[best], asked, told)


def two_a100_cost() -> Cases:
    for tokens in (4096, 8192):
        setting = {"micro_batch": 1, "seq_len": tokens}
        setups = {f"2 {gpu}, FSDP": job("70B", qlora(), FSDP, setting, gpu=gpu, gpus=2) for gpu in (A100, H100, B200)}
        setups |= {f"1 {gpu}": job("70B", qlora(), setting, gpu=gpu) for gpu in (A100, H100, "h200-sxm-141gb", B200)}
        yield from among(setups, (f"2 {A100}, FSDP",), f"70B QLoRA, 1 x {tokens:,} tokens")


def long_context() -> Cases:
    """Llama 3.1 8B, rows of 131,072 tokens, a ring over the 8 cards of a machine (NeMo)."""
    parts: Row = {"stack": "nemo", "parallel": {"context": 8}, "micro_batch": 1, "seq_len": 131072}
    for words, method in {"8B LoRA": lora(), "8B full": BF16}.items():
        setups = {f"8 {gpu}": job("8B", method, parts, gpu=gpu, gpus=8) for gpu in (A100, H100, "h200-sxm-141gb", B200)}
        yield from among(setups, (f"8 {B200}", "8 h200-sxm-141gb"), f"{words}, 1 x 131,072 tokens")


CASES: Mapping[str, Callable[[], Cases]] = {
    "full-324-lora-1185": full_against_lora,
    "10h-340-378": ten_hours,
    "scaling-13b-cost": scaling_bill,
    "scaling-13b-1h": scaling_hours,
    "use-1-2-gpus": few_cards,
    "reserved-40-45": reserved,
    "lambda-slightly": lambda_against_runpod,
    "ranking-13b-4090": ranking_13b,
    "70b-full-3456": full_70b_bill,
    "pipeline-52h": pipeline_hours,
    "pipeline-a100-200": pipeline_a100,
    "pipeline-preparation": pipeline_preparation,
    "egress-70b": egress,
    "2xa100-cost": two_a100_cost,
    "long-context": long_context,
    "tcc-3x": card_against(H100, A100),
}
