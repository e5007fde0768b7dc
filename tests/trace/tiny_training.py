"""What a launched training needs, made here: a Llama of two layers, its tokenizer, and rows longer than they are cut
to."""

from __future__ import annotations

import json
import random
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tunecast.door.read import read
from tunecast.job.job import Job

WORDS = 254
PACKAGES = ("torch", "transformers", "peft", "trl")


def make(folder: Path) -> Path:
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    vocabulary = {"<eos>": 0, "<unk>": 1, **{f"w{number}": number + 2 for number in range(WORDS)}}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>", unk_token="<unk>", pad_token="<eos>")
    fast.save_pretrained(folder / "model")
    config = LlamaConfig(
        vocab_size=256, hidden_size=64, intermediate_size=160, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=256, tie_word_embeddings=False, dtype="bfloat16",
        bos_token_id=0, eos_token_id=0, pad_token_id=0,
    )  # fmt: skip
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder / "model")
    words = random.Random(0)
    rows = [{"text": " ".join(f"w{words.randrange(WORDS)}" for _ in range(100))} for _ in range(64)]
    (folder / "train.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    return folder


def job_of(made: Path, **fields: Any) -> Job:
    """Of the packages that are installed here."""
    given = {
        "stack": "trl", "gpu": "h100-sxm-80gb", "seq_len": 64, "micro_batch": 2, "max_steps": 6,
        "data_path": str(made / "train.jsonl"), **{f"{name}_version": version(name) for name in PACKAGES}, **fields,
    }  # fmt: skip
    return read(str(made / "model"), None, **given)
