"""Which bundled model a name means that is not listed as it is: by the rules of one table, each of which is told.

A name is compared in parts, without regard to capitals or to what joins them (`-`, `_`, `.`). Two names are one where
they differ in words that leave a shape as it is, and in nothing else: a fine-tune's own name is never its base's. A
name that two models would answer to answers to none.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from tunecast.records import NamedTuple

FORMATS: Mapping[str, str] = {
    r"(unsloth-)?bnb-4bit|bnb-nf4": "4-bit (bitsandbytes)",
    r"bnb-8bit": "8-bit (bitsandbytes)",
    r"awq(-int4|-4bit|-w4a16)?": "4-bit (AWQ)",
    r"gptq-(int8|8bit)": "8-bit (GPTQ)",
    r"gptq(-int4|-4bit)?": "quantised (GPTQ)",
    r"aqlm(-[0-9]bit)?(-[0-9]+x[0-9]+)?": "quantised (AQLM)",
    r"[3468]bit|int[48]|(quantized-)?w[48]a(8|16)": "quantised",
    r"fp8": "8-bit floating point",
    r"fp8-(dynamic|block|static|static-pertensor)": "8-bit floating point (compressed-tensors)",
    r"nvfp4|mxfp4|fp4": "4-bit floating point",
    r"gguf|q[2-8](-0|-k|-k-[sml])": "GGUF",
    r"bf16|bfloat16|fp16|f16|dequantized": "16-bit",
    r"linearized": "each expert apart",
}
"""How a name may end, its parts joined by `-`, and how the weights are stored then."""

BY_NAME = "by_name"
"""The key that says of a `quantization_config` that it is a guess."""
COMPRESSED: Mapping[str, Any] = {"quant_method": "compressed-tensors"}
PACKINGS: Mapping[str, Mapping[str, Any]] = {
    "4-bit (bitsandbytes)": {
        "quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4",
        "bnb_4bit_use_double_quant": True, "bnb_4bit_compute_dtype": "bfloat16",
    },
    "8-bit (bitsandbytes)": {"quant_method": "bitsandbytes", "load_in_8bit": True},
    "4-bit (AWQ)": {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"},
    "quantised (GPTQ)": {"quant_method": "gptq", "bits": 4, "group_size": 128},
    "8-bit (GPTQ)": {"quant_method": "gptq", "bits": 8, "group_size": 128},
    "8-bit floating point": {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]},
    "8-bit floating point (compressed-tensors)": COMPRESSED,
}  # fmt: skip
"""What config.json of such a checkpoint says, as those that publish most of them have it: unsloth (bnb-4bit), Qwen
(AWQ, GPTQ and, as DeepSeek, FP8), RedHatAI (what its llm-compressor makes)."""

VARIANTS = frozenset({"instruct", "chat", "it", "pt", "base", "hf", "thinking", "think", "reasoning"})
"""Words for what a model was trained for after the first time: its authors' chat model has their base model's shape.
Those for which that is not so are entries of their own, and then answer to their own names only."""

PREFIXES = ("meta-", "nvidia-")
"""Meta-Llama-3.1-8B and Llama-3.1-8B, NVIDIA-Nemotron-3-Nano and Nemotron-3-Nano are the same repositories."""

MIRRORS = frozenset({
    "unsloth", "nousresearch", "mlx-community", "alpindale", "casperhansen", "mhenrichsen", "mistral-community",
    "axolotl-ai-co",
    # ModelScope's names for what the Hub has elsewhere
    "llm-research", "ai-modelscope", "zhipuai", "openai-mirror", "nv-community", "iic", "jinaai", "tencent-hunyuan",
    "modelscope",
})  # fmt: skip
"""Organisations that publish others' models under the same names. Anyone else's `llama-3.1-8b` may be anything."""

FOLDERS = frozenset({"models", "model", "checkpoints", "checkpoint", "ckpts", "pretrained", "weights"})
"""Words before a `/` that name a folder of models rather than an organisation."""

_ENDINGS = {re.compile(rf"-(?:{pattern})$"): told for pattern, told in FORMATS.items()}
_VERSION = re.compile(r"(?<![a-z])v([0-9])-([0-9])(?=-|$)")
"""`v3.2`, which transformers and others' folders write `v32`."""


class Plain(NamedTuple):
    """A repository's name, less what leaves its shape as it is."""

    key: str
    stored: tuple[str, ...]
    """What its end says of the weights."""


class Spelling(NamedTuple):
    """The bundled model that a name was taken for."""

    name: str
    because: str
    """The rule; "" where the name is listed as it is."""
    stored: tuple[str, ...] = ()
    by_author: bool = True

    @property
    def packing(self) -> dict[str, Any] | None:
        """`quantization_config` of such a checkpoint, guessed; None: plain weights, or nobody knows."""
        found = [PACKINGS[told] for told in self.stored if told in PACKINGS]
        if not found:
            return None
        packed = found[0] if self.by_author or found[0]["quant_method"] != "fp8" else COMPRESSED
        return {**packed, BY_NAME: True}


def plain(repository: str) -> Plain:
    """`Meta-Llama-3-8B-Instruct-bnb-4bit` is `llama-3-8b`, its weights 4-bit."""
    name, stored = _without_format(re.sub(r"[._]", "-", repository.lower()))
    for prefix in PREFIXES:
        name = name.removeprefix(prefix)
    return Plain("-".join(part for part in name.split("-") if part not in VARIANTS), stored)


def _without_format(name: str) -> tuple[str, tuple[str, ...]]:
    for ending, told in _ENDINGS.items():
        shorter = ending.sub("", name)
        if shorter != name:
            rest, stored = _without_format(shorter)
            return rest, (*stored, told)
    return name, ()


class SpellingRules:
    """The rules, over the Hub ids that are listed."""

    def __init__(self, listed: Iterable[tuple[str, str]]) -> None:
        """Pairs of a Hub id and the bundled model it is of."""
        names: defaultdict[str, set[str]] = defaultdict(set)
        self._organisations: defaultdict[str, set[str]] = defaultdict(set)
        for hub_id, name in listed:
            organisation, _, repository = hub_id.lower().rpartition("/")
            key = plain(repository).key
            names[key].add(name)
            names[_VERSION.sub(r"v\1\2", key)].add(name)
            self._organisations[name].add(organisation)
        self._names = {key: min(found) for key, found in names.items() if len(found) == 1}

    def match(self, given: str) -> Spelling | None:
        """Of `org/name` or of a bare name; None where no rule says that they are of one shape."""
        organisation, slash, repository = given.lower().rpartition("/")
        key, stored = plain(repository)
        name = self._names.get(key)
        if name is None:
            return None
        if not slash or organisation in self._organisations[name]:
            return Spelling(name, "its name is that model's, but for what leaves a shape as it is", stored)
        if organisation in MIRRORS:
            return Spelling(name, f"{organisation} publishes others' models under their names", stored, False)
        if organisation in FOLDERS:
            return Spelling(name, "its folder is named for that model", stored)
        if stored:
            return Spelling(name, "its name is that model's with a format's behind it", stored, False)
        return None


def repository_of(path: str) -> str:
    """What a path's folder is named for: `org/name` or `name`, as downloads lay them out.

    `checkpoints/meta-llama/Llama-3.2-1B` (litgpt), `/tmp/Meta-Llama-3.1-8B-Instruct` (torchtune), and huggingface_hub's
    `models--org--name/snapshots/…`.
    """
    parts = [part for part in re.split(r"[/\\]", path) if part]
    cached = next((part for part in parts if part.startswith("models--")), None)
    if cached is not None:
        return cached.removeprefix("models--").replace("--", "/", 1)
    return parts[-1] if parts else ""
