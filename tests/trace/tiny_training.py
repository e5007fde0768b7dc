"""What a launched training needs, made here: a Llama of two layers, its tokenizer, and rows longer than they are cut
to, with prompts, or pairs of answers."""

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

    def text(least: int, most: int) -> str:
        return " ".join(f"w{words.randrange(WORDS)}" for _ in range(words.randint(least, most)))

    rows: dict[str, list[dict[str, str]]] = {
        "train": [{"text": text(100, 100)} for _ in range(64)],
        "prompts": [{"prompt": f"{text(3, 40)} ", "completion": text(5, 50)} for _ in range(16)],
        "pairs": [
            {"prompt": f"{text(3, 90)} ", "chosen": text(5, 70), "rejected": text(5, 70)} for _ in range(16)
        ],  # of which some prompts fill a row
    }
    for name, each in rows.items():
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, each)) + "\n")
    return folder


def job_of(made: Path, data: str = "train", **fields: Any) -> Job:
    """Of the packages that are installed here."""
    given = {
        "stack": "trl", "gpu": "h100-sxm-80gb", "seq_len": 64, "micro_batch": 2, "max_steps": 6,
        "data_path": str(made / f"{data}.jsonl"), **{f"{name}_version": version(name) for name in PACKAGES}, **fields,
    }  # fmt: skip
    return read(str(made / "model"), None, **given)
