"""What torchtune is told of a model: its builder, the files of its weights, its tokenizer.

    a model of the Hub    the builder, files and tokenizer that torchtune's own configurations name (recipes/configs of
                          0.6.1), and a command that downloads it
    a folder              the builder of its family with the sizes of its config.json
                          (torchtune/models/*/_component_builders.py), and the weights that lie there

Weights  torchtune/training/checkpointing/_checkpointer.py, `FullModelHFCheckpointer`; its `ModelType`
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from tunecast.errors import Unsupported, UsageError
from tunecast.job.job import Job
from tunecast.job.model import resolve_model
from tunecast.job.recipes.frameworks.torchtune import MOST_POSITIONS, SIZES, model_name
from tunecast.job.registry import bundled_name
from tunecast.launching.programs.settings import Places, whole
from tunecast.launching.rendering import Command
from tunecast.records import NamedTuple

DOWNLOADED = "model"
"""The folder beside a training's files that a model of the Hub is downloaded to."""
SAFE, TORCH = "model-{}-of-{}.safetensors", "pytorch_model-{}-of-{}.bin"
ONE_FILE = "model.safetensors"
PUBLISHED: Mapping[str, tuple[str, int]] = {
    "llama2.llama2_7b": (TORCH, 2),
    "llama2.llama2_13b": (TORCH, 3),
    "llama2.llama2_70b": (TORCH, 15),
    "llama3.llama3_70b": (SAFE, 30),
    "llama3_1.llama3_1_8b": (SAFE, 4),
    "llama3_1.llama3_1_70b": (SAFE, 30),
    "llama3_1.llama3_1_405b": (SAFE, 191),
    "llama3_2.llama3_2_1b": (ONE_FILE, 1),
    "llama3_2.llama3_2_3b": (SAFE, 2),
    "llama3_3.llama3_3_70b": (SAFE, 30),
    "mistral.mistral_7b": (TORCH, 2),
    "gemma.gemma_2b": (SAFE, 2),
    "gemma.gemma_7b": (SAFE, 4),
    "gemma2.gemma2_2b": (SAFE, 3),
    "gemma2.gemma2_9b": (SAFE, 8),
    "gemma2.gemma2_27b": (SAFE, 24),
    "phi3.phi3_mini": (SAFE, 2),
    "phi4.phi4_14b": (SAFE, 6),
    "qwen2.qwen2_0_5b": (ONE_FILE, 1),
    "qwen2.qwen2_1_5b": (ONE_FILE, 1),
    "qwen2.qwen2_7b": (SAFE, 4),
    "qwen2_5.qwen2_5_0_5b": (ONE_FILE, 1),
    "qwen2_5.qwen2_5_1_5b_instruct": (ONE_FILE, 1),
    "qwen2_5.qwen2_5_3b": (SAFE, 2),
    "qwen2_5.qwen2_5_7b_instruct": (SAFE, 4),
    "qwen2_5.qwen2_5_14b_instruct": (SAFE, 8),
    "qwen2_5.qwen2_5_32b_instruct": (SAFE, 17),
    "qwen2_5.qwen2_5_72b_instruct": (SAFE, 37),
}
"""Builders of torchtune's own configurations, with the names and the number of the files they read: `checkpointer:
checkpoint_files` of recipes/configs/*/*.yaml. `./dev system trainers` compares them."""
TYPES = {"llama3_1": "LLAMA3", "llama3_3": "LLAMA3", "phi3": "PHI3_MINI", "qwen2_5": "QWEN2"}
"""`checkpointer: model_type` by package, where it is not the package's own name."""
TOKENIZERS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "llama2": ("llama2.llama2_tokenizer", {"path": "tokenizer.model"}),
    **dict.fromkeys(
        ("llama3", "llama3_1", "llama3_2", "llama3_3"),
        ("llama3.llama3_tokenizer", {"path": "original/tokenizer.model"}),
    ),
    "mistral": ("mistral.mistral_tokenizer", {"path": "tokenizer.model"}),
    **dict.fromkeys(("gemma", "gemma2"), ("gemma.gemma_tokenizer", {"path": "tokenizer.model"})),
    "phi3": ("phi3.phi3_mini_tokenizer", {"path": "tokenizer.model"}),
    "phi4": ("phi4.phi4_tokenizer", {"vocab_path": "vocab.json", "merges_path": "merges.txt"}),
    "qwen2": ("qwen2.qwen2_tokenizer", {"path": "vocab.json", "merges_file": "merges.txt"}),
    "qwen2_5": ("qwen2_5.qwen2_5_tokenizer", {"path": "vocab.json", "merges_file": "merges.txt"}),
}
"""By package: its tokenizer, and where the files that it reads lie in a model's folder."""
ALWAYS = tuple(name for name in SIZES if name not in ("head_dim", "tie_word_embeddings"))
"""Arguments of every family's builder."""
NOT_DOWNLOADED = {TORCH: "*.safetensors", SAFE: "original/consolidated*", ONE_FILE: "original/consolidated*"}
"""The weights again, in a form that is not read."""


class ModelWords(NamedTuple):
    builder: str
    """Without `lora_`: llama3_2.llama3_2_1b."""
    arguments: Mapping[str, Any]
    tokenizer: Mapping[str, Any]
    checkpointer: Mapping[str, Any]
    download: Command
    """What brings the weights; none: they are there."""

    @property
    def package(self) -> str:
        return self.builder.partition(".")[0]


def model_words(job: Job, places: Places) -> ModelWords:
    """Raises where torchtune has no builder for it, or the folder has not what torchtune reads."""
    return _of_folder(job, places.model) if os.path.isdir(job.model) else _of_hub(job, places.model)


def _of_hub(job: Job, hub_id: str) -> ModelWords:
    name = bundled_name(job.model)
    known = {model_name(each.partition(".")[2]): each for each in PUBLISHED}
    if name is None or name not in known:
        told = ", ".join(str(each) for each in known)
        raise Unsupported.at(
            "model", f"got {job.model}; of the Hub torchtune is told {told}. To fix: the folder with its weights"
        )
    builder = known[name]
    form, count = PUBLISHED[builder]
    download = ("tune", "download", hub_id, "--output-dir", DOWNLOADED, "--ignore-patterns", NOT_DOWNLOADED[form])
    files: Any = {"filename_format": form, "max_filename": f"{count:05}"} if "{}" in form else [form]
    return _words(builder, {}, DOWNLOADED, files, download)


def _of_folder(job: Job, place: str) -> ModelWords:
    config = resolve_model(job.model).raw
    package, arguments = _family(config)
    names = sorted(os.listdir(job.model))
    files = [name for name in names if name.endswith(".safetensors")] or [
        name for name in names if name.startswith("pytorch_model") and name.endswith(".bin")
    ]
    if not files:
        raise UsageError.at("model", f"got {job.model}, which has no weights: *.safetensors or pytorch_model*.bin")
    for name in TOKENIZERS[package][1].values():
        if not os.path.isfile(os.path.join(job.model, name)):
            raise UsageError.at(
                "model", f"got {job.model} without {name}, from which torchtune's {package} tokenizer is made"
            )
    sizes = {name: config[SIZES[name]] for name in ALWAYS if SIZES[name] in config}
    if package == "qwen2":
        sizes["max_seq_len"] = min(sizes["max_seq_len"], MOST_POSITIONS)
    sizes["norm_eps"] = config["rms_norm_eps"]
    return _words(f"{package}.{package}", {**sizes, **arguments}, place, files, ())


def _words(builder: str, arguments: Mapping[str, Any], folder: str, files: Any, download: Command) -> ModelWords:
    package = builder.partition(".")[0]
    component, parts = TOKENIZERS[package]
    tokenizer = {"_component_": f"torchtune.models.{component}"}
    tokenizer |= {argument: f"{folder}/{name}" for argument, name in parts.items()}
    weights = {"checkpoint_dir": folder, "checkpoint_files": files, "model_type": TYPES.get(package, package.upper())}
    return ModelWords(builder, arguments, tokenizer, weights, download)


def _family(config: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The package whose builder makes this model, and what it is told beyond `SIZES`."""
    kind = config["model_type"]
    rope = {"rope_theta": config.get("rope_theta", 10000.0), **(config.get("rope_scaling") or {})}
    rope |= config.get("rope_parameters") or {}
    base, tied = {"rope_base": whole(rope["rope_theta"])}, bool(config.get("tie_word_embeddings"))
    form = rope.get("rope_type") or rope.get("type") or "default"
    if kind == "llama":
        scaled = {"scale_factor": whole(rope.get("factor", 1))}
        if form == "llama3":
            return ("llama3_2", {**base, **scaled, "tie_word_embeddings": True}) if tied else (
                "llama3_1", {**base, **scaled},
            )  # fmt: skip
        if form == "default" and not tied:
            return ("llama2", {}) if rope["rope_theta"] == 10000 else ("llama3", base)
    elif form == "default":
        if kind in ("mistral", "phi3"):
            return kind, base
        if kind == "qwen2":
            return kind, {**base, "tie_word_embeddings": tied}
        if kind in ("gemma", "gemma2"):
            return kind, {**base, "head_dim": config["head_dim"], **(_gemma2(config) if kind == "gemma2" else {})}
    what = f"{kind} with {form} rotary embeddings{' and a tied head' if tied else ''}"
    raise Unsupported.at("model", f"got {what}, which no builder of torchtune 0.6.1 makes")


def _gemma2(config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "hidden_capping_value": config["attn_logit_softcapping"],
        "final_capping_value": config["final_logit_softcapping"],
        "sliding_window_size": config["sliding_window"],
        "query_pre_attn_scalar": config["query_pre_attn_scalar"],
    }
