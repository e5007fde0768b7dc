"""The jobs, and what each engine is given of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import tunecast
from tunecast.errors import UsageError
from tunecast.launching.rendering import Rendering
from tunecast.market.listed import rented
from tunecast.market.offer import ON_DEMAND
from tunecast.market.store import offers

DEAR = "dear by the hour, cheap by the run"
HOSTILE = "train $(touch broken) ';`id`\" # {x}.jsonl"
AS_OF = "2026-11-17"
"""Prices grow old: the bundled ones are taken as of this day."""
SMALL: Mapping[str, Any] = {"stack": "trl", "seq_len": 1024, "micro_batch": 1, "grad_accum": 8}


class Case(NamedTuple):
    """A job, and the plan that it is launched from; none: the job alone."""

    name: str
    model: str
    fields: Mapping[str, Any]
    plan: Mapping[str, Any] | None = None
    data: str = "train.jsonl"
    kept: bool = True
    """With a bucket or a volume."""


CASES = (
    Case("full", "llama-3.2-1b", {**SMALL, "method": "full"}, {"gpus": 1}),
    Case("lora", "llama-3.2-1b", {**SMALL, "method": "lora"}, {"gpus": 1}),
    Case("qlora", "llama-3.1-8b", {**SMALL, "method": "qlora", "gpu": "l40s"}),
    Case("dpo", "llama-3.2-1b", {**SMALL, "method": "lora", "task": "dpo"}, {"gpus": 1}),
    Case("spot", "llama-3.2-1b", {**SMALL, "method": "lora"}, {"spot": True, "gpus": 1, "provider": ["gcp", "aws"]}),
    Case("eu", "llama-3.2-1b", {**SMALL, "method": "lora"}, {"eu": True, "gpus": 1}),
    Case("one provider", "llama-3.2-1b", {**SMALL, "method": "lora"}, {"provider": ["aws"], "gpus": 1}),
    Case("budget", "llama-3.2-1b", {**SMALL, "method": "lora"}, {"max_usd": 5.0, "gpus": 1}),
    Case(
        "eight cards",
        "llama-3.2-1b",
        {**SMALL, "method": "lora"},
        {"gpus": 8, "provider": ["runpod", "aws"]},
        kept=False,
    ),
    Case(DEAR, "llama-3.2-1b", {**SMALL, "method": "lora", "micro_batch": 8}, {"of two": True}, kept=False),
    Case("eight cards, no plan", "llama-3.2-1b", {**SMALL, "method": "full", "gpu": "h100-sxm-80gb", "gpus": 8}),
    Case("two nodes", "llama-3.2-1b", {**SMALL, "method": "full", "gpu": "h100-sxm-80gb", "gpus": 8, "nodes": 2}),
    Case("no plan", "llama-3.2-1b", {**SMALL, "method": "lora", "gpu": "l4"}),
    Case("a name of several cards", "llama-3.2-1b", {**SMALL, "method": "lora", "gpu": "h100-sxm-80gb"}),
    Case("hostile path", "llama-3.2-1b", {**SMALL, "method": "lora", "gpu": "l40s"}, None, HOSTILE),
    Case("hostile id", "llama-3.2-1b", {**SMALL, "method": "lora", "gpu": "l4", "id": "7B; rm -rf $HOME: `x`"}),
    Case("nothing kept", "llama-3.2-1b", {**SMALL, "method": "qlora", "gpu": "rtx-4090"}, None, "train.jsonl", False),
)
OPTIONS: Mapping[str, Mapping[str, str]] = {
    "skypilot": {"bucket": "s3://checkpoints"},
    "dstack": {"volume": "checkpoints"},
    "lyceum": {"machine": "gpu.l40s"},
}
ROW = {"messages": [{"role": "user", "content": "one two three"}, {"role": "assistant", "content": "four " * 300}]}
PAIR = {"prompt": "one two three", "chosen": "four " * 300, "rejected": "five " * 300}
ROWS = 2000


def write_cases(engines: Sequence[str], place: Path) -> dict[str, list[dict[str, Any]]]:
    """By engine. A job is planned once, and launched on each."""
    rows: dict[str, list[dict[str, Any]]] = {engine: [] for engine in engines}
    for number, case in enumerate(CASES):
        folder = place / f"{number:02d}"
        folder.mkdir(parents=True)
        data = folder / case.data
        row = PAIR if case.fields.get("task") == "dpo" else ROW
        data.write_text("".join(f"{json.dumps(row)}\n" for _ in range(ROWS)), encoding="utf-8")
        job = tunecast.read(case.model, {"data.path": str(data)}, **case.fields)
        if case.name == DEAR:
            source: Any = write_plan_of_two(case, data)
        else:
            source = job if case.plan is None else tunecast.plan(job, as_of=AS_OF, **case.plan)
        for engine in engines:
            told = {"case": case.name, "engine": engine, "nodes": job.hardware.nodes, "data": str(data)}
            rows[engine].append({**told, **write_case(case, source, engine, folder / engine)})
    return rows


def write_plan_of_two(case: Case, data: Path) -> Path:
    """As `tunecast plan --json` writes one, of two cards at RunPod: bundled prices, and the time predicted on each."""
    choices = []
    for gpu in ("rtx-5090", "rtx-3090"):
        job = tunecast.read(case.model, {"data.path": str(data)}, **case.fields, gpu=gpu)
        time = tunecast.predict(job).time
        assert time is not None and time.total_s is not None
        machine = min(
            (
                each
                for each in offers()
                if (each.provider, each.kind, each.gpu, each.gpus) == ("runpod", ON_DEMAND, gpu, 1)
            ),
            key=lambda each: each.usd_per_hour,
        )
        choices.append(
            {
                "offer": rented(machine).to_dict(),
                "job": {"hardware": {"nodes": 1}},
                "changes": {"hardware.gpu": gpu},
                "total_s": time.total_s,
            }
        )
    choices.sort(key=lambda each: each["offer"]["usd_per_hour"] * each["total_s"])
    job = {"model": case.model, **case.fields, "data": {"path": str(data)}}
    plan = {"schema": "tunecast.plan/1", "job": job, "best": "cheapest", "picks": {"cheapest": choices[0]}}
    path = data.with_name("plan.json")
    path.write_text(
        json.dumps({**plan, "choices": choices, "asked": ["--provider runpod"]}, default=str), encoding="utf-8"
    )
    return path


def write_case(case: Case, source: Any, engine: str, folder: Path) -> dict[str, Any]:
    """Its files, as they lie when it is launched; and what is asked of the engine, or why it is not rendered."""
    folder.mkdir()
    options = {
        name: value if case.kept or value.startswith("gpu.") else "none" for name, value in OPTIONS[engine].items()
    }
    try:
        rendering = tunecast.launch(source, on=engine, dry_run=True, options=options)
    except UsageError as error:
        return {"refused": error.message}
    assert isinstance(rendering, Rendering)
    for name, text in rendering.files.items():
        (folder / name).write_text(text, encoding="utf-8")
    commands = [list(command) for command in rendering.commands]
    return {"folder": str(folder), "name": rendering.name, "commands": commands, "notes": list(rendering.notes)}
