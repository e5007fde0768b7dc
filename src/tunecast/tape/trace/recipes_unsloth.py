"""The training run of a job with `stack: unsloth`: the calls of Unsloth's own notebooks, then a plain loop.

Unsloth decides much by itself (adapters in fp32, its own checkpointing, kernels and loss), so fewer of a job's fields
reach the run than in `recipe.py`; those that cannot are refused or said to be assumed.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tunecast.errors import NotResolved, UsageError
from tunecast.job.job import Job
from tunecast.tape.build.fill_in import fill_in
from tunecast.tape.trace import recipe
from tunecast.tape.trace.packages import after_import, flash_attention
from tunecast.tape.trace.packages import transformers as loader
from tunecast.tape.trace.recorder import Recorder
from tunecast.tape.trace.tensor_files import SafeOpen

TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""Unsloth's default, the linear layers of a Llama block."""
SPECIAL = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}


def train(job: Job, config: Mapping[str, Any], lengths: Sequence[int], recorder: Recorder) -> None:
    """Build the model of `config` with Unsloth and take one optimizer step for each of `lengths`."""
    require_unsloth()
    job = fill_in(job, config)
    refuse(job)
    with tempfile.TemporaryDirectory(prefix="tunecast-unsloth-") as folder:
        model = build(job, config, Path(folder), recorder)
    recipe.take_steps(job, model, lengths, recorder)


def build(job: Job, config: Mapping[str, Any], folder: Path, recorder: Recorder) -> Any:
    if job.attention == "flash_attention_2":
        flash_attention.StandIns.pretend = True
    after_import("safetensors", lambda module: setattr(module, "safe_open", SafeOpen))
    loader.offer({}, folder)
    model_folder = write_model(config, folder / "model")
    from unsloth import FastLanguageModel  # before transformers and the card, whose settings it changes

    dtype = None if job.weights_dtype == "float32" else recipe.DTYPES[job.weights_dtype]
    if dtype is None:
        recorder.assumptions["weights_dtype: Unsloth takes bfloat16 where the card has it (dtype=None)"] = 1
    model, _ = FastLanguageModel.from_pretrained(
        model_name=str(model_folder), max_seq_length=max(job.lengths or (job.seq_len,)), dtype=dtype,
        load_in_4bit=job.quantization.format == "nf4", load_in_8bit=job.quantization.format == "int8",
        full_finetuning=job.method == "full",
    )  # fmt: skip
    checkpointing: str | bool = "unsloth" if job.gradient_checkpointing else False
    if job.method == "full":
        if job.gradient_checkpointing:
            model.gradient_checkpointing_enable()
        return model.train()
    lora = job.lora
    model = FastLanguageModel.get_peft_model(
        model, r=lora.rank, lora_alpha=lora.alpha, lora_dropout=lora.dropout, target_modules=targets(job),
        use_gradient_checkpointing=checkpointing, use_rslora=lora.rslora, use_dora=lora.dora,
    )  # fmt: skip
    recorder.assumptions["lora.adapter_dtype: Unsloth keeps adapters in float32"] = 1
    return model.train()


def targets(job: Job) -> list[str]:
    wanted = job.lora.targets
    if wanted is None or wanted == "all-linear":
        return list(TARGETS)
    return list(TARGETS[:4]) if wanted == "attention" else list(wanted)


def write_model(config: Mapping[str, Any], folder: Path) -> Path:
    """A folder as `save_pretrained` leaves it, without weights, and with a tokenizer of four words.

    Unsloth loads a tokenizer with every model; one that has all its special tokens changes nothing in the model.
    """
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"dtype": "bfloat16"} | dict(config)))
    words = {word: number for number, word in enumerate(SPECIAL.values())}
    tokenizer: dict[str, Any] = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"}, "post_processor": None, "decoder": None,
        "model": {"type": "WordLevel", "vocab": words, "unk_token": SPECIAL["unk_token"]},
    }  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    settings = SPECIAL | {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 1 << 20}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def require_unsloth() -> None:
    if importlib.util.find_spec("unsloth") is None or importlib.util.find_spec("unsloth_zoo") is None:
        raise NotResolved(
            f"stack: unsloth is traced by running Unsloth itself, which {sys.executable} does not have. "
            "To fix: --python /path/to/an/environment/with/unsloth/bin/python, or pip install unsloth there.",
            field="stack",
        )
    os.environ.setdefault("HF_HUB_OFFLINE", "1")


def refuse(job: Job) -> None:
    """What Unsloth has no such switch for."""
    if job.kernels:
        raise UsageError("kernels: Unsloth brings its own; it does not run with Liger's", field="kernels")
    if job.attention in ("eager", "flash_attention_3"):
        raise UsageError(f"attention: Unsloth picks its kernel itself; {job.attention!r} is not one it can be given. "
                         "Allowed: sdpa, flash_attention_2", field="attention")  # fmt: skip
