"""What a calibration's small operations say of a training step that waits for the host: both, one after the other.

    python benchmarks/host_speed.py OUT.jsonl

Every row is a loop of `learn/measure.py` (seconds an operation, forward and backward) and the steps timed right after
it: one row of 128 tokens, so short that the card waits. data/host_speed.jsonl has two hosts.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "src" / "tunecast" / "learn")]

from new_lengths import LORA, MODELS, batch_of  # noqa: E402

LENGTH = 128
CASES = (("llama-3.2-1b", False, 10, 8), ("llama-3.2-3b", True, 8, 4))
"""Model, with adapters and checkpointing, loops, steps after each."""


def stepping(torch: Any, name: str, adapted: bool) -> tuple[Any, int]:
    from transformers import AutoConfig, AutoModelForCausalLM

    raw = json.loads((MODELS / f"{name}.json").read_text())
    kind = raw.pop("model_type")
    config = AutoConfig.for_model(kind, **{k: v for k, v in raw.items() if k != "torch_dtype"})
    with torch.device("cuda"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    if adapted:
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(model, LoraConfig(**LORA))
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.enable_input_require_grads()
    model.train()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], fused=True)

    def step(batch: dict[str, Any]) -> float:
        torch.cuda.synchronize()
        began = time.perf_counter()
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
        return time.perf_counter() - began

    return step, config.vocab_size


def main() -> None:
    import measure
    import torch

    with Path(sys.argv[1]).open("w", encoding="utf-8") as out:
        for name, adapted, loops, steps in CASES:
            step, vocabulary = stepping(torch, name, adapted)
            batch = batch_of(torch, 1, LENGTH, vocabulary)
            for _ in range(4):
                step(batch)
            for _ in range(loops):
                (loop,) = measure.launches(torch, "cuda")
                row = {"model": name, "lora": adapted, "forward_s": loop["forward_s"], "backward_s": loop["backward_s"]}
                out.write(json.dumps({**row, "step_s": [step(batch) for _ in range(steps)]}) + "\n")
            del step
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
