"""What the Trainer and TRL train on: their own loops over tiny data on the CPU, and the shapes that reach the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

Shapes = list[tuple[tuple[int, int], ...]]


def tiny_model() -> LlamaForCausalLM:
    sizes = {"vocab_size": 32, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    return LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=2, max_position_embeddings=1024))


def dataset(lengths: Sequence[int]) -> Any:
    import datasets

    return datasets.Dataset.from_dict({"input_ids": [[1] * length for length in lengths]})


def dealt(trainer: Trainer, ranks: int, rank: int) -> None:
    """The loader is made as the process of that rank would have it made."""
    from accelerate.data_loader import prepare_data_loader

    own = trainer.accelerator.prepare

    def prepare(*given: Any) -> Any:
        if not isinstance(given[0], torch.utils.data.DataLoader):
            return own(*given)
        return prepare_data_loader(
            given[0], num_processes=ranks, process_index=rank, put_on_device=False, split_batches=False,
            rng_types=["generator"], dispatch_batches=False, even_batches=True, use_seedable_sampler=True,
            data_seed=trainer.accelerator.dataloader_config.data_seed,
        )  # fmt: skip

    trainer.accelerator.prepare = prepare


def trained_on(trainer: Trainer, ranks: int = 1, rank: int = 0) -> Shapes:
    """Shapes of `input_ids`, by optimizer step. Nothing is computed: a step is what the loader gives."""
    if ranks > 1:
        dealt(trainer, ranks, rank)
    seen: dict[int, list[tuple[int, int]]] = {}

    def training_step(model: Any, inputs: dict[str, Any], *_: Any, **__: Any) -> torch.Tensor:
        seen.setdefault(trainer.state.global_step, []).append(tuple(inputs["input_ids"].shape))
        return torch.zeros(())

    trainer.training_step = training_step
    trainer.train()
    return [tuple(seen[step]) for step in sorted(seen)]


ALWAYS = {
    "use_cpu": True,
    "report_to": [],
    "save_strategy": "no",
    "disable_tqdm": True,
    "logging_strategy": "no",
    "bf16": False,
    "gradient_checkpointing": False,
}


def plain_trainer(lengths: Sequence[int], folder: str, pad_to: int | None = None, **arguments: Any) -> Trainer:
    def collate(features: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
        longest = max(len(feature["input_ids"]) for feature in features)
        longest += -longest % (pad_to or 1)
        ids = torch.ones(len(features), longest, dtype=torch.int64)
        return {"input_ids": ids, "labels": ids}

    told = TrainingArguments(output_dir=folder, **ALWAYS, **arguments)
    evaluated = dataset(lengths[:9]) if "eval_strategy" in arguments else None
    return Trainer(tiny_model(), told, collate, train_dataset=dataset(lengths), eval_dataset=evaluated)


def sft_trainer(lengths: Sequence[int], folder: str, peft: bool = False, **arguments: Any) -> Trainer:
    from peft import LoraConfig
    from trl import SFTConfig, SFTTrainer

    told = SFTConfig(output_dir=folder, **ALWAYS, **arguments)
    return SFTTrainer(
        tiny_model(),
        told,
        train_dataset=dataset(lengths),
        processing_class=tokenizer(),
        peft_config=LoraConfig(target_modules=["q_proj"], r=2) if peft else None,
    )


def tokenizer() -> Any:
    from tokenizers import Tokenizer as Fast
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    words = {"<pad>": 0, "<eos>": 2, "a": 1}
    return PreTrainedTokenizerFast(
        tokenizer_object=Fast(WordLevel(words, unk_token="a")), pad_token="<pad>", eos_token="<eos>"
    )
