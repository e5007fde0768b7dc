"""Files of a Trainer's checkpoint under DeepSpeed's ZeRO or FSDP 2, two ranks on CPUs: a JSON line of their sizes.

    torchrun --nproc_per_node 2 benchmarks/sharded_checkpoints.py zero1|zero2|zero3|fsdp|fsdp-sharded full|lora \
        bfloat16|none OUT [save_only_model]

Needs transformers, PEFT, and deepspeed (no compiled operations) or an accelerate that has FSDP on CPUs: 1.15.0 with
DistributedType.MULTI_CPU added to those of AcceleratorState.__init__. The model is `MODEL`, with random weights.
"""

from __future__ import annotations

import json
import os
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

MODEL = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 512, "max_position_embeddings": 256,
    "tie_word_embeddings": False,
}  # fmt: skip
RANK = 8


def spread_by(data: str) -> dict[str, Any]:
    """Of TrainingArguments."""
    if data.startswith("fsdp"):
        wrapped = {"version": 2, "transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"]}
        if data == "fsdp-sharded":
            wrapped["state_dict_type"] = "SHARDED_STATE_DICT"
        return {"fsdp": "full_shard auto_wrap", "fsdp_config": wrapped}
    zero = {"stage": int(data[-1]), "stage3_gather_16bit_weights_on_model_save": True}
    batches = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    told = {**dict.fromkeys((*batches, "gradient_clipping"), "auto"), "zero_optimization": zero}
    return {"deepspeed": {**told, "bf16": {"enabled": "auto"}, "zero_allow_untested_optimizer": True}}


def main(data: str, method: str, autocast: str, folder: str, only: str = "") -> None:
    os.environ["DS_ACCELERATOR"] = "cpu"
    import torch

    torch.distributed.init_process_group("gloo")
    if not data.startswith("fsdp"):
        import deepspeed

        deepspeed.init_distributed(dist_backend="gloo", dist_init_required=False)
    from transformers import AutoConfig, AutoModelForCausalLM, Trainer, TrainingArguments

    spread = spread_by(data)
    args = TrainingArguments(
        output_dir=folder, max_steps=2, per_device_train_batch_size=1, save_steps=2, bf16=autocast == "bfloat16",
        use_cpu=True, report_to=[], ddp_backend="gloo", optim="adamw_torch", save_only_model=bool(only),
        **spread,
    )  # fmt: skip
    fields = dict(MODEL)
    config = AutoConfig.for_model(fields.pop("model_type"), **fields)
    dtype = "bfloat16" if data.startswith("fsdp") else "float32"
    model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype))
    if method == "lora":
        from peft import LoraConfig, get_peft_model

        asked = LoraConfig(r=RANK, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
        model = get_peft_model(model, asked)
    ids = torch.randint(0, MODEL["vocab_size"], (8, 64))
    rows = [{"input_ids": row, "labels": row} for row in ids]
    Trainer(model=model, args=args, train_dataset=rows).train()
    if torch.distributed.get_rank() == 0:
        saved = Path(folder) / "checkpoint-2"
        files = {
            str(path.relative_to(saved)): path.stat().st_size for path in sorted(saved.rglob("*")) if path.is_file()
        }
        sharding = "accelerate" if data.startswith("fsdp") else "deepspeed"
        versions = {name: version(name) for name in (sharding, "transformers", "torch")}
        narrow = autocast if autocast == "bfloat16" else None
        kind = {"state_dict_type": "sharded"} if data == "fsdp-sharded" else {}
        kind |= {"save_only_model": True} if only else {}
        row = {
            "data": data.removesuffix("-sharded"),
            **kind,
            "method": method,
            "weights_dtype": dtype,
            "autocast": narrow,
            "files": files,
        }
        print(json.dumps(row | versions))


if __name__ == "__main__":
    main(*sys.argv[1:6])
