"""What a script says of its own run, as plain values: how long it is, what it set where, what it asked of the card.

Recorded by the traced process (`observer.py`), read by whoever plans with it. Loads no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from tunecast.records import NamedTuple, dataclass

Place = Literal["option", "call", "file"]
Takes = Literal["value", "flag", "no flag", "switch"]


@dataclass(frozen=True)
class ScriptSetting:
    """A well-known setting of the script, and where its value comes from."""

    name: str
    """As the script calls it: `per_device_train_batch_size`; in a file, with the sections above it: `train.batch`."""
    value: Any
    place: Place
    """An option of the command line, an argument of a call in the code, or a key of a file that was read."""
    spelled: str
    """`--batch-size`, `TrainingArguments`, `/home/me/config.yaml`."""
    line: str = ""
    """`/home/me/train.py:31`, of a call."""
    takes: Takes = "value"
    """How an option is given: `--x 4`, `--x`, `--no-x` alone, or either of `--x` and `--no-x`."""

    @property
    def key(self) -> str:
        """The last part of its name."""
        return self.name.rpartition(".")[2]


class WeightsFile(NamedTuple):
    """A file of tensors that the script reads; one that is not here, as large as its model's checkpoint is."""

    nbytes: int
    from_hub: bool
    """Whether it is named by its place on a hub, from where a machine that was just rented has to download it."""


@dataclass(frozen=True)
class ScriptFacts:
    total_steps: int | None = None
    """Optimizer steps of the whole run, as its trainer counted them when training began."""
    total_steps_from: str = ""
    """Who says so."""
    epoch_batches: int | None = None
    """len() of the data loader that training reads."""
    batches_per_step: float | None = None
    """Batches read for each optimizer step."""
    settings: tuple[ScriptSetting, ...] = ()
    asked: tuple[str, ...] = ()
    """Of the card, what a program asked besides what every kernel depends on: memory, name."""
    saved_bytes: tuple[int, ...] = ()
    """Of tensors, of each file that it would have written."""
    read_files: tuple[WeightsFile, ...] = ()
    """Each file of tensors that it reads, once."""
    masked_attention: bool = False
    """Whether cuDNN's attention was given a mask, as it is where a batch is padded."""

    @property
    def epoch_steps(self) -> int | None:
        """The last batches of an epoch make a step too, as the Trainer has it."""
        if self.epoch_batches is None or not self.batches_per_step:
            return None
        return max(1, -int(-self.epoch_batches // self.batches_per_step))

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> ScriptFacts:
        settings = tuple(ScriptSetting(**each) for each in values.get("settings", ()))
        lists = {name: tuple(values.get(name, ())) for name in ("asked", "saved_bytes")}
        files = tuple(WeightsFile(*each) for each in values.get("read_files", ()))
        return ScriptFacts(**{**values, "settings": settings, "read_files": files, **lists})


@dataclass(frozen=True)
class SettingOverride:
    """Another value for a setting that is no option of the command line."""

    place: Place
    spelled: str
    name: str
    value: Any


KNOWN = frozenset(
    {
        *("per_device_train_batch_size", "per_device_batch_size", "train_batch_size", "micro_batch_size", "batch_size"),
        *("micro_batch", "device_batch_size", "gradient_accumulation_steps", "grad_accum", "accumulation_steps"),
        *("grad_accumulation_steps", "gradient_accumulation", "accumulate_grad_batches", "accum_steps"),
        *("max_length", "max_seq_length", "max_seq_len", "seq_len", "seq_length", "block_size", "sequence_length"),
        *("context_length", "cutoff_len", "model_max_length", "sequence_len"),
        *("gradient_checkpointing", "grad_checkpointing", "activation_checkpointing", "use_gradient_checkpointing"),
        *("optim", "optimizer", "bf16", "fp16", "use_liger_kernel", "use_liger", "attn_implementation", "attention"),
        *("lora_r", "lora_rank", "r", "packing", "activation_offloading", "torch_compile", "compile"),
    }
)
"""Names under which training scripts know what decides memory and time; dashes read as underscores."""


def plain_name(name: str) -> str:
    return name.rpartition(".")[2].lstrip("-").replace("-", "_")
