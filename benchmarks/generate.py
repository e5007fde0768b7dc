"""Jobs nobody chose by hand: drawn from a seed over model x method x knobs, for predictions made before measuring.

    python benchmarks/generate.py > jobs.jsonl

Draws that `tunecast` refuses as contradictory are drawn again; draws too large for an H200 are sorted out by
`predict.py`, which says so.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "src")]

from machine import MEASURED_WITH  # noqa: E402

from tunecast.errors import UsageError  # noqa: E402
from tunecast.job import job_from_dict  # noqa: E402
from tunecast.job.registry import bundled_config, bundled_models  # noqa: E402
from tunecast.tape.build.families import model_of  # noqa: E402
from tunecast.tape.build.machine import Machine  # noqa: E402
from tunecast.tape.card import Card  # noqa: E402
from tunecast.tape.shorten import layers_to_trace, with_layers  # noqa: E402

SEED = 20261115
COUNT = 22
LIGER = {"llama", "qwen2", "mistral", "qwen3", "gemma2", "phi3", "granite", "olmo2"}
CLOSED_SEED, CLOSED_COUNT, MOST_PARAMETERS = 20261116, 24, 10_000_000_000
"""The second draw, for the closed form: over all bundled text models up to that size."""
EDGE_DRAWS = {"edge": (20261117, 36), "edge2": (20261119, 48)}
"""Seed and count of the draws over the architectures added last (`NEWEST`), each as likely as another. The second
leaves out mistral4, whose text part alone AutoModelForCausalLM of the measured transformers cannot make."""
NEWEST = (
    "deepseek_v32", "deepseek_v4", "falcon_h1", "gemma3n_text", "gemma4_text", "glm4_moe", "glm4_moe_lite",
    "glm_moe_dsa", "granitemoehybrid", "kimi_linear", "lfm2", "lfm2_moe", "minimax_m2", "ministral3", "mistral4",
    "nemotron_h", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next",
)  # fmt: skip
SMALL = 2_000_000_000
"""Full fine-tuning is drawn for models up to about this many parameters, and 8-bit or plain SGD for the others."""


def draw(pick: random.Random, models: dict[str, Any]) -> dict[str, Any]:
    name = pick.choice(sorted(models))
    small = models[name]["parameters"] < SMALL
    method = pick.choice(["full", "lora", "qlora"] if small else ["lora", "lora", "qlora", "qlora", "full"])
    length = pick.choice([256, 512, 777, 1000, 1024, 1536, 2048, 2048, 3000, 4096])
    batch = pick.choice([1, 1, 2, 3, 4, 8])
    job: dict[str, Any] = {
        "model": name,
        "method": method,
        "seq_len": length,
        "micro_batch": batch,
        "weights_dtype": "bfloat16",
        "autocast": "bfloat16",
        "gradient_checkpointing": pick.random() < 0.6,
        "max_grad_norm": pick.choice([1.0, 1.0, 0.5]),
        "attention": pick.choice(["sdpa", "sdpa", "sdpa", "eager"]) if length <= 2048 and batch <= 2 else "sdpa",
        "grad_accum": pick.choice([1, 1, 1, 2, 3]),
        "allocator": pick.choice(["native", "native", "expandable_segments"]),
        "optimizer": pick.choice(
            ["adamw_torch", "adamw_torch_fused", "adamw_8bit", "paged_adamw_8bit", "adafactor", "sgd", "lion_8bit"]
        ),
    }
    if method == "full":
        job["autocast"] = pick.choice([None, "bfloat16"])
        if small and pick.random() < 0.3:
            job |= {"weights_dtype": "float32", "autocast": "bfloat16"}
        if not small:
            job |= {
                "optimizer": pick.choice(["adamw_8bit", "sgd", "adafactor"]),
                "gradient_checkpointing": True,
                "weights_dtype": "bfloat16",
            }
    else:
        job["lora"] = {
            "rank": pick.choice([4, 8, 16, 32, 64, 128]),
            "alpha": 32,
            "dropout": pick.choice([0.0, 0.0, 0.05, 0.1]),
            "targets": pick.choice(["all-linear", "all-linear", "attention"]),
            "dora": method == "lora" and pick.random() < 0.15,
            "adapter_dtype": pick.choice(["float32", "float32", "bfloat16"]),
        }
        if method == "lora" and job["lora"]["adapter_dtype"] == "bfloat16":
            job["autocast"] = pick.choice([None, "bfloat16"])
    if method == "qlora":
        job["quantization"] = {
            "format": pick.choice(["nf4", "nf4", "nf4", "fp4", "int8"]),
            "double_quant": pick.random() < 0.6,
            "prepare_kbit": pick.random() < 0.7,
        }
        if job["quantization"]["format"] == "int8":
            job["quantization"]["double_quant"] = False
    if models[name]["config"]["model_type"] in LIGER and pick.random() < 0.2:
        job["kernels"] = ["liger"]
    if pick.random() < 0.3:
        job["lengths"] = [pick.randrange(length // 4, length + 1) for _ in range(pick.choice([6, 9, 12]))]
    return job


def drawn(count: int = COUNT, seed: int = SEED, prefix: str = "generated", models: Any = None) -> list[dict[str, Any]]:
    models = models or json.loads((HERE / "data" / "generated_models.json").read_text())
    pick = random.Random(seed)
    jobs: list[dict[str, Any]] = []
    while len(jobs) < count:
        job = draw(pick, models)
        try:
            job_from_dict(job)
        except UsageError:
            continue
        jobs.append({"id": f"{prefix}-{len(jobs):02d}"} | job)
    return jobs


def bundled(most: int = MOST_PARAMETERS) -> dict[str, Any]:
    """The registry's text models that an H200 builds in a moment."""
    return {
        name: {"parameters": entry["parameters"], "config": bundled_config(name)}
        for name, entry in bundled_models().items()
        if entry["parameters"] <= most and "parts" not in entry
    }


def edge_jobs(name: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Jobs of one architecture after the other, in an order that is drawn; and the models they are of."""
    seed, count = EDGE_DRAWS[name]
    families = NEWEST if name == "edge" else [family for family in NEWEST if family != "mistral4"]
    models, pick = newest_models(), random.Random(seed)
    order: list[str] = []
    while len(order) < count:
        order += pick.sample(families, len(families))
    jobs = []
    for number, family in enumerate(order[:count]):
        of_it = {model: entry for model, entry in models.items() if entry["family"] == family}
        (job,) = drawn(1, pick.randrange(2**32), name, of_it)
        jobs.append({**job, "id": f"{name}-{number:02d}", **MEASURED_WITH})
    return jobs, models


def newest_models(most: int = MOST_PARAMETERS) -> dict[str, Any]:
    """The text parts of the bundled models of `NEWEST`, larger ones with fewer layers."""
    found = {}
    for name in bundled_models():
        whole = bundled_config(name)
        config = whole.get("text_config", whole)
        if config["model_type"] in NEWEST:
            found[name] = {"family": config["model_type"], **_cut(config, most)}
    return found


def _cut(config: dict[str, Any], most: int) -> dict[str, Any]:
    """Of as many layers as that number of parameters allows, at least of those that stand for all."""
    least, _, layers = layers_to_trace(config)
    while layers > least and _parameters(with_layers(config, layers)) > most:
        layers -= 1
    config = with_layers(config, layers)
    return {"parameters": _parameters(config), "config": config}


def _parameters(config: dict[str, Any]) -> int:
    return sum(parameter.numel() for parameter in model_of(Machine(Card()), config).parameters())


if __name__ == "__main__":
    for job in drawn():
        print(json.dumps(job))
