"""accelerate's YAML: how many processes there are, on how many machines, and how they share the model.

What the training's own file says wins, as its arguments reach accelerate after this file. Keys and defaults:
accelerate/commands/config/config_args.py, `ClusterConfig`; accelerate/commands/launch.py, `_validate_launch_command`.
"""

from __future__ import annotations

from pathlib import Path

from tunecast.job.recipes.document import Document
from tunecast.job.recipes.draft import Draft, Keys
from tunecast.job.recipes.parts.deepspeed import put_stage, read_deepspeed, take_name
from tunecast.job.recipes.parts.fsdp import take_fsdp
from tunecast.job.recipes.request import ReadRequest
from tunecast.job.recipes.values import number, switch, whole, word
from tunecast.job.releases import RELEASES

NAME = "accelerate"
RELEASE = RELEASES["accelerate"].newest
WITHOUT_EFFECT = (
    "compute_environment", "machine_rank", "main_process_*", "main_training_function", "rdzv_*", "same_network",
    "enable_cpu_affinity", "debug", "downcast_bf16", "gpu_ids", "tpu_*", "command_file", "commands", "mpirun_config.*",
    "dynamo_config.*", "deepspeed_config.deepspeed_multinode_launcher", "deepspeed_config.deepspeed_hostfile",
    "deepspeed_config.deepspeed_*_filter", "deepspeed_config.zero3_init_flag",
    "deepspeed_config.zero3_save_16bit_model", "deepspeed_config.*_nvme_path",
    "deepspeed_config.seq_parallel_communication_data_type", "parallelism_config.*_sp_seq_length*",
    "parallelism_config.*_cp_comm_strategy", "parallelism_config.*_backend", "ec2_*", "iam_role_name", "profile",
    "region", "base_job_name", "image_uri", "*_version", "sagemaker_*", "additional_args.*",
)  # fmt: skip
PRECISIONS = {"bf16": "bfloat16", "fp16": "float16", "fp8": "bfloat16", "no": None, "": None}
"""FP8 computes what is no matrix product in bfloat16."""
OTHER_CARDS = ("xla", "tpu", "multi_npu", "multi_mlu", "multi_sdaa", "multi_musa", "multi_xpu", "multi_hpu")


def recognises(document: Document) -> bool:
    own = ("num_processes", "compute_environment", "num_machines", "fsdp_config", "deepspeed_config", "mixed_precision")
    return document.has("distributed_type") and any(map(document.has, own))


def read(draft: Draft, request: ReadRequest) -> None:
    read_accelerate(draft, request.document, request)


def read_accelerate(draft: Draft, document: Document, request: ReadRequest) -> None:
    keys = draft.keys(document, WITHOUT_EFFECT)
    kind = word(keys.get("distributed_type"))
    take_cards(draft, keys, request, kind)
    take_precision(draft, keys)
    if switch(keys.get("use_cpu")) or kind == "multi_cpu":
        draft.refuse("training on CPUs", "cards are predicted here")
    elif kind in OTHER_CARDS or kind == "multi_neuron":
        draft.refuse(str(keys.get("distributed_type")), "cards of NVIDIA are predicted here")
    elif "parallel.data" in draft.places:
        keys.ignore("fsdp_config", "deepspeed_config", "megatron_lm_config")
    elif kind == "fsdp":
        take_fsdp(draft, keys, version=1, name="distributed_type")
        draft.assume("parallel.cpu_ram_efficient_loading", True, f"accelerate {RELEASE}")
        sharded = draft.fields.get("parallel.fsdp_version") == 2
        draft.assume("parallel.state_dict_type", "sharded" if sharded else "full", f"accelerate {RELEASE}")
    elif kind == "deepspeed":
        take_deepspeed_plugin(draft, keys, request)
    elif kind == "megatron_lm":
        draft.not_modelled(keys, "distributed_type", "accelerate's integration of Megatron-LM")
    elif kind == "multi_gpu":
        draft.put("parallel.data", "ddp", keys, "distributed_type")
    take_mesh(draft, keys, request)
    backend = keys.get("dynamo_backend", "dynamo_config.dynamo_backend", "dynamo_config.backend")
    if word(backend) not in ("", "no"):
        names = ("dynamo_backend", "dynamo_config.dynamo_backend", "dynamo_config.backend")
        draft.put("compile", True, keys, *names)


def take_cards(draft: Draft, keys: Keys, request: ReadRequest, kind: str) -> None:
    """`num_processes` counts all machines. The command line of the launcher wins."""
    given, machines = keys.get("num_processes"), whole(keys.get("num_machines")) or 1
    processes = whole(given)
    if kind == "no" and given is None:
        processes = 1
    if processes is not None and processes > 0 and machines > 0 and request.launch.gpus is None:
        draft.offer("hardware.gpus", max(processes // machines, 1), keys, "num_processes", "distributed_type")
    elif given is not None and processes != -1 and request.launch.gpus is None:
        draft.offer("hardware.gpus", given, keys, "num_processes")
    if keys.get("num_machines") is not None and request.launch.nodes is None:
        draft.offer("hardware.nodes", keys.get("num_machines"), keys, "num_machines")


def take_precision(draft: Draft, keys: Keys) -> None:
    said = keys.get("mixed_precision")
    if said is None and switch(keys.get("fp16")):
        said = "fp16"
    if draft.fields.get("autocast") is None:
        known = PRECISIONS.get(word(said), said)
        if said is None:
            draft.assume("autocast", None, f"accelerate {RELEASE}")
        else:
            draft.put("autocast", known, keys, "mixed_precision", "fp16")
    if word(said) == "fp8":
        draft.put("matmul_dtype", "float8", keys, "mixed_precision")
        if word(keys.document.get("fp8_config.backend")) in ("te", "msamp"):
            draft.not_modelled(keys, "fp8_config.backend", "other kernels of FP8 than torchao's")
        inner = keys.document.inside("fp8_config")
        keys.ignore(*(f"fp8_config.{name}" for name in (inner.tree if inner else ()) if name != "backend"))
    else:
        keys.ignore("fp8_config")


def take_deepspeed_plugin(draft: Draft, keys: Keys, request: ReadRequest) -> None:
    """A file takes the place of all else (`DeepSpeedPlugin.__post_init__`); the stage is 2 where nothing says it."""
    within = "deepspeed_config"
    name = f"{within}.deepspeed_config_file"
    path = keys.get(name)
    if isinstance(path, str) and word(path) != "none":
        found = request._replace(folder=Path(keys.document.file).parent).open(path)
        if found is None:
            take_name(draft, keys, name, path)
        else:
            read_deepspeed(draft, found, request)
        return
    given = keys.get(f"{within}.zero_stage")
    stage = whole(given) if given is not None else 2
    put_stage(draft, keys, stage if stage is not None and 0 <= stage <= 9 else 9, f"{within}.zero_stage", within)
    steps = whole(keys.get(f"{within}.gradient_accumulation_steps"))
    if steps is not None:
        draft.offer("grad_accum", steps, keys, f"{within}.gradient_accumulation_steps")
    clipping = number(keys.get(f"{within}.gradient_clipping"))
    if clipping is not None:
        draft.put("max_grad_norm", clipping, keys, f"{within}.gradient_clipping")
    for leaf, what, stages in (("param", "parameters", (3,)), ("optimizer", "optimizer", (1, 2, 3))):
        device = word(keys.get(f"{within}.offload_{leaf}_device"))
        if device not in ("", "none") and stage in stages and "parallel.offload" not in draft.places:
            draft.put("parallel.offload", what, keys, f"{within}.offload_{leaf}_device")
            if device != "cpu":
                draft.put("parallel.offload_device", device, keys, f"{within}.offload_{leaf}_device")


def take_mesh(draft: Draft, keys: Keys, request: ReadRequest) -> None:
    """accelerate/parallelism_config.py, `ParallelismConfig`: sizes of the dimensions of the mesh."""
    sizes = {}
    for leaf in ("dp_replicate", "dp_shard", "tp", "cp", "sp"):
        names = (f"parallelism_config.parallelism_config_{leaf}_size", f"parallelism_config.{leaf}_size")
        given = keys.get(*names)
        if given is not None and whole(given) not in (0, 1):
            sizes[leaf] = (whole(given), names)
    keys.get("parallelism_config.parallelism_config_sp_attn_implementation")
    for leaf, field in (("tp", "parallel.tensor"), ("cp", "parallel.context"), ("sp", "parallel.context")):
        if leaf in sizes:
            size, names = sizes[leaf]
            draft.put(field, size if size is not None else keys.get(*names), keys, *names)
            if leaf == "sp":
                draft.put("parallel.context_kind", "ulysses", keys, *names)
    if "dp_replicate" in sizes:
        names = sizes["dp_replicate"][1]
        sharded = sizes.get("dp_shard", (1, ()))[0]
        draft.put("parallel.data", "ddp" if sharded == 1 else "hsdp", keys, *names)
        if sharded not in (1, draft.fields.get("hardware.gpus"), request.launch.gpus):
            draft.not_modelled(keys, _written(keys, names), "taken are shards inside a machine, copies across machines")


def _written(keys: Keys, names: tuple[str, ...]) -> str:
    return next((name for name in names if keys.document.get(name) is not None), names[0])
