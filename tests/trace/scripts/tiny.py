"""What the scripts of this folder share: a two-layer Llama (a folder with a config.json), a tokenizer, texts."""

from __future__ import annotations

import json
import random
import tempfile
from pathlib import Path

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 512, "hidden_size": 64,
    "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 512, "torch_dtype": "bfloat16", "use_cache": False,
}  # fmt: skip


def folder(**changes):
    place = Path(tempfile.mkdtemp())
    (place / "config.json").write_text(json.dumps(CONFIG | changes))
    return str(place)


def tokenizer():
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {f"w{i}": i for i in range(508)} | {"<unk>": 508, "<pad>": 509, "<s>": 510, "</s>": 511}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=words, unk_token="<unk>", pad_token="<pad>", bos_token="<s>", eos_token="</s>",
        model_input_names=["input_ids", "attention_mask"],
    )  # fmt: skip


def texts(count=32, shortest=10, longest=60):
    chance = random.Random(0)
    return [
        " ".join(f"w{chance.randrange(508)}" for _ in range(chance.randint(shortest, longest))) for _ in range(count)
    ]
