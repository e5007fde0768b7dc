"""How a checkpoint's weights are packed, as the `quantization_config` of its config.json says."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from tunecast.errors import NotResolved
from tunecast.job.knob import shown
from tunecast.job.spellings import BY_NAME
from tunecast.records import NamedTuple

KEY = "quantization_config"
METHODS: Mapping[str, str] = {
    "bitsandbytes": "bitsandbytes", "gptq": "GPTQ", "awq": "AWQ", "hqq": "HQQ", "fp8": "FP8", "mxfp4": "MXFP4",
    "torchao": "torchao", "compressed-tensors": "compressed-tensors",
}  # fmt: skip
"""`quant_method` of those that can be trained on, or taken apart and trained."""
TORCHAO_FORMATS: Mapping[str, str] = {
    "Int8WeightOnlyConfig": "torchao_int8",
    "Float8WeightOnlyConfig": "torchao_float8",
}
"""By the type of quantisation that the file names."""
SKIPPED = ("modules_to_not_convert", "llm_int8_skip_modules", "ignore", "skip_modules")
"""Keys under which methods list the modules they leave as they are."""
BLOCK = (128, 128)


class Packing(NamedTuple):
    """What decides how many bytes a packed weight takes."""

    method: str
    """`quant_method`."""
    format: str | None
    """As `quantization.format` of a job; None: known, but no weights to train adapters on."""
    bits: int = 4
    group: int = 128
    """Inputs that share a scale; 0: all."""
    double_quant: bool = False
    block: tuple[int, int] = BLOCK
    """Of FP8: outputs and inputs that share a scale."""
    skipped: tuple[str, ...] | None = None
    """Modules that are not packed; None: the file lists none."""
    compute_dtype: str | None = None
    """Of bitsandbytes' 4 bits: what layers compute in."""
    stated: bool = True
    """A config.json says so; else it is what most checkpoints of the format have, or of the name."""

    @property
    def title(self) -> str:
        return METHODS.get(self.method, self.method)

    def groups(self, inputs: int) -> int:
        return -(-inputs // self.group) if self.group else 1

    def scales(self, outputs: int, inputs: int) -> tuple[int, int]:
        """Of FP8: how many there are, by outputs and by inputs."""
        rows, columns = self.block if all(self.block) else (outputs, inputs)
        return -(-outputs // rows), -(-inputs // columns)

    def weight_bytes(self, outputs: int, inputs: int) -> int:
        """Of one weight with its scales, zeros and groups, as the checkpoint and the card hold it."""
        packed, groups = outputs * inputs * self.bits // 8, self.groups(inputs)
        if self.method in ("gptq", "awq"):
            of_inputs = 4 * inputs if self.method == "gptq" else 0  # the group of each
            return packed + groups * outputs * (2 * 8 + self.bits) // 8 + of_inputs
        if self.method == "fp8":
            return packed + 4 * prod(self.scales(outputs, inputs))
        return packed + outputs * (4 + (self.format == "torchao_int8"))

    def skips(self, path: str) -> bool:
        """transformers' quantizers_utils.py, `should_convert_module`; patterns there are regular expressions, which
        those of published checkpoints need for stars alone."""
        patterns = (re.escape(key).replace(r"\.\*", r"\.[^.]*").replace(r"\*", ".*") for key in self.skipped or ())
        return any(re.match(pattern, path) for pattern in patterns) or path.endswith(self.skipped or ())


USUAL: Mapping[str, Packing] = {
    "gptq": Packing("gptq", "gptq", stated=False),
    "awq": Packing("awq", "awq", stated=False),
    "finegrained_fp8": Packing("fp8", "finegrained_fp8", 8, stated=False),
    "torchao_int8": Packing("torchao", "torchao_int8", 8, stated=False),
    "torchao_float8": Packing("torchao", "torchao_float8", 8, stated=False),
}
"""By `quantization.format`: of a job that names it for a model whose config.json says nothing."""


def is_packed(raw_json: str) -> bool:
    """Without parsing it: whether config.json can say anything of the kind."""
    return f'"{KEY}"' in raw_json


def packing_for(format: str | None, config: Mapping[str, Any]) -> Packing | None:
    """Of weights that are packed otherwise than by bitsandbytes, in a job's format."""
    return None if format is None or format not in USUAL else packing_of(config) or USUAL[format]


def without_packing(config: Mapping[str, Any]) -> dict[str, Any]:
    """As of a checkpoint with plain weights."""
    return {key: value for key, value in config.items() if key != KEY}


def packing_of(config: Mapping[str, Any]) -> Packing | None:
    """None: the checkpoint holds plain weights."""
    values = config.get(KEY)
    if not isinstance(values, Mapping):
        return None
    skipped = next(filter(None, map(values.get, SKIPPED)), None)
    known = None if not isinstance(skipped, list) else tuple(str(name)[:200] for name in skipped[:10_000])
    return _packing(values)._replace(skipped=known, stated=BY_NAME not in values)


def _packing(values: Mapping[str, Any]) -> Packing:
    method = values.get("quant_method")
    if values.get("load_in_4bit") is True or values.get("load_in_8bit") is True:
        return _of_bitsandbytes(values)
    if not isinstance(method, str) or not 0 < len(method) <= 64 or not method.isprintable():
        raise _wrong("quant_method", method, "the name of a method")
    if method in ("gptq", "awq"):
        bits = _one_of(values, "bits", 4, (2, 3, 4, 8))
        return Packing(method, method, bits, _group(values.get("group_size", 128)))
    if method == "hqq":
        return _of_hqq(values)
    if method == "fp8":
        return Packing(method, "finegrained_fp8", 8, block=_block(values.get("weight_block_size", list(BLOCK))))
    if method == "torchao":
        return Packing(method, TORCHAO_FORMATS.get(_torchao_type(values)), 8)
    return Packing(method, None)


def _of_bitsandbytes(values: Mapping[str, Any]) -> Packing:
    if values.get("load_in_8bit") is True:
        return Packing("bitsandbytes", "int8", 8)
    kind = values.get("bnb_4bit_quant_type", "fp4")
    if kind not in ("nf4", "fp4"):
        raise _wrong("bnb_4bit_quant_type", kind, "nf4 or fp4")
    double, computes = values.get("bnb_4bit_use_double_quant") is True, values.get("bnb_4bit_compute_dtype", "float32")
    return Packing("bitsandbytes", kind, double_quant=double, compute_dtype=str(computes).removeprefix("torch."))


def _of_hqq(values: Mapping[str, Any]) -> Packing:
    inner = values.get("quant_config", values)
    inner = inner.get("weight_quant_params", inner) if isinstance(inner, Mapping) else {}
    if not isinstance(inner, Mapping):
        raise _wrong("quant_config.weight_quant_params", inner, "a mapping")
    bits = _one_of(inner, "nbits", 4, (1, 2, 3, 4, 8))
    return Packing("hqq", "hqq", bits, _group(inner.get("group_size", 64)))


def _torchao_type(values: Mapping[str, Any]) -> str:
    kind = values.get("quant_type")
    for key in ("default", "_type"):
        kind = kind.get(key) if isinstance(kind, Mapping) else kind
    return kind if isinstance(kind, str) else ""


def _one_of(values: Mapping[str, Any], key: str, usual: int, allowed: Sequence[int]) -> int:
    got = values.get(key, usual)
    if isinstance(got, bool) or got not in allowed:
        raise _wrong(key, got, ", ".join(map(str, allowed)))
    return int(got)


def _group(got: object) -> int:
    """-1 and null: all inputs."""
    if got is None or got == -1:
        return 0
    if isinstance(got, bool) or not isinstance(got, int) or not 8 <= got <= 65536:
        raise _wrong("group_size", got, "-1, or a whole number from 8 to 65536")
    return got


def _block(got: object) -> tuple[int, int]:
    """null: one scale a weight, told as (0, 0)."""
    if got is None:
        return (0, 0)
    sizes = got if isinstance(got, list) and len(got) == 2 else [0]
    if not all(isinstance(size, int) and not isinstance(size, bool) and 1 <= size <= 65536 for size in sizes):
        raise _wrong("weight_block_size", got, "null, or two whole numbers from 1 to 65536")
    return sizes[0], sizes[1]


def _wrong(key: str, got: object, allowed: str) -> NotResolved:
    return NotResolved(f"config.json: {KEY}.{key}: got {shown(got)}; allowed: {allowed}", field="model")
