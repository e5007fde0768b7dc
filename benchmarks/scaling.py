"""The scaling study of the docs: links, numbers of cards, lengths of context, as tunecast predicts them.

    python benchmarks/scaling.py            writes benchmarks/results/scaling.json and docs/scaling.md

Nothing here is measured; the accuracy pages say how far predictions of each kind are off.
"""

from __future__ import annotations

import json
import statistics
import sys
import textwrap
from collections.abc import Iterator, Mapping
from math import log2
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "src")]

from figures import load, table  # noqa: E402
from timing import is_of_something_else, rows_of  # noqa: E402

from tunecast.door.predict import predict  # noqa: E402
from tunecast.errors import TunecastError  # noqa: E402

RESULTS, PAGE = HERE / "results" / "scaling.json", HERE.parent / "docs" / "scaling.md"
GIB = 2**30
USD_PER_GPU_HOUR = 2.69
PRICED = "an H100 SXM at $2.69 an hour on demand (RunPod, a guide of March 2026)"
Row = dict[str, Any]

FULL = {
    "method": "full", "weights_dtype": "bfloat16", "autocast": None, "optimizer": "adamw_torch_fused", "seq_len": 4096,
    "micro_batch": 1, "attention": "flash_attention_2",
}  # fmt: skip
METHODS: Mapping[str, Row] = {"full": FULL, "lora": {**FULL, "method": "lora", "lora": {"targets": "all-linear"}}}
LINKS = ("nvlink3", "pcie4-x16")
COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
LENGTHS = tuple(4096 * 2**power for power in range(9))
CONTEXT_RANKS = 8


def asked(job: Row) -> Row:
    """What is said of a job, or why nothing is."""
    try:
        said = predict(job)
    except TunecastError as error:
        return {"refused": error.message.splitlines()[0]}
    if said.time is None or said.utilization is None:
        return {"refused": next((w for w in said.warnings if w.startswith("time")), "no time")}
    return {
        "tokens_per_s_per_gpu": said.time.tokens_per_s_per_gpu,
        "low": said.time.low_s,
        "high": said.time.high_s,
        "step_s": said.time.step_s,
        "bound_by": said.time.bound_by,
        "communication": said.utilization.communication_fraction,
        "mfu": said.utilization.mfu,
        "breakdown_s": said.time.breakdown_s,
        "device_bytes": said.memory.device_bytes,
        "fits": said.fits,
    }


def by_link() -> Iterator[Row]:
    for model in ("llama-2-7b", "llama-2-13b", "llama-2-70b"):
        for method, fields in METHODS.items():
            for link in LINKS:
                hardware = {"gpu": "a100-sxm-80gb", "gpus": 8, "interconnect": link}
                job = {**fields, "model": model, "hardware": hardware, "parallel": {"data": "fsdp"}}
                yield {"model": model, "method": method, "link": link, **asked(job)}


def by_count() -> Iterator[Row]:
    for model in ("llama-3.1-8b", "llama-3.1-70b"):
        for count in COUNTS:
            gpus, nodes = min(8, count), max(1, count // 8)
            parallel = {} if count == 1 else {"data": "hsdp" if nodes > 1 and model.endswith("8b") else "fsdp"}
            hardware = {"gpu": "h100-sxm-80gb", "gpus": gpus, "nodes": nodes}
            yield {
                "model": model,
                "cards": count,
                **asked({**FULL, "model": model, "hardware": hardware, "parallel": parallel}),
            }


def by_length() -> Iterator[Row]:
    for length in LENGTHS:
        job = {
            **FULL, "model": "llama-3.1-8b", "stack": "nemo", "seq_len": length, "attention": "sdpa",
            "hardware": {"gpu": "h100-sxm-80gb", "gpus": 8}, "parallel": {"context": CONTEXT_RANKS},
        }  # fmt: skip
        yield {"length": length, **asked(job)}


def page(results: Mapping[str, list[Row]]) -> str:
    parts = [
        "# Scaling, as predicted",
        "",
        "Written by `benchmarks/scaling.py`. Nothing on this page was measured: it is what tunecast says of jobs few",
        "can try. [How far its predictions are off](accuracy_time.md) is on a page of its own, with measurements.",
        "",
        "## What a link is worth",
        "",
        "Full training and LoRA on all linear layers, 8 A100 80 GB, FSDP, 4,096 tokens per row, one row per card,",
        "everything recomputed. Once joined by NVLink, once by PCIe 4.0 without switches in between.",
        "",
        *links(results["by_link"]),
        "",
        "## 1 to 1,024 cards",
        "",
        f"Full training on H100 SXM with 8 cards per machine and 400 Gb/s per card between machines; {PRICED}.",
        "Every card keeps its row of 4,096 tokens, so the global batch grows with the cards. Efficiency is tokens per",
        "second and card against the fewest cards that hold the job. 8B is sharded inside a machine and replicated",
        "across (HSDP), 70B sharded over all.",
        "",
        *counts(results["by_count"]),
        *superlinear(results["by_count"]),
        "### What measured runs lose",
        "",
        *measured(),
        "## 4k to 1M tokens of context",
        "",
        f"Llama 3.1 8B, full training, NeMo on 8 H100 with context parallelism over all {CONTEXT_RANKS} (a ring),",
        "everything recomputed. Attention grows with the square of the length, the rest with the length.",
        "",
        *lengths(results["by_length"]),
        "",
    ]
    return "\n".join(parts)


def links(rows: list[Row]) -> list[str]:
    found = {(row["model"], row["method"], row["link"]): row for row in rows}
    out = []
    for model, method in dict.fromkeys((row["model"], row["method"]) for row in rows):
        fast, slow = (found[model, method, link] for link in LINKS)
        if "refused" in fast or "refused" in slow:
            out.append([model, method, "", "", "", fast.get("refused") or slow["refused"]])
            continue
        rates = [row["tokens_per_s_per_gpu"] for row in (fast, slow)]
        out.append(
            [model, method, f"{rates[0]:,.0f}", f"{rates[1]:,.0f}", f"{rates[0] / rates[1]:.2f}x",
             f"{slow['bound_by']}-bound over PCIe" + ("" if fast["fits"] else "; does not fit")]
        )  # fmt: skip
    return list(table(["model", "method", "NVLink: tokens/s/card", "PCIe", "NVLink is worth", ""], out))


def counts(rows: list[Row]) -> list[str]:
    out = []
    base: dict[str, float] = {}
    for row in rows:
        if "refused" in row:
            out.append([row["model"], f"{row['cards']:,}", "", "", "", "", row["refused"][:90]])
            continue
        rate = row["tokens_per_s_per_gpu"]
        if row["fits"]:
            base.setdefault(row["model"], rate)
        efficiency = f"{rate / base[row['model']]:.0%}" if row["model"] in base else ""
        usd = USD_PER_GPU_HOUR / 3600 / rate * 1e9
        out.append(
            [row["model"], f"{row['cards']:,}", f"{rate:,.0f}", efficiency, f"{row['device_bytes'] / GIB:.1f} GiB",
             f"${usd:,.0f}" if row["fits"] else "", "" if row["fits"] else "does not fit"]
        )  # fmt: skip
    head = ["model", "cards", "tokens/s/card", "efficiency", "memory per card", "a billion tokens", ""]
    return list(table(head, out))


def superlinear(rows: list[Row]) -> list[str]:
    """Why a card trains faster in company: the parts of a step on one card and on eight."""
    parts = {row["cards"]: row["breakdown_s"] for row in rows if row["model"] == "llama-3.1-8b"}
    names = {
        "optimizer": "optimizer", "memory_bound": "moving memory (with FSDP's copies)",
        "communication": "communication nothing hides",
    }  # fmt: skip
    shown = (1, 2, 4, 8, 16, 1024)
    lines = [[name, *(f"{1e3 * parts[count][part]:.0f}" for count in shown)] for part, name in names.items()]
    rest = [sum(seconds for part, seconds in parts[count].items() if part not in names) for count in shown]
    lines.append(["products, attention, recomputation", *(f"{1e3 * seconds:.0f}" for seconds in rest)])
    lines.append(["**a step**", *(f"**{1e3 * sum(parts[count].values()):.0f}**" for count in shown)])
    one, eight = parts[1], parts[8]
    saved = 1e3 * (one["optimizer"] - eight["optimizer"])
    added = 1e3 * sum(eight[part] - one[part] for part in ("memory_bound", "communication"))
    return [
        *paragraph(
            "**Why more than 100 %?** One card updates all 8 billion weights in every step, for a single row of 4,096 "
            f"tokens; of eight each updates an eighth. That saves {saved:.0f} ms of {1e3 * sum(one.values()):.0f} ms; "
            "the copies in and out of FSDP's buffers and the communication that computing does not hide cost "
            f"{added:.0f} ms. From 8 cards on there is nothing left to save, and efficiency falls. With more rows per "
            "card, or accumulation, the optimizer's share is smaller from the start, and so is the gain. Parts of a "
            "step of Llama 3.1 8B in ms, by cards:"
        ),
        *table(["part", *(f"{count:,}" for count in shown)], lines),
    ]


def measured() -> list[str]:
    """Published runs that differ in nothing but the number of cards: what they lose, and what is predicted of it."""
    found = families()
    lines = [
        [family.stack, family.about, f"{family.fewest:,} to {family.most:,}", f"{family.measured:.0%}",
         f"{family.predicted:.0%}"]
        for family in sorted(found, key=lambda family: family.measured - family.predicted)
    ]  # fmt: skip
    missed = sorted(family.missed_per_doubling for family in found)
    middle = statistics.median(missed)
    gain = max(found, key=lambda family: family.predicted)
    return [
        *paragraph(
            "The prediction has no term for what large clusters lose besides bytes over links: ranks that wait for "
            f"the slowest, networks that are shared. {len(found)} families of published runs differ in nothing but "
            "the number of cards (of several results for one number the median counts). Their efficiency from the "
            "fewest to the most cards, measured and predicted, shows what that is worth: a median of "
            f"{middle:.1%} per doubling of the cards, from {missed[0]:.1%} to {missed[-1]:.1%} (negative: less was "
            "lost than predicted). Take the efficiencies above as an upper bound, and the more so the more cards. "
            "The gain from a smaller share of the optimizer is not confirmed on several machines: of "
            f"{gain.about.partition(' ')[0]} by {gain.stack} from {gain.fewest} to {gain.most} cards "
            f"{gain.predicted:.0%} is predicted, the most of all, and {gain.measured:.0%} was measured. For full "
            "training on one machine nobody published such a pair."
        ),
        *table(["by", "job", "cards", "measured", "predicted"], lines),
    ]


def paragraph(text: str) -> list[str]:
    return [*textwrap.wrap(text, 120, break_on_hyphens=False), ""]


class Family(NamedTuple):
    stack: str
    about: str
    fewest: int
    most: int
    measured: float
    predicted: float

    @property
    def missed_per_doubling(self) -> float:
        """How much more is lost than predicted, each time the cards double."""
        return 1 - (self.measured / self.predicted) ** (1 / log2(self.most / self.fewest))


def families() -> list[Family]:
    """Jobs with the same work per card on several numbers of cards."""
    jobs = {row["id"]: row["job"] for name in ("public_runs.jsonl", "vendor_runs.jsonl") for row in rows_of(name)}
    groups: dict[tuple[str, str], dict[int, list[Row]]] = {}
    for row in [*load("time_public.json")["rows"], *load("time_vendor.json")["rows"]]:
        if "tunecast" not in row["error"] or is_of_something_else(row):
            continue
        job = dict(jobs[row["id"]])
        hardware = dict(job.pop("hardware"))
        count = hardware.pop("gpus", 1) * hardware.pop("nodes", 1)
        same = json.dumps([{**job, "id": None}, hardware], sort_keys=True)
        groups.setdefault((row["stack"], same), {}).setdefault(count, []).append(row)
    return [_family(stack, by_count) for (stack, _), by_count in groups.items() if len(by_count) > 1]


def _family(stack: str, by_count: Mapping[int, list[Row]]) -> Family:
    fewest, most = min(by_count), max(by_count)
    took = {count: statistics.median(row["measured_s"] for row in by_count[count]) for count in (fewest, most)}
    said = {count: by_count[count][0]["said"]["tunecast"]["step_s"] for count in (fewest, most)}
    about = by_count[most][0]["about"]
    return Family(stack, about, fewest, most, took[fewest] / took[most], said[fewest] / said[most])


def lengths(rows: list[Row]) -> list[str]:
    out = []
    for row in rows:
        if "refused" in row:
            out.append([f"{row['length']:,}", "", "", "", row["refused"][:90]])
            continue
        fits = "yes" if row["fits"] else "no"
        out.append(
            [f"{row['length']:,}", f"{row['tokens_per_s_per_gpu']:,.0f}", f"{row['step_s']:.2f} s",
             f"{row['device_bytes'] / GIB:.1f} GiB", fits]
        )  # fmt: skip
    return list(table(["tokens", "tokens/s/card", "step", "memory per card", "fits 80 GB"], out))


def main() -> None:
    results = {"by_link": list(by_link()), "by_count": list(by_count()), "by_length": list(by_length())}
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    PAGE.write_text(page(results))


if __name__ == "__main__":
    main()
