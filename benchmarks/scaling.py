"""The scaling study of the docs: links, numbers of cards, lengths of context, as tunecast predicts them.

    python benchmarks/scaling.py            writes benchmarks/results/scaling.json and docs/scaling.md

Nothing here is measured; the accuracy pages say how far predictions of each kind are off.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "src")]

from figures import table  # noqa: E402

from tunecast.errors import TunecastError  # noqa: E402
from tunecast.predict.engines import prediction  # noqa: E402

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
        said = prediction(job)
    except TunecastError as error:
        return {"refused": error.message.splitlines()[0]}
    if said.time is None:
        return {"refused": next((w for w in said.warnings if w.startswith("time")), "no time")}
    return {
        "tokens_per_s_per_gpu": said.time["tokens_per_s_per_gpu"],
        "low": said.time["low_s"],
        "high": said.time["high_s"],
        "step_s": said.time["step_s"],
        "bound_by": said.time["bound_by"],
        "communication": (said.utilization or {}).get("communication_fraction"),
        "mfu": (said.utilization or {}).get("mfu"),
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
        "Full training and LoRA on all linear layers, 8 A100 80 GB, FSDP, 4,096 tokens a row, one row a card,",
        "everything recomputed. Once joined by NVLink, once by PCIe 4.0 without switches in between.",
        "",
        *links(results["by_link"]),
        "",
        "## 1 to 1,024 cards",
        "",
        f"Full training on H100 SXM with 8 cards a machine and 400 Gb/s a card between machines; {PRICED}.",
        "Efficiency is tokens a second and card against the fewest cards that hold the job. 8B is sharded inside a",
        "machine and replicated across (HSDP), 70B sharded over all.",
        "",
        *counts(results["by_count"]),
        "",
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
    head = ["model", "cards", "tokens/s/card", "efficiency", "memory a card", "a billion tokens", ""]
    return list(table(head, out))


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
    return list(table(["tokens", "tokens/s/card", "a step", "memory a card", "fits 80 GB"], out))


def main() -> None:
    results = {"by_link": list(by_link()), "by_count": list(by_count()), "by_length": list(by_length())}
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    PAGE.write_text(page(results))


if __name__ == "__main__":
    main()
