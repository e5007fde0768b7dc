"""Small data sets, tokenizers and configurations under the names the programs ask for (stand_ins.toml), in seconds.

`datasets.load_dataset`, `from_pretrained` and `evaluate.load` take a folder of the given name in the working folder
before they ask the Hub, so the programs run as they are. Sentences are of made-up words; their lengths vary.
"""

from __future__ import annotations

import json
import math
import random
import shutil
import struct
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from programs.manifest import Source
from programs.one import NotHere, Places, checkout_of

Row = dict[str, Any]
CONTENT = Path(__file__).with_name("stand_ins.toml")
VOCABULARY = 4096
LINES = 2000
PROMPT = "O God, O God!"
"""With what minGPT's chargpt.py begins a sample: its characters have to occur in the text."""
DIGITS = 256
IMAGES = 48
METRICS = Source("huggingface/evaluate", commit="a7dd338386a4fae9a1767e05eb9ef9479513d9e8", paths=("metrics",))
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
LLAMA_3 = ("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
SYLLABLES = ("ka", "to", "mi", "ra", "ne", "lu", "so", "vi", "pe", "da", "shi", "go", "ban", "tor", "el", "ith")


class Words:
    """Sentences of made-up words, the same every time."""

    def __init__(self) -> None:
        self._draw = random.Random(0)
        self._words = ["".join(self._draw.choices(SYLLABLES, k=self._draw.randint(1, 4))) for _ in range(800)]

    def sentence(self) -> str:
        return " ".join(self._draw.choices(self._words, k=self._draw.randint(4, 30))) + "."

    def text(self) -> str:
        return " ".join(self.sentence() for _ in range(self._draw.randint(1, 6)))

    def row(self, columns: Mapping[str, Any]) -> Row:
        made: Row = {}
        for name, kind in columns.items():
            made[name] = self.row(kind) if isinstance(kind, dict) else self.column(kind, made)
        return made

    def column(self, kind: str, row: Row) -> Any:
        """A value of this kind; some depend on columns before it."""
        word, _, other = kind.partition(" ")
        if word == "class":
            return self._draw.randrange(int(other))
        if word == "name":
            return f"NAME{self._draw.randrange(int(other))}"
        if word == "span":
            text = row[other.removeprefix("of ")]
            start = text.index(" ") + 1
            return {"text": [text[start : start + 8]], "answer_start": [start]}
        if word == "tags":
            return [f"TAG{self._draw.randrange(5)}" for _ in row[other.removeprefix("of ")]]
        if word in ("user", "assistant"):
            return [{"role": word, "content": self.text()}]
        return {
            "sentence": self.sentence,
            "text": self.text,
            "words": lambda: self.sentence().split(),
            "sentences": lambda: [self.sentence(), self.sentence()],
            "flags": lambda: [True, False],
            "flag": lambda: self._draw.random() < 0.5,
            "share": self._draw.random,
            "id": lambda: str(self._draw.randrange(10**9)),
            "chat": lambda: self.column("user", row) + self.column("assistant", row),
            "sharegpt": lambda: [{"from": who, "value": self.text()} for who in ("human", "gpt")],
        }[word]()


def make_stand_ins(places: Places) -> None:
    if places.data.exists():
        return
    content, words = tomllib.loads(CONTENT.read_text(encoding="utf-8")), Words()
    lines = [PROMPT, *(words.text() for _ in range(LINES))]
    (places.data / "bpe").mkdir(parents=True)
    (places.data / "text.txt").write_text("\n".join(lines), encoding="utf-8")
    (places.data / "tokens.bin").write_bytes(bytes(n % 64 if n % 2 == 0 else 0 for n in range(400_000)))
    train_tokenizer(lines, places.data / "bpe")
    for name, config in content["models"].items():
        shutil.copytree(places.data / "bpe", places.data / name)
        whole = {**content["kin"][config["kin"]], **{key: value for key, value in config.items() if key != "kin"}}
        (places.data / name / "config.json").write_text(json.dumps(whole), encoding="utf-8")
    defaults = content["data"]["defaults"]
    for name, sets in content["data"]["sets"].items():
        parts = [defaults | part for part in (sets if isinstance(sets, list) else [sets])]
        write_data_set(places.data / name, parts, words)
    for name, columns in content["data"]["files"].items():
        write_rows(places.data / name, defaults["rows"], columns, words)
    for name, model in content["weights"].items():
        shutil.copytree(places.data / model, places.data / name)
        write_weights(places.data / name)
    write_digits(places.data / "data" / "MNIST" / "raw")
    shutil.copyfile(places.data / "text.txt", places.data / "data" / "wikitext-2.txt")
    write_images(places.data / "images")
    (places.data / "images" / "results").mkdir()  # pytorch/examples has one beside vae/main.py
    (places.data / "nltk_data" / "tokenizers" / "punkt").mkdir(parents=True)  # looked for, and read in evaluation only
    try:
        metrics = checkout_of(METRICS, places) / "metrics"
    except NotHere:
        return
    for name in ("accuracy", "glue", "seqeval", "squad", "rouge", "sacrebleu"):
        shutil.copytree(metrics / name, places.data / name, dirs_exist_ok=True)


def write_data_set(folder: Path, parts: Sequence[Row], words: Words) -> None:
    """As the Hub keeps them: a card that names the files, and a file per split, the first the longest."""
    card = ["---", "configs:"]
    for part in parts:
        name = part.get("configuration", "default")
        card += [f"- config_name: {name}", "  data_files:"]
        for split in part["splits"]:
            card += [f"  - split: {split}", f"    path: {name}/{split}.jsonl"]
            rows = part["rows"] if split == part["splits"][0] else max(64, part["rows"] // 10)
            write_rows(folder / name / f"{split}.jsonl", rows, part["columns"], words)
    (folder / "README.md").write_text("\n".join([*card, "---", ""]), encoding="utf-8")


def write_rows(path: Path, rows: int, columns: Mapping[str, Any], words: Words) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        from pyarrow import Table, parquet

        parquet.write_table(Table.from_pylist([words.row(columns) for _ in range(rows)]), path)
        return
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(words.row(columns)) + "\n" for _ in range(rows))


def write_weights(folder: Path) -> None:
    """A safetensors file with the names and shapes of a decoder like Llama or Qwen 2, of zeros that take no disk."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    header: Row = {}
    end = 0
    for name, shape in decoder_shapes(config).items():
        start, end = end, end + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)


def decoder_shapes(config: Row) -> dict[str, list[int]]:
    """As in transformers, models/qwen2/modeling_qwen2.py and models/llama/modeling_llama.py, with a tied head."""
    hidden, wide, vocabulary = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    narrow = hidden // config["num_attention_heads"] * config["num_key_value_heads"]
    shapes = {"model.embed_tokens.weight": [vocabulary, hidden], "model.norm.weight": [hidden]}
    for number in range(config["num_hidden_layers"]):
        layer = f"model.layers.{number}"
        for name, width in (("q", hidden), ("k", narrow), ("v", narrow)):
            shapes[f"{layer}.self_attn.{name}_proj.weight"] = [width, hidden]
            if config["model_type"] == "qwen2":
                shapes[f"{layer}.self_attn.{name}_proj.bias"] = [width]
        shapes[f"{layer}.self_attn.o_proj.weight"] = [hidden, hidden]
        shapes |= {f"{layer}.mlp.{name}_proj.weight": [wide, hidden] for name in ("gate", "up")}
        shapes[f"{layer}.mlp.down_proj.weight"] = [hidden, wide]
        shapes |= {f"{layer}.{name}_layernorm.weight": [hidden] for name in ("input", "post_attention")}
    return shapes


def write_digits(folder: Path) -> None:
    """MNIST's four files (IDX: a code for the kind, the sizes, the bytes), with few and empty pictures."""
    folder.mkdir(parents=True)
    for name, rows in (("train", DIGITS), ("t10k", DIGITS)):
        pictures = struct.pack(">4i", 2051, rows, 28, 28) + bytes(rows * 28 * 28)
        (folder / f"{name}-images-idx3-ubyte").write_bytes(pictures)
        labels = struct.pack(">2i", 2049, rows) + bytes(n % 10 for n in range(rows))
        (folder / f"{name}-labels-idx1-ubyte").write_bytes(labels)


def write_images(folder: Path) -> None:
    """Pictures of one colour, in a folder per split and class."""
    from PIL import Image

    for split in ("train", "validation"):
        for kind in ("first", "second"):
            (folder / split / kind).mkdir(parents=True)
            for number in range(IMAGES):
                Image.new("RGB", (256, 256), (number, 0, 0)).save(folder / split / kind / f"{number}.png")


def train_tokenizer(lines: Sequence[str], folder: Path) -> None:
    """Byte-pair encoding of the made-up words, with the special tokens of every model above."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    special = ["<pad>", "</s>", "<unk>", "<s>", "<mask>", "<|im_start|>", "<|im_end|>", "<|endoftext|>", *LLAMA_3]
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    size = VOCABULARY + len(LLAMA_3)
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=special, initial_alphabet=alphabet)
    tokenizer.train_from_iterator(lines, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    tokenizer.model.save(str(folder))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 512, "chat_template": CHATML,
        "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>", "bos_token": "<s>", "mask_token": "<mask>",
        "cls_token": "<s>", "sep_token": "</s>",
    }  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
