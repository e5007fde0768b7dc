"""The training stacks a job may name: what each supports, sets and is known to do, as one light declaration.

A new stack is an entry of `STACKS`, whose name is then a choice of the field, and its program, a module of
tape/build/stacks with `model`, `train` and `REFUSES` (that package's docstring says what they do). Everything else asks
the declaration: which ways to share a job among cards are known of it, its allocator and files, what a search may
change, which evidence counts for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from tunecast.job.names import LANGUAGE, TASKS
from tunecast.job.releases import RELEASES
from tunecast.job.shardings import SHARDINGS
from tunecast.records import dataclass, field, replace

if TYPE_CHECKING:
    from tunecast.job.job import Job

DtypeOf = Callable[["Job"], str | None]


def _checkpoints(job: Job) -> str | None:
    """As transformers 5 loads weights (dtype="auto")."""
    return None


@dataclass(frozen=True)
class Stack:
    """What a stack's package does, as far as predictions, searches and reports ask."""

    name: str
    program: str
    """Its module in tape/build/stacks."""
    follows: Mapping[str, str]
    """The releases whose code is written down, by package, where a job names no other."""
    title: str = ""
    """As a report names it; '': by `name`."""

    # whose loop it runs
    uses_trainer: bool = False
    """transformers' Trainer: its loop, its checkpoints, its arguments and launcher."""
    uses_accelerate: bool = False
    """The Trainer's ways of sharing a job among cards too."""
    package: str | None = None
    """Whose release `stack_version` is, where the stack has another name."""
    uses_megatron: bool = False
    """Megatron Core with TransformerEngine's layers."""
    runs_own_tasks: bool = False
    """Its program has its own way of every task; others' tasks are programs over the Trainer's loop."""
    has_trainer_sampler: bool = False
    """Batches come in the order of the Trainer's samplers."""
    by_script: bool = False
    """The user's own script makes the model: PEFT puts the adapters in, and `prepare_model_for_kbit_training` is called
    or not."""
    is_plain_loop: bool = False
    """A loop around a model of transformers with nothing patched: adapters are of PEFT's dtypes, all parameters one
    group of the optimizer, and `compile` makes the whole model one graph."""
    reentrant: bool = False
    """Checkpointing is of the older kind, where a job does not say."""

    # what it supports
    tasks: tuple[str, ...] = LANGUAGE
    """What its trainers can be asked for."""
    shardings: tuple[str, ...] = ()
    """Values of `parallel.data` on several cards; none: it is known on one card alone."""
    splits: tuple[str, ...] = ()
    """Other dimensions of the mesh."""
    has_ulysses: bool = False
    """Its Trainer knows accelerate's `sp_size`; that came with transformers 5 (integrations/deepspeed.py,
    `deepspeed_sp_compute_loss`)."""
    offloads: bool = False
    """`parallel.offload`."""
    sees_images: bool = False
    """Trains on images too (`vision`)."""
    spreads_images: bool = False
    """Rows with images over cards that share them, and towers on a pipeline's first stage."""
    heads_see: bool = False
    """Gives a model that sees a head of its own, of which transformers has no class (swift/model/patcher.py,
    `_patch_sequence_classification`)."""
    offloads_activations: bool = False
    syncs_as_told: bool = False
    """`parallel.sync_each_batch`, without accelerate."""
    has_narrow_loss: bool = False
    """`loss: low_precision`."""
    has_plain_tensor: bool = False
    """Tensor parallelism without splitting the tokens between layers (`parallel.sequence_parallel: false`)."""
    matches_paths: bool = False
    """Its adapters are its own, not PEFT's: `lora.targets` may have patterns of modules' whole names, as `*_proj`, and
    `!` before what is left out."""
    lists_linear: bool = False
    """With targets all-linear it gives PEFT the names of the model's linear layers, so that experts, which are
    parameters since transformers 5, get adapters only where a linear layer is called as theirs were."""
    drops_before_experts: bool = False
    """Takes `lora.dropout` where experts get adapters too, which then have none; PEFT by itself refuses it."""
    shards_ends: bool = False
    """`parallel.shard_ends`."""
    families: tuple[str, ...] = ()
    """Architectures whose code is written down, by `model_type`; none: those of transformers."""
    losses: tuple[str, ...] = ("full",)
    """Values of `loss` a search may set, its own default first."""
    search: tuple[str, ...] = ()
    """Further fields a plan may set."""
    frugal: str | None = None
    """The stack that trains adapters on one card in less memory."""
    recipe: str | None = None
    """The module of tape/trace that runs it for the traced engine."""
    traced_fields: tuple[str, ...] = ()
    """Fields whose values that recipe runs where the closed form has none, on one card."""

    # what it sets
    allocator: str | None = None
    """PYTORCH_ALLOC_CONF, whatever the job says."""
    weights_dtype: DtypeOf = _checkpoints
    """None: the checkpoint's."""
    targets: str | tuple[str, ...] | None = None
    """What gets adapters; None: PEFT chooses."""
    dropout: float | None = None
    """Of adapters; None: TRL's default."""
    trained_parts: tuple[str, ...] | None = None
    """Of models with a vision tower, the parts that are trained or get adapters; None: all."""
    quantized_optimizer: str | None = None
    """Takes the place of the job's over quantized weights."""
    deepspeed: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    """The file its users start from, by ZeRO's stage: what differs from DeepSpeed's defaults, by the names of
    `DeepSpeedSettings` (tape/build/sharding/zero_sizes.py); with "auto", what transformers fills in by the hidden
    size."""
    deepspeed_file: str = ""

    # what its program does
    widens_trained: bool = False
    """Parameters that are trained become float32 under autocast, whatever the frozen ones are, and layers without any
    are not checkpointed."""
    mixes_steps: bool = False
    """KTO's answers to other prompts are those of a whole step, not of a card's own rows (swift/pipelines/train/kto.py,
    `_get_kl_dataset`)."""
    hears_teachers: bool = False
    """A teacher may score what GRPO generates (swift/arguments/rlhf_args.py, `_check_teacher`)."""
    has_value_head: bool = False
    """A reward model keeps the vocabulary's head, and a head of one output stands beside it."""
    compiles_always: bool = False
    """Parts of it, whatever the job says."""
    shards_layers_alone: bool = False
    """FSDP 2's units are layers and adapters; all else is the outermost's, whole from the first layer to the loss
    (axolotl/monkeypatch/accelerate/fsdp2.py, `fsdp2_prepare_model`)."""
    shards_int8: bool = False
    """FSDP 2 cuts bitsandbytes' 8-bit weights, which it fails on by itself."""
    fuses_any_head: bool = False
    """Liger's head and loss for models that Liger does not know (axolotl/integrations/liger/models/base.py)."""
    ends_texts: bool = True
    """A text of the training data ends with a token of its own, which the trainer appends."""
    labelled_only: bool = False
    """The loss takes labelled tokens alone (tape/build/chunked.py)."""
    runs_trl: bool = False
    """Its trainers are TRL's, of the release that the job means."""
    preference_head: str = "fused"
    """How its trainers of preferences take log-probabilities: by TRL's head that never makes all logits ("fused"), row
    by row of all logits ("rows": TRL before 1.15), or of a log_softmax of them all ("softmax")."""
    adapts_itself: bool = False
    """Its own code puts adapters in before a trainer of TRL's, or of its own, sees the model."""
    counts_ends: bool = False
    """Pipeline stages count each end of the model as a layer."""
    looks_at_memory: bool = False
    """What it does depends on how much memory the card has."""
    layers_differ: bool = False
    """A few layers do not stand for all in a trace."""
    rendered_by: str | None = None
    """The file of launching/programs that writes its files and command; None: none does."""
    lends_weights: bool = False
    """vLLM generates with the weights that are trained, instead of a copy (`fast_inference`)."""

    @property
    def family(self) -> str:
        """By whose code spreads it over cards: published runs of one count for the others."""
        return "accelerate" if self.uses_accelerate else "megatron" if self.uses_megatron else self.name


def _newest(*packages: str) -> dict[str, str]:
    return {package: RELEASES[package].newest for package in packages}


_TORCH = {"torch": "2.11.0"}
"""Of stacks whose newest releases came out in its days, or before."""
_HUGGING_FACE = _newest("torch", "transformers", "peft", "bitsandbytes")
_TRAINER = {**_HUGGING_FACE, **_newest("liger-kernel", "accelerate")}

_NOT_OF_AXOLOTL = ("classify", "embed", "rerank", "distill")
"""Its plugin of distillation reads what a teacher said before, or asks a server (axolotl/integrations/kd)."""
_AXOLOTL = Stack(
    "axolotl",
    "trainer",
    _TRAINER,
    uses_trainer=True,
    uses_accelerate=True,
    reentrant=True,  # axolotl/utils/config/__init__.py, `normalize_config`
    shardings=tuple(SHARDINGS),
    splits=("layers", "context", "expert"),
    offloads=True,
    # axolotl/utils/schemas/enums.py, `RLType` has no ppo
    tasks=tuple(task for task in TASKS if task not in (*_NOT_OF_AXOLOTL, "ppo")),
    search=("kernels", "attention"),
    weights_dtype=lambda job: "bfloat16",  # `torch_dtype` follows `bf16: auto`
    deepspeed={  # zero1.json, zero2.json, zero3_bf16.json
        1: {"overlap_comm": True},
        2: {"overlap_comm": True},
        3: {"auto": True, "max_live_parameters": 0, "max_reuse_distance": 0, "sub_group_size": 0},
    },
    deepspeed_file="Axolotl's deepspeed_configs",
    shards_int8=True,  # axolotl/monkeypatch/fsdp2_qlora.py
    lists_linear=True,  # axolotl/loaders/adapter.py, `find_all_linear_names`
    drops_before_experts=True,  # `_patch_peft_param_wrapper_dropout` in the same file
    fuses_any_head=True,
    shards_layers_alone=True,
    offloads_activations=True,
    sees_images=True,
    preference_head="rows",  # axolotl 0.19.0 wants trl 1.9.0
    rendered_by="axolotl",
)
_LLAMA_FACTORY = replace(
    _AXOLOTL,  # lists_linear: llamafactory/model/model_utils/misc.py, `find_all_linear_modules`
    splits=("layers",),
    # hparams/finetuning_args.py, `stage` and `pref_loss`
    tasks=tuple(task for task in TASKS if task not in (*_NOT_OF_AXOLOTL, "prm", "cpo")),
    has_value_head=True,  # llamafactory/model/loader.py, `load_model` with add_valuehead
    shards_int8=False,
    drops_before_experts=False,
    fuses_any_head=False,
    shards_layers_alone=False,
    offloads_activations=False,
    rendered_by="llama_factory",
    preference_head="softmax",  # llamafactory/train/trainer_utils.py, `get_batch_logps` of 0.9.5
    adapts_itself=True,
    name="llama-factory",  # reentrant: llamafactory/hparams/model_args.py, `use_reentrant_gc`
    # loads in bfloat16, and casts what is trained to float32 unless pure_bf16 (llamafactory/model/adapter.py)
    weights_dtype=lambda job: "float32" if job.method == "full" and job.trained is None else "bfloat16",
    widens_trained=True,
    # `freeze_vision_tower` and `freeze_multi_modal_projector` (llamafactory/hparams/finetuning_args.py)
    trained_parts=("language",),
    deepspeed={  # ds_z2_config.json, ds_z3_config.json
        2: {"overlap_comm": False, "round_robin_gradients": True},
        3: {"auto": True, "overlap_comm": False},
    },
    deepspeed_file="LLaMA-Factory's examples/deepspeed",
)
_TRL = Stack(
    "trl",
    "trl",
    {**_TRAINER, **_newest("trl")},
    "TRL's SFTTrainer",
    tasks=TASKS,
    uses_trainer=True,
    uses_accelerate=True,
    has_trainer_sampler=True,
    by_script=True,
    shardings=tuple(SHARDINGS),
    splits=("layers",),
    has_ulysses=True,
    offloads=True,
    search=("kernels", "attention"),
    frugal="unsloth",
    labelled_only=True,
    sees_images=True,
    runs_trl=True,
    rendered_by="trl",
)
_TRANSFORMERS = replace(
    _TRL,
    name="transformers",
    program="transformers",
    follows={**_HUGGING_FACE, **_newest("liger-kernel")},
    title="transformers' Trainer",
    tasks=(*LANGUAGE, "classify"),
    is_plain_loop=True,
    losses=("full", "chunked"),
    search=("kernels", "attention", "compile", "matmul_dtype"),
    recipe="recipe",
    traced_fields=("compile", "loss", "matmul_dtype"),
    ends_texts=False,
    labelled_only=False,
    runs_trl=False,
    rendered_by=None,
)
_MS_SWIFT = replace(
    _TRL,  # swift/trainers: its trainers are transformers' Seq2SeqTrainer and TRL's, with losses of its own
    name="ms-swift",
    program="trainer",
    tasks=tuple(task for task in TASKS if task != "prm"),
    follows=_TRAINER,
    title="ms-swift",
    rendered_by=None,
    labelled_only=False,
    runs_trl=False,
    preference_head="rows",  # swift/rlhf_trainers/rlhf_mixin.py, `get_per_token_logps` of 4.6.0, with trl before 1.0
    adapts_itself=True,
    frugal=None,
    heads_see=True,
    hears_teachers=True,
    mixes_steps=True,
    trained_parts=("language",),  # `freeze_vit`, `freeze_aligner` (swift/arguments/tuner_args.py)
)
_UNSLOTH = Stack(
    "unsloth",
    "unsloth",
    {**_TORCH, "transformers": "5.17.0", **_newest("peft", "bitsandbytes", "unsloth")},  # as it was traced
    tasks=TASKS,
    uses_trainer=True,
    has_trainer_sampler=True,
    families=("llama", "mistral", "qwen2", "qwen3"),
    recipe="recipes_unsloth",
    allocator="expandable_segments",  # importing it sets PYTORCH_ALLOC_CONF (unsloth/__init__.py of 2026.10.9)
    weights_dtype=lambda job: "bfloat16",  # FastLanguageModel.from_pretrained(dtype=None), unsloth 2026.10.9
    targets="all-linear",  # FastLanguageModel.get_peft_model, target_modules
    compiles_always=True,
    looks_at_memory=True,
    layers_differ=True,  # its checkpointing keeps host buffers that grow over the layers
    lends_weights=True,  # unsloth_zoo/vllm_utils.py, `get_vllm_state_dict`
)
_TORCHTUNE = Stack(
    "torchtune",
    "torchtune",
    {**_TORCH, **_newest("torchtune")},
    shardings=("fsdp",),
    offloads=True,
    offloads_activations=True,
    shards_ends=True,
    losses=("chunked", "full"),
    weights_dtype=lambda job: "bfloat16",  # `dtype: bf16` of every recipe's configuration, torchtune 0.6
    targets=("q_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),  # its configurations
    compiles_always=True,
    rendered_by="torchtune",
)
_LITGPT = Stack(
    "litgpt",
    "litgpt",
    {**_TORCH, **_newest("litgpt"), "bitsandbytes": "0.49.2"},
    shardings=("fsdp", "ddp"),
    # get_default_supported_precision(training=True): bf16-mixed, whose weights are float32
    weights_dtype=lambda job: "float32",
    targets=("q_proj", "v_proj"),  # lora_query, lora_value
    quantized_optimizer="paged_adamw_32bit",  # litgpt/utils.py, `instantiate_bnb_optimizer`
)
_FSDP_QLORA = Stack(
    "fsdp_qlora",
    "fsdp_qlora",
    {"torch": "2.2.0", "transformers": "4.37.2", "peft": "0.8.2", "bitsandbytes": "0.43.0"},
    shardings=("fsdp", "ddp"),
    offloads=True,
    weights_dtype=lambda job: "bfloat16",  # train.py, `precision: "bf16"`
)
_TORCHTITAN = Stack(
    "torchtitan",
    "torchtitan",
    {**_TORCH, **_newest("torchtitan", "torchao")},
    shardings=("fsdp", "hsdp"),
    splits=("tensor", "context", "pipeline", "expert"),
    offloads=True,
    weights_dtype=lambda job: "float32",  # training.dtype; mixed_precision_param casts to bfloat16
    compiles_always=True,
    counts_ends=True,  # distributed/pipeline_parallel.py, `generate_llm_fqn_per_model_part`
)
_MEGATRON = Stack(
    "megatron",
    "megatron",
    {**_TORCH, **_newest("megatron-core"), "transformer-engine": "2.5"},
    package="megatron-core",
    uses_megatron=True,
    runs_own_tasks=True,
    shardings=("ddp", "zero1"),
    splits=("tensor", "pipeline", "context", "expert"),
    has_plain_tensor=True,
    # --bf16, bf16_mixed: weights of 16 bits, masters in the optimizer
    weights_dtype=lambda job: job.autocast or "float32",
    targets="attention",  # linear_qkv, linear_proj
    tasks=(*LANGUAGE, "dpo", "kto", "reward", "classify", "rerank", "grpo", "distill"),  # swift/megatron/trainers
    sees_images=True,
    spreads_images=True,
    heads_see=True,
    hears_teachers=True,
    drops_before_experts=True,  # its adapters are its own, not PEFT's
)
_AUTOMODEL = Stack(
    "automodel",
    "automodel",
    {**_HUGGING_FACE, **_newest("nemo-automodel")},
    tasks=(*LANGUAGE, "distill", "embed", "rerank"),  # nemo_automodel/recipes: llm/kd.py, vlm/kd.py, retrieval
    runs_own_tasks=True,
    shardings=("fsdp", "hsdp"),
    splits=("tensor", "pipeline", "context", "expert"),
    offloads=True,
    sees_images=True,
    spreads_images=True,
    syncs_as_told=True,  # `defer_fsdp_grad_sync: false`
    has_narrow_loss=True,
    has_plain_tensor=True,
    matches_paths=True,
    targets="all-linear",  # `target_modules: "*_proj"` of its examples; PeftConfig names none
    dropout=0.0,
)
_LLM_FOUNDRY = Stack(
    "llm-foundry",
    "foundry",
    {"torch": "2.1.0", "llm-foundry": "0.4.0", "mosaicml": "0.17.1", "flash-attn": "2.3.2"},
    shardings=("fsdp",),
    weights_dtype=lambda job: "float32",  # amp_bf16 of its configurations
)
STACKS: Mapping[str, Stack] = {
    each.name: each
    for each in (
        *(
            _TRANSFORMERS,
            _TRL,
            _AXOLOTL,
            _LLAMA_FACTORY,
            _MS_SWIFT,
            _UNSLOTH,
            _TORCHTUNE,
            _LITGPT,
            _FSDP_QLORA,
            _TORCHTITAN,
        ),
        *(_MEGATRON, replace(_MEGATRON, name="nemo", tasks=LANGUAGE, sees_images=False), _AUTOMODEL, _LLM_FOUNDRY),
    )
}
DEFAULT_STACK = _TRANSFORMERS.name
SFT_STACK = _TRL.name
"""What most people fine-tune with: a job that names no stack is told what it would change."""


def stack_of(job: Job) -> Stack:
    return STACKS[job.stack]


def stacks_where(holds: Callable[[Stack], bool]) -> str:
    """The names of the stacks a property holds for, for a message."""
    return ", ".join(name for name, stack in STACKS.items() if holds(stack))
