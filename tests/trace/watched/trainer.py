"""A Llama of two layers, trained by transformers' Trainer on CPUs: `trainer.py OUTPUT STEPS [HOW]`."""

import os
import sys
import time
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


class OneIsLong(torch.utils.data.Dataset):
    """400 rows of 16 tokens but one."""

    lengths = [16] * 399 + [256]

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, number):
        ids = torch.arange(self.lengths[number]) % 97
        return {"input_ids": ids, "labels": ids}


def padded(rows):
    """To the longest row of the batch, as transformers' collators pad."""
    pad = torch.nn.utils.rnn.pad_sequence
    ids = pad([row["input_ids"] for row in rows], batch_first=True)
    return {"input_ids": ids, "labels": pad([row["labels"] for row in rows], batch_first=True, padding_value=-100)}


passes = 0


def before_a_pass(module, inputs, named):
    global passes
    passes += module.training
    if HOW == "asked" and passes == 10:  # as `tunecast watch` asks where a limit is near
        (Path(os.environ["TUNECAST_RUN"]) / "stop").touch()
    is_longest = HOW == "longest" and named["input_ids"].shape[1] == 256
    if is_longest:  # the card is full, once it was said
        journal = Path(os.environ["TUNECAST_RUN"]) / "run.jsonl"
        for _ in range(600):
            if "run out of memory at step" in journal.read_text():
                break
            time.sleep(0.1)
        print("the longest batch comes at step", (passes + 1) // 2, file=sys.stderr)
    if is_longest or (HOW == "oom" and passes == 4):
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
model.register_forward_pre_hook(before_a_pass, with_kwargs=True)
rows, collator = (OneIsLong(), padded) if HOW == "longest" else (Rows(), None)
Trainer(model, arguments, collator, train_dataset=rows, eval_dataset=evaluated, callbacks=callbacks).train()
