"""One whole job for real, in a process of its own: transformers' Trainer or TRL's SFTTrainer, and what it took.

Weights come by `from_pretrained` from a checkpoint that is one hole in a file (zeros that take no disk), and are made
random in place afterwards, for a card multiplies zeros faster. Samples are random tokens of the lengths a job lists.
Nothing is synchronised between steps but what the trainers do themselves. Bytes and seconds throughout.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "src" / "tunecast" / "learn")]
MODELS = ROOT / "src" / "tunecast" / "job" / "models"
BNB_PATHS = [p for p in sys.path if p and "site-packages" not in p and (Path(p) / "bitsandbytes").is_dir()]
DEVICE_EVERY = 10
"""Steps between two looks at what the card has left; the allocator's own counters are read after every step."""


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


# ---------------------------------------------------------------------------------------------------- the checkpoint


def config_of(name: str, small: bool) -> Any:
    from transformers import AutoConfig

    raw = json.loads((MODELS / f"{name}.json").read_text())
    if small:
        raw |= {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 500}
        raw |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
        raw |= {"layer_types": None} if "layer_types" in raw else {}
        raw |= {"pad_token_id": None, "bos_token_id": 1, "eos_token_id": 1}
    return AutoConfig.for_model(raw.pop("model_type"), **{k: v for k, v in raw.items() if k != "torch_dtype"})


def write_checkpoint(name: str, folder: Path, small: bool) -> Path:
    """config.json and a safetensors file in bf16 whose contents are a hole."""
    import torch
    from transformers import AutoModelForCausalLM

    where = folder / name
    if where.exists():
        return where
    where.mkdir()
    config = config_of(name, small)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    tied = {"lm_head.weight"} if config.tie_word_embeddings else set()
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for key, tensor in model.state_dict().items():
        if key not in tied:
            begin, end = end, end + tensor.numel() * 2
            header[key] = {"dtype": "BF16", "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with (where / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)
    config.architectures, config.dtype = [type(model).__name__], "bfloat16"
    config.save_pretrained(where)
    return where


def tokenizer_of() -> Any:
    """Pads with 0; nothing is ever tokenised."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = {"<pad>": 0, "</s>": 1, "<unk>": 2}
    inner = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<pad>", eos_token="</s>", unk_token="<unk>", padding_side="right"
    )


def randomise(model: Any) -> None:
    """Every weight that came from the file, in place."""
    import torch

    with torch.no_grad():
        for name, parameter in model.named_parameters():
            state = getattr(parameter, "quant_state", None)
            if "lora_" in name:
                continue
            if state is not None:
                parameter.data.random_(0, 256)
                for scales in (state, state.state2) if state.nested else (state,):
                    scales.absmax.random_(0, 256) if scales.absmax.dtype == torch.uint8 else scales.absmax.fill_(0.02)
                if state.nested:
                    state.offset.fill_(0.05)
            elif parameter.is_floating_point():
                parameter.data.normal_(0, 0.02) if parameter.dim() > 1 else parameter.data.fill_(1)


# ------------------------------------------------------------------------------------------------------- the trainers


def data_of(lengths: list[int], vocabulary: int) -> Any:
    import numpy
    from datasets import Dataset

    draw = numpy.random.default_rng(0)
    return Dataset.from_dict({"input_ids": [draw.integers(3, vocabulary, n).tolist() for n in lengths]})


def arguments_of(case: dict[str, Any], job: Any, output: str, cpu: bool) -> dict[str, Any]:
    """What a job says of TrainingArguments; the rest keeps the class's defaults."""
    from dataclasses import fields

    from tunecast.job.job import Data

    seed = {"seed": job.data.seed} if any(field.name == "seed" for field in fields(Data)) else {}
    return {
        "output_dir": output,
        "num_train_epochs": job.data.epochs,
        "max_steps": job.run.max_steps or -1,
        "per_device_train_batch_size": job.micro_batch,
        "per_device_eval_batch_size": job.run.eval_batch,
        "gradient_accumulation_steps": job.grad_accum,
        "gradient_checkpointing": job.gradient_checkpointing,
        "train_sampling_strategy": "group_by_length" if job.data.group_by_length else "random",
        "dataloader_drop_last": job.data.drop_last,
        "optim": job.optimizer,
        "bf16": job.autocast == "bfloat16",
        "eval_strategy": job.run.eval_strategy,
        "eval_steps": job.run.eval_steps,
        "save_strategy": job.run.save_strategy,
        "save_steps": job.run.save_steps,
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": cpu,
        **seed,
    }


def quantization_of(job: Any) -> Any:
    import torch
    from transformers import BitsAndBytesConfig

    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type=job.quantization.format,
        bnb_4bit_use_double_quant=job.quantization.double_quant,
        bnb_4bit_compute_dtype=torch.bfloat16,
    )


def lora_of(job: Any) -> Any:
    from peft import LoraConfig

    targets = job.lora.targets if isinstance(job.lora.targets, str | None) else list(job.lora.targets)
    return LoraConfig(
        r=job.lora.rank,
        lora_alpha=job.lora.alpha,
        lora_dropout=job.lora.dropout,
        target_modules=targets,
        task_type="CAUSAL_LM",
    )


def with_trainer(case: dict[str, Any], job: Any, where: Path, clock: Clock, small: bool, cpu: bool) -> Any:
    import torch
    from transformers import AutoModelForCausalLM, DataCollatorForLanguageModeling, Trainer, TrainingArguments

    more: dict[str, Any] = {"quantization_config": quantization_of(job)} if job.method == "qlora" else {}
    with clock.phase("load"):
        model = AutoModelForCausalLM.from_pretrained(
            where, dtype=getattr(torch, job.weights_dtype), device_map="cpu" if cpu else "cuda", **more
        )
        if job.method != "full":
            from peft import get_peft_model, prepare_model_for_kbit_training

            if job.method == "qlora" and job.quantization.prepare_kbit:
                model = prepare_model_for_kbit_training(model, job.gradient_checkpointing)
            model = get_peft_model(model, lora_of(job))
    with clock.phase("construction"):
        rows = data_of(shortened(job, small), model.config.vocab_size)
        collator = DataCollatorForLanguageModeling(
            tokenizer_of(), mlm=False, pad_to_multiple_of=job.data.pad_to_multiple_of
        )
        return Trainer(
            model=model,
            args=TrainingArguments(**arguments_of(case, job, tempfile.mkdtemp(dir=where), cpu)),
            train_dataset=rows,
            eval_dataset=rows.select(range(min(len(rows), job.data.eval_samples))) if job.data.eval_samples else None,
            data_collator=collator,
        )


def with_sft_trainer(case: dict[str, Any], job: Any, where: Path, clock: Clock, small: bool, cpu: bool) -> Any:
    """A script of TRL's documentation: the trainer loads and adapts the model itself."""
    from trl import SFTConfig, SFTTrainer

    rows = data_of(shortened(job, small), config_of(job.model, small).vocab_size)
    free = case.get("padding_free", False)
    with clock.phase("construction"):
        arguments = SFTConfig(
            **arguments_of(case, job, tempfile.mkdtemp(dir=where), cpu),
            max_length=None if free else job.seq_len,
            packing=job.data.packing,
            packing_strategy=job.data.packing_strategy,
            padding_free=free,
            pad_to_multiple_of=job.data.pad_to_multiple_of,
            model_init_kwargs={"dtype": job.weights_dtype},
        )
        import trl.trainer.sft_trainer as module

        module.create_model_from_path = clock.wrapped("load", module.create_model_from_path)
        return SFTTrainer(
            model=str(where),
            args=arguments,
            train_dataset=rows,
            eval_dataset=rows.select(range(min(len(rows), job.data.eval_samples))) if job.data.eval_samples else None,
            processing_class=tokenizer_of(),
            quantization_config=quantization_of(job) if job.method == "qlora" else None,
            peft_config=None if job.method == "full" else lora_of(job),
        )


def shortened(job: Any, small: bool) -> list[int]:
    """The Trainer cuts nothing: who prepares its data does. SFTTrainer does, and packing wants whole samples."""
    if small:
        return [min(n, 96) for n in job.data.lengths[:32]]
    return [n if job.stack == "trl" else min(n, job.seq_len) for n in job.data.lengths]


# ------------------------------------------------------------------------------------------------------- what it took


class Watch:
    """Shapes as the model sees them, and after each step the clock and the allocator's counters."""

    def __init__(self, on_card: bool) -> None:
        self.on_card = on_card
        self.batches: list[list[int]] = []
        """Rows, length, sequences where rows are packed (else 0), 1 where it evaluates."""
        self.steps: list[list[float]] = []
        """Seconds since training began, most allocated so far, reserved."""
        self.device: list[int] = []
        self.began = 0.0

    def forward(self, module: Any, given: Any, named: dict[str, Any]) -> None:
        ids = named["input_ids"]
        starts = named.get("cu_seq_lens_q")
        self.batches.append([*ids.shape, 0 if starts is None else len(starts) - 1, int(not module.training)])

    def callback(self) -> Any:
        from transformers import TrainerCallback

        watch = self

        class AfterStep(TrainerCallback):  # type: ignore[misc]
            def on_train_begin(self, *given: Any, **named: Any) -> None:
                watch.began = time.perf_counter()

            def on_step_end(self, *given: Any, **named: Any) -> None:
                watch.look()

        return AfterStep()

    def look(self) -> None:
        now = time.perf_counter() - self.began
        if not self.on_card:
            self.steps.append([now, 0, 0])
            return
        import torch

        found = torch._C._cuda_memoryStats(torch.cuda.current_device())
        self.steps.append([now, found["allocated_bytes"]["all"]["peak"], found["reserved_bytes"]["all"]["current"]])
        if len(self.steps) % DEVICE_EVERY == 0:
            self.device.append(device_bytes())


def device_bytes() -> int:
    import torch

    free, total = torch.cuda.mem_get_info()
    return int(total - free)


def run_case(
    case: dict[str, Any], folder: Path, small: bool, cpu: bool, capacity_bytes: int | None, traced: bool
) -> dict[str, Any]:
    clock = Clock()
    with clock.phase("wake"):
        import torch

        if cpu:
            torch.set_num_threads(1)
        else:
            torch.zeros(1, device="cuda")
            context_bytes = device_bytes()
    from tunecast.job import job_from_dict

    job = job_from_dict(case["job"])
    if capacity_bytes is not None:
        torch.cuda.set_per_process_memory_fraction(capacity_bytes / torch.cuda.mem_get_info()[1])
    with clock.phase("imports"):
        import peft
        import transformers

        if job.stack == "trl":
            import trl  # noqa: F401
    where = folder / job.model
    make = with_sft_trainer if job.stack == "trl" else with_trainer
    trainer = make(case, job, where, clock, small, cpu)
    if not cpu:
        randomise(trainer.model)
    watch = Watch(not cpu)
    trainer.model.register_forward_pre_hook(watch.forward, with_kwargs=True)
    trainer.add_callback(watch.callback())
    trainer._save_checkpoint = clock.wrapped("checkpoints", trainer._save_checkpoint)
    trainer.evaluate = clock.wrapped("evaluation", trainer.evaluate)
    found: dict[str, Any] = {"id": case["id"], "torch": torch.__version__, "transformers": transformers.__version__}
    found["peft"] = peft.__version__
    if not cpu:
        torch.cuda.synchronize()
        found |= {"loaded_bytes": torch.cuda.memory_allocated(), "loaded_reserved_bytes": torch.cuda.memory_reserved()}
        torch.cuda.reset_peak_memory_stats()
        if traced:
            torch.cuda.memory._record_memory_history(context=None, max_entries=1_000_000)
    with clock.phase("training"):
        trainer.train()
        if not cpu:
            torch.cuda.synchronize()
    if not cpu:
        stats = torch.cuda.memory_stats()
        found |= {
            "context_bytes": context_bytes,
            "allocated_bytes": torch.cuda.max_memory_allocated(),
            "reserved_bytes": torch.cuda.max_memory_reserved(),
            "device_bytes": max([*watch.device, device_bytes()]),
            "outside_bytes": device_bytes() - torch.cuda.memory_reserved(),
            "retries": stats["num_alloc_retries"],
            "ooms": stats["num_ooms"],
        }
        if traced:
            events = torch.cuda.memory._snapshot()["device_traces"][0]
            found["events"] = [[event["action"], event["size"], event["addr"]] for event in events]
            torch.cuda.memory._record_memory_history(enabled=None)
    if capacity_bytes is None:
        with clock.phase("final_save"):
            if job.run.save_strategy != "no":
                trainer.save_model()
    found |= {
        "completed": True,
        "steps": trainer.state.global_step,
        "phases_s": clock.spent,
        "step_ends": watch.steps,
        "batches": watch.batches,
    }
    if capacity_bytes is None:
        import measure

        del trainer
        found["launches"] = [*measure.launches(torch, "cpu" if cpu else "cuda")]
    return found


def needs_bitsandbytes(case: dict[str, Any]) -> bool:
    return case["job"]["method"] == "qlora" or "8bit" in case["job"].get("optimizer", "")


def find_bitsandbytes() -> None:
    """It is on the path now; what was looked up before is forgotten."""
    import importlib

    sys.path[:0] = BNB_PATHS
    importlib.invalidate_caches()
    for name in ("transformers.utils.import_utils", "accelerate.utils.imports"):
        for value in vars(importlib.import_module(name)).values():
            if hasattr(value, "cache_clear"):
                value.cache_clear()


def answer(
    case: dict[str, Any], folder: Path, small: bool, cpu: bool, capacity_bytes: int | None, traced: bool, out: Any
) -> None:
    """In the child. Its kernels are compiled anew, as on a machine that was just rented."""
    os.environ["CUDA_CACHE_PATH"] = str(folder / f"kernels-{os.getpid()}")
    if needs_bitsandbytes(case):
        find_bitsandbytes()
    if case["job"].get("allocator") == "expandable_segments":
        os.environ["PYTORCH_ALLOC_CONF"] = os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    try:
        found = run_case(case, folder, small, cpu, capacity_bytes, traced)
    except Exception as error:
        oom = "OutOfMemory" in type(error).__name__
        found = {"id": case["id"], "completed": False, "oom": oom, "error": traceback.format_exc()[-1500:]}
    out.put(found)
