"""What programs of several tasks need: a model of a configuration, a tokenizer, a trainer's settings."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, BitsAndBytesConfig, PreTrainedTokenizerFast

from tunecast.tape.trace.packages.transformers import offer
from tunecast.tape.trace.script import masked_select

WORDS = 1000


def prepare(recorder: Any) -> None:
    """What `tunecast trace` does before a script runs."""
    recorder.emulated["aten::masked_select"] = masked_select
    offer({}, Path(tempfile.mkdtemp()))


def tokenizer() -> PreTrainedTokenizerFast:
    """A word a token: `w5 w7` are two. No word is the end."""
    words = {"<pad>": 0, "<eos>": 1, "<unk>": 2, **{f"w{number}": number for number in range(3, WORDS)}}
    made = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")


def text(length: int, start: int = 0) -> str:
    """So many tokens."""
    return " ".join(f"w{3 + (start * 13 + place * 7) % (WORDS - 3)}" for place in range(length))


def folder_of(config: dict[str, Any], dtype: str) -> Path:
    """A folder with a config.json, as `from_pretrained` takes one: weights come with it under the tracer."""
    folder = Path(tempfile.mkdtemp())
    (folder / "config.json").write_text(json.dumps({**config, "torch_dtype": dtype}))
    return folder


def model_of(case: dict[str, Any], auto: Any = AutoModelForCausalLM, **more: Any) -> Any:
    """On the host where it is not quantised, as a script makes it; the trainer brings it to the card."""
    dtype = getattr(torch, case["weights_dtype"])
    if case["method"] == "qlora":
        folder = folder_of({**case["config"], **more}, case["weights_dtype"])
        nf4 = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=dtype)
        return auto.from_pretrained(folder, dtype=dtype, device_map={"": 0}, quantization_config=nf4)
    values = {name: value for name, value in case["config"].items() if name != "model_type"}
    return auto.from_config(AutoConfig.for_model(case["config"]["model_type"], **values, **more), dtype=dtype)


def adapters(case: dict[str, Any], task_type: str = "CAUSAL_LM") -> LoraConfig | None:
    if case["method"] == "full":
        return None
    more = case.get("lora", {})
    return LoraConfig(
        r=case["rank"], target_modules=case["targets"], task_type=task_type, lora_dropout=more.get("dropout", 0.0),
        use_dora=more.get("dora", False),
    )  # fmt: skip


def settings(case: dict[str, Any]) -> dict[str, Any]:
    """Arguments that all trainers take."""
    return {
        "output_dir": tempfile.mkdtemp(), "max_steps": case["steps"], "per_device_train_batch_size": case["rows"],
        "gradient_accumulation_steps": case["accumulated"], "bf16": case["autocast"] is not None, "seed": 1,
        "gradient_checkpointing": case["recomputed"], "optim": "adamw_torch", "logging_steps": 100,
        "save_strategy": "no", "report_to": [], **case.get("arguments", {}),
    }  # fmt: skip
