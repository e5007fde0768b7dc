"""What preparing a data set takes before training: `datasets.map` with a fast tokenizer, one process.

    python benchmarks/preparation.py TEXT_FOLDER [ROWS_LENGTH ...]

Two ways, for rows of several lengths: TRL's SFTTrainer (`_prepare_dataset`: row by row, five passes) and one batched
map, as the Trainer's examples have it (run_clm.py), with the tokenizer on one thread and on all. The text is every
.py, .md, .rst and .txt file under TEXT_FOLDER; the tokenizer, byte-level BPE with Llama 3's pattern and 64,000 entries,
is trained on a part of it. A JSON line a measurement, with the CPU it ran on.
Needs transformers, tokenizers, datasets and TRL; caching off, so that every pass is made.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from datetime import date
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

LENGTHS = (100, 300, 1000, 4000)
TOKENS = 2_000_000
"""A measurement's."""
ENTRIES = 64_000
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Of Llama 3's tokenizer.json."""


def texts_under(folder: Path, most_bytes: int) -> list[str]:
    found, held = [], 0
    for path in sorted(folder.rglob("*")):
        if path.suffix in (".py", ".md", ".rst", ".txt") and path.is_file() and held < most_bytes:
            text = path.read_text("utf-8", errors="ignore")
            found.append(text)
            held += len(text)
    return found


def tokenizer_of(texts: list[str]) -> Any:
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.BPE(ignore_merges=True))
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=ENTRIES,
        special_tokens=["<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<|end|>", pad_token="<|end|>")


def rows_of(texts: list[str], tokenizer: Any, length: int) -> list[str]:
    """Texts of so many tokens, on average: cut where that many characters are over."""
    sample = "".join(texts[:200])[:2_000_000]
    characters = len(sample) / len(tokenizer(sample)["input_ids"])
    whole = "".join(texts)
    size = int(length * characters)
    return [whole[start : start + size] for start in range(0, min(len(whole), int(TOKENS * characters)), size)]


def by_trl(rows: list[str], tokenizer: Any, packing: bool) -> Any:
    """SFTTrainer's own preparation."""
    from datasets import Dataset
    from trl.trainer.sft_trainer import SFTTrainer

    told = SimpleNamespace(_tokenizer=tokenizer, chat_template=None, completion_only_loss=None)
    args = SimpleNamespace(
        dataset_num_proc=None, dataset_text_field="text", assistant_only_loss=False, max_length=4096,
        truncation_mode="keep_start", shuffle_dataset=False, packing_strategy="bfd", seed=0,
    )  # fmt: skip
    data = Dataset.from_dict({"text": rows})
    return SFTTrainer._prepare_dataset(told, data, tokenizer, args, packing, None, "train")


def by_map(rows: list[str], tokenizer: Any) -> Any:
    from datasets import Dataset

    data = Dataset.from_dict({"text": rows})
    return data.map(lambda each: tokenizer(each["text"]), batched=True, remove_columns=["text"])


def main() -> None:
    import datasets

    datasets.disable_caching()
    datasets.disable_progress_bars()
    folder, *asked = sys.argv[1:]
    texts = texts_under(Path(folder), 60_000_000)
    tokenizer = tokenizer_of([text[:20_000] for text in texts[::5]])
    threads = os.environ.get("RAYON_NUM_THREADS")
    ways: dict[str, Any] = {
        "trl": lambda rows: by_trl(rows, tokenizer, packing=False),
        "trl packing": lambda rows: by_trl(rows, tokenizer, packing=True),
        "batched": lambda rows: by_map(rows, tokenizer),
    }
    for length in [int(each) for each in asked] or LENGTHS:
        rows = rows_of(texts, tokenizer, length)
        for way, prepared in ways.items():
            for _ in range(2):
                wall, cpu = time.perf_counter(), time.process_time()
                made = prepared(rows)
                wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
                told = {
                    "way": way, "rows": len(rows), "tokens": sum(map(len, made["input_ids"])),
                    "bytes": sum(len(row.encode()) for row in rows), "wall_s": round(wall, 3), "cpu_s": round(cpu, 3),
                    "threads": threads and int(threads), "cores": os.cpu_count(), "cpu": processor(),
                    "date": date.today().isoformat(),
                    **{name: version(name) for name in ("datasets", "tokenizers", "transformers", "trl")},
                }  # fmt: skip
                print(json.dumps(told), flush=True)


def processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


if __name__ == "__main__":
    main()
