"""Training files as people write them (files/), asked through their readers, then run on a card as they are.

    python benchmarks/files_on_card.py --make FOLDER       models (config.json, tokenizer), data sets and the files
    python benchmarks/files_on_card.py --predict FOLDER    writes data/files_predictions.jsonl, before anything is run
    python benchmarks/files_on_card.py --measure FOLDER    on the card: weights are made, each file runs
    ... --only FILE... --out FILE                          some of the files, and where the answers go
    python benchmarks/files_on_card.py --compare           data/files_runs.jsonl beside the predictions

The files are run as they are, each in a process of its own; a callback that the Trainer is given on the way reads the
allocator's counters. Weights are random. Texts are made of drawn words, some long, most short; the tokenizer is a BPE
that was trained on them, so that token counts are not those of any known model.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import runpy
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
FILES, DATA = HERE / "files", HERE / "data"
MODELS = HERE.parent / "src" / "tunecast" / "job" / "models"
NAMES = ("llama-3.2-1b", "qwen3-0.6b")
RUN = (
    *("trl_chat_lora.py", "trl_packed_full.py", "trainer_text_full.py", "trl_sft.yaml", "clm.sh"),
    "trl_prompts_lora.py",
    *("packed_chats.ipynb", "eval_prompts_full.py", "grouped_lora.py", "sft.sh"),
)
"""The first six were predicted before readers knew a script's data; what they taught is in the last four's
predictions."""
CARD = "h200-sxm-141gb"
SEED = 7
WITHIN = ("first_step", "new_lengths", "training", "evaluation")
"""Phases of the whole job between the first step's beginning and the end of training."""
TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>\n{{ message['content'] }}</s>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
Row = dict[str, Any]


# --------------------------------------------------------------------------------------------------- what they train on


def words_of(draw: random.Random) -> list[str]:
    parts = [a + b for a in "bcdfghklmnprstvw" for b in "aeiou"]
    return ["".join(draw.choices(parts, k=draw.randint(1, 4))) for _ in range(6000)]


def text_of(draw: random.Random, words: list[str], median: float) -> str:
    count = max(3, int(draw.lognormvariate(0, 0.8) * median))
    chosen = [words[min(int(draw.paretovariate(0.6)) - 1, len(words) - 1)] for _ in range(count)]
    return " ".join(word + ("." if draw.random() < 0.08 else "") for word in chosen)


def make(folder: Path) -> None:
    draw = random.Random(SEED)
    words = words_of(draw)
    data = folder / "data"
    (data / "prompts").mkdir(parents=True)
    texts = [{"text": text_of(draw, words, 120)} for _ in range(1200)]
    chats = [
        {
            "messages": [
                {"role": role, "content": text_of(draw, words, 60)}
                for _ in range(draw.randint(1, 3))
                for role in ("user", "assistant")
            ]
        }
        for _ in range(600)
    ]
    prompts = [{"prompt": text_of(draw, words, 40), "completion": text_of(draw, words, 80)} for _ in range(900)]
    for name, rows in (("texts", texts), ("chats", chats), ("prompts/train", prompts)):
        (data / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    for name in NAMES:
        make_model(folder / "models" / name, name, [row["text"] for row in texts])
    for path in FILES.iterdir():
        shutil.copy(path, folder / path.name)


def make_model(where: Path, name: str, texts: list[str]) -> None:
    """Without weights, which are made where they are needed."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    special = ["<pad>", "</s>", "<|user|>", "<|assistant|>"]
    inner.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=4000, special_tokens=special, show_progress=False))
    own = PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>", eos_token="</s>")
    own.chat_template = TEMPLATE
    own.save_pretrained(where)
    raw = json.loads((MODELS / f"{name}.json").read_text())
    raw |= {"pad_token_id": 0, "bos_token_id": None, "eos_token_id": 1}
    (where / "config.json").write_text(json.dumps(raw, indent=1))


# ------------------------------------------------------------------------------------------------------------ predicted


def predict(folder: Path, names: Sequence[str], out: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(HERE.parent / "src"), "HF_HUB_OFFLINE": "1"}
    rows = []
    for name in names:
        asked = [sys.executable, "-m", "tunecast", "predict", name, "--gpu", CARD, "--torch-version", "2.11", "--json"]
        began = time.monotonic()
        done = subprocess.run(asked, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        took_s = time.monotonic() - began
        if done.returncode:
            rows.append({"file": name, "refused": done.stderr.strip()})
            continue
        found = json.loads(done.stdout)
        rows.append({"file": name, "took_s": round(took_s, 1), **figures_of(found)})
    out.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    for row in rows:
        print(json.dumps(row))


def figures_of(found: Row) -> Row:
    memory, whole = found["memory"], found["time"]
    return {
        "allocated_bytes": memory["allocated_bytes"],
        "reserved_bytes": memory["reserved_bytes"],
        "exactness": found["exactness"],
        "steps": whole["steps"],
        "tokens": whole["real_tokens"],
        "training_s": round(sum(whole["phases_s"][name] for name in WITHIN), 3),
        "phases_s": {name: whole["phases_s"][name] for name in WITHIN},
        "warnings": found["warnings"],
    }


# ------------------------------------------------------------------------------------------------------------- measured


def measure(folder: Path, names: Sequence[str], out: Path) -> None:
    make_weights(folder)
    os.chdir(folder)
    rows = []
    for name in names:
        shutil.rmtree("out", ignore_errors=True)
        done = subprocess.run(
            [sys.executable, str(Path(__file__).resolve()), "--run", name], capture_output=True, text=True, check=False
        )
        lines = [line for line in done.stdout.splitlines() if line.startswith('{"file"')]
        row = json.loads(lines[-1]) if lines else {"file": name, "error": (done.stdout + done.stderr)[-800:]}
        rows.append(row)
        print(json.dumps(row), flush=True)
        out.write_text("".join(f"{json.dumps(each)}\n" for each in rows))


def make_weights(folder: Path) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    for name in NAMES:
        where = folder / "models" / name
        with torch.device("cuda"):
            model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(where), dtype=torch.bfloat16)
        model.save_pretrained(where)
        del model
        torch.cuda.empty_cache()


def command_of(name: str) -> list[str]:
    """The Python file and its arguments."""
    if name.endswith(".yaml"):
        import trl.scripts.sft

        return [str(trl.scripts.sft.__file__), "--config", name]
    if name.endswith(".ipynb"):
        cells = [cell for cell in json.loads(Path(name).read_text())["cells"] if cell["cell_type"] == "code"]
        Path("notebook.py").write_text("\n".join("".join(cell["source"]) for cell in cells))
        return ["notebook.py"]
    if name.endswith(".sh"):
        return shlex.split(Path(name).read_text().splitlines()[-1])[1:]
    return [name]


def run(name: str) -> None:
    import torch
    from transformers import Trainer, TrainerCallback

    class Reader(TrainerCallback):
        def __init__(self) -> None:
            self.at: list[float] = []
            self.allocated: list[int] = []

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self.at.append(time.perf_counter())

        def on_step_end(self, *_: Any, **__: Any) -> None:
            self.allocated.append(torch.cuda.max_memory_allocated())

        def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            torch.cuda.synchronize()
            ended = time.perf_counter()
            stats = torch.cuda.memory_stats()
            row = {
                "file": name,
                "allocated_bytes": stats["allocated_bytes.all.peak"],
                "reserved_bytes": stats["reserved_bytes.all.peak"],
                "steps": state.global_step,
                "training_s": round(ended - self.at[0], 3),
                "later_steps_s": round(ended - self.at[3], 3) if len(self.at) > 6 else None,
                "peaks_by_step": self.allocated[:8],
                "tokens": state.num_input_tokens_seen,
                "versions": versions(),
            }
            print(json.dumps(row), flush=True)

    begin = Trainer.__init__

    def with_reader(self: Any, *given: Any, **named: Any) -> None:
        begin(self, *given, **named)
        self.add_callback(Reader())

    Trainer.__init__ = with_reader
    sys.argv = command_of(name)
    sys.path.insert(0, str(Path.cwd()))
    runpy.run_path(sys.argv[0], run_name="__main__")


def versions() -> dict[str, str]:
    from importlib.metadata import version

    return {name: version(name) for name in ("torch", "transformers", "peft", "trl", "accelerate", "datasets")}


# ------------------------------------------------------------------------------------------------------------- compared


def compare() -> None:
    def load(name: str) -> dict[str, Row]:
        lines = (DATA / name).read_text().splitlines()
        return {row["file"]: row for row in map(json.loads, lines)}

    predicted, ran = load("files_predictions.jsonl"), load("files_runs.jsonl")
    for name in (name for name in RUN if name in ran):
        told, was = predicted[name], ran[name]
        if "refused" in told or "error" in was:
            print(f"{name:22} {told.get('refused', '')} {was.get('error', '')}")
            continue
        off = [f"{told[key] / was[key] - 1:+9.3%}" for key in ("allocated_bytes", "reserved_bytes", "training_s")]
        same = "to the byte" if told["allocated_bytes"] == was["allocated_bytes"] else ""
        steps = f"steps {told['steps']} / {was['steps']}"
        print(f"{name:22} {steps}  memory {off[0]} reserved {off[1]} time {off[2]} {same}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--make", type=Path, metavar="FOLDER")
    parser.add_argument("--predict", type=Path, metavar="FOLDER")
    parser.add_argument("--only", nargs="*", default=RUN, metavar="FILE")
    parser.add_argument("--measure", type=Path, metavar="FOLDER")
    parser.add_argument("--run", metavar="FILE", help="one of them, in this process")
    parser.add_argument("--out", type=Path, metavar="FILE")
    parser.add_argument("--compare", action="store_true")
    asked = parser.parse_args()
    if asked.make:
        make(asked.make)
    if asked.predict:
        predict(asked.predict, asked.only, (asked.out or DATA / "files_predictions.jsonl").resolve())
    if asked.measure:
        measure(asked.measure.resolve(), asked.only, (asked.out or DATA / "files_runs.jsonl").resolve())
    if asked.run:
        run(asked.run)
    if asked.compare:
        compare()


if __name__ == "__main__":
    main()
