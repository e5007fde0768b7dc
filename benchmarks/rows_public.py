"""Rows of a table of published runs as jobs, with a function a source (`rows_pretrain.py`, `rows_finetune.py`).

A rule reads a row's columns, or is its source's convention. None knows of a single row; one that cannot be read is
skipped with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rows import Made, Published, Row, measured_bytes, step_seconds
from rows_finetune import fsdp_qlora, litgpt, peft, torchtune, trainer
from rows_pretrain import fms_fsdp, foundry, megatron, titan

Converted = tuple[list[Row], list[Row]]
"""Rows that became jobs, and those that did not, each with the reason."""


def public_rows(rows: list[dict[str, str]]) -> Converted:
    """What can be timed well, and sharded runs whose memory is well specified (tier A of the table)."""
    return _converted([row for row in rows if row["time_tier"] == "A" or _has_sharded_memory(row)], timed)


def memory_rows(rows: list[dict[str, str]]) -> Converted:
    """Well specified peaks of memory on one card."""
    return _converted([row for row in rows if row["mem_tier"] == "A" and int(row["gpu_count"]) == 1], weighed)


def _converted(rows: list[dict[str, str]], make: Callable[[Published, str], Row]) -> Converted:
    kept, skipped = [], []
    for row in rows:
        prefix = SOURCES[row["source_repo"]][0] if row["source_repo"] in SOURCES else "unknown"
        name = f"{prefix}-{row['row_id']}"
        try:
            kept.append(make(row, name))
        except ValueError as error:
            skipped.append({"id": name, "source": row["source_repo"], "gpu": row["gpu"], "why": str(error)})
    return kept, skipped


def _has_sharded_memory(row: Published) -> bool:
    return row["mem_tier"] == "A" and int(row["gpu_count"] or 1) > 1


def timed(row: Published, name: str) -> Row:
    """A row of data/public_runs.jsonl."""
    (job, beyond, doubts), stack = _made(row)
    measured: Row = {}
    if row["time_tier"] == "A":
        measured = {"step_s": step_seconds(row), "tokens_per_s_per_gpu": float(row["tokens_per_s_per_gpu"])}
    if _has_sharded_memory(row):
        measured["memory"] = measured_bytes(row)
    made = {
        "id": name,
        "stack": stack,
        "source": [row["source_repo"], row["source_path"], row["source_commit"], row["source_date"]],
        "job": {**job, "id": name},
        "measured": measured,
    }
    return made | ({"beyond": beyond} if beyond else {}) | ({"doubts": doubts} if doubts else {})


def weighed(row: Published, name: str) -> Row:
    """A row of data/public_memory.jsonl."""
    (job, beyond, doubts), _ = _made(row)
    source = {field: row[f"source_{field}"] for field in ("repo", "path", "commit", "date")}
    source |= {field: row[field] for field in ("gpu", "software")}
    variant = {"variant": beyond["variant"]} if "variant" in beyond else {}
    made = {"id": name, "source": source, "job": {"id": name, **job}, "measured": measured_bytes(row)}
    return made | variant | ({"doubts": doubts} if doubts else {})


def _made(row: Published) -> tuple[Made, str]:
    if row["source_repo"] not in SOURCES:
        raise ValueError(f"{row['source_repo']} is no source whose conventions are written down")
    _, stack, make = SOURCES[row["source_repo"]]
    return make(row), stack


SOURCES: Mapping[str, tuple[str, str, Callable[[Published], Made]]] = {
    "mosaicml/llm-foundry": ("foundry", "llm-foundry", foundry),
    "pytorch/torchtitan": ("titan", "torchtitan", titan),
    "pytorch/ao": ("ao", "torchtitan, torchao", titan),
    "pytorch/torchtune": ("torchtune", "torchtune", torchtune),
    "foundation-model-stack/fms-acceleration": ("fms", "trl, fms-acceleration", trainer),
    "foundation-model-stack/fms-fsdp": ("fsdp", "fms-fsdp", fms_fsdp),
    "NVIDIA/Megatron-LM": ("megatron", "megatron", megatron),
    "AnswerDotAI/fsdp_qlora": ("qlora", "fsdp_qlora", fsdp_qlora),
    "Lightning-AI/litgpt": ("litgpt", "litgpt", litgpt),
    "huggingface/peft": ("peft", "transformers, PEFT", peft),
}
"""By repository: the prefix of an id, the software as groups of results call it, and who makes the job."""
