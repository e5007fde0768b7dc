"""Whole jobs of transformers' Trainer with varying lengths: predicted first, then run on a card.

    python benchmarks/whole_jobs.py OUT.jsonl --round 3 --predict            says how long each takes; needs no card
    python benchmarks/whole_jobs.py OUT.jsonl --round 3 --predict --calibration FILE       with what it measured, too
    python benchmarks/whole_jobs.py OUT.jsonl --round 3                      runs every case on the card, a line each
    python benchmarks/whole_jobs.py OUT.jsonl --round 3 --only tiny qlora    some of them
    python benchmarks/whole_jobs.py OUT.jsonl --round 3 --small --cpu        tries it out where there is no card
    python benchmarks/whole_jobs.py --compare                                sets data/whole_*.jsonl beside each other

Weights are random and written to a temporary folder first, so that loading finds them in the page cache; samples are
random tokens of the lengths that the job lists. Every case is a process of its own, timed from its start to its end.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parent
sys.path.insert(0, str(ROOT / "src"))
DATA = HERE / "data"

LORA = {"rank": 16, "alpha": 32, "dropout": 0.0, "targets": "all-linear"}
ONE = {"model": "llama-3.2-1b", "method": "full", "weights_dtype": "bfloat16", "gradient_checkpointing": False}
THREE = {"model": "llama-3.2-3b", "method": "lora", "lora": LORA, "weights_dtype": "bfloat16"}
SMALL = {"model": "qwen2.5-0.5b", "method": "full", "weights_dtype": "float32", "gradient_checkpointing": False}
FULL = {"method": "full", "weights_dtype": "bfloat16", "gradient_checkpointing": False}
ADAPTED = {"method": "lora", "lora": LORA, "weights_dtype": "bfloat16", "gradient_checkpointing": False}


def drawn(seed: int, count: int, median: float, sigma: float, most: int) -> list[int]:
    draw = random.Random(seed)
    return [max(8, min(most, round(draw.lognormvariate(0, sigma) * median))) for _ in range(count)]


SECOND: list[dict[str, Any]] = [
    {"id": "random", **ONE, "seq_len": 1024, "micro_batch": 8, "data": {"lengths": drawn(11, 2800, 260, 0.7, 1024)}},
    {"id": "grouped", **ONE, "seq_len": 1024, "micro_batch": 8,
     "data": {"lengths": drawn(12, 2800, 260, 0.7, 1024), "group_by_length": True}},
    {"id": "multiple", **ONE, "seq_len": 1024, "micro_batch": 8,
     "data": {"lengths": drawn(13, 3600, 260, 0.7, 1024), "pad_to_multiple_of": 64}},
    {"id": "small", **SMALL, "seq_len": 512, "micro_batch": 16,
     "data": {"lengths": drawn(14, 3200, 150, 0.6, 512), "pad_to_multiple_of": 8, "epochs": 2}},
    {"id": "adapters", **THREE, "seq_len": 2048, "micro_batch": 4, "grad_accum": 2, "gradient_checkpointing": True,
     "data": {"lengths": drawn(15, 800, 400, 0.7, 2048), "eval_samples": 64, "pad_to_multiple_of": 32},
     "run": {"eval_strategy": "steps", "eval_steps": 50, "save_steps": 50}},
    {"id": "longer", **THREE, "seq_len": 1024, "micro_batch": 8, "gradient_checkpointing": True,
     "data": {"lengths": drawn(16, 800, 500, 0.6, 1024)}, "run": {"save_strategy": "no"}},
]  # fmt: skip
THIRD: list[dict[str, Any]] = [
    {"id": "tiny", "model": "smollm2-360m", **FULL, "weights_dtype": "float32", "seq_len": 512, "micro_batch": 32,
     "data": {"lengths": drawn(34, 4800, 120, 0.6, 512), "pad_to_multiple_of": 64, "eval_samples": 256},
     "run": {"eval_strategy": "steps", "eval_steps": 100}},
    {"id": "every-length", "model": "smollm2-1.7b", **FULL, "seq_len": 1024, "micro_batch": 8,
     "data": {"lengths": drawn(32, 1100, 300, 0.6, 1024)}},
    {"id": "qlora", "model": "qwen2.5-7b", **ADAPTED, "method": "qlora", "gradient_checkpointing": True,
     "seq_len": 1024, "micro_batch": 4, "run": {"save_strategy": "no"},
     "data": {"lengths": drawn(31, 240, 350, 0.7, 1024), "group_by_length": True}},
    {"id": "accumulated", "model": "qwen3-1.7b", **ADAPTED, "seq_len": 2048, "micro_batch": 2, "grad_accum": 4,
     "data": {"lengths": drawn(33, 400, 500, 0.7, 2048), "pad_to_multiple_of": 8}},
    {"id": "recomputed", "model": "granite-3.1-2b", **FULL, "gradient_checkpointing": True, "seq_len": 1024,
     "micro_batch": 8, "data": {"lengths": drawn(35, 700, 350, 0.6, 1024), "group_by_length": True},
     "run": {"save_strategy": "no"}},
]  # fmt: skip
FOURTH: list[dict[str, Any]] = [
    {"id": "twice", "model": "qwen3-0.6b", **FULL, "weights_dtype": "float32", "seq_len": 768, "micro_batch": 16,
     "data": {"lengths": drawn(41, 640, 180, 0.6, 768), "pad_to_multiple_of": 16, "epochs": 2, "eval_samples": 128},
     "run": {"eval_strategy": "epoch", "save_strategy": "no"}},
    {"id": "chinchilla", "model": "tinyllama-1.1b", **FULL, "seq_len": 2048, "micro_batch": 4,
     "data": {"lengths": drawn(42, 420, 400, 0.7, 2048)}},
    {"id": "two-projections", "model": "qwen2.5-1.5b", **ADAPTED, "lora": {**LORA, "targets": ["q_proj", "v_proj"]},
     "gradient_checkpointing": True, "seq_len": 1024, "micro_batch": 8, "run": {"save_strategy": "no"},
     "data": {"lengths": drawn(43, 800, 280, 0.6, 1024), "group_by_length": True}},
    {"id": "qlora-3b", "model": "qwen2.5-3b", **ADAPTED, "method": "qlora", "gradient_checkpointing": True,
     "seq_len": 1024, "micro_batch": 8, "grad_accum": 2, "run": {"save_strategy": "no"},
     "data": {"lengths": drawn(44, 400, 300, 0.7, 1024), "pad_to_multiple_of": 32}},
    {"id": "stable", "model": "stablelm-2-1.6b", **FULL, "seq_len": 1024, "micro_batch": 16,
     "data": {"lengths": drawn(45, 1500, 220, 0.5, 1024), "group_by_length": True, "pad_to_multiple_of": 8},
     "run": {"save_strategy": "no"}},
]  # fmt: skip
ROUNDS = {2: SECOND, 3: THIRD, 4: FOURTH}
"""Each predicted, and written down, before its jobs ran. Round 1 had other lengths than round 2 (the file's history):
two of five missed by more than 10 %, because lengths seen for the first time were counted as if drawn with replacement.
From round 3 on with and without the calibration of the machine they ran on."""


def job_of(case: dict[str, Any]) -> Any:
    from tunecast.job import job_from_dict

    data = {"epochs": 1, "prepared": True, **case["data"]}
    hardware = {"gpu": "h200-sxm-141gb", "download_bytes_per_s": None}
    return job_from_dict({"autocast": "bfloat16", **case, "data": data, "hardware": hardware})


def predict(number: int, out: Path, calibration: Path | None) -> None:
    from tunecast.predict.calibration import calibration_from
    from tunecast.predict.engines import predicted

    found = None if calibration is None else json.loads(calibration.read_text("utf-8"))
    own = None if found is None else calibration_from(found, found["measured"])
    with out.open("w", encoding="utf-8") as file:
        for case in ROUNDS[number]:
            for known in (None,) if own is None else (None, own):
                said = predicted(job_of(case), timed=True, calibration=known).prediction
                assert said.time is not None, said.warnings
                row = {"round": number, "id": case["id"], "calibrated": known is not None, "time": dict(said.time)}
                file.write(json.dumps(row) + "\n")
                parts = {name: round(seconds, 2) for name, seconds in said.time["phases_s"].items() if seconds}
                print(case["id"], "calibrated" if known else "", round(said.time["total_s"], 1), parts)


class Clock:
    """Seconds by phase; a phase inside another is taken off it."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = {}
        self.open: list[str] = []

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        self.open.append(name)
        try:
            yield
        finally:
            self.open.pop()
            seconds = time.perf_counter() - began
            self.spent[name] = self.spent.get(name, 0.0) + seconds
            if self.open:
                self.spent[self.open[-1]] = self.spent.get(self.open[-1], 0.0) - seconds

    def wrapped(self, name: str, function: Any) -> Any:
        def run(*given: Any, **named: Any) -> Any:
            with self.phase(name):
                return function(*given, **named)

        return run


def config_of(name: str, small: bool) -> Any:
    from transformers import AutoConfig

    raw = json.loads((ROOT / "src" / "tunecast" / "job" / "models" / f"{name}.json").read_text())
    if small:
        raw |= {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 500}
        raw |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "layer_types": None}
    return AutoConfig.for_model(raw.pop("model_type"), **{k: v for k, v in raw.items() if k != "torch_dtype"})


def write_model(name: str, folder: Path, small: bool) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    if not (folder / "config.json").exists():
        with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
            model = AutoModelForCausalLM.from_config(config_of(name, small), dtype=torch.bfloat16)
        model.save_pretrained(folder)
        del model
        torch.cuda.empty_cache()


def run_case(case: dict[str, Any], folder: Path, small: bool, cpu: bool) -> dict[str, Any]:
    """In a process of its own: everything the prediction counts, from the imports on."""
    clock, began = Clock(), time.perf_counter()
    with clock.phase("start"):
        import torch
        from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

        if not cpu:
            torch.zeros(1, device="cuda")
    job = job_of(case)
    lengths = [min(n, 48) for n in job.data.lengths[:64]] if small else job.data.lengths
    with clock.phase("load"):
        where = "cpu" if cpu else "cuda"
        more: dict[str, Any] = {}
        if job.method == "qlora":
            from transformers import BitsAndBytesConfig

            more["quantization_config"] = BitsAndBytesConfig(
                load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16
            )
        dtype = getattr(torch, job.weights_dtype)
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, device_map=where, **more)
        if job.method in ("lora", "qlora"):
            from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training

            if job.method == "qlora":
                model = prepare_model_for_kbit_training(model, job.gradient_checkpointing)
            targets = job.lora.targets if isinstance(job.lora.targets, str) else list(job.lora.targets)
            lora = LoraConfig(r=job.lora.rank, lora_alpha=job.lora.alpha, lora_dropout=0.0, target_modules=targets,
                              task_type="CAUSAL_LM")  # fmt: skip
            model = get_peft_model(model, lora)
    draw = torch.Generator().manual_seed(0)
    vocabulary = model.config.vocab_size
    rows = [{"input_ids": torch.randint(0, vocabulary, (n,), generator=draw)} for n in lengths]
    multiple = job.data.pad_to_multiple_of or 1

    def collate(batch: list[dict[str, Any]]) -> dict[str, Any]:
        longest = -(-max(len(row["input_ids"]) for row in batch) // multiple) * multiple
        ids, mask = (
            torch.zeros(len(batch), longest, dtype=torch.long),
            torch.zeros(len(batch), longest, dtype=torch.long),
        )
        for at, row in enumerate(batch):
            ids[at, : len(row["input_ids"])] = row["input_ids"]
            mask[at, : len(row["input_ids"])] = 1
        return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}

    output = tempfile.mkdtemp(dir=folder)
    arguments = TrainingArguments(
        output_dir=output,
        num_train_epochs=job.data.epochs,
        per_device_train_batch_size=job.micro_batch,
        per_device_eval_batch_size=job.run.eval_batch,
        gradient_accumulation_steps=job.grad_accum,
        gradient_checkpointing=job.gradient_checkpointing,
        train_sampling_strategy="group_by_length" if job.data.group_by_length else "random",
        optim=job.optimizer,
        bf16=True,
        eval_strategy=job.run.eval_strategy,
        eval_steps=job.run.eval_steps,
        save_strategy=job.run.save_strategy,
        save_steps=job.run.save_steps,
        report_to="none",
        disable_tqdm=True,
        use_cpu=cpu,
    )
    trainer = Trainer(
        model=model, args=arguments, train_dataset=rows, data_collator=collate,
        eval_dataset=rows[: job.data.eval_samples] if job.data.eval_samples else None,
    )  # fmt: skip
    trainer._save_checkpoint = clock.wrapped("checkpoints", trainer._save_checkpoint)
    trainer.evaluate = clock.wrapped("evaluation", trainer.evaluate)
    with clock.phase("training"):
        trainer.train()
    with clock.phase("final_save"):
        trainer.save_model(output)
    return {"id": case["id"], "wall_s": time.perf_counter() - began, "steps": trainer.state.global_step,
            "phases_s": clock.spent, "torch": torch.__version__}  # fmt: skip


def compiled() -> int:
    """Kernels the driver keeps on disk: those that no later program compiles again."""
    return sum(path.is_file() for path in (Path.home() / ".nv" / "ComputeCache").glob("**/*"))


def measure(number: int, out: Path, small: bool, cpu: bool, only: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder, out.open("w", encoding="utf-8") as file:
        for case in ROUNDS[number]:
            if only and case["id"] not in only:
                continue
            where = Path(folder) / case["model"]
            write_model(case["model"], where, small)
            flags = [*(["--small"] if small else []), *(["--cpu"] if cpu else [])]
            before, began = compiled(), time.monotonic()
            ran = subprocess.run(
                [sys.executable, __file__, f"--round={number}", "--case", case["id"], "--folder", str(where), *flags],
                capture_output=True, text=True, check=False,
            )  # fmt: skip
            seconds = time.monotonic() - began
            said = [line for line in ran.stdout.splitlines() if line.startswith('{"id"')]
            row = json.loads(said[-1]) if said else {"id": case["id"], "error": ran.stderr[-2000:]}
            row |= {"round": number, "process_s": seconds, "compiled_files": compiled() - before}
            file.write(json.dumps(row) + "\n")
            file.flush()
            print(case["id"], round(row["process_s"], 1), row.get("error", row.get("phases_s")), flush=True)


def compare(predictions: Path, runs: Path) -> None:
    ran = {(row["round"], row["id"]): row for row in map(json.loads, runs.read_text("utf-8").splitlines())}
    for row in map(json.loads, predictions.read_text("utf-8").splitlines()):
        took, said = ran.get((row["round"], row["id"])), row["time"]
        if took is None or "error" in took:
            continue
        print(f"{row['round']} {row['id']:<12} {'calibrated' if row.get('calibrated') else '':<10} predicted "
              f"{said['total_s']:7.1f} s  measured {took['process_s']:7.1f} s  "
              f"{said['total_s'] / took['process_s'] - 1:+.1%}  steps {said['steps']} {took['steps']}")  # fmt: skip
        together = {"training": ("training", "first_step", "new_lengths")}
        for name, seconds in took["phases_s"].items():
            part = sum(said["phases_s"][n] for n in together.get(name, (name,)))
            print(f"    {name:<12} {part:8.2f} {seconds:8.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", nargs="?", type=Path)
    for flag in ("--predict", "--compare", "--small", "--cpu"):
        parser.add_argument(flag, action="store_true")
    parser.add_argument("--round", type=int, choices=ROUNDS, default=max(ROUNDS))
    parser.add_argument("--calibration", type=Path)
    parser.add_argument("--only", nargs="*", default=[], metavar="ID")
    parser.add_argument("--case")
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args()
    if given.compare:
        compare(DATA / "whole_predictions.jsonl", DATA / "whole_runs.jsonl")
    elif given.predict:
        predict(given.round, given.out, given.calibration)
    elif given.case:
        [case] = [case for case in ROUNDS[given.round] if case["id"] == given.case]
        print(json.dumps(run_case(case, given.folder, given.small, given.cpu)))
    else:
        measure(given.round, given.out, given.small, given.cpu, given.only)


if __name__ == "__main__":
    main()
