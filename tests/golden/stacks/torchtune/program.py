"""A single-device recipe of torchtune without files: the model of a config.json, and the loop of
recipes/{full,lora}_finetune_single_device.py. Traced by make.py; its one argument is a case of cases.json."""

from __future__ import annotations

import json
import sys
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torchtune import modules, training, utils
from torchtune.modules.peft import get_adapter_params, set_trainable_params

case = json.loads(sys.argv[1])
config, job = case["config"], case["job"]
NEWER = case["release"] == "0.7"
"""The loss holds the head, labels are shifted where rows are collated, gradients are scaled many at a time."""
STEPS = 2
IGNORE = -100


def builder(name: str, package: str) -> Any:
    return getattr(import_module(f"torchtune.models.{package}._component_builders"), name)


def arguments() -> tuple[str, dict[str, Any]]:
    """The component builder's name and what it is given."""
    kind = config["model_type"]
    given = {
        "vocab_size": config["vocab_size"], "num_layers": config["num_hidden_layers"],
        "num_heads": config["num_attention_heads"], "num_kv_heads": config["num_key_value_heads"],
        "embed_dim": config["hidden_size"], "intermediate_dim": config["intermediate_size"],
        "max_seq_len": config["max_position_embeddings"], "attn_dropout": 0.0,
    }  # fmt: skip
    if kind == "llama":
        scaling = config.get("rope_scaling") or {}
        package = ("llama3_2" if config.get("tie_word_embeddings") else "llama3_1") if scaling else "llama3"
        if not scaling and config["vocab_size"] < 100_000:
            package = "llama2"
        if package == "llama2":
            given.pop("intermediate_dim")
            given["intermediate_dim"] = config["intermediate_size"]
        return package, given
    if kind in ("gemma", "gemma2", "qwen3"):
        given["head_dim"] = config["head_dim"]
    if kind == "gemma2":
        given["query_pre_attn_scalar"] = config["head_dim"]
    if kind == "qwen3":
        given |= {f"{name}_proj_bias": False for name in "qkv"} | {"q_norm": True, "k_norm": True}
    if kind in ("qwen2", "qwen3"):
        given["tie_word_embeddings"] = config.get("tie_word_embeddings", False)
    return kind, given


def model_of() -> Any:
    package, given = arguments()
    if job["method"] == "full":
        return builder(package, package)(**given)
    lora = job["lora"]
    names = {"q_proj": "q_proj", "k_proj": "k_proj", "v_proj": "v_proj", "o_proj": "output_proj"}
    given["lora_attn_modules"] = [names[target] for target in lora["targets"] if target in names]
    given["apply_lora_to_mlp"] = "gate_proj" in lora["targets"]
    if package not in ("gemma", "gemma2", "llama3_2"):
        given["apply_lora_to_output"] = "lm_head" in lora["targets"]
    given |= {"lora_rank": lora["rank"], "lora_alpha": lora["rank"], "lora_dropout": lora.get("dropout", 0.0)}
    if job["method"] == "qlora":
        given["quantize_base"] = True
    if lora.get("dora"):
        given["use_dora"] = True
    return builder(f"lora_{package}", package)(**given)


def optimizer_class() -> Any:
    name = job["optimizer"]
    if name in ("adamw_torch", "adamw_torch_fused"):
        return partial(torch.optim.AdamW, lr=2e-5, fused=True if name.endswith("fused") else None)
    import bitsandbytes as bnb

    return partial({"paged_adamw_8bit": bnb.optim.PagedAdamW8bit, "adamw_8bit": bnb.optim.AdamW8bit}[name], lr=2e-5)


def batch() -> dict[str, Any]:
    ids = torch.randint(0, 1000, (job["micro_batch"], job["seq_len"]))
    made: dict[str, Any] = {"tokens": ids, "labels": ids.clone()}
    if NEWER:
        made["labels"] = torch.ones_like(ids)
        made["labels"][:, -1] = IGNORE
    if job.get("data", {}).get("packing"):
        made["input_pos"] = torch.arange(job["seq_len"]).repeat(job["micro_batch"], 1)
        from torchtune.modules.attention_utils import packed_block_causal_mask

        made["mask"] = packed_block_causal_mask([torch.tensor([job["seq_len"]])] * job["micro_batch"])
    return made


if "rope_scaling" in config:  # reads values, which a trace has not
    from torchtune.models.llama3_1._position_embeddings import Llama3ScaledRoPE

    Llama3ScaledRoPE.apply_scaling = lambda self, freqs, *rest: torch.empty_like(freqs)
device = torch.device("cuda")
with training.set_default_dtype(getattr(torch, job["weights_dtype"])), device:
    model = model_of()
if job["method"] != "full":
    set_trainable_params(model, get_adapter_params(model))
if job.get("compile"):
    training.compile_model(model)
if job["gradient_checkpointing"]:
    training.set_activation_checkpointing(model, auto_wrap_policy={modules.TransformerSelfAttentionLayer})
handling = training.get_act_offloading_ctx_manager(model, bool(job.get("offload_activations")))
optimizer: Any = None
make_optimizer = optimizer_class()
if job.get("optimizer_in_backward") and NEWER:
    from torchtune.modules.optim import OptimizerInBackward

    optimizer = OptimizerInBackward(model.parameters(), make_optimizer)
elif job.get("optimizer_in_backward"):
    optimizers = {p: make_optimizer([p]) for p in model.parameters()}
    training.register_optim_in_bwd_hooks(model=model, optim_dict=optimizers)
else:
    optimizer = make_optimizer(model.parameters())
if job.get("loss") == "full":
    loss_fn: Any = torch.nn.CrossEntropyLoss(ignore_index=IGNORE)
elif NEWER:
    from torchtune.modules.loss import LinearCrossEntropyLoss

    loss_fn = LinearCrossEntropyLoss()
    loss_fn.set_model_output(model)
else:
    from torchtune.modules.loss import CEWithChunkedOutputLoss

    loss_fn = CEWithChunkedOutputLoss()
    model.set_num_output_chunks(loss_fn.num_output_chunks)
if job.get("compile"):
    loss_fn = training.compile_loss(loss_fn)
if not NEWER:
    ignore_labels = torch.full((job["micro_batch"], 1), IGNORE, device=device)
torch.cuda.empty_cache()  # not the recipe's: tells make.py where loading ends


def loss_step(batch: dict[str, Any]) -> Any:
    labels = batch.pop("labels")
    with handling:
        logits = model(**batch)
    if not NEWER:
        labels = torch.hstack((labels[..., 1:], ignore_labels[: labels.shape[0]]))
    if job.get("loss") == "full":
        labels = labels.reshape(-1)
        logits = logits.reshape(-1, logits.size(-1))
    loss = loss_fn(logits, labels)
    del logits
    return loss


model.train()
accumulated = job.get("grad_accum", 1)
running_loss: Any = 0
num_tokens: Any = 0
for index in range(STEPS * accumulated):
    row = batch()
    utils.batch_to_device(row, device)
    current_num_tokens = (row["labels"] != IGNORE).sum()
    num_tokens += current_num_tokens
    in_backward = NEWER and job.get("optimizer_in_backward")
    if NEWER:
        loss_factor = 1.0 if in_backward else current_num_tokens
        current_loss = loss_step(row) * loss_factor
        running_loss += current_loss.detach()
    else:
        current_loss = loss_step(row) * current_num_tokens
        running_loss += current_loss
    current_loss.backward()
    if (index + 1) % accumulated == 0:
        grad_norm = None
        if optimizer is not None and not in_backward:
            if NEWER:
                training.scale_grads_(model.parameters(), 1.0 / num_tokens)
            else:
                training.scale_grads(model, 1 / num_tokens)
            if job.get("max_grad_norm"):
                grad_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=job["max_grad_norm"])
        if optimizer is not None:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        if NEWER:
            loss_value = (running_loss / (1.0 if in_backward else num_tokens)).item()
        else:
            loss_to_log = running_loss.item() / num_tokens
        running_loss = 0
        num_tokens = 0
