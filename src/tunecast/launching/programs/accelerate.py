"""accelerate's YAML for `accelerate launch --config_file`: processes, and how they share the model.

Keys: accelerate/commands/config/config_args.py, `ClusterConfig`; of its sections accelerate/commands/launch.py,
`launch_command_parser`; accelerate/utils/dataclasses.py, `DeepSpeedPlugin`, `FullyShardedDataParallelPlugin`.
"""

from __future__ import annotations

import json
from typing import Any

from tunecast.errors import Unsupported
from tunecast.job.job import Job
from tunecast.job.releases import RELEASES, minor
from tunecast.job.shardings import sharding_of, shards_and_copies
from tunecast.job.stacks import stack_of
from tunecast.launching.programs.settings import MASTER_ADDR, MASTER_PORT, NODE_RANK, Machines, torchrun_words
from tunecast.launching.rendering import Command
from tunecast.launching.texts import yaml_text

LAUNCH = ("accelerate", "launch")
CONFIG, DEEPSPEED = "accelerate.yaml", "deepspeed.json"
ZERO_KEYS = {
    "reduce_bucket_size": "reduce_bucket_size",
    "prefetch_bucket_size": "stage3_prefetch_bucket_size",
    "param_persistence_threshold": "stage3_param_persistence_threshold",
    "max_live_parameters": "stage3_max_live_parameters",
    "max_reuse_distance": "stage3_max_reuse_distance",
    "sub_group_size": "sub_group_size",
    "overlap_comm": "overlap_comm",
    "round_robin_gradients": "round_robin_gradients",
}
"""Fields of `parallel` by DeepSpeed's names (deepspeed/runtime/zero/config.py, `DeepSpeedZeroConfig`)."""
PRECISIONS = {None: "no", "bfloat16": "bf16", "float16": "fp16"}
AUTO = ("reduce_bucket_size", "prefetch_bucket_size", "param_persistence_threshold")
"""Those that follow the hidden size where they are `auto`."""
START_SHARE = 0.7
"""What `accelerate launch` takes until the training's own Python begins, as a part of what that takes to start on the
same machine. The command imports all its sub-commands, of which `estimate` imports transformers' automatic classes
(accelerate/commands/accelerate_cli.py), before it looks for cards. 10.4 of 14.8 s on a machine with an H200
(benchmarks/data/launcher_start.jsonl, accelerate's inner_s and trl); 15.1, 15.8, 16.7 and 17.4 s in four launches
(launched_runs.jsonl, job_s less process_s) whose own starts took 17 to 25 s; 3.8 of 6.8 s of CPU without a card."""
FSDP_2_SINCE = (5, 0)
"""transformers whose Trainer takes FSDP 2 where nothing is said."""


def launch_command(machines: Machines, *program: str) -> Command:
    several = ("--machine_rank", NODE_RANK, "--main_process_ip", MASTER_ADDR, "--main_process_port", MASTER_PORT)
    return (*LAUNCH, "--config_file", CONFIG, *(several if machines.nodes > 1 else ()), *program)


def start_share(command: Command) -> float:
    """By how much of its own start a training takes longer because accelerate starts it: a prediction's `start` is of
    one Python."""
    return START_SHARE if command[:2] == LAUNCH else 0.0


def on_cpu(machines: Machines, *program: str) -> Command:
    """By torchrun: accelerate starts several processes without cards by mpirun alone (accelerate/commands/launch.py,
    `launch_command`)."""
    return ("torchrun", *torchrun_words(machines), *program)


def accelerate_files(job: Job, machines: Machines) -> dict[str, str]:
    """Its file, and DeepSpeed's where the job sets what accelerate has no keys for."""
    sharding, own = sharding_of(job), zero_settings(job)
    values: dict[str, Any] = {"compute_environment": "LOCAL_MACHINE", "distributed_type": "NO"}
    if machines.processes > 1:
        values["distributed_type"] = "MULTI_GPU"
    if sharding.is_fsdp:
        values |= {"distributed_type": "FSDP", "fsdp_config": fsdp_section(job)}
        if sharding.replicates_machines and fsdp_version(job) == 2:
            values["parallelism_config"] = mesh_section(job)
    if sharding.is_zero:
        section = {"deepspeed_config_file": DEEPSPEED} if own else deepspeed_section(job)
        several = {"deepspeed_multinode_launcher": "standard"} if machines.nodes > 1 else {}
        values |= {"distributed_type": "DEEPSPEED", "deepspeed_config": {**section, **several}}
    values |= {"num_machines": machines.nodes, "num_processes": machines.processes}
    if not own:  # a file of DeepSpeed's says it itself
        values["mixed_precision"] = PRECISIONS[job.autocast]
    files = {CONFIG: yaml_text(values)}
    if own:
        files[DEEPSPEED] = deepspeed_text(job)
    return files


def plain_text(job: Job, machines: Machines) -> str:
    """Processes alone, of a trainer that says itself how they share the model."""
    kind = "NO" if machines.processes == 1 else "MULTI_GPU"
    values = {"compute_environment": "LOCAL_MACHINE", "distributed_type": kind, "num_machines": machines.nodes}
    return yaml_text({**values, "num_processes": machines.processes, "mixed_precision": PRECISIONS[job.autocast]})


def fsdp_version(job: Job) -> int:
    release = job.transformers_version or RELEASES["transformers"].newest
    return job.parallel.fsdp_version or (2 if minor(release) >= FSDP_2_SINCE else 1)


def fsdp_section(job: Job) -> dict[str, Any]:
    parallel, version = job.parallel, fsdp_version(job)
    section: dict[str, Any] = {
        "fsdp_version": version,
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_offload_params": parallel.offload == "parameters",
        "fsdp_cpu_ram_efficient_loading": parallel.cpu_ram_efficient_loading,
        "fsdp_state_dict_type": f"{parallel.state_dict_type.upper()}_STATE_DICT",
    }
    if version == 2:
        return {**section, "fsdp_reshard_after_forward": parallel.reshard_after_forward}
    kept = "FULL_SHARD" if parallel.reshard_after_forward else "SHARD_GRAD_OP"
    if sharding_of(job).replicates_machines:
        kept = "HYBRID_SHARD" if parallel.reshard_after_forward else "HYBRID_SHARD_ZERO2"
    return {**section, "fsdp_sharding_strategy": kept, "fsdp_use_orig_params": parallel.use_orig_params}


def mesh_section(job: Job) -> dict[str, int]:
    """accelerate/parallelism_config.py, `ParallelismConfig`."""
    shards, copies = shards_and_copies(sharding_of(job), job.hardware.gpus, job.hardware.nodes, job.parallel.replicate)
    return {"parallelism_config_dp_replicate_size": copies, "parallelism_config_dp_shard_size": shards}


def zero_settings(job: Job) -> dict[str, Any]:
    """What the job sets of ZeRO that accelerate has no keys for, by DeepSpeed's names."""
    if not sharding_of(job).is_zero:
        return {}
    values = {key: getattr(job.parallel, field) for field, key in ZERO_KEYS.items()}
    return {key: value for key, value in values.items() if value is not None}


def zero_defaults(job: Job) -> dict[str, Any]:
    """What nobody said of ZeRO, as in the file that the stack's users start from, by field."""
    sharding = sharding_of(job)
    own = stack_of(job).deepspeed.get(sharding.zero_stage, {}) if sharding.is_zero else {}
    values: dict[str, Any] = dict.fromkeys(AUTO, "auto") if own.get("auto") else {}
    values |= {field: value for field, value in own.items() if field in ZERO_KEYS}
    return {f"parallel.{field}": value for field, value in values.items() if getattr(job.parallel, field) is None}


def deepspeed_section(job: Job) -> dict[str, Any]:
    sharding = sharding_of(job)
    section: dict[str, Any] = {"zero_stage": sharding.zero_stage, **offload_devices(job)}
    if sharding.cuts_weights:
        section |= {"zero3_init_flag": True, "zero3_save_16bit_model": True}
    return section


def offload_devices(job: Job) -> dict[str, str]:
    if job.parallel.offload != "none" and job.parallel.offload_device != "cpu":
        raise Unsupported.at(
            "parallel.offload_device", f"got {job.parallel.offload_device}, whose folder no field names; allowed: cpu"
        )
    optimizer = "cpu" if job.parallel.offload in ("optimizer", "parameters") else "none"
    return {
        "offload_optimizer_device": optimizer,
        "offload_param_device": "cpu" if job.parallel.offload == "parameters" else "none",
    }


def deepspeed_text(job: Job) -> str:
    """What the Trainer fills in is `auto` (transformers/integrations/deepspeed.py, `trainer_config_process`)."""
    sharding, devices = sharding_of(job), offload_devices(job)
    zero: dict[str, Any] = {"stage": sharding.zero_stage, **zero_settings(job)}
    zero["offload_optimizer"] = {"device": devices["offload_optimizer_device"]}
    if sharding.cuts_weights:
        zero["offload_param"] = {"device": devices["offload_param_device"]}
        zero["stage3_gather_16bit_weights_on_model_save"] = True
    return (
        json.dumps(
            {
                "bf16": {"enabled": "auto"},
                "fp16": {"enabled": "auto"},
                "zero_optimization": zero,
                "gradient_accumulation_steps": "auto",
                "gradient_clipping": "auto",
                "train_batch_size": "auto",
                "train_micro_batch_size_per_gpu": "auto",
            },
            indent=2,
        )
        + "\n"
    )
