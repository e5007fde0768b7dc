"""litgpt's YAML, of its config_hub or one's own. `class_path` is only ever read as a name.

Keys and defaults: litgpt/args.py, `TrainArgs` and `EvalArgs`, and the arguments of `setup` in litgpt/finetune/lora.py,
litgpt/finetune/full.py and litgpt/pretrain.py. Which of them runs is no key: the command says it; without one,
`lora_*` keys tell adapters and `model_name` tells pre-training.

Left out, as in the closed form: the example that is written after each evaluation (`eval.max_new_tokens`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tunecast.job.recipes.document import Document, scalar
from tunecast.job.recipes.draft import Draft, Keys
from tunecast.job.recipes.request import Invocation, ReadRequest
from tunecast.job.recipes.values import switch, whole, word

NAME = "litgpt"
RELEASE = "0.5.13"
DATA = ("data.init_args.json_path", "data.init_args.train_data_path")

COMMAND = "command"
"""Not a key of litgpt's: `finetune_lora` of `litgpt finetune_lora`."""
WITHOUT_EFFECT = (
    *("out_dir", "logger_name", "log.*", "seed", "tokenizer_dir", "access_token", "resume", "initial_checkpoint_dir"),
    *("data", "data.*", "optimizer.init_args.*", "train.log_interval", "train.lr_warmup_*", "train.min_lr"),
    *("eval.max_new_tokens", "eval.evaluate_example", "eval.initial_validation", "eval.final_validation"),
)
LORA, FULL, PRETRAIN = (f"litgpt/{name}.py: setup" for name in ("finetune/lora", "finetune/full", "pretrain"))
DEFAULTS: Mapping[str, tuple[object, str]] = {
    "hardware.gpus: lora": (1, f"{LORA}.devices"),
    "hardware.gpus: full": (1, f"{FULL}.devices"),
    "hardware.gpus: pretrain": ("auto", f"{PRETRAIN}.devices"),
    "hardware.nodes": (1, f"{LORA}.num_nodes"),
    "weights_dtype": (None, f"{LORA}.precision"),
    "quantization.format": (None, f"{LORA}.quantize"),
    "lora.rank": (8, f"{LORA}.lora_r"),
    "lora.alpha": (16, f"{LORA}.lora_alpha"),
    "lora.dropout": (0.05, f"{LORA}.lora_dropout"),
    "lora.targets: query": (True, f"{LORA}.lora_query"),
    "lora.targets: key": (False, f"{LORA}.lora_key"),
    "lora.targets: value": (True, f"{LORA}.lora_value"),
    "lora.targets: projection": (False, f"{LORA}.lora_projection"),
    "lora.targets: mlp": (False, f"{LORA}.lora_mlp"),
    "lora.targets: head": (False, f"{LORA}.lora_head"),
    "optimizer": ("AdamW", f"{LORA}.optimizer"),
    "max_grad_norm": (None, "litgpt/args.py: TrainArgs.max_norm"),
    "seq_len": (None, "litgpt/args.py: TrainArgs.max_seq_length"),
    "run.max_steps": (None, "litgpt/args.py: TrainArgs.max_steps"),
    "run.save_steps": (1000, "litgpt/args.py: TrainArgs.save_interval"),
    "run.eval_steps": (600, "litgpt/args.py: EvalArgs.interval"),
    "run.eval_max_batches": (100, "litgpt/args.py: EvalArgs.max_iters"),
    "data.workers": (4, "litgpt/data/alpaca.py: Alpaca.num_workers"),
}

ADAPTED: Mapping[str, tuple[str, ...]] = {
    "query": ("q_proj",),
    "key": ("k_proj",),
    "value": ("v_proj",),
    "projection": ("o_proj",),
    "mlp": ("gate_proj", "up_proj", "down_proj"),
    "head": ("lm_head",),
}
PRECISIONS: Mapping[str, tuple[str, str | None]] = {
    "bf16-true": ("bfloat16", None),
    "16-true": ("float16", None),
    "32-true": ("float32", None),
    "bf16-mixed": ("float32", "bfloat16"),
    "16-mixed": ("float32", "float16"),
}
"""Fabric's: dtype of the weights, autocast."""
QUANTISED: Mapping[str, tuple[str, bool]] = {
    "bnb.nf4": ("nf4", False),
    "bnb.nf4-dq": ("nf4", True),
    "bnb.fp4": ("fp4", False),
    "bnb.fp4-dq": ("fp4", True),
    "bnb.int8-training": ("int8", False),
}
OPTIMIZERS = {"AdamW": "adamw_torch", "Adam": "adamw_torch", "SGD": "sgd", "AdamW8bit": "adamw_bnb_8bit"}
"""The last part of a class's name; a bare name is of torch.optim (litgpt/utils.py, `instantiate_torch_optimizer`)."""
MODELS = {"tiny-llama-1.1b": "tinyllama-1.1b", "micro-llama-300M": "micro-llama-300m"}
"""litgpt/config.py's own names for what others name otherwise."""
TRAIN_KEYS = ("train.global_batch_size", "train.micro_batch_size", "train.max_seq_length", "train.lr_warmup_steps")


def recognises(document: Document) -> bool:
    named = any(document.has(key) for key in ("checkpoint_dir", "model_name", "model_config", "initial_checkpoint_dir"))
    return named and any(map(document.has, TRAIN_KEYS))


def invocation(words: Sequence[str]) -> Invocation | None:
    """Of `litgpt finetune_lora CHECKPOINT --config FILE [--train.epochs 1] [--lora_r=8]`."""
    if len(words) < 2 or words[0] != "litgpt" or not words[1].startswith(("finetune", "pretrain")):
        return None
    command, rest = words[1], list(words[2:])
    if command == "finetune":  # until 0.4: `litgpt finetune lora`
        kind = rest.pop(0) if rest and rest[0] in ("lora", "full", "adapter", "adapter_v2") else "lora"
        command = f"finetune_{kind}"
    config = None
    values: dict[str, Any] = {COMMAND: command}
    while rest:
        option = rest.pop(0)
        if not option.startswith("--"):
            values["model_name" if command == "pretrain" else "checkpoint_dir"] = option
            continue
        name, equals, value = option[2:].partition("=")
        if not equals:
            value = rest.pop(0) if rest and not rest[0].startswith("--") else "true"
        if name == "config":
            config = value
        else:
            values[name] = scalar(value)
    return Invocation(config, values)


def read(draft: Draft, request: ReadRequest) -> None:
    keys = draft.keys(request.document, WITHOUT_EFFECT)
    draft.put("stack", "litgpt", keys, "checkpoint_dir", "model_name")
    kind = kind_of(keys)
    if "adapter" in kind:
        draft.refuse("adapter", "LLaMA-Adapter's prompts are not modelled")
    if kind == "pretrain":
        draft.put("task", "pretrain", keys, "model_name", COMMAND)
    draft.assume("task", "sft")
    take_model(draft, keys, kind)
    take_method(draft, keys, kind)
    take_precision(draft, keys)
    take_optimizer(draft, keys, kind)
    take_batches(draft, keys, kind)
    take_run(draft, keys, kind)
    take_cards(draft, keys, kind)


def kind_of(keys: Keys) -> str:
    """lora, full, pretrain, adapter or adapter_v2."""
    command = keys.get(COMMAND)
    if isinstance(command, str):
        return command.removeprefix("finetune_")
    if keys.document.get("model_name") is not None or not keys.has("checkpoint_dir"):
        return "pretrain"
    adapted = keys.has("quantize") or any(name.startswith("lora_") for name in keys.document.tree)
    return "lora" if adapted else "full"


def take_model(draft: Draft, keys: Keys, kind: str) -> None:
    """litgpt keeps models in checkpoints/ORGANISATION/NAME, and downloads one that is not there by that name."""
    name = keys.get("model_name", "checkpoint_dir", "initial_checkpoint_dir")
    if isinstance(name, str):
        name = MODELS.get(name, name.removeprefix("./").removeprefix("checkpoints/").rstrip("/"))
    if name is not None:
        draft.put("model", name, keys, "model_name", "checkpoint_dir", "initial_checkpoint_dir")
    if keys.document.get("model_config"):
        draft.not_modelled(keys, "model_config", "a shape of its own, where the model's is taken by its name")


def take_method(draft: Draft, keys: Keys, kind: str) -> None:
    if kind != "lora":
        draft.assume("method", "full")
        return
    quantised = keys.get("quantize")
    if quantised is None:
        draft.assume("method", "lora")
    else:
        draft.put("method", "qlora", keys, "quantize")
        form, twice = QUANTISED.get(str(quantised), (quantised, False))
        draft.put("quantization.format", form, keys, "quantize")
        draft.put("quantization.double_quant", twice, keys, "quantize")
        draft.assume("quantization.prepare_kbit", False)
    names = {kind: f"lora_{kind}" for kind in ADAPTED}
    asked = {kind: switch(keys.get(name, default=DEFAULTS[f"lora.targets: {kind}"][0])) for kind, name in names.items()}
    targets = [target for kind, layers in ADAPTED.items() if asked[kind] for target in layers]
    if any(map(keys.has, names.values())):
        draft.put("lora.targets", targets, keys, *filter(keys.has, names.values()))
    draft.assume("lora.targets", targets)
    for field, key in (("lora.rank", "lora_r"), ("lora.alpha", "lora_alpha"), ("lora.dropout", "lora_dropout")):
        draft.take(field, keys, key)
        draft.assume(field, DEFAULTS[field][0])


def take_precision(draft: Draft, keys: Keys) -> None:
    """litgpt/utils.py, `get_default_supported_precision`: bf16-mixed where the card can, and it is taken to."""
    given = keys.get("precision")
    if given is None:
        weights, autocast = PRECISIONS["bf16-mixed"]
        draft.assume("weights_dtype", weights)
        draft.assume("autocast", autocast)
    else:
        weights, autocast = PRECISIONS.get(word(given), (given, None))
        draft.put("weights_dtype", weights, keys, "precision")
        draft.put("autocast", autocast, keys, "precision")
    if draft.fields["method"] != "full":
        draft.assume("lora.adapter_dtype", weights)


def take_optimizer(draft: Draft, keys: Keys, kind: str) -> None:
    """Pre-training asks for torch's fused kernels; over quantised weights AdamW is bitsandbytes' paged one."""
    nested = isinstance(keys.document.get("optimizer"), Mapping)
    given = keys.get("optimizer.class_path" if nested else "optimizer")
    name = OPTIMIZERS.get(str(given or "AdamW").rpartition(".")[2], given)
    if name == "adamw_torch" and (kind == "pretrain" or keys.document.get("optimizer.init_args.fused") is True):
        name = "adamw_torch_fused"
    if name == "adamw_torch" and draft.fields["method"] == "qlora":
        name = "paged_adamw_32bit"
    if given is not None:
        draft.put("optimizer", name, keys, "optimizer.class_path", "optimizer")
    draft.assume("optimizer", name)
    draft.take("max_grad_norm", keys, "train.max_norm")
    draft.assume("max_grad_norm", 1.0 if kind == "pretrain" else 0.0)


def take_batches(draft: Draft, keys: Keys, kind: str) -> None:
    """`max_seq_length` null: no sample is cut; pre-training takes rows as long as the model's positions."""
    draft.take("seq_len", keys, "train.max_seq_length")
    draft.assume("seq_len", 2048 if kind == "pretrain" else 1024, "tunecast, where no row is cut (max_seq_length null)")
    draft.take("micro_batch", keys, "train.micro_batch_size")
    draft.assume("micro_batch", 4 if kind == "pretrain" else 1)
    draft.put_global_batch(keys, "train.global_batch_size", default=512 if kind == "pretrain" else 16)
    draft.take("data.workers", keys, "data.init_args.num_workers", "data.num_workers")
    draft.assume("data.workers", 4)
    draft.take("data.seed", keys, "data.init_args.seed")
    if switch(keys.get("train.tie_embeddings")):
        draft.not_modelled(keys, "train.tie_embeddings", "embedding and head are one weight; two are taken here")


def take_run(draft: Draft, keys: Keys, kind: str) -> None:
    draft.take("data.epochs", keys, "train.epochs")
    draft.take("run.max_steps", keys, "train.max_steps")
    if draft.take("data.tokens", keys, "train.max_tokens"):
        draft.assume("data.epochs", 1)
    draft.assume("data.epochs", 1 if kind == "pretrain" else 5)
    if keys.get("train.max_time") is not None:
        draft.not_modelled(keys, "train.max_time", "it ends by the clock")
    draft.assume("run.save_strategy", "steps")
    draft.take("run.save_steps", keys, "train.save_interval")
    draft.assume("run.save_steps", 1000)
    draft.assume("run.eval_strategy", "steps")
    draft.take("run.eval_steps", keys, "eval.interval")
    draft.assume("run.eval_steps", {"lora": 100, "full": 600}.get(kind, 1000))
    draft.assume("run.eval_batch", draft.fields["micro_batch"])
    draft.take("run.eval_max_batches", keys, "eval.max_iters")
    draft.assume("run.eval_max_batches", 100)
    if kind == "lora":
        draft.assume("run.save_only_model", True)


def take_cards(draft: Draft, keys: Keys, kind: str) -> None:
    """One card runs plainly; several share the weights. Fine-tuning recomputes every block it shards."""
    devices = keys.get("devices")
    draft.take("hardware.nodes", keys, "num_nodes")
    cards = None if word(devices) in ("auto", "-1") else whole(devices)
    if devices is not None and word(devices) not in ("auto", "-1"):
        draft.put("hardware.gpus", cards if cards is not None else devices, keys, "devices")
    elif devices is None and kind != "pretrain":
        cards = 1
        draft.assume("hardware.gpus", 1)
    alone = cards == 1 and whole(draft.fields.get("hardware.nodes", 1)) == 1
    draft.assume("gradient_checkpointing", not alone and kind != "pretrain")
    if alone:
        return
    draft.assume("parallel.data", "fsdp")
    draft.assume("parallel.fsdp_version", 1)
    if kind == "lora":
        draft.not_modelled(
            keys, "devices", "adapters and blocks are units of FSDP 2 since 0.5.10; FSDP 1 is taken here"
        )
