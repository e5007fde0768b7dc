"""How NeMo Automodel's YAML spreads a model over cards, and whose kernels run there: `distributed`, `model.backend`,
`loss_fn`. The rest is in automodel.py.

Defaults  nemo_automodel 0.7.0: components/distributed/config.py, `FSDP2Config`, `MoEParallelizerConfig`;
          components/distributed/pipelining/functional.py, `calculate_virtual_stages`;
          components/models/common/utils.py, `BackendConfig`; recipes/llm/train_ft.py, `_maybe_downgrade_loss_fn`.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import lcm

from tunecast.job.recipes.cards import is_count
from tunecast.job.recipes.draft import Draft, Keys
from tunecast.job.registry import bundled_config, bundled_name

ATTENTION = {"flash_attention_2", "flash_attention_3", "sdpa", "eager"}
MESH = {"tensor": "tp_size", "pipeline": "pp_size", "context": "cp_size", "expert": "ep_size"}
MOST_IN_A_MACHINE = 8
"""Cards that need no second machine."""
LAYER_COUNTS = ("num_hidden_layers", "n_layer")


def class_name(*values: object) -> str:
    """The last part of the first that is a dotted path."""
    text = next((value for value in values if isinstance(value, str)), "")
    return text.strip().rpartition(".")[2]


def count(keys: Keys, name: str, default: int = 1) -> int:
    """To compute with; what is no number is refused by the field it is put into."""
    value = keys.get(name)
    return value if is_count(value) else default


def dtype(value: object) -> object:
    return value.removeprefix("torch.") if isinstance(value, str) else value


# --------------------------------------------------------------------------------------------------------- the mesh


def take_mesh(draft: Draft, keys: Keys) -> None:
    for field, key in MESH.items():
        draft.take(f"parallel.{field}", keys, f"distributed.{key}", f"parallelizer.{key}")
        draft.assume(f"parallel.{field}", 1)
    if draft.fields["parallel.tensor"] != 1:
        draft.take("parallel.sequence_parallel", keys, "distributed.sequence_parallel")
        draft.assume("parallel.sequence_parallel", False)
    else:
        keys.ignore("distributed.sequence_parallel", "distributed.enable_async_tensor_parallel", "distributed.tp_plan")
    take_pipeline(draft, keys)
    take_resharding(draft, keys)


def take_resharding(draft: Draft, keys: Keys) -> None:
    """Whether weights are given back between the two passes: models whose experts are split have a key of their own
    (`MoEParallelizerConfig`), and stages of a pipeline keep theirs unless told otherwise."""
    dense, sparse = "distributed.reshard_after_forward", "distributed.moe.reshard_after_forward"
    if draft.fields["parallel.expert"] == 1:
        keys.ignore("distributed.moe")
        draft.take("parallel.reshard_after_forward", keys, dense)
        if draft.fields["parallel.pipeline"] != 1:
            draft.assume("parallel.reshard_after_forward", False)
        return
    keys.ignore(dense)
    draft.take("parallel.reshard_after_forward", keys, sparse)
    draft.assume("parallel.reshard_after_forward", False)
    if dtype(keys.get("distributed.moe.lm_head_precision")) == "float32":
        draft.not_modelled(keys, "distributed.moe.lm_head_precision", "the head is told to compute in bfloat16")


def take_pipeline(draft: Draft, keys: Keys) -> None:
    """A pipeline's micro-batches are parts of a rank's batch."""
    local, section = "step_scheduler.local_batch_size", "distributed.pipeline"
    if draft.fields["parallel.pipeline"] == 1:
        keys.ignore(section, "autopipeline")
        draft.take("micro_batch", keys, local)
        draft.assume("micro_batch", 1)
        return
    keys.get(local)
    draft.take("micro_batch", keys, f"{section}.pp_microbatch_size", "autopipeline.pp_microbatch_size")
    draft.assume("micro_batch", 1)
    schedule = str(keys.get(f"{section}.pp_schedule", "autopipeline.pp_schedule", default="1f1b")).lower()
    if schedule == "interleaved1f1b":
        take_virtual_stages(draft, keys, section)
    elif schedule not in ("1f1b", "gpipe"):
        draft.not_modelled(keys, f"{section}.pp_schedule", "micro-batches are told to take turns as in 1F1B")
    keys.ignore(section, "autopipeline")


def take_virtual_stages(draft: Draft, keys: Keys, section: str) -> None:
    """`calculate_virtual_stages`: two a rank where nothing is said, else as many as hold so many layers each."""
    each, stages = keys.get(f"{section}.layers_per_stage"), draft.fields["parallel.pipeline"]
    if each is None:
        draft.put("parallel.virtual_stages", 2, keys, f"{section}.pp_schedule")
        return
    layers = layers_of(draft.fields.get("model"))
    if layers is None or not is_count(each) or not is_count(stages):
        why = "how many pieces a stage has depends on the layers, which no shape is known of; one is taken"
        draft.not_modelled(keys, f"{section}.layers_per_stage", why)
        return
    pieces = -(-layers // each)
    rounded = str(keys.get(f"{section}.round_virtual_stages_to_pp_multiple")).lower()
    whole = -(-pieces // stages) if rounded == "up" else pieces // stages
    draft.put("parallel.virtual_stages", max(1, whole), keys, f"{section}.layers_per_stage")


def layers_of(model: object) -> int | None:
    """Of a model whose config.json comes with the package."""
    name = bundled_name(model) if isinstance(model, str) else None
    if name is None:
        return None
    config = bundled_config(name)
    text = config.get("text_config", config)
    return next((text[key] for key in LAYER_COUNTS if is_count(text.get(key))), None)


# ----------------------------------------------------------------------------------------------------- the sharding


def take_sharding(draft: Draft, keys: Keys) -> None:
    strategy = keys.get("distributed.strategy", "distributed._target_", default="fsdp2")
    name = str(strategy).lower().replace("-", "_")
    replicas = keys.get("distributed.dp_replicate_size")
    if "ddp" in name:
        draft.put("parallel.data", "ddp", keys, "distributed.strategy", "distributed._target_")
    elif is_count(replicas) and replicas != 1:
        draft.put("parallel.data", "hsdp", keys, "distributed.dp_replicate_size")
        draft.put("parallel.replicate", replicas, keys, "distributed.dp_replicate_size")
    elif keys.has("distributed.strategy"):
        draft.put("parallel.data", "fsdp", keys, "distributed.strategy")
    else:
        draft.assume("parallel.data", "fsdp")
    if "megatron" in name or "mfsdp" in name:
        draft.not_modelled(keys, "distributed.strategy", "Megatron-FSDP is told as torch's FSDP 2")
    take_checkpointing(draft, keys)
    if keys.get("distributed.offload_policy") is not None:
        draft.put("parallel.offload", "parameters", keys, "distributed.offload_policy")
    deferred = "distributed.defer_fsdp_grad_sync"
    if keys.get(deferred) is False and draft.fields["parallel.pipeline"] == 1:
        draft.put("parallel.sync_each_batch", True, keys, deferred)
    take_policy(draft, keys)


def take_checkpointing(draft: Draft, keys: Keys) -> None:
    names = ("distributed.activation_checkpointing", "parallelizer.activation_checkpointing")
    activations = keys.get(*names)
    if activations is not None:
        words = {"selective": True, "full": True, "on": True, "off": False, "none": False}
        said = words.get(activations.lower(), activations) if isinstance(activations, str) else activations
        draft.put("gradient_checkpointing", said, keys, *names)
    if activations == "selective":
        draft.put("recompute", "selective", keys, *names)
    draft.assume("gradient_checkpointing", False)


def take_policy(draft: Draft, keys: Keys) -> None:
    """`FSDP2Config.mp_policy`: computed in bfloat16, summed in float32."""
    policy = "distributed.mp_policy"
    draft.take("parallel.reduce_dtype", keys, f"{policy}.reduce_dtype", read=dtype)
    draft.assume("parallel.reduce_dtype", "float32")
    if dtype(keys.get(f"{policy}.param_dtype")) not in (None, "bfloat16", "bf16"):
        draft.not_modelled(keys, f"{policy}.param_dtype", "layers are taken to compute in bfloat16")
    if dtype(keys.get(f"{policy}.output_dtype")) not in (None, "bfloat16", "bf16"):
        draft.not_modelled(keys, f"{policy}.output_dtype", "what layers hand on is taken to be bfloat16")
    keys.ignore(f"{policy}._target_", f"{policy}.cast_forward_inputs")
    for name, why in (
        ("distributed.autocast_dtype", "nothing is taken to run under autocast"),
        ("distributed.enable_fsdp2_prefetch", "layers are gathered further ahead"),
        ("distributed.enable_compile", "layers are told as if they were not compiled"),
        ("distributed.enable_async_tensor_parallel", "tensor parallel layers do not overlap"),
    ):
        if keys.get(name):
            draft.not_modelled(keys, name, why)


def take_cards(draft: Draft, keys: Keys) -> None:
    card, colon, gpus = str(keys.get("skypilot.accelerators", default="")).partition(":")
    if card:
        draft.put("hardware.gpu", card, keys, "skypilot.accelerators")
        if not colon or gpus.isdecimal():
            draft.put("hardware.gpus", int(gpus[:9]) if colon else 1, keys, "skypilot.accelerators")
    if not draft.take("hardware.nodes", keys, "skypilot.num_nodes", "slurm.nodes"):
        take_noted_nodes(draft, keys)
    draft.take("hardware.gpus", keys, "nproc_per_node", "slurm.ntasks_per_node")
    dp_size, nodes = keys.get("distributed.dp_size"), draft.fields.get("hardware.nodes", 1)
    if not is_count(dp_size):
        return  # null, "none": what the cards leave
    cards = dp_size
    for name in ("tp_size", "pp_size", "cp_size"):
        cards *= count(keys, f"distributed.{name}")
    said = "hardware.nodes" in draft.fields and is_count(nodes) and cards % nodes == 0
    if "hardware.gpus" not in draft.fields and (said or cards <= MOST_IN_A_MACHINE):
        draft.put("hardware.gpus", cards // nodes if said else cards, keys, "distributed.dp_size")


def take_noted_nodes(draft: Draft, keys: Keys) -> None:
    """Which nothing of Automodel reads: taken where the mesh has room on them."""
    nodes = keys.get("benchmark.num_nodes")
    of = {name: count(keys, f"distributed.{key}") for name, key in MESH.items()}
    cards = of["tensor"] * of["pipeline"] * lcm(of["context"], of["expert"])
    if is_count(nodes) and nodes * MOST_IN_A_MACHINE % cards == 0:
        draft.put("hardware.nodes", nodes, keys, "benchmark.num_nodes")
    else:
        keys.ignore("benchmark.num_nodes")


# ---------------------------------------------------------------------------------------------------------- kernels


def take_loss(draft: Draft, keys: Keys) -> None:
    """A pipeline's last stage has logits, so that the fused loss is not taken there (`_maybe_downgrade_loss_fn`)."""
    name = class_name(keys.get("loss_fn._target_"), keys.get("loss_fn"))
    if name == "FusedLinearCrossEntropy":
        keys.ignore("model.output_hidden_states")
        if draft.fields["parallel.pipeline"] == 1:
            others = draft.fields.get("kernels", [])
            draft.put("kernels", [*others, "cut_cross_entropy"], keys, "loss_fn._target_")
    elif name == "ChunkedCrossEntropy":
        draft.not_modelled(keys, "loss_fn._target_", "the loss takes logits a part at a time; all at once are told")
    elif name not in ("", "MaskedCrossEntropy"):
        draft.not_modelled(keys, "loss_fn._target_", "the loss is told as masked cross-entropy")
    elif keys.get("loss_fn.fp32_upcast") is False:
        draft.put("loss", "low_precision", keys, "loss_fn.fp32_upcast")
    keys.ignore("loss_fn")


def take_kernels(draft: Draft, keys: Keys) -> None:
    attention = keys.get("model.attn_implementation")
    if isinstance(attention, str) and attention in ATTENTION:
        draft.put("attention", attention, keys, "model.attn_implementation")
    elif attention is not None:
        draft.not_modelled(keys, "model.attn_implementation", "attention is told as torch's")
    take_backend(draft, keys)
    draft.assume("attention", "sdpa")
    for name, why in (
        ("compile.enabled", "the model is told as if it were not compiled"),
        ("fp8.enabled", "linear layers are told in bfloat16"),
        ("model.use_liger_kernel", "Liger's kernels are left out"),
    ):
        if keys.get(name) is True:
            draft.not_modelled(keys, name, why)
    if not keys.get("compile.enabled"):
        keys.ignore("compile")
    keys.ignore("fp8", "model.force_hf")
    draft.assume("compile", False)


FUSED_ATTENTION = {"te": "sdpa", "sdpa": "sdpa", "torch": "sdpa", "flash": "sdpa", "eager": "eager"}
"""Of `model.backend.attn`: Transformer Engine's keeps what torch's fused kernels keep, the inputs, the result and a
number for each row and head."""
TAKEN_AS_TORCHS: Mapping[str, tuple[object, ...]] = {
    "linear": ("torch", "te"),
    "rms_norm": ("torch", "torch_fp32", "te"),
    "rope": ("torch",),
    "experts": ("torch", "torch_mm", "gmm", "te"),
    "dispatcher": ("torch", "deepep", "hybridep", "uccl_ep"),
}
"""Values of `model.backend` that the stack tells as one (components/models/common/utils.py, `BackendConfig`): where
nothing is said, Transformer Engine's are taken where it is installed, so that the stack says so of every such job."""


def take_backend(draft: Draft, keys: Keys) -> None:
    """One remark for all that has kernels of another kind."""
    attention = keys.get("model.backend.attn")
    if isinstance(attention, str) and attention in FUSED_ATTENTION:
        draft.put("attention", FUSED_ATTENTION[attention], keys, "model.backend.attn")
    elif attention is not None:
        draft.not_modelled(keys, "model.backend.attn", "attention is told as torch's fused kernels have it")
    for name, known in TAKEN_AS_TORCHS.items():
        if keys.get(f"model.backend.{name}") not in (None, *known):
            draft.not_modelled(keys, f"model.backend.{name}", "its kernels are told as torch's")
            break
    for name, why in (
        ("te_fp8", "linear layers are told in bfloat16"),
        ("compile_attn", "attention is told as if it were not compiled"),
        ("cuda_graph", "kernels are told to be launched one by one"),
    ):
        if keys.get(f"model.backend.{name}"):
            draft.not_modelled(keys, f"model.backend.{name}", why)
    keys.ignore("model.backend")
