"""What fitcheck-llm and vramcalc (PyPI) say of the same jobs: `results/peers.json`, the runs of data/h200_runs.jsonl.

    python -m venv ENV && ENV/bin/pip install fitcheck-llm==0.3.1 vramcalc==0.1.2
    python benchmarks/peers.py --python ENV/bin/python

Both live in an environment of their own, so this file is also the program that asks them there (`--ask`, jobs on
stdin). They get every benefit: the true parameter count, the options nearest to the job, what they cannot be told left
out (a LoRA head, Liger, DoRA, varying lengths: the longest is given). A refusal is theirs, or an option they lack.

fitcheck  five terms of tensors, and a total with the allocator's waste and the context: allocated and device
vramcalc  "targets PyTorch's caching allocator (allocated)", and an overhead beside it: allocated and device
Neither knows reserved memory; fitcheck's total less the context stands for it, and vramcalc's allocated.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
MIB = 2**20
PEERS = ("fitcheck", "vramcalc")
Answer = dict[str, Any]
"""{"allocated_bytes", "reserved_bytes", "device_bytes"}, or {"refused": why}."""

PRECISIONS = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
FITCHECK_GPUS = {
    "a100-sxm-80gb": "a100-80",
    "a100-sxm-40gb": "a100-40",
    "l40s": "l40s",
    "rtx-4090": "4090",
    "a10g": "a10",
    "h200-sxm-141gb": "h200",
}
FITCHECK_OPTIMIZERS = {
    "adamw_torch": "adamw",
    "adamw_torch_fused": "adamw",
    "paged_adamw_32bit": "adamw",
    "adamw_8bit": "adam8bit",
    "adamw_bnb_8bit": "adam8bit",
    "paged_adamw_8bit": "adam8bit",
    "sgd": "sgd",
}
FITCHECK_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
VRAMCALC_OPTIMIZERS = {"adamw_torch": "adamw", "adamw_torch_fused": "adamw", "sgd": "sgd"}
VRAMCALC_ATTENTION = {"eager": "eager", "sdpa": "sdpa", "flash_attention_2": "flash", "flash_attention_3": "flash"}


class Lacks(ValueError):
    """The tool has no option for what the job asks."""


def answers(jobs: Iterable[tuple[Mapping[str, Any], Mapping[str, Any], int | None]], python: str) -> list[Answer]:
    """Each job (a flat mapping, as `Job.flat()` gives it), its config.json and its true parameter count, asked of both.

    One answer a job: {"fitcheck": Answer, "vramcalc": Answer}.
    """
    asked = "".join(json.dumps({"job": dict(j), "config": dict(c), "parameters": n}) + "\n" for j, c, n in jobs)
    done = subprocess.run([python, __file__, "--ask"], input=asked, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{python} cannot ask the peers: {done.stderr.strip().splitlines()[-1:]}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def versions(python: str) -> dict[str, str]:
    code = (
        "import importlib.metadata as m, json; "
        "print(json.dumps({n: m.version(n) for n in ('fitcheck-llm', 'vramcalc')}))"
    )
    found: dict[str, str] = json.loads(subprocess.run([python, "-c", code], capture_output=True, check=True).stdout)
    return found


def ask() -> None:
    """Runs in the peers' environment: jobs on stdin, answers on stdout, a line each."""
    for line in sys.stdin:
        given = json.loads(line)
        answer = {}
        for name, say in (("fitcheck", fitcheck_says), ("vramcalc", vramcalc_says)):
            try:
                answer[name] = say(given["job"], given["config"], given["parameters"])
            except (ValueError, KeyError, RuntimeError) as error:
                answer[name] = {"refused": str(error)[:300]}
        print(json.dumps(answer), flush=True)


def longest(job: Mapping[str, Any]) -> int:
    return int(max(job["lengths"] or (job["seq_len"],)))


def fitcheck_says(job: Mapping[str, Any], config: Mapping[str, Any], parameters: int | None) -> Answer:
    from fitcheck import config_parser, estimate, get_gpu  # type: ignore[import-not-found]
    from fitcheck.estimator import TrainingConfig  # type: ignore[import-not-found]
    from fitcheck.overhead_db import get_overhead_profile  # type: ignore[import-not-found]

    if job["optimizer"] not in FITCHECK_OPTIMIZERS:
        raise Lacks(f"no optimizer {job['optimizer']}")
    quantization = job["quantization.format"] or "none"
    config_parser._reject_unsupported(config, job["model"])
    fields = config_parser._parse_fields(config)
    counted = config_parser._reconcile_param_count(job["model"], parameters, config_parser._count_params(fields))
    model = config_parser.ModelConfig(
        name=job["model"], num_params=counted, **{name: getattr(fields, name) for name in fields.__dataclass_fields__}
    )
    adapters = job["method"] != "full"
    targets = job["lora.targets"]
    if targets is None:
        targets = ("q_proj", "v_proj")
    elif isinstance(targets, str):
        targets = FITCHECK_TARGETS if targets == "all-linear" else FITCHECK_TARGETS[:4]
    pure = job["autocast"] is None and job["weights_dtype"] == "bfloat16"
    training = TrainingConfig(
        precision=PRECISIONS[job["autocast"] or job["weights_dtype"]],
        quantization=quantization,
        double_quant=quantization == "nf4" and job["quantization.double_quant"],
        optimizer=FITCHECK_OPTIMIZERS[job["optimizer"]],
        optimizer_dtype="bf16" if pure and not adapters else "fp32",
        batch_size=job["micro_batch"],
        seq_len=longest(job),
        lora_rank=job["lora.rank"] if adapters else None,
        lora_targets=[name for name in targets if name in FITCHECK_TARGETS] or list(FITCHECK_TARGETS[:4]),
        grad_checkpoint=job["gradient_checkpointing"],
        flash_attn=job["attention"] != "eager",
        grad_accum_steps=job["grad_accum"],
    )
    gpu = FITCHECK_GPUS.get(job["hardware.gpu"])
    said = estimate(model, training, get_gpu(gpu) if gpu else get_gpu(vram_mib=81_920))
    context = get_overhead_profile(gpu, training.flash_attn, quantization).base_context_mib
    return {
        "allocated_bytes": round((said.total_mib - said.overhead_mib) * MIB),
        "reserved_bytes": round((said.total_mib - context) * MIB),
        "device_bytes": round(said.total_mib * MIB),
    }


def vramcalc_says(job: Mapping[str, Any], config: Mapping[str, Any], parameters: int | None) -> Answer:
    from vramcalc import estimate  # type: ignore[import-not-found]

    if job["quantization.format"] is not None:
        raise Lacks("no quantised base")
    if job["optimizer"] not in VRAMCALC_OPTIMIZERS:
        raise Lacks(f"no optimizer {job['optimizer']}")
    mixed = job["weights_dtype"] == "float32" and job["autocast"] is not None
    said = estimate(
        dict(config),
        mode="train",
        dtype=PRECISIONS[job["autocast"] if mixed else job["weights_dtype"]],
        batch=job["micro_batch"],
        seq_len=longest(job),
        lora_rank=job["lora.rank"] if job["method"] != "full" else None,
        grad_checkpoint=job["gradient_checkpointing"],
        optimizer=VRAMCALC_OPTIMIZERS[job["optimizer"]],
        precision="amp" if mixed else "pure",
        attn_impl=VRAMCALC_ATTENTION[job["attention"]],
    )
    return {
        "allocated_bytes": said.total,
        "reserved_bytes": said.total,
        "device_bytes": said.total + said.overhead,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ask", action="store_true", help="answer jobs from stdin; run in the peers' environment")
    parser.add_argument("--python", help="interpreter that has fitcheck-llm and vramcalc")
    parser.add_argument("--engine", default="analytic", help="tunecast's own, in the same run")
    parser.add_argument("--tracing-python", help="interpreter with torch, for --engine traced")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "peers.json")
    options = parser.parse_args()
    if options.ask:
        ask()
        return
    if options.python is None:
        parser.error("--python is needed: the environment that holds fitcheck-llm and vramcalc")
    from peers_h200 import result  # beside this file, and needs tunecast, which the peers' environment has not

    options.out.write_text(json.dumps(result(options.python, options.engine, options.tracing_python), indent=1) + "\n")


if __name__ == "__main__":
    main()
