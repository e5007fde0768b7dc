"""What transformers' Trainer takes of the host around its steps: loops whose loss is one parameter's, without a card.

    python benchmarks/trainer_loop.py

Models have their layers but are 64 wide. CPU time, since other programs may run; loops of two lengths, so that what
happens once is taken off. Printed: modules, and milliseconds per step and per micro-batch (prediction/price/host.py).
"""

from __future__ import annotations

import json
import tempfile
import time
from typing import Any

from job_run import ROOT, config_of

CASES = (
    ("llama-3.2-1b", False, 8),
    ("smollm2-360m", False, 32),
    ("granite-3.1-2b", False, 8),
    ("qwen3-1.7b", True, 2),
)
"""Model, with adapters, rows."""
FEW, MANY, ACCUMULATED = 40, 240, 4


def model_of(name: str, adapted: bool) -> Any:
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    config = config_of(name, True)
    raw = json.loads((ROOT / "src" / "tunecast" / "job" / "models" / f"{name}.json").read_text())
    config.num_hidden_layers = raw["num_hidden_layers"]
    if getattr(config, "layer_types", None):
        config.layer_types = ["full_attention"] * config.num_hidden_layers
    model = AutoModelForCausalLM.from_config(config)
    lora = LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")
    return get_peft_model(model, lora) if adapted else model


def cpu_s(model: Any, rows: int, micro_batches: int, accumulated: int) -> float:
    import torch
    from transformers import Trainer, TrainingArguments

    data = [{"input_ids": torch.randint(0, 500, (120,))} for _ in range(micro_batches * rows)]

    def collate(batch: list[dict[str, Any]]) -> dict[str, Any]:
        ids = torch.stack([row["input_ids"] for row in batch])
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}

    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder, num_train_epochs=1, per_device_train_batch_size=rows, report_to="none", use_cpu=True,
            gradient_accumulation_steps=accumulated, disable_tqdm=True, save_strategy="no",
        )  # fmt: skip
        trainer = Trainer(model=model, args=arguments, train_dataset=data, data_collator=collate)
        one = next(parameter for parameter in model.parameters() if parameter.requires_grad)
        trainer.compute_loss = lambda *_, **__: (one * 0).sum()
        began = time.process_time()
        trainer.train()
        return time.process_time() - began


def main() -> None:
    for name, adapted, rows in CASES:
        model = model_of(name, adapted)
        few, many, fewer = (cpu_s(model, rows, n, a) for n, a in ((FEW, 1), (MANY, 1), (MANY, ACCUMULATED)))
        both = (many - few) / (MANY - FEW)  # a step and its micro-batch
        shared = (fewer - (few - FEW * both)) / MANY  # a micro-batch and its share of a step
        step = (both - shared) / (1 - 1 / ACCUMULATED)
        modules = sum(1 for _ in model.modules())
        print(f"{name} {modules} modules: {step * 1e3:.1f} ms a step, {(both - step) * 1e3:.1f} ms a micro-batch")


if __name__ == "__main__":
    main()
