"""How the words of published tables become fields of a job: `rows_public.py` and `rows_vendor.py` put them together.

    python benchmarks/rows.py PUBLIC.csv VENDOR.csv        writes data/public_runs.jsonl, public_memory.jsonl and
                                                           vendor_runs.jsonl, and what was skipped beside them

The tables themselves are not part of the project; what was read off them, and what had to be taken, is in the data.
"""

from __future__ import annotations

import csv
import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

HERE = Path(__file__).parent
Row = dict[str, Any]
T = TypeVar("T")
Published = Mapping[str, str]
Made = tuple[Row, Row, list[str]]
"""A job, what is known of the run beyond it, and what is doubtful."""
GIB = 2**30

GPUS: Mapping[str, str] = {
    "A100-40GB SXM": "a100-sxm-40gb",
    "A100-SXM4-40GB": "a100-sxm-40gb",
    "A100-80GB SXM": "a100-sxm-80gb",
    "A100-SXM4-80GB": "a100-sxm-80gb",
    "A100-80GB": "a100-sxm-80gb",
    "A10G-24GB": "a10g",
    "H100-80GB SXM": "h100-sxm-80gb",
    "H100-SXM5-80GB": "h100-sxm-80gb",
    "H100-95GB HBM2e SXM (Meta)": "h100-sxm-96gb",
    "H100-96GB HBM2e SXM 500W (Meta Grand Teton)": "h100-sxm-96gb",
    "H100-96GB SXM (Meta)": "h100-sxm-96gb",
    "H200-SXM-141GB": "h200-sxm-141gb",
    "H200-NVL-141GB": "h200-nvl-141gb",
    "B200-180GB (power limited)": "b200-sxm-180gb",
    "B200-SXM-180GB": "b200-sxm-180gb",
    "B300-SXM-270GB": "b300-sxm-288gb",
    "GB200-186GB": "gb200-186gb",
    "GB200": "gb200-186gb",
    "GB300": "gb300-288gb",
    "MI300X": "mi300x",
    "MI325X": "mi325x",
    "MI350X": "mi350x",
    "MI355X": "mi355x",
    "L40S-48GB": "l40s",
    "RTX-4090-24GB": "rtx-4090",
    "RTX-A6000-48GB": "rtx-a6000",
    "T4-16GB": "t4",
    "RTX-3090-24GB (280W, no NVLink, slow PCIe)": "rtx-3090",
    "RTX-6000-Ada-48GB": "rtx-6000-ada",
    "RTX-A5000-24GB": "rtx-a5000",
    "Gaudi2": "gaudi2",
}
"""The card a table means, by its name in the catalogue."""

MODELS: Mapping[str, str] = {
    "llama2-7b": "llama-2-7b",
    "llama2-13b": "llama-2-13b",
    "llama2-34b": "fms-llama-34b",
    "llama2-34b (fms)": "fms-llama-34b",
    "llama2-70b": "llama-2-70b",
    "llama3-8b": "llama-3-8b",
    "llama3-70b": "llama-3-70b",
    "llama3.1-8b": "llama-3.1-8b",
    "llama3.1-70b": "llama-3.1-70b",
    "llama3.1-405b": "llama-3.1-405b",
    "llama3.2-3b": "llama-3.2-3b",
    "llama3.2-1b": "llama-3.2-1b",
    "mistral-7b": "mistral-7b-v0.1",
    "gemma-7b": "gemma-7b",
    "gemma-2-9b": "gemma-2-9b",
    "phi-3-mini": "phi-3-mini",
    "yi-34b": "yi-34b",
    "qwen3-32b": "qwen3-32b",
    "phi-1.5": "phi-1.5",
    "gemma-2b": "gemma-2b",
    "tinyllama-1.1b": "tinyllama-1.1b",
    "stablelm-base-alpha-3b": "stablelm-base-alpha-3b",
    "deepseek_v3_16b (MoE, MLA)": "deepseek-v2-lite",
    **{name: name for name in ("nemotron4-15b", "nemotron4-340b", "nemotron3-8b", "nemotron3-22b")},
    **{name: name for name in ("gpt3-5b", "gpt3-20b", "gpt3-175b")},
    **{f"mpt-{n}": f"foundry-mpt-{n}" for n in ("125m", "350m", "760m", "1b", "3b", "7b", "13b", "30b", "70b")},
}
"""A bundled model, or one of data/run_models.json."""


def known_word(words: Mapping[str, T], word: str, what: str) -> T:
    if word not in words:
        raise ValueError(f"{what} {word!r} is not known")
    return words[word]


def release_by(releases: Sequence[tuple[str, str]], date: str) -> str:
    """The last release, by its month, before a date."""
    found = [release for month, release in releases if month <= date[:7]]
    if not found:
        raise ValueError(f"no release before {date} is written down")
    return found[-1]


WORDS = {"tp": "tensor", "pp": "pipeline", "cp": "context", "ep": "expert"}
_DEGREE = re.compile(r"\b(fsdp[12]?|hsdp|ddp|dp|tp|pp|cp|vp|ep)\s*(\d+)\b", re.IGNORECASE)


def parallel_of(text: str, cards: int) -> tuple[Row, Row]:
    """`parallel` of a job, and what the words say beyond it.

    "fsdp 8, tp 8 (async), pp 8 (1F1B)", "TP4 PP8 CP1 VP5", "fsdp full_shard (zero3) over 32", "hsdp 128",
    "ddp (fsdp no-shard) 2", "HF accelerate FSDP8", "DeepSpeed ZeRO-3 DP8".
    """
    lowered = text.lower()
    degrees: Row = {}
    for word, number in _DEGREE.findall(lowered.replace("full_shard", "")):
        degrees.setdefault(word, int(number))
    parallel = {WORDS[word]: n for word, n in degrees.items() if word in WORDS and n > 1}
    beyond: Row = {}
    if (virtual := degrees.get("vp", 1)) > 1:
        beyond["virtual_stages"] = virtual
    if "(async" in lowered:
        beyond["async_tensor"] = True
    if "tensor" in parallel and ("sequence parallel" in lowered or lowered.endswith(" sp") or "fsdp" in lowered):
        beyond["sequence_parallel"] = True
    if (schedule := re.search(r"\((1f1b|interleaved 1f1b)\)", lowered)) is not None:
        beyond["schedule"] = schedule[1]
    if (reshard := re.search(r"reshard_after_forward=(\w+)", lowered)) is not None:
        beyond["reshard"] = reshard[1]
    if "fsdp1 " in lowered:
        beyond["fsdp"] = 1
    split = 1
    for name in ("tensor", "pipeline", "context"):
        split *= parallel.get(name, 1)
    if cards % split:
        raise ValueError(f"{text!r} does not divide {cards} cards")
    kind = _data_kind(lowered, cards // split * parallel.get("context", 1))  # ranks of a row share an optimizer too
    if "shard_grad_op" in lowered:
        beyond["reshard"] = "never"
    if "cpu offload" in lowered:
        parallel["offload"] = "parameters"
    return ({"data": kind} if kind is not None else {}) | parallel, beyond


def _data_kind(lowered: str, replicas: int) -> str | None:
    """Of the ranks that hold the same part of a model. None: as the stack does by itself."""
    if "no-shard" in lowered or lowered.startswith("ddp"):
        return "ddp"
    if "zero-3" in lowered:
        return "zero3"
    if "hsdp" in lowered:
        return "hsdp"
    if "fsdp" in lowered:
        return "fsdp"
    return "zero1" if replicas > 1 else "ddp"


def precision_of(text: str) -> tuple[Row, Row]:
    """The dtypes of a job, and the float8 recipe."""
    lowered = text.lower()
    beyond: Row = {}
    job: Row = {"weights_dtype": "float32", "autocast": "bfloat16"}
    if "pure" in lowered and "fsdp mixed_precision" not in lowered:
        job = {"weights_dtype": "bfloat16", "autocast": None}
    if "float16 weights" in lowered and "bfloat16" not in lowered:
        job = {"weights_dtype": "float16", "autocast": "float16"}
    elif "bfloat16 weights" in lowered:
        job = {"weights_dtype": "bfloat16", "autocast": "bfloat16"}
    if "nvfp4" in lowered:
        job["matmul_dtype"] = "float4"
        beyond["low_precision"] = "nvfp4"
    elif (recipe := _float8_recipe(lowered)) is not None:
        job["matmul_dtype"] = "float8"
        beyond["low_precision"] = recipe
    if "fp8 all-gather" in lowered:
        beyond["float8_gather"] = True
    if "fp32 reduce-scatter" in lowered:
        beyond["reduce_dtype"] = "float32"
    return job, beyond


def _float8_recipe(lowered: str) -> str | None:
    for word, recipe in (
        ("mxfp8", "mxfp8"),
        ("fp8-mx", "mxfp8"),
        ("fp8-cs", "tensorwise"),
        ("rowwise", "rowwise"),
        ("delayed", "delayed"),
        ("nocompile", "tensorwise, its own kernels"),
        ("float8", "tensorwise"),
        ("fp8", "delayed"),
    ):
        if word in lowered:
            return recipe
    return None


def checkpointing_of(text: str) -> tuple[bool, str]:
    """Whether activations are recomputed, and of what: layers (all or every n-th), or all but some operations."""
    lowered = text.lower()
    if lowered.startswith(("selective (every", "selective (2")):
        return True, "every 2nd layer"
    if lowered.startswith("selective (graph"):
        return True, "operations, chosen on the graph"
    if lowered.startswith("selective (per-op) incl"):
        return True, "operations, abs saved too"
    if lowered.startswith("selective (per-op)"):
        return True, "operations"
    if lowered.startswith("selective"):
        return True, "some layers"
    if lowered.startswith("full block"):
        return True, f"{lowered.split()[-1]} layers"
    return (lowered.startswith("full"), "layers" if lowered.startswith("full") else "nothing")


def cards_of(row: Mapping[str, str]) -> Row:
    """`hardware` of a job."""
    cards, nodes = int(row["gpu_count"]), int(row["nodes"] or 1)
    if cards % nodes:
        raise ValueError(f"{cards} cards on {nodes} machines")
    return {"gpu": known_word(GPUS, row["gpu"], "card"), "gpus": cards // nodes} | (
        {"nodes": nodes} if nodes > 1 else {}
    )


def accumulation(row: Mapping[str, str], parallel: Mapping[str, Any], micro_batch: int) -> int:
    """Micro-batches a step: global batch by what the data-parallel ranks take at a time."""
    split = 1
    for name in ("tensor", "pipeline", "context"):
        split *= parallel.get(name, 1)
    at_a_time = micro_batch * (int(row["gpu_count"]) // split)
    whole, rest = divmod(int(row["global_batch"]), at_a_time)
    if rest or whole < 1:
        raise ValueError(f"a global batch of {row['global_batch']} is no multiple of {at_a_time}")
    return whole


LAYERS = re.compile(r"(\d+) layers")
"""So many of all were recomputed."""


def step_seconds(row: Mapping[str, str]) -> float:
    """From tokens a second, which is printed to more digits than what the tables derive from it."""
    tokens = int(row["global_batch"]) * int(row["seq_len"])
    derived = tokens / (float(row["tokens_per_s_per_gpu"]) * int(row["gpu_count"]))
    if row["step_time_s"] and abs(derived / float(row["step_time_s"]) - 1) > 0.02:
        raise ValueError(f"tokens a second say {derived:.3f} s a step, the table {row['step_time_s']}")
    return float(f"{derived:.6g}")


def measured_bytes(row: Mapping[str, str]) -> Row:
    """Kind and size of a peak, with one unit of its last digit."""
    kind = next((kind for kind in ("allocated", "reserved", "active") if row["mem_kind"].startswith(kind)), "unstated")
    printed = (
        re.search(r"printed ([\d.]+) GB", row["notes"])
        if "/1e9" in row["mem_kind"] or "decimal" in row["mem_kind"]
        else None
    )
    text, unit = (printed[1], 10**9) if printed else (row["peak_mem_gib"], GIB)
    out = {"kind": kind, "bytes": round(float(text) * unit), "resolution_bytes": round(unit * 10.0 ** -decimals(text))}
    if row["mem2_kind"].startswith("nvidia-smi"):
        out["device_bytes"] = round(float(row["peak_mem2_gib"]) * GIB)
    return out


def decimals(text: str) -> int:
    return len(text.partition(".")[2])


def gigabits_between(notes: str) -> float | None:
    """Gb/s a GPU has to other machines, where the source says; of a figure for the whole machine, an eighth."""
    if (found := re.search(r"(\d+)Gb/s RDMA per GPU", notes)) is not None:
        return float(found[1])
    if (found := re.search(r"with (\d+) Gbps node-node interconnect", notes)) is not None:
        return int(found[1]) / 8
    if (found := re.search(r"(\d+) ?Gbps (?:interconnect|inter-node)", notes)) is not None:
        return int(found[1]) / 8
    return None


def read(path: str) -> list[dict[str, str]]:
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def write(name: str, rows: Iterable[Row]) -> None:
    (HERE / "data" / name).write_text("".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows))


def main() -> None:
    from rows_public import memory_rows, public_rows
    from rows_vendor import vendor_rows

    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    public = read(sys.argv[1])
    for name, (kept, skipped) in {
        "public_runs": public_rows(public),
        "public_memory": memory_rows(public),
        "vendor_runs": vendor_rows(read(sys.argv[2])),
    }.items():
        write(f"{name}.jsonl", kept)
        write(f"{name.partition('_')[0] if name == 'vendor_runs' else name}_skipped.jsonl", skipped)


if __name__ == "__main__":
    sys.path[:0] = [str(HERE)]
    main()
