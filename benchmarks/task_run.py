"""One job of any task for real, by TRL's own trainers: what it took of the card, and how long each part of a step took.

    python benchmarks/task_run.py JOB.json        one, here (also under `tunecast trace --`, which needs no card)
    python benchmarks/task_run.py JOBS.jsonl OUT.jsonl [--limit-s 500] [--fitting]

Each job of JOBS runs in a process of its own, forked from one that has imported the packages. Models are made on the
card with random weights; texts are words of one token each, so rows have the lengths a job says. Bytes and seconds.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
MODELS = HERE.parent / "src" / "tunecast" / "job" / "models"
sys.path[:0] = [str(HERE), str(HERE.parent / "src")]
STEPS = 6
"""As many as a prediction's run has."""
FIRST_WORD = 3
Job = dict[str, Any]


# -------------------------------------------------------------------------------------------------------------- models


def config_of(name: str) -> dict[str, Any]:
    raw = json.loads((MODELS / f"{name}.json").read_text())
    return raw


def model_of(job: Job, name: str | None = None, auto: str = "AutoModelForCausalLM", **more: Any) -> Any:
    """On the card, random. Of qlora by `from_pretrained`, which packs the weights."""
    import torch
    import transformers

    raw = {**config_of(name or job["model"]), **more}
    dtype = getattr(torch, job["weights_dtype"])
    kind = getattr(transformers, auto)
    if job["method"] == "qlora" and name is None:
        return quantized(job, kind, dtype, more)
    config = transformers.AutoConfig.for_model(raw.pop("model_type"), **raw)
    with torch.device("cuda"):
        model = kind.from_config(config, dtype=dtype, attn_implementation=job.get("attention", "sdpa"))
    return model


def quantized(job: Job, kind: Any, dtype: Any, more: dict[str, Any]) -> Any:
    from job_run import randomise, write_checkpoint
    from transformers import BitsAndBytesConfig

    where = write_checkpoint(job["model"], Path(tempfile.mkdtemp()), False)
    packed = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=dtype)
    model = kind.from_pretrained(where, dtype=dtype, device_map={"": 0}, quantization_config=packed, **more)
    randomise(model)
    return model


def adapters_of(job: Job, task_type: str = "CAUSAL_LM") -> Any:
    if job["method"] == "full":
        return None
    from peft import LoraConfig

    lora = job["lora"]
    return LoraConfig(
        r=lora["rank"], lora_alpha=lora["alpha"], lora_dropout=lora["dropout"], target_modules=lora["targets"],
        task_type=task_type,
    )  # fmt: skip


def tokenizer_of(job: Job, side: str = "right") -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    raw = config_of(job["model"])
    vocabulary = raw.get("text_config", raw)["vocab_size"]
    most = min(vocabulary, 31000)
    words = {"<pad>": 0, "</s>": 1, "<unk>": 2} | {f"w{n}": n for n in range(FIRST_WORD, most)}
    inner = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<pad>", eos_token="</s>", unk_token="<unk>", padding_side=side
    )


def text_of(length: int, start: int) -> str:
    return " ".join(f"w{FIRST_WORD + (start * 131 + place * 7) % 30000}" for place in range(length))


# ------------------------------------------------------------------------------------------------------------ trainers


def arguments_of(job: Job) -> dict[str, Any]:
    return {
        "output_dir": tempfile.mkdtemp(), "max_steps": STEPS, "per_device_train_batch_size": job["micro_batch"],
        "gradient_accumulation_steps": job["grad_accum"], "gradient_checkpointing": job["gradient_checkpointing"],
        "bf16": job["autocast"] == "bfloat16", "optim": job["optimizer"], "max_grad_norm": job["max_grad_norm"],
        "save_strategy": "no", "logging_steps": 1000, "report_to": [], "disable_tqdm": True, "seed": 1,
    }  # fmt: skip


def samples_of(job: Job) -> int:
    return STEPS * job["micro_batch"] * job["grad_accum"]


def pairs_of(job: Job) -> Any:
    from datasets import Dataset

    prompt = job["preference"]["prompt_length"] if "preference" in job else job["seq_len"] // 4
    answer = job["seq_len"] - prompt - 1  # and its end
    return Dataset.from_list(
        [
            {
                "prompt": text_of(prompt, i) + " ",
                "chosen": text_of(answer, i + 1),
                "rejected": text_of(answer, i + 2),
            }
            for i in range(samples_of(job))
        ]
    )


def dpo(job: Job) -> Any:
    from trl import DPOConfig, DPOTrainer

    settings = job.get("preference", {})
    precomputed = settings.get("reference") == "precomputed"
    needs_model = job["method"] == "full" and not precomputed
    return DPOTrainer(
        model_of(job),
        model_of(job, job["model"]) if needs_model else None,
        DPOConfig(max_length=job["seq_len"], precompute_ref_log_probs=precomputed, **arguments_of(job)),
        train_dataset=pairs_of(job),
        processing_class=tokenizer_of(job),
        peft_config=adapters_of(job),
    )


def kto(job: Job) -> Any:
    from datasets import Dataset
    from trl import KTOConfig, KTOTrainer

    rows = [
        {"prompt": row["prompt"], "completion": row["chosen" if i % 2 else "rejected"], "label": bool(i % 2)}
        for i, row in enumerate(pairs_of(job))
    ]
    return KTOTrainer(
        model_of(job),
        model_of(job, job["model"]) if job["method"] == "full" else None,
        KTOConfig(max_length=job["seq_len"], **arguments_of(job)),
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer_of(job),
        peft_config=adapters_of(job),
    )


def orpo(job: Job) -> Any:
    from trl.experimental.orpo import ORPOConfig, ORPOTrainer

    return ORPOTrainer(
        model_of(job), ORPOConfig(max_length=job["seq_len"], **arguments_of(job)), train_dataset=pairs_of(job),
        processing_class=tokenizer_of(job), peft_config=adapters_of(job),
    )  # fmt: skip


def cpo(job: Job) -> Any:
    from trl.experimental.cpo import CPOConfig, CPOTrainer

    own = {"loss_type": "simpo", "cpo_alpha": 0.0} if job["task"] == "simpo" else {}
    return CPOTrainer(
        model_of(job), CPOConfig(max_length=job["seq_len"], **own, **arguments_of(job)), train_dataset=pairs_of(job),
        processing_class=tokenizer_of(job), peft_config=adapters_of(job),
    )  # fmt: skip


def reward(job: Job) -> Any:
    from trl import RewardConfig, RewardTrainer

    return RewardTrainer(
        model_of(job, auto="AutoModelForSequenceClassification", num_labels=1, pad_token_id=0),
        RewardConfig(max_length=job["seq_len"], **arguments_of(job)),
        train_dataset=pairs_of(job),
        processing_class=tokenizer_of(job),
        peft_config=adapters_of(job, "SEQ_CLS"),
    )


def classify(job: Job) -> Any:
    from transformers import Trainer, TrainingArguments, default_data_collator

    labels = job["head"]["labels"]
    model = model_of(job, auto="AutoModelForSequenceClassification", num_labels=labels, pad_token_id=0)
    if (adapters := adapters_of(job, "SEQ_CLS")) is not None:
        from peft import get_peft_model

        model = get_peft_model(model, adapters)
    rows = [
        {
            "input_ids": [FIRST_WORD + (i * 131 + place * 7) % 30000 for place in range(job["seq_len"])],
            "attention_mask": [1] * job["seq_len"],
            "labels": i % labels,
        }
        for i in range(samples_of(job))
    ]
    return Trainer(model, TrainingArguments(**arguments_of(job)), default_data_collator, rows)


def rollouts(job: Job) -> Any:
    import trl
    from datasets import Dataset

    kind = {"grpo": "GRPO", "rloo": "RLOO"}[job["task"]]
    rl = job["rl"]
    prompts = [{"prompt": text_of(rl["prompt_length"], i)} for i in range(max(64, samples_of(job)))]
    arguments = getattr(trl, f"{kind}Config")(
        num_generations=rl["generations"], max_completion_length=rl["completion_length"],
        num_iterations=rl["iterations"], steps_per_generation=rl.get("steps_per_generation"),
        beta=rl["beta"], **arguments_of(job),
    )  # fmt: skip
    model = model_of(job)
    if job["method"] == "full" and rl["beta"]:  # a reference is loaded by the model's name
        from job_run import write_checkpoint

        model.config._name_or_path = str(write_checkpoint(job["model"], Path(tempfile.mkdtemp()), False))
    trainer = getattr(trl, f"{kind}Trainer")(
        model,
        lambda completions, **_: [float(len(text) % 7) for text in completions],
        arguments,
        train_dataset=Dataset.from_list(prompts),
        processing_class=tokenizer_of(job, "left"),
        peft_config=adapters_of(job),
    )
    return trainer


CHAT = "{% for message in messages %}{{ message['content'] }} {% endfor %}"


def distill(job: Job) -> Any:
    from datasets import Dataset
    from trl.experimental.gkd import GKDConfig, GKDTrainer

    prompt = 1  # as a job without data has it
    rows = [
        {
            "messages": [
                {"role": "user", "content": text_of(prompt, i)},
                {"role": "assistant", "content": text_of(job["seq_len"] - prompt, i + 1)},
            ]
        }
        for i in range(samples_of(job))
    ]
    tokenizer = tokenizer_of(job)
    tokenizer.chat_template = CHAT
    return GKDTrainer(
        model_of(job),
        model_of(job, job["distill"]["teacher"]),
        GKDConfig(lmbda=0.0, max_length=job["seq_len"], **arguments_of(job)),
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        peft_config=adapters_of(job),
    )


# ------------------------------------------------------------------------------------------------------- with images


class Pictures:
    """Rows of text with pictures in them, by the model's own image processor: one square picture of `vision.pixels`."""

    def __init__(self, job: Job) -> None:
        import numpy
        from PIL import Image
        from transformers import AutoConfig

        self.job, raw = job, config_of(job["model"])
        side = round(job["vision"]["pixels"] ** 0.5)
        drawn = numpy.random.default_rng(0).integers(0, 256, (side, side, 3), dtype=numpy.uint8)
        self.pictures = [Image.fromarray(drawn)] * job["vision"]["images"]
        config = AutoConfig.for_model(**raw)
        self.kind = raw["model_type"]
        self.mark = getattr(config, "image_token_id", None) or config.image_token_index
        self.processor = processor_of(raw)

    def __call__(self, samples: list[Any]) -> dict[str, Any]:
        import torch

        rows, length = len(samples), self.job["seq_len"]
        seen = dict(self.processor(images=self.pictures * rows, return_tensors="pt"))
        seen.pop("num_crops", None)  # which Gemma's processor counts tokens by, and keeps
        counts = self.tokens(seen)[: len(self.pictures)]
        ids = FIRST_WORD + torch.arange(rows * length).view(rows, -1) % 30000
        place = 15
        for count in counts:
            ids[:, place : place + count] = self.mark
            place += count + 2
        assert place < length, f"{counts} image tokens in rows of {length}"
        batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        kinds = (ids == self.mark).long()
        if self.kind.startswith("qwen"):
            batch["mm_token_type_ids"] = kinds
        elif self.kind == "gemma3":
            batch["token_type_ids"] = kinds
        return {**batch, **seen, "labels": ids.clone()}

    def tokens(self, seen: dict[str, Any]) -> list[int]:
        """Of each picture, as the model's processor counts them."""
        if "image_grid_thw" in seen:
            merge = self.processor.merge_size**2
            return [int(grid.prod()) // merge for grid in seen["image_grid_thw"]]
        if "image_sizes" in seen:  # Pixtral's: rows with a mark at the end of each, which is text to the model
            patch = config_of(self.job["model"])["vision_config"]["patch_size"] * 2
            return [int(h // patch) * int(w // patch) for h, w in seen["image_sizes"]]
        return [{"gemma3": 256, "llava": 576, "internvl": 256}[self.kind]] * len(seen["pixel_values"])


def processor_of(raw: dict[str, Any]) -> Any:
    """Of the model's kind, with its checkpoints' usual settings."""
    import transformers

    vision = raw["vision_config"]
    if raw["model_type"].startswith("qwen"):
        own = {"patch_size": vision["patch_size"], "merge_size": vision["spatial_merge_size"]}
        return transformers.Qwen2VLImageProcessor(temporal_patch_size=vision["temporal_patch_size"], **own)
    if raw["model_type"] == "gemma3":
        side = vision["image_size"]
        return transformers.Gemma3ImageProcessor(size={"height": side, "width": side})
    if raw["model_type"] == "llava":
        side = vision["image_size"]
        return transformers.CLIPImageProcessor(size={"shortest_edge": side}, crop_size={"height": side, "width": side})
    if raw["model_type"] == "internvl":
        side = vision["image_size"][0] if isinstance(vision["image_size"], list) else vision["image_size"]
        return transformers.CLIPImageProcessor(size={"height": side, "width": side}, do_center_crop=False)
    patch = vision["patch_size"]
    return transformers.PixtralImageProcessor(
        patch_size={"height": 2 * patch, "width": 2 * patch}, size={"longest_edge": vision["image_size"]}
    )


def with_pictures(job: Job) -> Any:
    from transformers import Trainer, TrainingArguments

    model = model_of(job, auto="AutoModelForImageTextToText")
    if (adapters := adapters_of(job)) is not None:
        from peft import get_peft_model

        model = get_peft_model(model, adapters)
        if job["gradient_checkpointing"]:
            model.enable_input_require_grads()
    frozen = [] if "tower" in job["vision"]["trained"] else ["visual.", "vision_tower.", "vision_model."]
    for name, parameter in model.named_parameters():
        if any(part in name for part in frozen):
            parameter.requires_grad_(False)
    arguments = TrainingArguments(remove_unused_columns=False, **arguments_of(job))
    rows = [{"sample": n} for n in range(samples_of(job))]
    return Trainer(model, arguments, Pictures(job), train_dataset=rows)


TRAINERS: dict[str, Callable[[Job], Any]] = {
    "dpo": dpo, "kto": kto, "orpo": orpo, "cpo": cpo, "simpo": cpo, "reward": reward, "classify": classify,
    "grpo": rollouts, "rloo": rollouts, "distill": distill, "sft": with_pictures,
}  # fmt: skip


# -------------------------------------------------------------------------------------------------------- what it took


class Watch:
    """After each step the clock and the allocator's counters; of `generate` how long it took."""

    def __init__(self) -> None:
        self.steps: list[dict[str, float]] = []
        self.generate_s: list[float] = []
        self.began = 0.0

    def generating(self) -> None:
        """Times every call of transformers' generate, the card's work included."""
        import torch
        from transformers import GenerationMixin

        generate, watch = GenerationMixin.generate, self

        def timed(self: Any, *given: Any, **named: Any) -> Any:
            torch.cuda.synchronize()
            began = time.perf_counter()
            found = generate(self, *given, **named)
            torch.cuda.synchronize()
            watch.generate_s.append(round(time.perf_counter() - began, 4))
            return found

        GenerationMixin.generate = timed

    def callback(self) -> Any:
        import torch
        from transformers import TrainerCallback

        watch = self

        class AfterStep(TrainerCallback):  # type: ignore[misc]
            def on_train_begin(self, *given: Any, **named: Any) -> None:
                torch.cuda.synchronize()
                torch.cuda.reset_peak_memory_stats()
                watch.model_alloc = torch.cuda.memory_allocated()
                watch.began = time.perf_counter()

            def on_step_end(self, *given: Any, **named: Any) -> None:
                torch.cuda.synchronize()
                now = time.perf_counter()
                watch.steps.append(
                    {
                        "s": round(now - watch.began, 4),
                        "peak_alloc": torch.cuda.max_memory_allocated(),
                        "peak_reserved": torch.cuda.max_memory_reserved(),
                    }
                )
                watch.began = time.perf_counter()

        return AfterStep()


def run(job: Job) -> dict[str, Any]:
    import torch

    torch.zeros(1, device="cuda")
    torch.manual_seed(0)
    torch.cuda.empty_cache()
    watch = Watch()
    watch.generating()
    trainer = TRAINERS[job["task"]](job)
    trainer.add_callback(watch.callback())
    trainer.train()
    free, total = torch.cuda.mem_get_info()
    last = watch.steps[-1]
    return {
        "completed": True, "model_alloc": watch.model_alloc, "peak_alloc": last["peak_alloc"],
        "peak_reserved": last["peak_reserved"], "device_used": total - free,
        "step_s": [step["s"] for step in watch.steps], "generate_s": watch.generate_s,
        "peaks": [step["peak_alloc"] for step in watch.steps], "torch": torch.__version__,
    }  # fmt: skip


def answer(job: Job, start: Any, answers: Any) -> None:
    """In a process of its own: packages are imported while the case before still runs."""
    try:
        import peft  # noqa: F401
        import trl  # noqa: F401

        start.wait()
        answers.put(run(job))
    except Exception as error:
        traceback.print_exception(error)  # for whoever looks on: what is kept names no place of this machine
        told = "".join(traceback.format_exception_only(error)).strip()[-700:]
        answers.put({"completed": False, "oom": "OutOfMemory" in type(error).__name__, "error": told})


class Started:
    """A case whose process is there and waits for its turn."""

    def __init__(self, row: dict[str, Any]) -> None:
        fork = multiprocessing.get_context("fork")
        self.row, self.start, self.answers = row, fork.Event(), fork.Queue()
        self.child = fork.Process(target=answer, args=(row["job"], self.start, self.answers))
        self.child.start()

    def measured(self, most_s: float) -> dict[str, Any]:
        began = time.monotonic()
        self.start.set()
        try:
            found = self.answers.get(timeout=most_s)
        except Exception:
            found = {"completed": False, "error": f"no answer within {most_s:.0f} s"}
        self.end()
        return {**found, "wall_s": round(time.monotonic() - began, 1)}

    def end(self) -> None:
        self.child.kill()
        self.child.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", type=Path)
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("--limit-s", type=float, default=500)
    parser.add_argument("--case-s", type=float, default=90)
    parser.add_argument("--fitting", action="store_true", help="of predictions, those that are said to fit")
    options = parser.parse_args()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    if options.out is None:
        print(json.dumps(run(json.loads(options.jobs.read_text()))))
        return
    import datasets  # noqa: F401  imported before the fork, so that each case starts in a moment
    import torch  # noqa: F401
    import transformers  # noqa: F401

    rows = [json.loads(line) for line in options.jobs.read_text().splitlines()]
    if options.fitting:
        rows = [row for row in rows if row.get("predicted", {}).get("fits")]
    rows.sort(key=lambda row: ("vision" not in row["job"], "rl" in row["job"]))  # what takes longest comes last
    start = time.monotonic()
    following = Started(rows[0])
    with options.out.open("a") as out:
        for number, row in enumerate(rows):
            case = following
            if time.monotonic() - start > options.limit_s:
                print("out of time before", row["job"]["id"], flush=True)
                case.end()
                break
            if number + 1 < len(rows):
                following = Started(rows[number + 1])
            measured = case.measured(options.case_s)
            out.write(json.dumps({**row, "measured": measured}) + "\n")
            out.flush()
            brief = {k: measured.get(k) for k in ("completed", "peak_alloc", "peak_reserved", "step_s", "wall_s")}
            print(row["job"]["id"], json.dumps(brief), (measured.get("error") or "")[-600:], flush=True)


if __name__ == "__main__":
    main()
