"""What the usual rule of thumb and llm-analysis (PyPI) say of the same steps; `time_public.py` asks them in its run.

    python -m venv ENV && ENV/bin/pip install llm-analysis==0.2.2

6ND            6 x parameters x tokens of a step, at 40 % of the peak of its precision. Kinder: at the one share of the
               peak that suits all rows best (`fitted_share`), and the same with each card left out in turn. Adapters
               are counted 4ND, since frozen weights get no gradient.
llm-analysis   its own count of FLOPs by peak and `flops_efficiency`; 0.5 is what its source says Megatron-LM reaches.
               Kinder, again: the one efficiency that suits all rows best. It gets every benefit: cards it does not know
               are described to it, and float8 is called its 8 bits. It has no adapters and no context parallelism.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
Row = dict[str, Any]
MFU = 0.4
EFFICIENCY = 0.5
"""llm_analysis/constant.py: "FLOPS efficiency achieved by Megatron-LM is ~0.5 for LLM training"."""
RATES = {None: ("bf16", "fp16"), "float8": ("fp8",), "float4": ("fp4", "fp8")}


def peak_flop_per_s(rates: Mapping[str, float], low: str | None) -> float | None:
    """Of the precision linear layers run in, dense."""
    return next((rates[kind] for kind in RATES[low] if kind in rates), None)


def step_flops(job: Row, parameters: int) -> float:
    """6ND; of adapters 4ND: frozen weights get no gradient of their own."""
    split = 1
    for name in ("tensor", "pipeline", "context"):
        split *= job.get("parallel", {}).get(name, 1)
    replicas = cards(job) // split
    tokens = job["micro_batch"] * job["grad_accum"] * job["seq_len"] * replicas
    return (6 if job["method"] == "full" else 4) * parameters * tokens


def cards(job: Row) -> int:
    return int(job["hardware"].get("gpus", 1) * job["hardware"].get("nodes", 1))


def at_peak_seconds(job: Row, parameters: int, rates: Mapping[str, float]) -> float | None:
    """A step at the peak of all cards together; None where nobody says what that is."""
    peak = peak_flop_per_s(rates, job.get("matmul_dtype"))
    return None if peak is None else step_flops(job, parameters) / (cards(job) * peak)


def fitted_share(pairs: Iterable[tuple[float, float]]) -> float | None:
    """The one share of the peak that makes the median error least: of pairs of seconds at the peak and measured."""
    shares = sorted(ideal / measured for ideal, measured in pairs)
    if not shares:
        return None

    def off(share: float) -> float:
        return statistics.median(abs(own / share - 1) for own in shares)

    return min(shares, key=off)


def shares_left_out(ideals: Sequence[float | None], measured: Sequence[float], groups: Sequence[str]) -> dict[str, Any]:
    """For each group the share that suits all the others."""
    known = [(ideal, m, g) for ideal, m, g in zip(ideals, measured, groups, strict=True) if ideal is not None]
    return {group: fitted_share((i, m) for i, m, g in known if g != group) for group in dict.fromkeys(groups)}


def rule_answers(ideals: Sequence[float | None], measured: Sequence[float], groups: Sequence[str]) -> list[Row]:
    """The rule's three versions for each row, in order."""
    best = fitted_share((i, m) for i, m in zip(ideals, measured, strict=True) if i is not None)
    others = shares_left_out(ideals, measured, groups)
    told = []
    for ideal, group in zip(ideals, groups, strict=True):
        shares = {"6ND": MFU, "6ND fitted": best, "6ND left out": others[group]}
        told.append(
            {
                name: {"refused": "no peak rate is known"} if ideal is None or not share else {"step_s": ideal / share}
                for name, share in shares.items()
            }
        )
    return told


def analysis_answers(asked: list[Row], measured: Sequence[float], python: str) -> list[Row]:
    """llm-analysis at its own efficiency and at the one that suits all rows best."""
    lines = "".join(json.dumps(row) + "\n" for row in asked)
    done = subprocess.run([python, __file__, "--ask"], input=lines, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{python} cannot ask llm-analysis: {done.stderr.strip().splitlines()[-1:]}")
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    best = fitted_share((a["step_s"], m) for a, m in zip(answers, measured, strict=True) if "step_s" in a)
    out = []
    for answer in answers:
        if "refused" in answer:
            out.append({"llm-analysis": answer, "llm-analysis fitted": answer})
        else:
            ideal = answer["step_s"]
            out.append({
                "llm-analysis": {"step_s": ideal / EFFICIENCY},
                "llm-analysis fitted": {"step_s": ideal / best} if best else {"refused": "nothing to fit"},
            })  # fmt: skip
    return out


def version(python: str) -> str:
    code = "import importlib.metadata as m; print(m.version('llm-analysis'))"
    return subprocess.run([python, "-c", code], capture_output=True, check=True, text=True).stdout.strip()


def ask() -> None:
    """Runs in llm-analysis' environment: {"job", "model", "gpu"} a line in, seconds at full efficiency a line out."""
    for line in sys.stdin:
        given = json.loads(line)
        try:
            answer: Row = {"step_s": analysis_says(given["job"], given["model"], given["gpu"])}
        except (ValueError, KeyError, AssertionError, ZeroDivisionError) as error:
            answer = {"refused": str(error)[:200] or type(error).__name__}
        print(json.dumps(answer), flush=True)


def analysis_says(job: Row, model: Row, gpu: Row) -> float:
    """Seconds of a step at full efficiency; `model` and `gpu` have the sizes its own configurations have."""
    import logging

    from llm_analysis.analysis import LLMAnalysis  # type: ignore[import-not-found]
    from llm_analysis.config import (  # type: ignore[import-not-found]
        DtypeConfig,
        GPUConfig,
        ModelConfig,
        ParallelismConfig,
    )

    logging.disable(logging.CRITICAL)
    parallel = job.get("parallel", {})
    if job["method"] != "full":
        raise ValueError("no adapters")
    if parallel.get("context", 1) > 1:
        raise ValueError("no context parallelism")
    tensor, pipeline = parallel.get("tensor", 1), parallel.get("pipeline", 1)
    replicas = cards(job) // tensor // pipeline
    bits = {None: 16, "float8": 8, "float4": 4}[job.get("matmul_dtype")]
    analysis = LLMAnalysis(
        ModelConfig(**model),
        GPUConfig(**gpu),
        DtypeConfig("given", bits, bits, 16),
        ParallelismConfig(tensor, pipeline, replicas),
        flops_efficiency=1.0,
        hbm_memory_efficiency=1.0,
    )
    recomputed = "FULL" if job["gradient_checkpointing"] else "NONE"
    stage = {"ddp": 0, "zero1": 1, "zero2": 2}.get(parallel.get("data", "ddp"), 3)
    said = analysis.training(
        batch_size_per_gpu=job["micro_batch"],
        gradient_accumulation_steps=job["grad_accum"],
        seq_len=job["seq_len"],
        activation_recomputation=_member("ActivationRecomputation", recomputed),
        ds_zero=_member("DSZeRO", f"STAGE_{stage}" if stage else "NONE"),
    )
    return float(said["latency_per_iter"])


def _member(kind: str, name: str) -> Any:
    from llm_analysis import analysis  # type: ignore[import-not-found]

    return getattr(analysis, kind)[name]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ask", action="store_true", help="answer jobs from stdin; run where llm-analysis is")
    if not parser.parse_args().ask:
        parser.error("only asked by time_public.py and time_vendor.py")
    ask()


if __name__ == "__main__":
    main()
