"""torchtitan's TOML, as it had until February 2026. Keys and defaults: torchtitan/config/job_config.py of 0.2.2.

Later its configurations are Python functions (torchtitan_registry.py). How many cards there are is no key: torchrun
says it, and `data_parallel_shard_degree` -1 takes all that are left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from tunecast.job.recipes.document import Document, scalar
from tunecast.job.recipes.draft import Draft, Keys
from tunecast.job.recipes.frameworks.torchtitan_registry import CONFIG, is_registry, registry_of
from tunecast.job.recipes.request import Invocation, ReadRequest
from tunecast.job.recipes.scripts import ScriptDocument
from tunecast.job.recipes.values import switch, whole

NAME = "torchtitan"
RELEASE = "0.2.2"

WITHOUT_EFFECT = (
    *(
        "job.*",
        "profiling.*",
        "metrics.*",
        "lr_scheduler.*",
        "comm.*",
        "debug.*",
        "memory_estimation.*",
        "hf_assets_path",
    ),
    *(
        "model.tokenizer_path",
        "model.hf_assets_path",
        "model.print_after_conversion",
        "optimizer.*",
        "validation.dataset*",
    ),
    "training.disable_cuda_graphs",
    *("training.dataset*", "training.seed", "training.deterministic", "training.gc_*", "training.dataloader.*"),
    *("checkpoint.*", "parallelism.context_parallel_rotate_method", "parallelism.context_parallel_load_balancer"),
    *("activation_checkpoint.early_stop", "activation_checkpoint.preserve_rng_state", "activation_checkpoint.debug"),
)
FILE = "torchtitan/config/job_config.py"
DEFAULTS: Mapping[str, tuple[object, str]] = {
    "model: name": ("llama3", f"{FILE}: Model.name"),
    "model: flavor": ("debugmodel", f"{FILE}: Model.flavor"),
    "matmul_dtype": ("list", f"{FILE}: Model.converters"),
    "seq_len": (2048, f"{FILE}: Training.seq_len"),
    "micro_batch": (8, f"{FILE}: Training.local_batch_size"),
    "grad_accum": (-1, f"{FILE}: Training.global_batch_size"),
    "max_grad_norm": (1.0, f"{FILE}: Training.max_norm"),
    "run.max_steps": (10000, f"{FILE}: Training.steps"),
    "weights_dtype": ("float32", f"{FILE}: Training.dtype"),
    "autocast": ("bfloat16", f"{FILE}: Training.mixed_precision_param"),
    "parallel.reduce_dtype": ("float32", f"{FILE}: Training.mixed_precision_reduce"),
    "parallel.offload": (False, f"{FILE}: Training.enable_cpu_offload"),
    "optimizer": ("AdamW", f"{FILE}: Optimizer.name"),
    "optimizer: implementation": ("fused", f"{FILE}: Optimizer.implementation"),
    "optimizer_in_backward": (False, f"{FILE}: Optimizer.early_step_in_backward"),
    "parallel.data: replicate": (1, f"{FILE}: Parallelism.data_parallel_replicate_degree"),
    "parallel.data: shard": (-1, f"{FILE}: Parallelism.data_parallel_shard_degree"),
    "parallel.reshard_after_forward": ("default", f"{FILE}: Parallelism.fsdp_reshard_after_forward"),
    "parallel.tensor": (1, f"{FILE}: Parallelism.tensor_parallel_degree"),
    "parallel.pipeline": (1, f"{FILE}: Parallelism.pipeline_parallel_degree"),
    "parallel.virtual_stages": ("1F1B", f"{FILE}: Parallelism.pipeline_parallel_schedule"),
    "parallel.context": (1, f"{FILE}: Parallelism.context_parallel_degree"),
    "parallel.expert": (1, f"{FILE}: Parallelism.expert_parallel_degree"),
    "micro_batch: pipeline": (1, f"{FILE}: Parallelism.pipeline_parallel_microbatch_size"),
    "gradient_checkpointing": ("selective", f"{FILE}: ActivationCheckpoint.mode"),
    "recompute": ("2", f"{FILE}: ActivationCheckpoint.selective_ac_option"),
    "compile": (False, f"{FILE}: Compile.enable"),
    "run.save_strategy": (False, f"{FILE}: Checkpoint.enable"),
    "run.save_steps": (500, f"{FILE}: Checkpoint.interval"),
    "run.save_total_limit": (10, f"{FILE}: Checkpoint.keep_latest_k"),
    "run.eval_strategy": (False, f"{FILE}: Validation.enable"),
    "run.eval_steps": (10, f"{FILE}: Validation.freq"),
    "run.eval_batch": (8, f"{FILE}: Validation.local_batch_size"),
}

FLAVORS: Mapping[tuple[str, str], str] = {
    ("llama3", "8B"): "llama-3.1-8b",
    ("llama3", "70B"): "llama-3.1-70b",
    ("llama3", "405B"): "llama-3.1-405b",
    **{("qwen3", size): f"qwen3-{size.lower()}" for size in ("0.6B", "1.7B", "4B", "8B", "14B", "32B")},
    **{("qwen3", size): f"qwen3-{size.lower()}" for size in ("30B-A3B", "235B-A22B")},
    ("deepseek_v3", "16B"): "deepseek-v2-lite",
    ("deepseek_v3", "236B"): "deepseek-v2",
    ("deepseek_v3", "671B"): "deepseek-v3",
    ("llama4", "17bx16e"): "llama-4-scout",
    ("llama4", "17bx128e"): "llama-4-maverick",
    ("gpt_oss", "20b"): "gpt-oss-20b",
    ("gpt_oss", "120b"): "gpt-oss-120b",
    **{
        (family, "debugmodel"): f"torchtitan-{family.replace('_', '-')}-debug"
        for family in ("llama3", "llama4", "qwen3", "deepseek_v3", "gpt_oss")
    },
    ("qwen3", "debugmodel_moe"): "torchtitan-qwen3-moe-debug",
}
"""torchtitan/models/*/__init__.py: a family's shapes by name. Its 16B DeepSeek has the sizes of DeepSeek-V2-Lite, and
the models of its tests are bundled by names of ours."""
WITH_EXPERTS = ("moe", "-A", "llama4", "deepseek", "gpt_oss")
"""What a family or a flavour has in its name."""
HUB_BACKEND = "transformers_modeling_backend"
"""The experiment that runs transformers' own modelling code under torchtitan's loop."""
SECTIONS = ("training", "parallelism", "activation_checkpoint", "lr_scheduler", "checkpoint", "job", "metrics")
INTERLEAVED = ("Interleaved1F1B", "InterleavedZeroBubble", "LoopedBFS", "DualPipeV", "ZBVZeroBubble")
"""Schedules with two stages a rank where no more is said (distributed/pipeline_parallel.py, `pipeline_llm`)."""
WRITTEN_DOWN = ("1F1B", "Interleaved1F1B")
MOST_CARDS = 8
"""Of one machine: how more are spread over machines is the launcher's to say."""


def recognises(document: Document) -> bool:
    if is_registry(document):
        return True
    name = document.get("model.name")
    held = [section for section in SECTIONS if isinstance(document.get(section), Mapping)]
    return isinstance(name, str) and document.has("model.flavor") and len(held) >= 2


def invocation(words: Sequence[str]) -> Invocation | None:
    """Of `python -m torchtitan.train --job.config_file FILE [--training.seq_len 4096] [--compile.enable]`, and since
    2026 of `--module llama3 --config llama3_8b`."""
    start = next((number for number, each in enumerate(words[:4]) if is_program(each)), None)
    if start is None:
        return None
    config, rest = None, list(words[start + 1 :])
    values: dict[str, Any] = {}
    while rest:
        option = rest.pop(0)
        if not option.startswith("--"):
            continue
        name, equals, value = option[2:].partition("=")
        if not equals:
            value = rest.pop(0) if rest and not rest[0].startswith("--") else "true"
        section, _, leaf = name.replace("-", "_").rpartition(".")
        if leaf.startswith("no_") and value == "true":
            leaf, value = leaf.removeprefix("no_"), "false"
        if (section, leaf) == ("job", "config_file"):
            config = value
        elif (section, leaf) == ("", "module"):
            config = f"torchtitan/models/{value.rpartition('.')[2]}/config_registry.py"
        else:
            values[f"{section}.{leaf}" if section else leaf] = scalar(value)
    return Invocation(config, values)


def is_program(word: str) -> bool:
    return word == "torchtitan.train" or word.endswith(("torchtitan/train.py", "run_train.sh"))


def read(draft: Draft, request: ReadRequest) -> None:
    document = request.document
    notes: Mapping[str, str] = {}
    if isinstance(document, ScriptDocument):
        registry = registry_of(document)
        if registry.document is None:
            draft.refuse("several configurations", f"{CONFIG}=NAME takes one of {', '.join(registry.names)}")
            return
        document, notes = registry.document, registry.notes
    keys = draft.keys(document, WITHOUT_EFFECT)
    for key, why in notes.items():
        draft.not_modelled(keys, key, why)
    draft.put("stack", "torchtitan", keys, "model.name")
    draft.put("task", "pretrain", keys, "model.name")
    draft.assume("method", "full")
    take_model(draft, keys)
    take_precision(draft, keys)
    take_optimizer(draft, keys)
    take_cards(draft, keys)
    take_batches(draft, keys)
    take_recompute(draft, keys)
    take_compile(draft, keys)
    take_run(draft, keys)
    take_fault_tolerance(draft, keys)
    take_stand_in(draft, keys)
    draft.assume("allocator", "expandable_segments", f"{NAME} {RELEASE}, run_train.sh")


def settle(draft: Draft, field: str, value: Any, keys: Keys, *names: str) -> None:
    """As these keys say, or as torchtitan does where none of them is set."""
    draft.drop(field)
    if any(map(keys.has, names)):
        draft.put(field, value, keys, *names)
    else:
        draft.assume(field, value)


def take_model(draft: Draft, keys: Keys) -> None:
    family, flavor = str(keys.get("model.name")), str(keys.get("model.flavor"))
    if family == "flux":
        draft.refuse("diffusion", "images are made, not text")
    if "vl" in family or family.startswith("llama4_vision"):
        draft.refuse("vision", "images beside text")
    if family == HUB_BACKEND:
        draft.take("model", keys, "hf_transformers.model")
        draft.not_modelled(
            keys, "model.name", "transformers' modelling code in torchtitan's loop; torchtitan's is taken"
        )
        return
    plain = flavor.removesuffix("_flex_attn").removesuffix("_flex").removesuffix("_varlen").removesuffix("_irope")
    name = FLAVORS.get((family.removesuffix("_ft"), plain))
    if name is not None:
        draft.put("model", name, keys, "model.flavor")
    else:
        draft.put("model", f"{family}-{flavor}", keys, "model.flavor")
    if plain != flavor:
        draft.not_modelled(keys, "model.flavor", "attention with a mask a document; torch's own is taken")


def take_precision(draft: Draft, keys: Keys) -> None:
    """FSDP gathers weights in the lower dtype; alone on a card, autocast does it."""
    draft.take("weights_dtype", keys, "training.dtype")
    draft.assume("weights_dtype", "float32")
    lower = keys.get("training.mixed_precision_param")
    if lower is not None:
        draft.put("autocast", None if lower == "float32" else lower, keys, "training.mixed_precision_param")
    draft.assume("autocast", "bfloat16")
    draft.take("parallel.reduce_dtype", keys, "training.mixed_precision_reduce")
    take_float8(draft, keys)


def take_float8(draft: Draft, keys: Keys) -> None:
    """Sections about formats count only where `converters` names them."""
    converters = keys.get("model.converters")
    used = [str(each) for each in converters] if isinstance(converters, list) else []
    if any(each in ("float8", "quantize.linear.float8") for each in used):
        draft.put("matmul_dtype", "float8", keys, "model.converters")
        for section in ("float8", "quantize.linear.float8"):
            keys.ignore(f"{section}.filter_fqns", f"{section}.emulate")
            for option in ("enable_fsdp_float8_all_gather", "recipe_name"):
                if keys.document.get(f"{section}.{option}"):
                    draft.not_modelled(keys, f"{section}.{option}", "one scale a tensor, weights gathered in bfloat16")
            keys.ignore(f"{section}.precompute_float8_dynamic_scale_for_fsdp")
    for each in used:
        if "grouped_mm" in each or "mx" in each:
            draft.not_modelled(keys, "model.converters", f"{each} is not written down")
    keys.ignore("quantize", "float8", "mx")


def take_optimizer(draft: Draft, keys: Keys) -> None:
    name = keys.get("optimizer.name", default="AdamW")
    how = keys.get("optimizer.implementation", default="fused")
    if name in ("AdamW", "Adam"):
        settle(draft, "optimizer", "adamw_torch_fused" if how == "fused" else "adamw_torch", keys, "optimizer.name")
        if how == "for-loop":
            draft.not_modelled(keys, "optimizer.implementation", "one weight at a time; many at a time are taken")
    else:
        draft.put("optimizer", str(name).lower(), keys, "optimizer.name")
    draft.take("optimizer_in_backward", keys, "optimizer.early_step_in_backward")
    draft.take("max_grad_norm", keys, "training.max_norm")
    draft.assume("max_grad_norm", 1.0)


def take_cards(draft: Draft, keys: Keys) -> None:
    copies = keys.get("parallelism.data_parallel_replicate_degree", default=1)
    shards = keys.get("parallelism.data_parallel_shard_degree", default=-1)
    if whole(copies) == 1:
        draft.assume("parallel.data", "fsdp")
    else:
        draft.put("parallel.data", "ddp" if shards == 1 else "hsdp", keys, "parallelism.data_parallel_replicate_degree")
    draft.assume("parallel.fsdp_version", 2)
    for field in ("tensor", "pipeline", "context", "expert"):
        draft.take(f"parallel.{field}", keys, f"parallelism.{field}_parallel_degree")
    ways = [copies, shards, *(draft.fields.get(f"parallel.{field}", 1) for field in ("tensor", "pipeline", "context"))]
    counts = [count for each in ways if (count := whole(each)) is not None and 0 < count <= MOST_CARDS]
    if len(counts) == len(ways) and prod(counts) <= MOST_CARDS:
        draft.put("hardware.gpus", prod(counts), keys, "parallelism.data_parallel_shard_degree")
    reshards = keys.get("parallelism.fsdp_reshard_after_forward", default="default")
    piped = (whole(draft.fields.get("parallel.pipeline")) or 1) > 1
    kept = reshards == "never" or (reshards == "default" and piped)
    settle(draft, "parallel.reshard_after_forward", not kept, keys, "parallelism.fsdp_reshard_after_forward")
    if switch(keys.get("training.enable_cpu_offload")):
        draft.put("parallel.offload", "parameters", keys, "training.enable_cpu_offload")
    take_details(draft, keys, piped)


def take_details(draft: Draft, keys: Keys, piped: bool) -> None:
    """Of the mesh: what counts only where it is used."""
    split = (whole(draft.fields.get("parallel.tensor")) or 1) > 1
    spread = (whole(draft.fields.get("parallel.expert")) or 1) > 1
    schedule = keys.get("parallelism.pipeline_parallel_schedule", default="1F1B")
    if piped and schedule in INTERLEAVED:
        draft.put("parallel.virtual_stages", 2, keys, "parallelism.pipeline_parallel_schedule")
    told = {
        "pipeline_parallel_schedule": piped and schedule not in WRITTEN_DOWN,
        "pipeline_parallel_layers_per_stage": piped,
        "pipeline_parallel_first_stage_less_layers": piped,
        "pipeline_parallel_last_stage_less_layers": piped,
        "module_fqns_per_model_part": piped,
        "disable_loss_parallel": split,
        "enable_async_tensor_parallel": split,
        "spmd_backend": split,
        "expert_tensor_parallel_degree": spread and keys.document.get("parallelism.expert_tensor_parallel_degree") != 1,
        "expert_parallel_comm_backend": spread,
    }
    for name, matters in told.items():
        if matters and keys.document.get(f"parallelism.{name}"):
            draft.not_modelled(keys, f"parallelism.{name}", "not written down for torchtitan")
        else:
            keys.ignore(f"parallelism.{name}")
    keys.ignore("parallelism.pipeline_parallel_split_points", "parallelism.pipeline_parallel_schedule_csv")


def take_batches(draft: Draft, keys: Keys) -> None:
    """A pipeline cuts its local batch into micro-batches of their own size."""
    draft.take("seq_len", keys, "training.seq_len")
    draft.assume("seq_len", 2048)
    rows = keys.get("training.local_batch_size", "training.batch_size", default=8)
    size = keys.get("parallelism.pipeline_parallel_microbatch_size", default=1)
    piped = (whole(draft.fields.get("parallel.pipeline")) or 1) > 1
    count, each = whole(rows), whole(size)
    if piped and count is not None and each is not None and each > 0:
        draft.put(
            "micro_batch", each, keys, "parallelism.pipeline_parallel_microbatch_size", "training.local_batch_size"
        )
        draft.put("grad_accum", max(1, count // each), keys, "training.local_batch_size")
    else:
        settle(draft, "micro_batch", rows, keys, "training.local_batch_size", "training.batch_size")
    if keys.get("training.global_batch_size", default=-1) != -1:
        draft.put_global_batch(keys, "training.global_batch_size")
    else:
        draft.assume("grad_accum", 1)


def take_recompute(draft: Draft, keys: Keys) -> None:
    mode = keys.get("activation_checkpoint.mode", default="selective")
    option = keys.get("activation_checkpoint.selective_ac_option", default="2")
    place = "activation_checkpoint.mode"
    settle(draft, "gradient_checkpointing", mode != "none", keys, place)
    if mode == "selective" and option == "op":
        draft.put("recompute", "selective", keys, "activation_checkpoint.selective_ac_option", place)
    elif mode != "none":
        settle(draft, "recompute", "all", keys, place)
    if mode == "selective" and option not in ("op", "1", 1):
        draft.not_modelled(
            keys, "activation_checkpoint.selective_ac_option", "some layers are recomputed; all are here"
        )
    if mode == "memory_budget":
        draft.not_modelled(keys, "activation_checkpoint.memory_budget", "the compiler chooses what is recomputed")
    keys.ignore("activation_checkpoint.per_op_sac_force_recompute_mm_shapes_by_fqns")


def take_compile(draft: Draft, keys: Keys) -> None:
    """Until 2025 `training.compile`."""
    asked = switch(keys.get("compile.enable", "training.compile")) is True
    parts = keys.get("compile.components", default=["model", "loss"])
    whole_model = asked and isinstance(parts, list) and "model" in parts
    settle(draft, "compile", whole_model, keys, "compile.enable", "training.compile")
    if asked and not whole_model:
        draft.not_modelled(keys, "compile.components", "the loss alone is compiled")
    keys.ignore("compile.backend")


def take_run(draft: Draft, keys: Keys) -> None:
    draft.take("run.max_steps", keys, "training.steps")
    draft.assume("run.max_steps", 10000)
    saves = switch(keys.get("checkpoint.enable", "checkpoint.enable_checkpoint")) is True
    strategy = "steps" if saves else "no"
    settle(draft, "run.save_strategy", strategy, keys, "checkpoint.enable", "checkpoint.enable_checkpoint")
    if saves:
        draft.take("run.save_steps", keys, "checkpoint.interval")
        draft.assume("run.save_steps", 500)
        if whole(keys.get("checkpoint.keep_latest_k")) != 0:
            draft.take("run.save_total_limit", keys, "checkpoint.keep_latest_k")
        if keys.get("checkpoint.async_mode", default="disabled") != "disabled":
            draft.not_modelled(keys, "checkpoint.async_mode", "checkpoints are copied to the host and written aside")
    if switch(keys.get("validation.enable", "validation.enabled")):
        draft.put("run.eval_strategy", "steps", keys, "validation.enable", "validation.enabled")
        draft.take("run.eval_steps", keys, "validation.freq")
        draft.take("run.eval_batch", keys, "validation.local_batch_size")
        if whole(keys.get("validation.steps")) != -1:
            draft.take("run.eval_max_batches", keys, "validation.steps")
    else:
        keys.ignore("validation")
        draft.assume("run.eval_strategy", "no")


def take_fault_tolerance(draft: Draft, keys: Keys) -> None:
    if switch(keys.get("fault_tolerance.enable")):
        why = "groups of cards that train apart (torchft): their copies of weights and their sums are not counted"
        draft.not_modelled(keys, "fault_tolerance.enable", why)
    keys.ignore("fault_tolerance")


def take_stand_in(draft: Draft, keys: Keys) -> None:
    """What the closed form of torchtitan does not have. Of experts it knows FSDP and cards that have some of them: each
    of those takes the place of one that has a part of every layer, and a row where there are enough of them."""
    fields = draft.fields
    family, flavor = str(keys.document.get("model.name")), str(keys.document.get("model.flavor"))
    if family.startswith("gpt_oss"):
        take_transformers(draft, keys)
    if not any(each in family or each in flavor for each in WITH_EXPERTS):
        return
    ways = {field: whole(fields.get(f"parallel.{field}")) or 1 for field in ("tensor", "pipeline", "context")}
    if all(count == 1 for count in ways.values()):
        return
    for field, count in ways.items():
        if count > 1:
            key = f"parallelism.{field}_parallel_degree"
            draft.not_modelled(keys, key, "not written down with experts: these cards share weights and rows instead")
        draft.drop(f"parallel.{field}")
    for field in ("parallel.virtual_stages", "grad_accum", "hardware.gpus"):
        draft.drop(field)
    draft.put("parallel.reshard_after_forward", True, keys, "parallelism.fsdp_reshard_after_forward")
    rows = whole(keys.get("training.local_batch_size", "training.batch_size", default=8)) or 1
    settle(draft, "micro_batch", max(1, rows // prod(ways.values())), keys, "training.local_batch_size")
    draft.assume("grad_accum", 1)
    parts = whole(keys.document.get("parallelism.expert_tensor_parallel_degree")) or 1
    if parts > 1 and (whole(fields.get("parallel.expert")) or 1) == 1:
        draft.put("parallel.expert", parts, keys, "parallelism.expert_tensor_parallel_degree")


def take_transformers(draft: Draft, keys: Keys) -> None:
    why = "not written down for torchtitan: transformers' own code is taken, with all scores written out"
    draft.not_modelled(keys, "model.name", why)
    draft.put("stack", "transformers", keys, "model.name")
    draft.put("attention", "eager", keys, "model.name")
    for field in ("recompute", "parallel.expert", "compile"):
        draft.drop(field)
