"""The folder a process works in: a file of every kind the program reads, and a network that answers what it is told."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tunecast.job import fetch
from tunecast.job.fetch import NoReply, Reply

JOB = """\
id: one
model: llama-3.2-1b
method: qlora
lora:
  rank: 16
  targets: all-linear
weights_dtype: bfloat16
optimizer: paged_adamw_8bit
seq_len: 512
micro_batch: 2
data: {tokens: 2000000, epochs: 1}
hardware:
  gpu: rtx-4090
"""
SMALL_CONFIG: dict[str, Any] = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 256, "intermediate_size": 688,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 1000,
    "torch_dtype": "bfloat16",
    "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "rope_theta": 1e4, "tie_word_embeddings": False,
    "rope_scaling": {"rope_type": "linear", "factor": 2.0}, "hidden_act": "silu", "attention_dropout": 0.0,
}  # fmt: skip
OWN_OFFER = """\
[[offer]]
provider = "lab"
gpu = "rtx-4090"
gpus = 2
eur_per_kwh = 0.31
"""
OOM_LOG = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.65 GiB "
    "of which 1.30 GiB is free. Process 4242 has 1.00 GiB memory in use. Including non-PyTorch memory, this process "
    "has 21.00 GiB memory in use. Of the allocated memory 19.50 GiB is allocated by PyTorch, with 1.00 GiB allocated "
    "in private pools (e.g., CUDA Graphs), and 1.05 GiB is reserved by PyTorch but unallocated.\n"
)

Answer = Callable[[str], Reply]


def furnish(folder: Path) -> None:
    (folder / "job.yaml").write_text(JOB)
    (folder / "jobs.jsonl").write_text('{"model": "gpt2"}\n{"model": "gpt2", "method": "lora"}\nnot a job\n')
    (folder / "job.json").write_text('{"model": "pythia-70m", "seq_len": 128}')
    (folder / "lengths.txt").write_text("512\n97\n1024,30\n")
    (folder / "own.toml").write_text(OWN_OFFER)
    (folder / "train.log").write_text(OOM_LOG)
    (folder / "small").mkdir()
    (folder / "small" / "config.json").write_text(json.dumps(SMALL_CONFIG))
    os.mkfifo(folder / "pipe.yaml")
    set_network(_unreachable)


def set_network(answer: Answer) -> None:
    """What every server says."""

    def exchange(url: str, token: object, most_bytes: int, timeout_s: float, part: bool, json: bytes | None) -> Reply:
        return answer(url)

    fetch._exchange = exchange


def _unreachable(url: str) -> Reply:
    raise NoReply("cannot be reached")
