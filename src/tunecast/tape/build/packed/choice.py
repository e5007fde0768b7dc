"""What training makes of a checkpoint that is stored quantised: adapters over its weights, plain weights, or nothing.

A script that names such a checkpoint and says no more gets what its config.json says. The Trainer trains adapters over
the weights of some methods, and refuses the others (`is_trainable`); MXFP4 and FP8 can be dequantised as they are
loaded, after which nothing is quantised any more.
Source   transformers 5.17.0 and 5.22.2: quantizers/quantizer_*.py, `is_trainable`; quantizers/auto.py,
         `merge_quantization_configs`; trainer_utils.py, `validate_quantization_for_training`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tunecast.errors import Unsupported, UsageError
from tunecast.job.job import Job
from tunecast.job.stacks import stack_of
from tunecast.job.stored import METHODS, Packing, packing_of
from tunecast.records import replace, replace_unchecked
from tunecast.tape.build.eras import era_of

DEQUANTIZED: Mapping[str, str] = {
    "mxfp4": "Mxfp4Config(dequantize=True)",
    "fp8": "FineGrainedFP8Config(dequantize=True)",
    "compressed-tensors": "CompressedTensorsConfig(dequantize=True)",
}
"""By `quant_method`: what a script passes to train plain weights."""
OTHER_MODEL = "To fix: the checkpoint that is not quantised"
NOT_PREPARED = ("awq", "finegrained_fp8", "torchao_int8", "torchao_float8")
"""Formats before whose training PEFT's quantization guide calls no `prepare_model_for_kbit_training`."""


def with_checkpoint_format(job: Job, config: Mapping[str, Any]) -> Job:
    """The job with the format its checkpoint is stored in. Idempotent."""
    packing = packing_of(config) if stack_of(job).uses_accelerate else None
    if packing is None:
        return _unprepared(job)
    if packing.method not in METHODS:
        raise UsageError.at(
            "model", f"its checkpoint is stored by {packing.title}, which transformers does not train. {OTHER_MODEL}"
        )
    if is_dequantized(job, packing):
        return job
    _refuse_what_transformers_refuses(job, packing)
    changes: dict[str, Any] = {"method": "qlora"}
    if packing.format == "awq" and job.weights_dtype != "float16":
        changes["weights_dtype"] = "float16"
    quantization = replace_unchecked(job.quantization, format=packing.format, double_quant=packing.double_quant)
    return _unprepared(replace(job, **changes, quantization=quantization))


def _unprepared(job: Job) -> Job:
    """What PEFT's guide does not prepare is not, unless somebody says so."""
    packed = job.quantization
    if packed.format not in NOT_PREPARED or not packed.prepare_kbit or "quantization.prepare_kbit" in job.given:
        return job
    return replace(job, quantization=replace_unchecked(packed, prepare_kbit=False))


def is_dequantized(job: Job, packing: Packing) -> bool:
    """Whether plain weights are made of packed ones as they are loaded."""
    if packing.method not in DEQUANTIZED or job.quantization.format is not None:
        return False
    keeps_packed = packing.method == "fp8" and job.method == "lora" and era_of(job).trains_on_fp8
    return not keeps_packed or "quantization.format" in job.given


def dequantized_assumption(packing: Packing) -> str:
    return (
        f"the checkpoint's {packing.title} weights are dequantised as they are loaded"
        f" ({DEQUANTIZED[packing.method]}): training sees plain weights"
    )


def _refuse_what_transformers_refuses(job: Job, packing: Packing) -> None:
    got, wanted = job.quantization.format, packing.format
    if job.method == "full":
        raise UsageError.at(
            "method",
            f"got full with a checkpoint stored in {packing.title}, on which transformers trains adapters only."
            f" To fix: method lora, or the checkpoint that is not quantised",
        )
    if packing.method in DEQUANTIZED and not (wanted is not None and (got == wanted or job.method == "lora")):
        raise UsageError.at(
            "quantization.format",
            f"got {got} with a checkpoint stored in {packing.title}, which transformers refuses to quantise again."
            f" To fix: method lora, which dequantises it, or the checkpoint that is not quantised",
        )
    if packing.method == "hqq" and era_of(job).release >= (5, 0):
        raise UsageError.at(
            "model",
            "its checkpoint is stored in HQQ, which transformers 5 does not load (quantizer_hqq.py has no"
            f" get_quantize_ops). {OTHER_MODEL}, with method qlora",
        )
    if wanted is None or packing.method == "hqq":
        raise Unsupported.at("model", f"the closed form does not know this kind of {packing.title}. {OTHER_MODEL}")
    is_open = got is None or got == wanted or (got == "nf4" and "quantization.format" not in job.given)
    if not is_open and packing.method != "bitsandbytes":  # bitsandbytes' own: the checkpoint's is taken, with a warning
        raise UsageError.at(
            "quantization.format",
            f"got {got} with a checkpoint stored in {packing.title}, which transformers refuses to quantise again."
            f" To fix: no quantization.format, or the checkpoint that is not quantised",
        )
