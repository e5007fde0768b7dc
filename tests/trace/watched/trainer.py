"""A Llama of two layers, trained by transformers' Trainer on CPUs: `trainer.py OUTPUT STEPS [oom|asked|callback]`."""

import os
import sys
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

torch.set_num_threads(1)
OUTPUT, STEPS, HOW = sys.argv[1], int(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else ""


class Rows(torch.utils.data.Dataset):
    """16 to 32 tokens, padded to 32."""

    def __len__(self):
        return 100_000

    def __getitem__(self, number):
        length = 16 + number % 17
        ids, padding = torch.arange(length) % 97, 32 - length
        return {
            "input_ids": torch.cat([ids, torch.zeros(padding, dtype=torch.long)]),
            "attention_mask": torch.tensor([1] * length + [0] * padding),
            "labels": torch.cat([ids, torch.full((padding,), -100)]),
        }


passes = 0


def before_a_pass(module, inputs):
    global passes
    passes += 1
    if HOW == "asked" and passes == 10:  # as `tunecast watch` asks where a limit is near
        (Path(os.environ["TUNECAST_RUN"]) / "stop").touch()
    if HOW == "oom" and passes == 4:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


config = LlamaConfig(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, vocab_size=101)
arguments = TrainingArguments(
    output_dir=OUTPUT, max_steps=STEPS, per_device_train_batch_size=4, gradient_accumulation_steps=2, report_to=[],
    logging_steps=2, save_strategy="no", use_cpu=True, disable_tqdm=True, eval_strategy="steps", eval_steps=6,
)  # fmt: skip
evaluated = torch.utils.data.Subset(Rows(), range(8))
callbacks = []
if HOW == "callback":
    import tunecast

    callbacks.append(tunecast.Callback())
model = LlamaForCausalLM(config)
model.register_forward_pre_hook(before_a_pass)
Trainer(model, arguments, train_dataset=Rows(), eval_dataset=evaluated, callbacks=callbacks).train()
