"""What other trainers call a job's fields and values: the names flags, `--set` and `--to` accept besides our own.

A name that means one field, with the same values, stands in that field's `Knob.aka`. Three tables hold the rest:

    MEANINGS     a name and its value say something about other fields: load_in_4bit is a method and a format
    POINTERS     a name does not decide: a field to look at, and what it may be
    WITHOUT_EFFECT   a name of something that changes neither memory nor time
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache

from tunecast.errors import UsageError, nearest
from tunecast.job.job import all_knobs, sections
from tunecast.job.kernels import CUT_HEAD, LIGER_PARTS, LORA_TRITON
from tunecast.job.knob import BOOLS, Wrong, shown

Fields = Mapping[str, object]

MEANINGS: Mapping[str, Mapping[str, Fields]] = {
    # transformers' BitsAndBytesConfig; the format is TRL's ModelConfig.bnb_4bit_quant_type
    "load_in_4bit": {"true": {"quantization.format": "nf4"}, "false": {}},
    "load_in_8bit": {"true": {"quantization.format": "int8"}, "false": {}},
    # LLaMA-Factory
    "quantization_bit": {"4": {"quantization.format": "nf4"}, "8": {"quantization.format": "int8"}},
    # TRL's ModelConfig
    "use_peft": {"true": {"method": "lora"}, "false": {"method": "full"}},
    "use_qlora": {"true": {"method": "qlora"}, "false": {}},
    "use_lora": {"true": {"method": "lora"}, "false": {}},
    # transformers' TrainingArguments; accelerate
    "bf16": {"true": {"autocast": "bfloat16"}, "false": {"autocast": None}, "auto": {}},
    "fp16": {"true": {"autocast": "float16"}, "false": {"autocast": None}},
    "mixed_precision": {"bf16": {"autocast": "bfloat16"}, "fp16": {"autocast": "float16"}, "no": {"autocast": None}},
    # LLaMA-Factory: the weights themselves in bfloat16, no mixed precision
    "pure_bf16": {"true": {"weights_dtype": "bfloat16", "autocast": None}, "false": {}},
    "fp8": {"true": {"matmul_dtype": "float8"}, "false": {}},
    # axolotl's
    "lora_target_linear": {"true": {"lora.targets": "all-linear"}, "false": {}},
    # axolotl's flash_attention, LLaMA-Factory's flash_attn
    **{
        name: {
            "true": {"attention": "flash_attention_2"},
            "fa2": {"attention": "flash_attention_2"},
            "fa3": {"attention": "flash_attention_3"},
            "sdpa": {"attention": "sdpa"},
            "disabled": {"attention": "eager"},
            "false": {},
            "auto": {},
        }
        for name in ("flash_attention", "flash_attn", "use_flash_attention_2", "use_flash_attention")
    },
    "flex_attention": {"true": {"attention": "flex_attention"}, "false": {}},
    "xformers_attention": {"true": {"attention": "xformers"}, "false": {}},
    **{
        name: {"true": {"kernels": "liger"}, "false": {}}
        for name in ("use_liger_kernel", "use_liger", "enable_liger_kernel", "liger")
    },
    # axolotl's, each by itself
    **{name: {"true": {"kernels": name}, "false": {}} for name in (*LIGER_PARTS, CUT_HEAD)},
    **{name: {"true": {"kernels": "liger_glu"}, "false": {}} for name in ("liger_glu_activation", "liger_swiglu")},
    **{
        name: {"true": {"kernels": LORA_TRITON}, "false": {}}
        for name in ("lora_mlp_kernel", "lora_qkv_kernel", "lora_o_kernel")
    },
    "train_sampling_strategy": {
        "group_by_length": {"data.group_by_length": "true"},
        "random": {"data.group_by_length": "false"},
    },
    # FULL_SHARD and its like are what accelerate calls the strategies of FSDP
    "fsdp_sharding_strategy": {
        "full_shard": {"parallel.data": "fsdp", "parallel.reshard_after_forward": "true"},
        "shard_grad_op": {"parallel.data": "fsdp", "parallel.reshard_after_forward": "false"},
        "hybrid_shard": {"parallel.data": "hsdp"},
        "no_shard": {"parallel.data": "ddp"},
    },
    "zero_stage": {stage: {"parallel.data": f"zero{stage}"} for stage in "123"},
}

_COUNT = "(how many there are)"
POINTERS: Mapping[str, tuple[str, str]] = {
    **dict.fromkeys(("fsdp", "fsdp2", "fsdp_config"), ("parallel.data", "fsdp")),
    **dict.fromkeys(("deepspeed", "zero"), ("parallel.data", "zero1, zero2 or zero3")),
    **{name: ("parallel.data", name) for name in ("ddp", "hsdp", "zero1", "zero2", "zero3")},
    "cpu_offload": ("parallel.offload", "optimizer or parameters"),
    "offload_optimizer": ("parallel.offload", "optimizer"),
    "offload_param": ("parallel.offload", "parameters"),
    "device_map": ("parallel.layers", "(how many cards)"),
    **dict.fromkeys(("dataset", "dataset_name", "datasets", "data", "dataset_size"), ("data.samples", _COUNT)),
    **dict.fromkeys(("max_samples", "num_samples", "max_train_samples"), ("data.samples", _COUNT)),
    "train_file": ("data.path", "(the file)"),
    "eval_dataset": ("data.eval_samples", _COUNT),
    **dict.fromkeys(("num_tokens", "token"), ("data.tokens", _COUNT)),
    "precision": ("weights_dtype", "(of the weights; autocast for mixed precision)"),
    **dict.fromkeys(("vram", "memory", "gpu_memory", "vram_gb"), ("hardware.gpu", "24gb (a card of that size)")),
    **dict.fromkeys(("device", "accelerator"), ("hardware.gpu", "(a card's name)")),
    "nvlink": ("hardware.interconnect", "(a link, such as nvlink4)"),
    "capacity": ("hardware.capacity_bytes", "24GiB"),
    **dict.fromkeys(
        ("global_batch_size", "total_batch_size", "train_batch_size"),
        ("micro_batch", "(times grad_accum times the cards is the global batch)"),
    ),
    "unsloth": ("stack", "unsloth"),
    **dict.fromkeys(("framework", "backend", "trainer"), ("stack", "transformers, trl, axolotl, unsloth, …")),
    **{name: ("method", name) for name in ("qlora", "lora", "full")},
}
"""By what they are called elsewhere: the field, and what it may be; in brackets a remark instead of a value."""

WITHOUT_EFFECT: Mapping[str, str] = {
    **dict.fromkeys(("lr", "learning_rate"), "the learning rate"),
    **dict.fromkeys(("lr_scheduler_type", "lr_scheduler", "scheduler", "lr_schedule"), "the learning rate's schedule"),
    **dict.fromkeys(("warmup_ratio", "warmup_steps", "warmup", "min_lr"), "warm-up"),
    "weight_decay": "weight decay",
    **dict.fromkeys(("adam_beta1", "adam_beta2", "adam_epsilon", "beta1", "beta2", "momentum"), "it"),
    **dict.fromkeys(("logging_steps", "logging_strategy", "report_to", "run_name", "wandb_project"), "logging"),
    **dict.fromkeys(("output_dir", "output", "save_dir", "hub_model_id", "push_to_hub"), "where it is written"),
    **dict.fromkeys(("trust_remote_code", "token_type", "chat_template", "template"), "it"),
    **dict.fromkeys(("plot_loss", "overwrite_output_dir", "overwrite_cache", "ddp_timeout", "disable_tqdm"), "it"),
    **dict.fromkeys(("resume_from_checkpoint", "load_best_model_at_end", "metric_for_best_model", "strict"), "it"),
    **dict.fromkeys(("dataset_text_field", "assistant_only_loss", "special_tokens"), "it"),
    **dict.fromkeys(("label_smoothing", "neftune_noise_alpha", "train_on_inputs"), "it"),
}


@cache
def called() -> Mapping[str, str]:
    """Fields by what they may be called: dotted, their own name where no other has it, and other tools' names."""
    known = all_knobs()
    leaves: dict[str, list[str]] = {}
    for dotted, knob in known.items():
        if not knob.flag or knob.flag.replace("-", "_") == dotted.rpartition(".")[2]:
            leaves.setdefault(dotted.rpartition(".")[2], []).append(dotted)
    names = {name: dotted for dotted, knob in known.items() for name in knob.aka}
    names.update({leaf: of[0] for leaf, of in leaves.items() if len(of) == 1 and leaf not in sections()})
    names.update({knob.flag.replace("-", "_"): dotted for dotted, knob in known.items() if knob.flag})
    return names | {dotted: dotted for dotted in known}


def plain(name: str) -> str:
    """As our own fields are spelled: `--Max-Seq-Length` is max_seq_length."""
    return name.strip().lstrip("-").replace("-", "_").lower()


def fields_meant(given: Iterable[tuple[str, object]]) -> dict[str, object]:
    """Values by dotted field, of names and values as they were given. A name that nothing has stays as it is.

    Weights loaded in 4 or 8 bits are trained with adapters: method qlora, unless another was given. A precision that
    is switched off only says that there is none where no other is switched on.
    """
    fields: dict[str, object] = {}
    implied: dict[str, object] = {}
    for name, value in given:
        spelled = plain(name)
        if spelled in MEANINGS:
            for field, meant in meaning(spelled, value).items():
                if field == "kernels" and field in implied:  # each of Liger's parts is a switch of its own
                    implied[field] = f"{implied[field]},{meant}"
                elif meant is not None or implied.get(field) is None:
                    implied[field] = meant
            continue
        dotted = called().get(spelled, spelled)
        fields[dotted] = _read(dotted, value)
    if "quantization.format" in implied and fields.get("method", implied.get("method", "lora")) in ("lora", "qlora"):
        fields.pop("method", None)
        implied["method"] = "qlora"
    return implied | fields


def meaning(name: str, value: object) -> Fields:
    """What one of `MEANINGS` says with this value. Raises `UsageError` where it says nothing."""
    known = MEANINGS[name]
    text = str(value).strip().lower()
    said = known.get(text, known.get(str(BOOLS.get(text, "")).lower()))
    if said is None:
        near = nearest(text[:64], known)
        hint = f"; nearest: {near}" if near else ""
        raise UsageError(f"{name}: got {shown(value)}; allowed: {', '.join(known)}{hint}", field=name)
    return said


def _read(dotted: str, value: object) -> object:
    """A choice as the field spells it, for whoever looks at it before the job is made; a wrong one is told there."""
    knob = all_knobs().get(dotted)
    if knob is None or knob.kind != "choice":
        return value
    try:
        read: object = knob.read(value)
    except Wrong:
        return value
    return value if read is None else read


def is_switch(name: str) -> bool:
    """Whether a flag of this name may stand alone."""
    known = MEANINGS.get(name)
    return known is not None and "true" in known


def remark(name: str) -> str | None:
    """Why something is to be left out, where it changes nothing."""
    what = WITHOUT_EFFECT.get(plain(name))
    if what is None:
        return None
    return f"{what} changes neither memory nor time: leave it out"


def spelling(name: str, candidates: Iterable[str]) -> str | None:
    """The candidate spelled most like a name, where that is likely meant: two letters out of five may differ, no more.
    Below that `lr` would be `layers`."""
    import difflib

    by_plain = {plain(candidate): candidate for candidate in candidates}
    close = difflib.get_close_matches(plain(name)[:64], by_plain, n=1, cutoff=0.7)
    return by_plain[close[0]] if close else None


def fields_of_meaning(name: str) -> str | None:
    """In the words of a job file, what a name of `MEANINGS` or `POINTERS` is there."""
    spelled = plain(name)
    if spelled in MEANINGS:
        said = next(fields for fields in MEANINGS[spelled].values() if fields)
        told = [f"{field}: {'null' if value is None else value}" for field, value in said.items()]
        if "quantization.format" in said:
            told.insert(0, "method: qlora")
        return ", ".join(told)
    if spelled in POINTERS:
        field, value = POINTERS[spelled]
        return f"{field} {value}" if value.startswith("(") else f"{field}: {value}"
    return None
