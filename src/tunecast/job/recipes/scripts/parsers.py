"""What argparse and transformers' HfArgumentParser give where no argument is given: the defaults a script writes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tunecast.job.recipes.scripts.values import UNKNOWN, Made

PARSERS = ("ArgumentParser",)
DATACLASS_PARSERS = ("HfArgumentParser", "TrlParser", "H4ArgumentParser")
PARSES = ("parse_args", "parse_known_args")
PARSES_DATACLASSES = (
    *("parse_args_into_dataclasses", "parse_args_and_config", "parse", "parse_dict", "parse_json_file"),
    "parse_yaml_file",
)
FIELDS: Mapping[str, frozenset[str]] = {
    "ModelConfig": frozenset(
        {
            *("model_name_or_path", "model_revision", "dtype", "torch_dtype", "trust_remote_code", "use_peft"),
            *("attn_implementation", "lora_r", "lora_alpha", "lora_dropout", "lora_target_modules", "use_rslora"),
            *("lora_target_parameters", "lora_modules_to_save", "lora_task_type", "use_dora", "load_in_8bit"),
            *("load_in_4bit", "bnb_4bit_quant_type", "use_bnb_nested_quant", "bnb_4bit_quant_storage"),
        }
    ),
    "ScriptArguments": frozenset(
        {
            *("dataset_name", "dataset_config", "dataset_train_split", "dataset_test_split", "dataset_streaming"),
            "ignore_bias_buffers",
        }
    ),
}
"""Of TRL's classes beside a trainer's arguments (trl/trainer/model_config.py, trl/scripts/utils.py)."""
SWITCHES = {"store_true": False, "store_false": True}


def add_argument(parser: Made, call: Made) -> None:
    """`parser.add_argument("--lr", type=float, default=1e-4)`."""
    names = [name for name in call.positional if isinstance(name, str)]
    name = call.arguments.get("dest") or next(
        (name for name in names if name.startswith("--")), names[0] if names else ""
    )
    if not isinstance(name, str) or not name:
        return
    action = call.arguments.get("action")
    default = SWITCHES.get(action) if isinstance(action, str) else None
    required = call.arguments.get("required") is True or not name.startswith("-")
    value = call.arguments.get("default", UNKNOWN if required and default is None else default)
    parser.give(name.lstrip("-").replace("-", "_"), value, call.line)


def set_defaults(parser: Made, values: Mapping[str, Any], line: int) -> None:
    for name, value in values.items():
        parser.give(name, value, line)


def namespace(parser: Made, line: int) -> Made:
    made = Made("argparse.Namespace", line)
    made.arguments, made.lines = dict(parser.arguments), dict(parser.lines)
    return made
