"""What a length costs when it is first seen: the same steps twice, lengths in random order, on a card.

    python benchmarks/new_lengths.py OUT.jsonl [--tiny]

Every row is one step or one batch of an evaluation: its length, which visit of that length it is, and its seconds with
the card idle before and after. `attention` says which kernels torch may choose from: with and without cuDNN's, which
plan for every shape. Models have random weights; batches are padded on the right, as a collator pads.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

MODELS = Path(__file__).parent.parent / "src" / "tunecast" / "job" / "models"
LORA = {"r": 16, "lora_alpha": 32, "lora_dropout": 0.0, "target_modules": "all-linear", "task_type": "CAUSAL_LM"}
CASES: tuple[dict[str, Any], ...] = (
    {"model": "llama-3.2-1b", "batch": 8, "lengths": (60, 900, 24), "attention": "any", "lora": False, "saves": False},
    {"model": "llama-3.2-1b", "batch": 8, "lengths": (60, 900, 12), "attention": "not cudnn", "lora": False,
     "saves": False},
    {"model": "llama-3.2-3b", "batch": 4, "lengths": (100, 1900, 14), "attention": "any", "lora": True, "saves": True},
    {"model": "qwen2.5-0.5b", "batch": 16, "lengths": (60, 500, 14), "attention": "any", "lora": False,
     "saves": False},
)  # fmt: skip
"""(shortest, longest, how many) lengths; `saves`: with gradient checkpointing."""


def lengths_of(case: dict[str, Any], seed: int) -> list[int]:
    low, high, count = case["lengths"]
    return random.Random(seed).sample(range(low, high), count)


def visits(lengths: list[int], seed: int) -> list[tuple[int, int]]:
    """(length, its which visit), each length three times, every round in an order of its own."""
    draw, made = random.Random(seed), []
    for visit in range(3):
        made += [(length, visit) for length in draw.sample(lengths, len(lengths))]
    return made


def batch_of(torch: Any, rows: int, length: int, vocabulary: int) -> dict[str, Any]:
    ids = torch.randint(0, vocabulary, (rows, length), device="cuda")
    mask = torch.ones_like(ids)
    mask[1:, int(length * 0.7) :] = 0
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


def run(torch: Any, case: dict[str, Any], told: Callable[[dict[str, Any]], None], tiny: bool) -> None:
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from transformers import AutoConfig, AutoModelForCausalLM

    raw = json.loads((MODELS / f"{case['model']}.json").read_text())
    if tiny:
        raw["num_hidden_layers"], raw["layer_types"] = 2, None
    kind = raw.pop("model_type")
    config = AutoConfig.for_model(kind, **{k: v for k, v in raw.items() if k != "torch_dtype"})
    with torch.device("cuda"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    if case["lora"]:
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(model, LoraConfig(**LORA))
    if case["saves"]:
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.enable_input_require_grads()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], fused=True)
    others = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
    chosen = nullcontext() if case["attention"] == "any" else sdpa_kernel(others)

    def train(batch: dict[str, Any]) -> None:
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    def evaluate(batch: dict[str, Any]) -> None:
        with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
            model(**batch)

    def evaluate_uncached(batch: dict[str, Any]) -> None:
        with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
            model(**batch, use_cache=False)

    def timed(what: str, work: Callable[[dict[str, Any]], None], rows: int, seed: int) -> None:
        for length, visit in visits(lengths_of(case, seed), seed):
            batch = batch_of(torch, rows, length, config.vocab_size)
            before = torch.cuda.memory_stats()
            torch.cuda.synchronize()
            began = time.perf_counter()
            work(batch)
            torch.cuda.synchronize()
            seconds = time.perf_counter() - began
            asked = torch.cuda.memory_stats()["num_device_alloc"] - before["num_device_alloc"]
            told({"what": what, "model": case["model"], "attention": case["attention"], "rows": rows, "length": length,
                  "visit": visit, "seconds": seconds, "device_allocations": asked})  # fmt: skip

    with chosen:
        for _ in range(2):  # kernels are loaded, blocks asked for
            train(batch_of(torch, case["batch"], case["lengths"][1], config.vocab_size))
        model.train()
        timed("step", train, case["batch"], 1)
        model.eval()
        timed("evaluation", evaluate, 8, 2)
        timed("evaluation without a cache", evaluate_uncached, 8, 3)


def main() -> None:
    import torch

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--tiny", action="store_true")
    given = parser.parse_args()
    with given.out.open("w", encoding="utf-8") as out:

        def told(row: dict[str, Any]) -> None:
            out.write(json.dumps(row) + "\n")
            out.flush()

        for case in CASES:
            run(torch, case, told, given.tiny)
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
