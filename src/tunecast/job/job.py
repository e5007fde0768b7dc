"""The Job: everything that decides what a fine-tuning run does to a GPU, as one frozen value.

Names and meanings are those of the public contract; a default is TRL's where TRL has one, then transformers', then
PEFT's, then accelerate's, at the versions in `VERSIONS`. Every field carries its own `Knob`, from which the readers,
the flags, the messages and docs/defaults.md are made: a new field is one line here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from tunecast import records
from tunecast.job.check import changed, contradictions, settled
from tunecast.job.kernels import ATTENTIONS, CHOSEN, INSTALLED
from tunecast.job.knob import (
    OURS,
    REQUIRED,
    Knob,
    Problem,
    Section,
    field,
    knobs_of,
    raise_if_any,
    release_field,
    section,
    shown,
    transformers,
    trl,
)
from tunecast.job.names import DTYPES, METHODS, TASKS
from tunecast.job.optimizers import DEFAULT_OPTIMIZER, MASTERS, OPTIMIZERS
from tunecast.job.parallel import Parallel
from tunecast.job.releases import RELEASES
from tunecast.job.sections import Data, Hardware, Lora, Quantization, Run
from tunecast.job.stacks import DEFAULT_STACK, STACKS
from tunecast.job.task_sections import OF_TASKS, Distill, Head, Preference, Rl, Vision
from tunecast.records import dataclass
from tunecast.result import notebook_html

__all__ = [
    "Data",
    "Distill",
    "Hardware",
    "Head",
    "Job",
    "Lora",
    "Parallel",
    "Preference",
    "Quantization",
    "Rl",
    "Run",
    "Vision",
    "all_knobs",
    "sections",
]

VERSIONS: Mapping[str, str] = {
    title: RELEASES[title.lower()].newest for title in ("TRL", "transformers", "PEFT", "accelerate")
}
"""The releases whose defaults these are."""


@dataclass(frozen=True)
class Job(Section):
    model: str = field(
        REQUIRED,
        OURS,
        "bundled name, Hub id, folder with config.json, or a config.json; in a job file, paths that begin with ./ "
        "or ../ are relative to that file",
        aka="model_name_or_path base_model model_name",
    )
    id: str | int | None = field(None, OURS, "echoed in the answer")
    task: str = field(
        "sft",
        OURS,
        "the training task; micro_batch counts pairs for dpo, orpo, cpo, simpo and reward, completions for grpo, "
        "rloo and ppo, otherwise rows",
        choices=TASKS,
        aka="stage",
    )
    method: str = field(
        "full",
        trl("ModelConfig.use_peft", False),
        "what is trained: all weights, or adapters",
        choices=METHODS,
        aka="finetuning_type adapter peft_method",
    )
    trained: tuple[str, ...] | None = field(
        None,
        OURS,
        "with method full: modules to train, by dot-separated parts of their names, such as layers.31, "
        "layers.31.mlp or lm_head; all others are frozen; null: every parameter is trained",
    )
    stack: str = field(
        DEFAULT_STACK, OURS, "training stack whose kernels, casts and loss are used", choices=tuple(STACKS)
    )
    transformers_version: str | None = release_field("transformers", "4.48")
    torch_version: str | None = release_field("torch", "2.13")
    peft_version: str | None = release_field("peft", "0.21")
    trl_version: str | None = release_field("trl", "1.16")
    bitsandbytes_version: str | None = release_field("bitsandbytes", "0.50")
    liger_version: str | None = release_field("liger-kernel", "0.8")
    unsloth_version: str | None = release_field("unsloth", "2026.10")
    stack_version: str | None = release_field("the stack's own package if no field above covers it", "torchtune's 0.4")
    lora: Lora = section(Lora, "adapters, with method lora or qlora")
    quantization: Quantization = section(Quantization, "of the frozen weights, with method qlora")
    weights_dtype: str = field(
        "auto",
        transformers("PreTrainedModel.from_pretrained.dtype"),
        "dtype that non-quantised base weights are loaded in; auto: as the stack does (transformers and TRL: the "
        "checkpoint's own)",
        choices=("auto", *DTYPES),
        aka="dtype torch_dtype model_dtype",
    )
    autocast: str | None = field(
        "bfloat16", trl("SFTConfig.bf16", None), "mixed-precision dtype; null: none", choices=("bfloat16", "float16")
    )
    matmul_dtype: str | None = field(
        None, OURS, "dtype linear layers compute in, if lower than autocast's", choices=("float8", "float4")
    )
    optimizer: str = field(
        DEFAULT_OPTIMIZER,
        transformers("TrainingArguments.optim"),
        "transformers' `optim`, or muon; te_fused_adam and flash_adamw are estimates; the default holds from "
        "torch 2.8 on",
        choices=tuple(OPTIMIZERS),
        aka="optim optimiser",
    )
    optimizer_state_dtype: str | None = field(
        None,
        OURS,
        "dtype of both moments, for te_fused_adam (exp_avg_dtype) and Megatron's optimizer (exp_avg_dtype with "
        "use_precision_aware_optimizer); null: float32",
        choices=("float32", "bfloat16"),
        aka="exp_avg_dtype",
    )
    master_weights: str | None = field(
        None,
        OURS,
        "what the optimizer keeps for 16-bit weights besides its moments: nothing, a float32 copy, or the 16 bits "
        "that the weights lack (store_param_remainders); null: as te_fused_adam, flash_adamw or Megatron do",
        choices=MASTERS,
    )
    optimizer_in_backward: bool = field(
        False,
        OURS,
        "update each weight as soon as its gradient is computed, then drop the gradient",
        aka="optimizer_in_bwd",
    )
    max_grad_norm: float = field(
        1.0,
        transformers("TrainingArguments.max_grad_norm"),
        "norm that gradients are clipped to; 0: no clipping",
        within=(0, 1e9),
        null_is=0.0,
        aka="grad_clip clip_grad_norm gradient_clipping",
    )
    seq_len: int = field(
        1024,
        trl("SFTConfig.max_length"),
        "tokens each row is padded or packed to, 4k for 4096; if only lengths are given, the longest of them",
        within=(1, 10_000_000),
        aka="max_length max_seq_length max_seq_len sequence_len cutoff_len model_max_length "
        "sequence_length seq_length context_length block_size",
        kilo=1024,
    )
    micro_batch: int = field(
        8,
        transformers("TrainingArguments.per_device_train_batch_size"),
        "rows per device per micro-batch",
        within=(1, 1_000_000),
        aka="per_device_train_batch_size micro_batch_size batch_size batch per_device_batch_size bs",
    )
    grad_accum: int = field(
        1,
        transformers("TrainingArguments.gradient_accumulation_steps"),
        "micro-batches per step",
        within=(1, 100_000),
        aka="gradient_accumulation_steps gradient_accumulation grad_accum_steps accum",
    )
    gradient_checkpointing: bool = field(
        True,
        trl("SFTConfig.gradient_checkpointing"),
        "recompute activations in the backward pass",
        aka="activation_checkpointing use_gradient_checkpointing enable_activation_checkpointing",
    )
    checkpoint_reentrant: bool | None = field(
        None, OURS, "reentrant checkpointing, the older kind; null: as the stack's release does", aka="use_reentrant"
    )
    recompute: str | None = field(
        None,
        OURS,
        "with gradient_checkpointing: recompute whole layers, or all but their expensive operations (torchtitan's "
        "per-op selective checkpointing); null: as the stack does",
        choices=("all", "selective"),
    )
    offload_activations: bool = field(
        False,
        trl("SFTConfig.activation_offloading"),
        "keep activations for the backward pass in host memory",
        aka="activation_offloading enable_activation_offloading",
    )
    attention: str = field(
        "sdpa",
        transformers("PreTrainedModel.get_correct_attn_implementation"),
        "attention implementation; flex_attention and xformers are estimates",
        choices=ATTENTIONS,
        aka="attn_implementation attn attn_impl",
    )
    kernels: tuple[str, ...] = field(
        (),
        trl("SFTConfig.use_liger_kernel", False),
        "fused kernels: all of Liger's (liger, with head and loss fused) or single ones, cut_cross_entropy and "
        "axolotl's lora_triton (estimates), foak; fla, causal-conv1d, mamba-ssm: installed, so that layers "
        "without attention use them",
        choices=(*CHOSEN, *INSTALLED),
    )
    loss: str | None = field(
        None,
        OURS,
        "how logits are computed: all at once, upcast to float32 for the loss (full) or not (low_precision: NeMo "
        "Automodel's fp32_upcast: false), or in chunks (chunked); fused: Megatron Core's "
        "cross_entropy_loss_fusion; null: as the stack does",
        choices=("full", "low_precision", "chunked", "fused"),
    )
    compile: bool = field(
        False, transformers("TrainingArguments.torch_compile"), "use torch.compile", aka="torch_compile"
    )
    allocator: str = field(
        "native", OURS, "PyTorch's CUDA allocator: PYTORCH_CUDA_ALLOC_CONF", choices=("native", "expandable_segments")
    )
    lengths: tuple[int, ...] | None = field(
        None,
        OURS,
        "padded length of each successive micro-batch, cycled; null: always seq_len",
        within=(1, 10_000_000),
        kilo=1024,
    )
    preference: Preference = section(Preference, "with task dpo, kto, orpo, cpo or simpo")
    rl: Rl = section(Rl, "with task grpo, rloo or ppo")
    head: Head = section(Head, "with task reward, prm, classify, embed or rerank")
    distill: Distill = section(Distill, "with task distill, and grpo with a teacher")
    vision: Vision = section(Vision, "images and videos beside text, of models with a vision tower")
    data: Data = section(Data, "how much there is to train on")
    run: Run = section(Run, "how long it runs, and what happens between steps")
    hardware: Hardware = section(Hardware, "where it runs")
    parallel: Parallel = section(Parallel, "how it is split over the cards")

    given: frozenset[str] = records.field(default=frozenset(), compare=False, repr=False)
    """Fields that were written down, by dotted name: not part of what the job does. A job made in Python does not say
    it: there, what holds another value than its default was given."""

    unsaid: tuple[str, ...] = records.field(default=(), compare=False, repr=False)
    """Fields about cards that the trainer's file it was read from leaves to its launcher: asked for, never assumed."""
    not_modelled: tuple[str, ...] = records.field(default=(), repr=False)
    """Keys of the trainer's file it was read from that no field tells, with file and line: it is an estimate."""

    def __post_init__(self) -> None:
        self._read_fields("")
        for name, kind in sections().items():
            if not isinstance(reach(self, name), kind):
                wrong = f"got {shown(reach(self, name))}; allowed: a {kind.__name__}"
                raise_if_any([Problem(name, wrong)])
        values = settled(self.flat())
        quantization = records.replace(self.quantization, format=values["quantization.format"])
        object.__setattr__(self, "quantization", quantization)
        object.__setattr__(self, "stack", values["stack"])
        object.__setattr__(self, "head", records.replace(self.head, labels=values["head.labels"]))
        raise_if_any(contradictions(values, given=changed(values)))

    def _repr_html_(self) -> str:
        return notebook_html(self)

    def is_given(self, field: str) -> bool:
        """Whether somebody chose this field's value."""
        return field in self.given if self.given else self.flat()[field] != all_knobs()[field].default

    def flat(self) -> dict[str, Any]:
        """Every value by its dotted name."""
        return {dotted: reach(self, dotted) for dotted in all_knobs()}

    def to_dict(self) -> dict[str, Any]:
        """The job as a file would hold it; `job_from_dict` reads it back as it was."""
        whole = nested(self.flat())
        if self.method == "full":
            whole["lora"] = None
        whole |= {section: None for section, tasks in OF_TASKS.items() if self.task not in tasks}
        if self.quantization.format == "float8":  # whose format says all: the rest is bitsandbytes'
            whole["quantization"] = {"format": "float8"}
        return whole


def reach(job: Job, dotted: str) -> Any:
    """The field or section of a dotted name."""
    found: Any = job
    for name in dotted.split("."):
        found = getattr(found, name)
    return found


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values by dotted name as a job's file has them."""
    whole: dict[str, Any] = {}
    for dotted, value in values.items():
        *outer, leaf = dotted.split(".")
        place = whole
        for name in outer:
            place = place.setdefault(name, {})
        place[leaf] = list(value) if isinstance(value, tuple) else value
    return whole


@cache
def sections() -> dict[str, type[Section]]:
    """The parts of a job that have fields of their own, by dotted name; one may have others in it (`rl.vllm`)."""
    return dict(_sections_of(Job))


def _sections_of(kind: type, before: str = "") -> Iterator[tuple[str, type[Section]]]:
    for f in records.fields(kind):
        if "section" in f.metadata:
            yield before + f.name, f.metadata["section"]
            yield from _sections_of(f.metadata["section"], f"{before}{f.name}.")


@cache
def all_knobs() -> dict[str, Knob]:
    """Every field of a job by its dotted name, in the order of the contract."""
    return dict(_knobs_of(Job))


def _knobs_of(kind: type, before: str = "") -> Iterator[tuple[str, Knob]]:
    own = knobs_of(kind)
    for f in records.fields(kind):
        if f.name in own:
            yield before + f.name, own[f.name]
        elif "section" in f.metadata:
            yield from _knobs_of(f.metadata["section"], f"{before}{f.name}.")
