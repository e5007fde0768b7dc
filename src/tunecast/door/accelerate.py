"""accelerate's configuration, from its YAML file or the launcher's flags, as the environment its launcher would set.

Source   accelerate 1.15.0: utils/launch.py (`prepare_simple_launcher_cmd_env`, `prepare_multi_gpu_env`,
         `prepare_deepspeed_cmd_env`), whose variables these are, and commands/launch.py, whose defaults these are.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tunecast.errors import UsageError
from tunecast.job.knob import shown
from tunecast.job.readers import yaml
from tunecast.job.readers.bounds import MOST_YAML_BYTES, bounded_text
from tunecast.records import dataclass, field
from tunecast.tape.trace.launch import rank_zero
from tunecast.units import positive

_FSDP: Mapping[str, str | None] = {
    "version": "1",
    "sharding_strategy": "FULL_SHARD",
    "reshard_after_forward": "true",
    "offload_params": "false",
    "min_num_params": "100000000",
    "auto_wrap_policy": None,
    "transformer_layer_cls_to_wrap": None,
    "backward_prefetch": None,
    "state_dict_type": None,
    "forward_prefetch": "false",
    "use_orig_params": "true",
    "cpu_ram_efficient_loading": "true",
    "sync_module_states": "true",
    "activation_checkpointing": "false",
    "activation_checkpointing_offload": "false",
    "ignored_modules": None,
}
_RENAMED = {"transformer_layer_cls_to_wrap": "TRANSFORMER_CLS_TO_WRAP"}
_DEEPSPEED = {
    "zero_stage": "DEEPSPEED_ZERO_STAGE", "gradient_accumulation_steps": "GRADIENT_ACCUMULATION_STEPS",
    "gradient_clipping": "GRADIENT_CLIPPING", "offload_optimizer_device": "DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE",
    "offload_param_device": "DEEPSPEED_OFFLOAD_PARAM_DEVICE", "zero3_init_flag": "DEEPSPEED_ZERO3_INIT",
    "zero3_save_16bit_model": "DEEPSPEED_ZERO3_SAVE_16BIT_MODEL", "deepspeed_config_file": "DEEPSPEED_CONFIG_FILE",
    "deepspeed_moe_layer_cls_names": "DEEPSPEED_MOE_LAYER_CLS_NAMES",
}  # fmt: skip
_AS_GIVEN = {"deepspeed_config_file", "deepspeed_moe_layer_cls_names"}
"""Every other value is written in small letters."""
_KINDS = ("NO", "MULTI_GPU", "FSDP", "DEEPSPEED")
"""accelerate's `distributed_type`s that can be traced."""
_PARALLELISM = {
    "dp_replicate_size": "1", "dp_shard_size": "1", "tp_size": "1", "cp_size": "1", "cp_backend": "torch",
    "sp_size": "1", "sp_backend": "deepspeed",
}  # fmt: skip
_PREFIXED = ("fsdp_config", "fp8_config", "dynamo_config")
"""Sections of the file whose keys get its name as flags."""


@dataclass(frozen=True)
class Accelerate:
    nproc_per_node: int
    nnodes: int
    environment: Mapping[str, str] = field(default_factory=dict)


def accelerate_from(options: Mapping[str, object]) -> Accelerate:
    """From what was given to `accelerate launch`, by the names of its flags; a file named there is read first."""
    content: Mapping[str, object] = {}
    if options.get("config_file"):
        content = _content(str(options["config_file"]))
    given = {**_flat(content), **options}
    for name in ("use_megatron_lm", "tpu", "cpu", "use_xpu"):
        if name in options:
            allowed = "--multi_gpu, --use_fsdp, --use_deepspeed"
            raise UsageError(f"accelerate's --{name} is not traced; allowed: {allowed}", field=name)
    asked = [kind for flag, kind in (("use_fsdp", "FSDP"), ("use_deepspeed", "DEEPSPEED")) if flag in options]
    kind = asked[0] if asked else _kind(given)
    machines, processes = _whole(given, "num_machines"), _whole(given, "num_processes")
    if processes % machines:
        raise UsageError(f"accelerate's num_processes {processes} is no multiple of num_machines {machines}")
    environment = {"ACCELERATE_MIXED_PRECISION": str(given.get("mixed_precision") or "no").lower()}
    if given.get("dynamo_backend"):
        environment["ACCELERATE_DYNAMO_BACKEND"] = str(given["dynamo_backend"]).upper()
    if kind == "FSDP":
        environment |= _fsdp_environment(given)
    if kind == "DEEPSPEED":
        environment |= _deepspeed_environment(given, content)
    if "use_parallelism_config" in options or content.get("parallelism_config"):
        environment |= _parallelism_environment(given)
    if kind != "NO" and processes == 1:
        environment |= rank_zero(1)
    return Accelerate(processes // machines, machines, environment)


def accelerate_config(path: str) -> Accelerate:
    """From the YAML that `accelerate config` writes."""
    return accelerate_from({"config_file": path})


def _content(name: str) -> Mapping[str, object]:
    content = yaml.parsed(bounded_text(Path(name).expanduser(), MOST_YAML_BYTES), name)
    if not isinstance(content, Mapping):
        raise UsageError(f"{name}: no accelerate configuration: a mapping is needed", field="--accelerate-config")
    return content


def _flat(content: Mapping[str, object]) -> dict[str, object]:
    """The file's sections unfolded to the names of the flags (launch.py, `_validate_launch_command`)."""
    flat: dict[str, object] = {}
    for name, value in content.items():
        if isinstance(value, Mapping):
            prefix = name.removesuffix("_config") if name in _PREFIXED else ""
            flat |= {key if key.startswith(prefix) else f"{prefix}_{key}": inner for key, inner in value.items()}
        else:
            flat[name] = value
    return flat


def _kind(given: Mapping[str, object]) -> str:
    # YAML 1.1 reads accelerate's `distributed_type: NO` as false when nobody quoted it
    kind = given.get("distributed_type") or "NO"
    if kind in _KINDS:
        return str(kind)
    raise UsageError(
        f"accelerate's distributed_type {kind} is not traced; allowed: {', '.join(_KINDS)}", field="distributed_type"
    )


def _whole(given: Mapping[str, object], name: str) -> int:
    value = given.get(name)
    if value is None:
        return 1
    if (number := positive(value)) is not None:
        return number
    raise UsageError(f"accelerate's {name}: got {shown(value)}; allowed: a whole number from 1 on", field=name)


def _fsdp_environment(given: Mapping[str, object]) -> dict[str, str]:
    environment = {"ACCELERATE_USE_FSDP": "true"}
    for name, default in _FSDP.items():
        value = given.get(f"fsdp_{name}")
        text = default if value is None else str(value).lower() if isinstance(value, bool) else str(value)
        if text is not None:
            environment[f"FSDP_{_RENAMED.get(name, name.upper())}"] = text
    return environment


def _deepspeed_environment(given: Mapping[str, object], content: Mapping[str, object]) -> dict[str, str]:
    section = content.get("deepspeed_config")
    fields = list(section) if isinstance(section, Mapping) else []
    if content.get("mixed_precision") is not None:
        fields.append("mixed_precision")
    environment = {"ACCELERATE_USE_DEEPSPEED": "true", "ACCELERATE_CONFIG_DS_FIELDS": ",".join(fields).lower()}
    for name, variable in _DEEPSPEED.items():
        value = given.get(name)
        if value is not None:
            environment[f"ACCELERATE_{variable}"] = str(value) if name in _AS_GIVEN else str(value).lower()
    return environment


def _parallelism_environment(given: Mapping[str, object]) -> dict[str, str]:
    """Also what it sets only of several sizes: the strategy of context parallelism, lengths of sequence parallelism."""
    prefix = "parallelism_config_"
    values = {name.removeprefix(prefix): str(value) for name, value in given.items() if name.startswith(prefix)}
    environment = {f"{prefix}{name}".upper(): value for name, value in {**_PARALLELISM, **values}.items()}
    return {"ACCELERATE_USE_PARALLELISM_CONFIG": "true", **environment}
