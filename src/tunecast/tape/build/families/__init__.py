"""Which file holds which architecture: `model_type` of a config.json to the class that is its causal language model.

    bloom.py           BLOOM: attention by hand with slopes instead of positions (ALiBi), a GELU of its own
    cohere.py          Command R and its successors
    deepseek_v2.py     DeepSeek-V2
    deepseek_v3.py     DeepSeek-V3: V2's attention with interleaved rotation, sigmoid routing by groups
    exaone4.py         EXAONE 4
    falcon.py          Falcon: 7B shares one key among all heads, 40B and later one among a group
    gemma.py           Gemma 1 to 3: norms in fp32 that add one to their weight, embeddings times a number
    gemma3_vision.py   Gemma 3 with its vision tower, which a batch of text loads and does not run
    glm.py             GLM 4: half of each head rotated, neighbours together; gate and up in one projection
    gpt2.py            GPT-2: learned positions, one product for queries, keys and values, dropout everywhere
    gpt_bigcode.py     StarCoder 1 and SantaCoder: GPT-2 in plain linear layers, all heads sharing one key
    gpt_neo.py         GPT-Neo: attention by hand in fp32, each layer with a mask of its own
    gpt_neox.py        GPT-NeoX and Pythia: attention and MLP side by side, a quarter of each head turned
    gpt_oss.py         gpt-oss: experts with biases, a sink a head in the softmax, alternating windows
    gptj.py            GPT-J: attention by hand in fp32 beside the MLP, positions looked up in every layer
    granite.py         Granite: Llama with numbers multiplied in
    granitemoe.py      GraniteMoE: experts, and Granite's factors at embedding, residuals, attention and logits
    llama4.py          Llama 4, its text part
    llama_kin.py       Llama but for one thing
    mistral.py         Mistral: Llama with one window over all layers
    mixtral.py         Mixtral: Mistral with experts (models/mixtral/modeling_mixtral.py)
    mpt.py             MPT: attention by hand with slopes instead of positions (ALiBi), nothing has a bias
    named.py           models written before the names of Llama's parts became everybody's
    olmo.py            OLMo: norms without weights
    olmoe.py           OLMoE: norms over all queries and all keys, experts in every layer
    opt.py             OPT: learned positions counted from the mask; the 350M norms after, and projects words
    phi.py             Phi 1.5 and 2: attention and MLP side by side behind one norm, heads turned in part
    phi3.py            Phi 3 and 4: one projection for queries, keys and values, one for gate and up
    qwen.py            Qwen 2 and 3: Llama with biases before attention, with norms of queries and keys
    qwen2_moe.py       Qwen2-MoE: Qwen2 with experts, and one that sees every token
    qwen3_moe.py       Qwen3-MoE: Qwen3 with experts
    seed_oss.py        Seed-OSS: Llama with biases before attention and dropout behind every block
    smollm3.py         SmolLM3: Llama where every fourth layer has no positions
    stablelm.py        StableLM 2 and 3B: layer norms, a quarter of each head rotated
    starcoder2.py      StarCoder2: Mistral with biases, layer norms, a plain MLP, and dropout
    towers.py          vision towers: what a model with eyes loads beside its language model
    unknown.py         architectures nobody has written down

A family's file says only what differs from `decoder.py`, after transformers' modeling file of the same name.
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

FAMILIES: dict[str, str] = {
    "gpt2": "tunecast.tape.build.families.gpt2:CausalLM",
    "gpt_bigcode": "tunecast.tape.build.families.gpt_bigcode:CausalLM",
    "gpt_neo": "tunecast.tape.build.families.gpt_neo:CausalLM",
    "gptj": "tunecast.tape.build.families.gptj:CausalLM",
    "gpt_neox": "tunecast.tape.build.families.gpt_neox:CausalLM",
    "bloom": "tunecast.tape.build.families.bloom:CausalLM",
    "falcon": "tunecast.tape.build.families.falcon:CausalLM",
    "mpt": "tunecast.tape.build.families.mpt:CausalLM",
    "opt": "tunecast.tape.build.families.opt:CausalLM",
    "phi": "tunecast.tape.build.families.phi:CausalLM",
    "starcoder2": "tunecast.tape.build.families.starcoder2:CausalLM",
    "llama": "tunecast.tape.build.decoder:CausalLM",
    "arcee": "tunecast.tape.build.families.llama_kin:Arcee",
    "cwm": "tunecast.tape.build.families.llama_kin:Cwm",
    "ministral": "tunecast.tape.build.families.llama_kin:Ministral",
    "hunyuan_v1_dense": "tunecast.tape.build.families.llama_kin:Hunyuan",
    "exaone4": "tunecast.tape.build.families.exaone4:CausalLM",
    "ernie4_5": "tunecast.tape.build.families.llama_kin:Ernie",
    "gemma": "tunecast.tape.build.families.gemma:Gemma",
    "gemma2": "tunecast.tape.build.families.gemma:Gemma2",
    "gemma3": "tunecast.tape.build.families.gemma3_vision:Gemma3WithVision",
    "gemma3_text": "tunecast.tape.build.families.gemma:Gemma3",
    "cohere": "tunecast.tape.build.families.cohere:Cohere",
    "cohere2": "tunecast.tape.build.families.cohere:Cohere2",
    "granite": "tunecast.tape.build.families.granite:CausalLM",
    "glm": "tunecast.tape.build.families.glm:Glm",
    "glm4": "tunecast.tape.build.families.glm:Glm4",
    "olmo": "tunecast.tape.build.families.olmo:Olmo",
    "olmo2": "tunecast.tape.build.families.olmo:Olmo2",
    "olmo3": "tunecast.tape.build.families.olmo:Olmo3",
    "phi3": "tunecast.tape.build.families.phi3:CausalLM",
    "seed_oss": "tunecast.tape.build.families.seed_oss:CausalLM",
    "smollm3": "tunecast.tape.build.families.smollm3:CausalLM",
    "stablelm": "tunecast.tape.build.families.stablelm:CausalLM",
    "qwen2": "tunecast.tape.build.families.qwen:Qwen2",
    "qwen3": "tunecast.tape.build.families.qwen:Qwen3",
    "mistral": "tunecast.tape.build.families.mistral:CausalLM",
    "mixtral": "tunecast.tape.build.families.mixtral:CausalLM",
    "deepseek_v2": "tunecast.tape.build.families.deepseek_v2:CausalLM",
    "deepseek_v3": "tunecast.tape.build.families.deepseek_v3:CausalLM",
    "llama4_text": "tunecast.tape.build.families.llama4:CausalLM",
    "gpt_oss": "tunecast.tape.build.families.gpt_oss:CausalLM",
    "granitemoe": "tunecast.tape.build.families.granitemoe:CausalLM",
    "olmoe": "tunecast.tape.build.families.olmoe:CausalLM",
    "qwen2_moe": "tunecast.tape.build.families.qwen2_moe:CausalLM",
    "qwen3_moe": "tunecast.tape.build.families.qwen3_moe:CausalLM",
}


def causal_lm(model_type: str) -> Any:
    """The class, or None for an architecture nobody has written down."""
    place = FAMILIES.get(model_type)
    if place is None:
        return None
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


TEXT_ALONE = frozenset({"llama4", "mllama"})
"""Models with eyes of which `AutoModelForCausalLM` makes the text part alone."""


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
    family = causal_lm(name)
    if family is not None:
        return family(machine, config)
    text = config.get("text_config", config)
    if name not in TEXT_ALONE and (text is not config or "vision_config" in config):
        machine.guesses[f"only the text part of {name} is counted"] = None
    family = causal_lm(text["model_type"])
    if family is not None:
        return family(machine, text)
    guess = nearest(text)
    if guess is None:
        return None
    machine.guesses[guess.sentence] = None
    return causal_lm(guess.family)(machine, guess.config)
