"""What the trainings of this run read, made here: a Llama of two layers, its tokenizers, and rows of each form that are
longer than they are cut to."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

WORDS, ROWS, WORDS_PER_TEXT = 200, 64, 100
PIECES = 256
TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }} {{ message['content'] }} {{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}assistant {% endif %}"
)


def make(folder: Path) -> Path:
    make_model(folder / "model")
    words = random.Random(0)

    def text() -> str:
        return " ".join(f"w{words.randrange(WORDS)}" for _ in range(WORDS_PER_TEXT))

    for name, row in FORMS.items():
        rows = [row(text) for _ in range(ROWS)]
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    return folder


def _chat(user: str, assistant: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": user}, {"role": "assistant", "content": assistant}]


FORMS: Mapping[str, Callable[[Callable[[], str]], dict[str, Any]]] = {
    "text": lambda text: {"text": text()},
    "chats": lambda text: {"messages": _chat("w1 w2", text())},
    "sharegpt": lambda text: {
        "conversations": [{"from": "human", "value": "w1 w2"}, {"from": "gpt", "value": text()}],
    },
    "prompts": lambda text: {"prompt": "w1 w2", "completion": text()},
    "alpaca": lambda text: {"instruction": "w1 w2", "input": "w3", "output": text()},
    "pairs": lambda text: {"prompt": "w1 w2", "chosen": text(), "rejected": text()},
}
"""By the name of its file: a row of some texts."""


def make_model(folder: Path) -> None:
    import sentencepiece
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    known = ["<unk>", "<s>", "</s>", "user", "assistant", "system", *(f"w{number}" for number in range(WORDS))]
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(known)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>", pad_token="</s>"
    )
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)
    words = random.Random(1)
    sentences = (" ".join(f"w{words.randrange(WORDS)}" for _ in range(50)) for _ in range(500))
    sentencepiece.SentencePieceTrainer.train(  # torchtune's tokenizer of Llama 2
        sentence_iterator=sentences, model_prefix=str(folder / "tokenizer"), vocab_size=PIECES, model_type="bpe",
        pad_id=3, minloglevel=2, hard_vocab_limit=False,
    )  # fmt: skip
    config = LlamaConfig(
        vocab_size=PIECES, hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=256, tie_word_embeddings=False, dtype="bfloat16",
        bos_token_id=1, eos_token_id=2, pad_token_id=2,
    )  # fmt: skip
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
