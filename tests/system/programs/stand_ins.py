"""Small data sets, tokenizers and configurations under the names the programs ask for, made in seconds.

`datasets.load_dataset`, `from_pretrained` and `evaluate.load` take a folder of the given name in the working folder before
they ask the Hub, so the programs run as they are. Sentences are of made-up words, their lengths vary as sentences' do.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from programs.manifest import Source
from programs.one import NotHere, Places, checkout_of

Row = dict[str, Any]
ROWS = 256
VOCABULARY = 4096
METRICS = Source("huggingface/evaluate", commit="a7dd338386a4fae9a1767e05eb9ef9479513d9e8", paths=("metrics",))
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
BERT = {"architectures": ["BertForMaskedLM"], "model_type": "bert"}
ROBERTA = {
    "architectures": ["RobertaForMaskedLM"], "model_type": "roberta", "vocab_size": 50265, "max_position_embeddings": 514,
    "type_vocab_size": 1,
}  # fmt: skip
PYTHIA = {
    "architectures": ["GPTNeoXForCausalLM"], "model_type": "gpt_neox", "vocab_size": 50304, "hidden_size": 2048,
    "num_hidden_layers": 16, "num_attention_heads": 8, "intermediate_size": 8192, "dtype": "float16",
}  # fmt: skip
QWEN2 = {
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "vocab_size": 151936, "hidden_size": 896,
    "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2, "intermediate_size": 4864,
    "tie_word_embeddings": True, "dtype": "bfloat16",
}  # fmt: skip
SMOLLM = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 49152, "hidden_size": 960,
    "num_hidden_layers": 32, "num_attention_heads": 15, "num_key_value_heads": 5, "intermediate_size": 2560,
    "tie_word_embeddings": True, "dtype": "bfloat16",
}  # fmt: skip
MODELS: dict[str, Row] = {
    "bert-base-cased": {**BERT, "vocab_size": 28996},
    "bert-base-uncased": BERT,
    "google-bert/bert-base-uncased": BERT,
    "distilbert-base-uncased": {"architectures": ["DistilBertForMaskedLM"], "model_type": "distilbert"},
    "distilroberta-base": {**ROBERTA, "num_hidden_layers": 6},
    "FacebookAI/roberta-base": ROBERTA,
    "microsoft/MiniLM-L12-H384-uncased": {
        **BERT, "hidden_size": 384, "intermediate_size": 1536, "architectures": ["BertModel"],
    },
    "openai-community/gpt2": {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2"},
    "gpt2": {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2"},
    "facebook/opt-125m": {"architectures": ["OPTForCausalLM"], "model_type": "opt", "dtype": "float16"},
    "google-t5/t5-small": {
        "architectures": ["T5ForConditionalGeneration"], "model_type": "t5", "decoder_start_token_id": 0,
        "pad_token_id": 0, "eos_token_id": 1,
    },
    "xlnet/xlnet-base-cased": {
        "architectures": ["XLNetLMHeadModel"], "model_type": "xlnet", "d_model": 768, "n_layer": 12, "n_head": 12,
        "d_inner": 3072,
    },
    "HuggingFaceTB/SmolLM-360M": SMOLLM,
    "HuggingFaceTB/SmolLM2-360M-Instruct": SMOLLM,
    "EleutherAI/pythia-1b-deduped": PYTHIA,
    "trl-lib/pythia-1b-deduped-tldr-sft": PYTHIA,
    "trl-lib/pythia-1b-deduped-tldr-rm": {**PYTHIA, "architectures": ["GPTNeoXForSequenceClassification"], "num_labels": 1},
    "Qwen/Qwen2-0.5B-Instruct": QWEN2,
    "Qwen/Qwen2.5-0.5B-Instruct": QWEN2,
    "Qwen/Qwen2-0.5B": QWEN2,
    "Qwen/Qwen2-1.5B-Instruct": {
        **QWEN2, "hidden_size": 1536, "num_hidden_layers": 28, "num_attention_heads": 12, "intermediate_size": 8960,
    },
    "Qwen/Qwen3-0.6B": {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 151936, "hidden_size": 1024,
        "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
        "intermediate_size": 3072, "tie_word_embeddings": True, "dtype": "bfloat16",
    },
}  # fmt: skip
"""The published configurations where they differ from their class's defaults."""


class Words:
    """Sentences of made-up words, the same every time."""

    def __init__(self) -> None:
        self._draw = random.Random(0)
        syllables = ["ka", "to", "mi", "ra", "ne", "lu", "so", "vi", "pe", "da", "shi", "go", "ban", "tor", "el", "ith"]
        self._words = ["".join(self._draw.choices(syllables, k=self._draw.randint(1, 4))) for _ in range(800)]

    def sentence(self, most: int = 30) -> str:
        return " ".join(self._draw.choices(self._words, k=self._draw.randint(4, most))) + "."

    def text(self, sentences: int = 6) -> str:
        return " ".join(self.sentence() for _ in range(self._draw.randint(1, sentences)))

    def below(self, count: int) -> int:
        return self._draw.randrange(count)


def chat(words: Words) -> list[Row]:
    return [{"role": "user", "content": words.text()}, {"role": "assistant", "content": words.text()}]


def turn(role: str, words: Words) -> list[Row]:
    return [{"role": role, "content": words.text()}]


def answer_within(words: Words) -> Row:
    context = words.text()
    start = context.index(" ") + 1
    found = {"text": [context[start : start + 8]], "answer_start": [start]}
    return {
        "id": str(words.below(10**9)),
        "title": "t",
        "context": context,
        "question": words.sentence(),
        "answers": found,
    }


def tagged(words: Words) -> Row:
    tokens = words.sentence().split()
    return {"tokens": tokens, "ner_tags": [f"TAG{words.below(5)}" for _ in tokens]}


Make = Callable[[Words], Row]
PREFERENCE: Make = lambda w: {
    "chosen": (p := turn("user", w)) + turn("assistant", w),
    "rejected": p + turn("assistant", w),
}  # noqa: E731
INSTRUCTION: Make = lambda w: {"instruction": w.sentence(), "input": w.sentence(), "output": w.text()}  # noqa: E731
PAIR: Make = lambda w: {"sentence1": w.sentence(), "sentence2": w.sentence(), "label": w.below(2), "idx": w.below(99)}  # noqa: E731
DATA_SETS: dict[str, dict[str, tuple[tuple[str, ...], Make]]] = {
    "nyu-mll/glue": {"mrpc": (("train", "validation", "test"), PAIR)},
    "glue": {"mrpc": (("train", "validation", "test"), PAIR)},
    "sentence-transformers/all-nli": {
        "pair-class": (("train", "dev", "test"), lambda w: {"premise": w.sentence(), "hypothesis": w.sentence(), "label": w.below(3)}),
        "pair-score": (("train", "dev", "test"), lambda w: {"sentence1": w.sentence(), "sentence2": w.sentence(), "score": w.below(3) / 2}),
        "triplet": (("train", "dev", "test"), lambda w: {"anchor": w.sentence(), "positive": w.sentence(), "negative": w.sentence()}),
    },
    "sentence-transformers/stsb": {
        "default": (("train", "validation", "test"), lambda w: {"sentence1": w.sentence(), "sentence2": w.sentence(), "score": w.below(6) / 5}),
    },
    "sentence-transformers/gooaq": {"default": (("train",), lambda w: {"question": w.sentence(), "answer": w.text()})},
    "princeton-nlp/datasets-for-simcse": {"default": (("train",), lambda w: {"text": w.sentence()})},
    "Salesforce/wikitext": {"wikitext-2-v1": (("train", "validation", "test"), lambda w: {"text": w.text()})},
    "roneneldan/TinyStories": {"default": (("train", "validation"), lambda w: {"text": w.text(12)})},
    "Abirate/english_quotes": {"default": (("train",), lambda w: {"quote": w.sentence(), "author": "a"})},
    "yahma/alpaca-cleaned": {"default": (("train",), INSTRUCTION)},
    "fxmeng/pissa-dataset": {"default": (("train",), lambda w: {"instruction": w.sentence(), "output": w.text(), "type": "t"})},
    "meta-math/MetaMathQA": {"default": (("train",), lambda w: {"query": w.sentence(), "response": w.text()})},
    "smangrul/ultrachat-10k-chatml": {"default": (("train", "test"), lambda w: {"messages": chat(w)})},
    "trl-lib/Capybara": {"default": (("train", "test"), lambda w: {"messages": chat(w)})},
    "HuggingFaceH4/ultrachat_200k": {"default": (("train_sft", "test_sft"), lambda w: {"messages": chat(w)})},
    "trl-lib/chatbot_arena_completions": {"default": (("train", "test"), lambda w: {"messages": chat(w)})},
    "trl-lib/ultrafeedback_binarized": {"default": (("train", "test"), PREFERENCE)},
    "trl-lib/kto-mix-14k": {
        "default": (("train", "test"), lambda w: {"prompt": turn("user", w), "completion": turn("assistant", w), "label": bool(w.below(2))}),
    },
    "trl-lib/prm800k": {
        "default": (("train", "test"), lambda w: {"prompt": w.sentence(), "completions": [w.sentence(), w.sentence()], "labels": [True, False]}),
    },
    "trl-lib/tldr": {"default": (("train", "validation", "test"), lambda w: {"prompt": w.text(), "completion": w.sentence()})},
    "trl-lib/ultrafeedback-prompt": {"default": (("train", "test"), lambda w: {"prompt": turn("user", w)})},
    "tpo-alignment/triple-preference-ultrafeedback-40K": {
        "default": (("train", "test"), lambda w: {"prompt": w.sentence(), "reference": w.text(), "chosen": w.text(), "rejected": w.text()}),
    },
}  # fmt: skip
FILES: dict[str, tuple[int, Make]] = {
    "pairs.json": (ROWS, PAIR),
    "qa.json": (ROWS, answer_within),
    "ner.json": (ROWS, tagged),
    "summaries.json": (ROWS, lambda w: {"text": w.text(), "summary": w.sentence()}),
    "translation.json": (ROWS, lambda w: {"translation": {"en": w.sentence(), "ro": w.sentence()}}),
    "swag.json": (
        ROWS,
        lambda w: {"sent1": w.sentence(), "sent2": "ka", "label": w.below(4), **{f"ending{n}": w.sentence() for n in range(4)}},
    ),
    "alpaca.json": (ROWS, INSTRUCTION),
}  # fmt: skip
"""Files of one row per line, for programs that are given a file."""
LARGE = {"sentence-transformers/all-nli": 10_000, "trl-lib/tldr": 512, "sentence-transformers/gooaq": 12_000}
"""Programs that select so many rows."""


def make_stand_ins(places: Places) -> None:
    if places.data.exists():
        return
    words = Words()
    lines = [words.text() for _ in range(2000)]
    (places.data / "bpe").mkdir(parents=True)
    (places.data / "text.txt").write_text("\n".join(lines), encoding="utf-8")
    (places.data / "tokens.bin").write_bytes(bytes(n % 64 if n % 2 == 0 else 0 for n in range(400_000)))
    train_tokenizer(lines, places.data / "bpe")
    for name, config in MODELS.items():
        folder = places.data / name
        shutil.copytree(places.data / "bpe", folder)
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    for name, configurations in DATA_SETS.items():
        write_data_set(places.data / name, configurations, LARGE.get(name, ROWS), words)
    for name, (rows, make) in FILES.items():
        write_rows(places.data / name, rows, make, words)
    try:
        metrics = checkout_of(METRICS, places) / "metrics"
    except NotHere:
        return
    for name in ("accuracy", "glue", "seqeval", "squad", "rouge", "sacrebleu"):
        shutil.copytree(metrics / name, places.data / name, dirs_exist_ok=True)


def write_data_set(
    folder: Path, configurations: dict[str, tuple[tuple[str, ...], Make]], rows: int, words: Words
) -> None:
    """As the Hub keeps them: a card that names the files, and a file per split."""
    card = ["---", "configs:"]
    for name, (splits, make) in configurations.items():
        card += [f"- config_name: {name}", "  data_files:"]
        for split in splits:
            card += [f"  - split: {split}", f"    path: {name}/{split}.jsonl"]
            write_rows(
                folder / name / f"{split}.jsonl", rows if split == splits[0] else max(ROWS, rows // 10), make, words
            )
    (folder / "README.md").write_text("\n".join([*card, "---", ""]), encoding="utf-8")


def write_rows(path: Path, rows: int, make: Make, words: Words) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(make(words)) + "\n" for _ in range(rows))


def train_tokenizer(lines: list[str], folder: Path) -> None:
    """Byte-pair encoding of the made-up words, with the special tokens of every model above."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    special = ["<pad>", "</s>", "<unk>", "<s>", "<mask>", "<|im_start|>", "<|im_end|>", "<|endoftext|>"]
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=special, initial_alphabet=alphabet)
    tokenizer.train_from_iterator(lines, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    tokenizer.model.save(str(folder))
    names = {
        "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>", "bos_token": "<s>", "mask_token": "<mask>",
        "cls_token": "<s>", "sep_token": "</s>",
    }  # fmt: skip
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 512, "chat_template": CHATML, **names,
    }  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
