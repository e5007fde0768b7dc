"""Arguments of transformers' Trainer in a file: what `TrainingArguments.to_json_string` writes, and what a script reads
by `HfArgumentParser.parse_json_file`, such as run_clm.py, beside the names of a model and of data.

Keys and defaults: transformers/training_args.py, `TrainingArguments`; examples/pytorch/language-modeling/run_clm.py,
`ModelArguments` and `DataTrainingArguments`.
"""

from __future__ import annotations

from tunecast.job.recipes import huggingface, huggingface_keys
from tunecast.job.recipes.document import Document
from tunecast.job.recipes.draft import Draft, Keys
from tunecast.job.recipes.parts.accelerate import read_accelerate
from tunecast.job.recipes.request import ReadRequest
from tunecast.job.releases import RELEASES

NAME = "transformers"
RELEASE = RELEASES["transformers"].newest
WORDS = huggingface_keys.WORDS
DEFAULTS = huggingface_keys.TRAINING_ARGUMENTS
WITHOUT_EFFECT = (
    *huggingface_keys.WITHOUT_EFFECT,
    *huggingface_keys.SFT_WITHOUT_EFFECT,
    *("train_file", "validation_file", "validation_split_percentage", "cache_dir", "use_fast_tokenizer"),
    *("tokenizer_name", "max_eval_samples", "keep_linebreaks", "token", "dataset_config_name", "torchscript"),
)
DISTINCTIVE = (
    *("per_device_train_batch_size", "per_device_eval_batch_size", "gradient_accumulation_steps", "num_train_epochs"),
    *("lr_scheduler_type", "logging_steps", "save_steps", "save_strategy", "save_total_limit", "eval_strategy"),
    *("evaluation_strategy", "output_dir", "learning_rate", "gradient_checkpointing", "optim", "warmup_ratio"),
)
OF_SFT = ("packing", "dataset_text_field", "assistant_only_loss", "max_seq_length", "eval_packing")
"""Keys of TRL's SFTConfig."""
BLOCK = 1024
"""run_clm.py, `main`: the tokenizer's longest, and no more than this, where block_size does not say."""


def recognises(document: Document) -> bool:
    return document.has("per_device_train_batch_size") and sum(map(document.has, DISTINCTIVE)) > 2


def read(draft: Draft, request: ReadRequest) -> None:
    keys = draft.keys(request.document, WITHOUT_EFFECT)
    is_sft = any(map(keys.has, OF_SFT))
    draft.put("stack", "trl" if is_sft else "transformers", keys, "per_device_train_batch_size")
    take_model(draft, keys)
    arguments = huggingface_keys.TRL_ARGUMENTS if is_sft else huggingface_keys.TRAINING_ARGUMENTS
    huggingface.take_training_arguments(draft, keys, request, arguments)
    if is_sft:
        huggingface.take_sft_config(draft, keys)
    elif not draft.take("seq_len", keys, "block_size", "max_length", "max_seq_length", "model_max_length"):
        draft.assume("seq_len", BLOCK, "run_clm.py's block_size")
    if keys.get("block_size") is not None:
        draft.put("task", "pretrain", keys, "block_size")
    if request.launch.accelerate is not None:
        read_accelerate(draft, request.launch.accelerate, request)


def take_model(draft: Draft, keys: Keys) -> None:
    """run_clm.py's `ModelArguments`; of arguments alone the model stays open."""
    draft.take("model", keys, "model_name_or_path", "model_name", "config_name")
    huggingface.take_dtype(draft, keys, "torch_dtype", "dtype")
    huggingface.take_attention(draft, keys, "attn_implementation")
    draft.take("data.samples", keys, "max_train_samples")
    draft.take("data.num_proc", keys, "preprocessing_num_workers", "dataset_num_proc")
    if huggingface.is_on(keys.get("use_peft")):
        huggingface.take_model_config(draft, keys)
    else:
        keys.ignore(*huggingface.LORA_KEYS)
        draft.assume("method", "full")
