"""The accuracy page's section on tasks beyond text SFT and on images: results/tasks.json and tasks2.json."""

from __future__ import annotations

from typing import Any

from figures import load, table

Row = dict[str, Any]


def tasks_section() -> list[str]:
    first, second = load("tasks.json"), load("tasks2.json")
    rows = [*first["rows"], *second["rows"]]
    return [
        "## Every task, and images",
        "",
        f"{first['drawn'] + second['drawn']} jobs were drawn from two seeds over tasks, methods, models and settings, "
        "with images or without (`benchmarks/tasks.py`), and predicted before any of them ran, the second half after "
        "the first had run. "
        "They ran by TRL's own trainers (with images, by transformers' Trainer and the model's own image processor) on "
        f"two machines with an H200, {first['ran'] + second['ran']} to the end (`benchmarks/task_run.py`).",
        "",
        *table(["draw", "jobs", "allocated, median", "worst", "reserved, worst", "to the byte"], [
            [name, str(found["ran"]), *figures(found), f"{found['allocated_to_the_byte']}"]
            for name, found in (("first", first), ("second", second))
        ]),
        "Of the first draw, three Qwen3-VL jobs were said to need 0.9 to 3.4 % too much (layers that take features of "
        "the tower were folded as if they did not: mended before the second), and three distillations 0.2 to 1.1 % "
        "(the program that measured them had switched the teacher's cache off).",
        "",
        "**Time.** Both machines launched operations at another speed than the one that the prices were measured on, "
        "and each at several: generation waits for the host alone, and one machine generated as predicted, the other "
        "in two thirds of that. Steps were off by "
        f"{share(first, 'step_error')} in the median of the first draw and {share(second, 'step_error')} of the "
        "second, "
        f"generation by {share(first, 'generate_error')} and {share(second, 'generate_error')}. Steps with images take "
        "longer than predicted: what the image processor takes in the training process is not counted.",
        "",
        *table(
            ["job", "task", "model, method", "allocated", "reserved", "step", "generation"], [line(row) for row in rows]
        ),
    ]  # fmt: skip


def figures(found: Row) -> list[str]:
    memory, reserved = (found["summary"]["all"][key] for key in ("allocated_error", "reserved_error"))
    return [f"{memory['median']:.4%}", f"{memory['worst']:.3%}", f"{reserved['worst']:.2%}"]


def share(found: Row, key: str) -> str:
    return f"{found['summary']['all'][key]['median']:.0%}"


def line(row: Row) -> list[str]:
    task = f"{row['task']}, {row['images']} images" if row["images"] else row["task"]
    names = [row["id"], task, f"{row['model']}, {row['method']}"]
    if "failed" in row:
        return [*names, "did not run", "", "", ""]
    told = [f"{row[key]:+.3%}" for key in ("allocated_error", "reserved_error")]
    times = [f"{row[key]:+.0%}" if key in row else "" for key in ("step_error", "generate_error")]
    return [*names, *told, *times]
