"""Which file holds which architecture: `model_type` of a config.json to the class that is its causal language model.

    alibi.py          BLOOM and MPT: attention by hand with slopes instead of positions
    cohere.py         Command R and its successors
    deepseek.py       DeepSeek-V2 and V3: attention through compressed keys and values, experts beside shared ones
    deepseek_kin.py   DeepSeek-V3.2, and DeepSeek's parts in others' models: GLM 4.5 to 5, Mistral 4
    deepseek_v4.py    DeepSeek-V4: residual streams, compressed windows, experts looked up by token
    deepseek_windows.py   DeepSeek-V4's windows: so many tokens compressed to one key, and who chooses among those
    delta.py          Qwen 3.5 and Qwen3-Next: a gated delta rule between layers of gated attention
    gemma.py          Gemma 1 to 3: norms in fp32 that add one to their weight, embeddings times a number; its tower
    gemma3n.py        Gemma 3n, its text part: four streams of hidden states, an embedding for every layer
    gemma4.py         Gemma 4: an embedding for every layer, keys that layers share, experts beside an MLP
    gemma4_parts.py   Gemma 4 with towers of vision and audio, or with embedders in their place
    gpt.py            GPT-2, StarCoder 1, GPT-Neo and GPT-J
    kimi.py           Kimi Linear: a delta rule that forgets by channel between layers of DeepSeek's attention
    lfm2.py           LFM2: short convolutions in most layers
    llama4.py         Llama 4, its text part
    llama_kin.py      Llama with a few things changed: Mistral, Phi 3, GLM 4, Granite and others
    mamba.py          Granite 4 and Falcon H1: Mamba 2 between layers of attention, or beside it
    minimax.py        MiniMax-Text-01 and M1: lightning attention between layers of attention
    moe.py            experts in every layer: Mixtral, OLMoE, GraniteMoE, gpt-oss, MiniMax M2
    named.py          models written before the names of Llama's parts became everybody's
    nemotron.py       Nemotron-H and Nemotron 3: a layer is Mamba 2, attention, an MLP or experts
    olmo.py           OLMo: norms without weights
    opt.py            OPT: learned positions counted from the mask; the 350M norms after, and projects words
    qwen.py           Qwen 2 and 3, also with experts: biases before attention, norms of queries and keys
    side_by_side.py   Falcon, GPT-NeoX, StableLM, Phi 1.5 and 2: attention and MLP side by side
    unknown.py        architectures nobody has written down

A family says only what differs from `decoder.py`, after transformers' modeling file of the same name.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from tunecast.errors import Unsupported
from tunecast.job.knob import shown
from tunecast.tape.build.families.unknown import nearest
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.modules import ACTIVATIONS, NoActivation

FILES: Mapping[str, Mapping[str, str]] = {
    ".decoder": {"llama": "CausalLM"},
    ".vision.qwen2": {"qwen2_vl": "Qwen2VL"},
    ".vision.qwen2_5": {"qwen2_5_vl": "Qwen25VL"},
    ".vision.qwen3": {"qwen3_vl": "Qwen3VL", "qwen3_vl_moe": "Qwen3VLMoe"},
    ".vision.qwen3_5": {"qwen3_5": "Qwen35WithVision", "qwen3_5_moe": "Qwen35MoeWithVision"},
    "alibi": {"bloom": "Bloom", "mpt": "Mpt"},
    "cohere": {"cohere": "Cohere", "cohere2": "Cohere2"},
    "deepseek": {"deepseek_v2": "DeepseekV2", "deepseek_v3": "DeepseekV3"},
    "deepseek_kin": {
        "deepseek_v32": "DeepseekV32", "glm4_moe": "GlmMoe", "glm4_moe_lite": "GlmMoeLite", "glm_moe_dsa": "GlmMoeDsa",
        "mistral4": "Mistral4",
    },
    "deepseek_v4": {"deepseek_v4": "DeepseekV4"},
    "delta": {"qwen3_5_text": "Qwen35", "qwen3_5_moe_text": "Qwen35Moe", "qwen3_next": "Qwen3Next"},
    "gemma": {"gemma": "Gemma", "gemma2": "Gemma2", "gemma3": "Gemma3WithVision", "gemma3_text": "Gemma3"},
    "gemma3n": {"gemma3n_text": "Gemma3n"},
    "gemma4": {"gemma4_text": "Gemma4"},
    "gemma4_parts": {
        "gemma4": "Gemma4WithParts", "gemma4_unified": "Gemma4UnifiedWithParts", "gemma4_unified_text": "Gemma4Unified",
    },
    "gpt": {"gpt2": "Gpt2", "gpt_bigcode": "BigCode", "gpt_neo": "GptNeo", "gptj": "Gptj"},
    "kimi": {"kimi_linear": "KimiLinear"},
    "lfm2": {"lfm2": "Lfm2", "lfm2_moe": "Lfm2Moe"},
    "llama4": {"llama4_text": "CausalLM"},
    "llama_kin": {
        "arcee": "Arcee", "cwm": "Cwm", "ernie4_5": "Ernie", "exaone4": "Exaone4", "glm": "Glm",
        "glm4": "Glm4", "granite": "Granite", "hunyuan_v1_dense": "Hunyuan", "ministral": "Ministral",
        "ministral3": "Ministral3", "mistral": "Mistral", "phi3": "Phi3", "seed_oss": "SeedOss", "smollm3": "SmolLM3",
        "starcoder2": "Starcoder2",
    },
    "minimax": {"minimax": "MiniMax"},
    "moe": {
        "gpt_oss": "GptOss", "granitemoe": "GraniteMoeLM", "minimax_m2": "MiniMaxM2", "mixtral": "Mixtral",
        "olmoe": "Olmoe",
    },
    "mamba": {"falcon_h1": "FalconH1", "granitemoehybrid": "GraniteHybrid"},
    "nemotron": {"nemotron_h": "NemotronH"},
    "olmo": {"olmo": "Olmo", "olmo2": "Olmo2", "olmo3": "Olmo3"},
    "opt": {"opt": "CausalLM"},
    "qwen": {"qwen2": "Qwen2", "qwen3": "Qwen3", "qwen2_moe": "Qwen2MoeLM", "qwen3_moe": "Qwen3MoeLM"},
    "side_by_side": {"falcon": "Falcon", "gpt_neox": "GptNeox", "phi": "Phi", "stablelm": "Stablelm"},
    ".vision.clip": {"llava": "Llava"},
    ".vision.intern": {"internvl": "InternVL"},
    ".vision.llama4": {"llama4": "Llama4"},
    ".vision.mllama": {"mllama": "Mllama", "mllama_text_model": "MllamaText"},
    ".vision.pixtral": {"mistral3": "Mistral3"},
    ".vision.smolvlm": {"smolvlm": "SmolVLM"},
}  # fmt: skip
FAMILIES = {kind: (file, name) for file, classes in FILES.items() for kind, name in classes.items()}
"""By config.json's `model_type`: the file, and the class in it."""


def causal_lm(model_type: str) -> Any:
    """The class, or None for an architecture nobody has written down."""
    if model_type not in FAMILIES:
        return None
    file, name = FAMILIES[model_type]
    return getattr(import_module(f".{file}", __name__), name)


def is_written(config: Mapping[str, Any]) -> bool:
    """Whether the architecture of a config.json, or that of its text part, is one of ours."""
    text = config.get("text_config", config)
    return not FAMILIES.keys().isdisjoint((config.get("model_type"), text.get("model_type")))


TEXT_ALONE = frozenset({"llama4", "mllama", "qwen3_5", "qwen3_5_moe"})
"""Models with eyes of which `AutoModelForCausalLM` makes the text part alone."""


WITH_IMAGES = frozenset({
    "internvl", "llama4", "llava", "mistral3", "mllama", "qwen3_5", "qwen3_5_moe", "smolvlm",
})  # fmt: skip
"""Models that are written down whole, and of which a job of text has the text part alone."""


TEXT_OF = {("kimi_k25", "kimi_k2"): "deepseek_v3"}
"""What transformers takes the text part of a model for (configuration_kimi_k25.py)."""


def model_of(machine: Machine, config: Mapping[str, Any]) -> Any:
    """The model of a config.json: all its parts where they are written down, else its text part, else that of the
    nearest known architecture, which is a guess. None where there is nothing near. Raises `Unsupported` for an
    activation function that is not written down."""
    try:
        return _model_of(machine, config)
    except NoActivation as error:
        (word,) = error.args
        known = f"which the closed form does not know; known: {', '.join(ACTIVATIONS)}. To fix: --engine traced"
        told = f"model: config.json: {_activation_key(word, config)}: got {shown(word)}, {known}"
        raise Unsupported(told, field="model") from None


def _activation_key(word: object, config: Mapping[str, Any]) -> str:
    """Where a config.json names this function."""
    for key, value in config.items():
        if value == word and "act" in key:
            return key
        if isinstance(value, Mapping) and (inner := _activation_key(word, value)):
            return f"{key}.{inner}"
    return ""


def _model_of(machine: Machine, config: Mapping[str, Any]) -> Any:
    name = config["model_type"]
    family = causal_lm(name) if machine.pictures is not None or name not in WITH_IMAGES else None
    if family is not None:
        return family(machine, config)
    text = config.get("text_config", config)
    if name not in TEXT_ALONE and (text is not config or "vision_config" in config):
        machine.guesses[f"only the text part of {name} is counted"] = None
    family = causal_lm(TEXT_OF.get((name, text["model_type"]), text["model_type"]))
    if family is not None:
        return family(machine, text)
    guess = nearest(text)
    if guess is None:
        return None
    machine.guesses[guess.sentence] = None
    return causal_lm(guess.family)(machine, guess.config)
