"""Host memory of each rank while the Trainer loads, cuts and saves a model under FSDP 2, two ranks on CPUs: JSON lines.

    torchrun --nproc_per_node 2 benchmarks/sharded_loading.py false|true|meta|empty full|lora bfloat16|float32 FOLDER \\
        [sharded|save_only_model]

The first argument is fsdp_config's `cpu_ram_efficient_loading`; meta: it is true, and ranks but the first make the
model without memory (accelerate's `init_empty_weights`), which trains wrongly; empty: of memory that nobody touches.
`trained_norm`, after a step, shows what is right. The third is the dtype weights are loaded in; bf16 mixed
precision is on. `ACCELERATE_USE_FSDP=true FSDP_CPU_RAM_EFFICIENT_LOADING=true` before it is what accelerate's launcher
sets, and what `from_pretrained` looks at (`launched`). The model is `MODEL`, made in FOLDER by the first run, its file
in bfloat16.

Anonymous memory alone is counted (RssAnon: the file's own pages are not in it), less what the process has before. On
CPUs a card's memory is the host's too: `loading_bytes` is the most before anything is cut; `preparing_bytes` the most
while it is, with this rank's part and what a card would hold of whole weights; `saving_bytes` the most while a
checkpoint is written, less what is held before that. Needs accelerate as sharded_checkpoints.py does.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

MODEL = {
    "model_type": "llama", "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24,
    "num_attention_heads": 16, "num_key_value_heads": 16, "vocab_size": 16384, "max_position_embeddings": 256,
    "tie_word_embeddings": False,
}  # fmt: skip


def anonymous_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


class Peak:
    """The most anonymous memory since `reset`, looked at every 2 ms."""

    def __init__(self) -> None:
        self.most = anonymous_bytes()
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while True:
            self.most = max(self.most, anonymous_bytes())
            time.sleep(0.002)

    def reset(self) -> int:
        self.most = anonymous_bytes()
        return self.most


def norm(model: Any) -> float:
    """Of all weights: the same on every rank and however they came."""
    return float(sum(p.detach().full_tensor().float().norm() ** 2 for p in model.parameters()) ** 0.5)


def take_empty_memory(model: Any) -> None:
    """Weights of the host that nobody has touched: Linux gives them no pages, but each has an address of its own."""
    import torch

    for module in model.modules():
        for name, weight in list(module.named_parameters(recurse=False)):
            empty = torch.empty_like(weight, device="cpu")
            setattr(module, name, torch.nn.Parameter(empty, requires_grad=weight.requires_grad))


def make_model(folder: Path) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    fields = dict(MODEL)
    config = AutoConfig.for_model(fields.pop("model_type"), **fields)
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)


def main(efficient: str, method: str, dtype: str, folder: str, saves: str = "") -> None:
    launched = "ACCELERATE_USE_FSDP" in os.environ
    import torch

    torch.distributed.init_process_group("gloo")
    from accelerate import init_empty_weights
    from transformers import AutoConfig, AutoModelForCausalLM, Trainer, TrainingArguments

    rank, model_folder = torch.distributed.get_rank(), Path(folder) / "model"
    if rank == 0 and not model_folder.exists():
        make_model(model_folder)
    torch.distributed.barrier()
    wrapped = {
        "version": 2, "transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"],
        "cpu_ram_efficient_loading": efficient != "false",
        "state_dict_type": "SHARDED_STATE_DICT" if saves == "sharded" else "FULL_STATE_DICT",
    }  # fmt: skip
    args = TrainingArguments(
        output_dir=f"{folder}/run", max_steps=1, per_device_train_batch_size=1, save_steps=1, bf16=True, use_cpu=True,
        report_to=[], ddp_backend="gloo", optim="adamw_torch", learning_rate=1e-2, seed=0,
        save_only_model=saves == "save_only_model", fsdp="full_shard auto_wrap", fsdp_config=wrapped,
    )  # fmt: skip
    peak = Peak()
    before = peak.reset()
    found: dict[str, Any] = {}

    class Measured(Trainer):  # type: ignore[misc]
        def _prepare_for_training(self, *args: Any) -> Any:
            peak.reset()
            prepared = super()._prepare_for_training(*args)
            found["preparing_bytes"], found["prepared_bytes"] = peak.most - before, anonymous_bytes() - before
            found["norm"] = round(norm(prepared[0]), 4)
            return prepared

        def _save_checkpoint(self, *args: Any) -> None:
            self.optimizer.zero_grad()
            held = peak.reset()
            super()._save_checkpoint(*args)
            found["saving_bytes"] = peak.most - held

    model: Any
    if efficient in ("meta", "empty") and rank:
        with init_empty_weights():
            config = AutoConfig.from_pretrained(model_folder)
            wide = efficient == "empty" and method == "full"
            model = AutoModelForCausalLM.from_config(config, dtype=torch.float32 if wide else getattr(torch, dtype))
        if efficient == "empty":
            take_empty_memory(model)
    else:
        model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=getattr(torch, dtype))
    found["loading_bytes"], found["loaded_bytes"] = peak.most - before, anonymous_bytes() - before
    parameters = sum(p.numel() for p in model.parameters())
    if method == "lora":
        from peft import LoraConfig, get_peft_model

        asked = LoraConfig(r=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
        model = get_peft_model(model, asked)
    torch.manual_seed(0)
    ids = torch.randint(0, MODEL["vocab_size"], (4, 16))
    trainer = Measured(model=model, args=args, train_dataset=[{"input_ids": row, "labels": row} for row in ids])
    del model
    torch.distributed.barrier()
    trainer.train()
    found["trained_norm"] = round(norm(trainer.model), 4)
    asked = {
        "cpu_ram_efficient_loading": efficient, "launched": launched, "method": method, "weights_dtype": dtype,
        "autocast": "bfloat16", "saves": saves, "rank": rank, "parameters": parameters,
    }  # fmt: skip
    versions = {name: version(name) for name in ("accelerate", "transformers", "torch")}
    for turn in range(2):
        if turn == rank:
            print(json.dumps(asked | found | versions), flush=True)
        torch.distributed.barrier()


if __name__ == "__main__":
    main(*sys.argv[1:6])
