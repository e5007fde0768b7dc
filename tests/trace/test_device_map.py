"""Which card gets which part of a model, against what transformers itself decides (on the meta device, no card)."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from tunecast.job.releases import minor  # noqa: E402
from tunecast.tape.build.eras import Era  # noqa: E402
from tunecast.tape.build.machine import Machine, Setup  # noqa: E402
from tunecast.tape.build.sharding.layers import outline, split  # noqa: E402
from tunecast.tape.build.stacks.transformers import model as model_of  # noqa: E402
from tunecast.tape.card import Card  # noqa: E402

LLAMA: dict[str, Any] = {"model_type": "llama", "rms_norm_eps": 1e-5, "vocab_size": 128256}
SIZES: dict[str, dict[str, Any]] = {
    "70b": {"hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64},
    "8b": {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32},
    "1b": {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32},
    "small": {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 10, "num_attention_heads": 4},
    "flat": {"hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 3, "num_attention_heads": 4},
}
UNLIMITED = 10**15


def config_of(size: str, tied: bool, vocabulary: int) -> dict[str, Any]:
    heads = SIZES[size]["num_attention_heads"]
    more = {"num_key_value_heads": 4 if heads == 4 else 8, "tie_word_embeddings": tied, "vocab_size": vocabulary}
    return {**LLAMA, **SIZES[size], **more, "head_dim": SIZES[size]["hidden_size"] // heads}


def decided(
    config: dict[str, Any], cards: int, dtype: str, packed: str | None, monkeypatch: pytest.MonkeyPatch
) -> list[tuple[list[int], bool, bool, bool]]:
    """Layers, embedding, norm and head of each card that has any."""
    from transformers.integrations import accelerate

    def memory(given: Any = None) -> Any:
        return dict(given) if given is not None else {**dict.fromkeys(range(cards), UNLIMITED), "cpu": UNLIMITED}

    monkeypatch.setattr(accelerate, "get_max_memory", memory)
    fields = {name: value for name, value in config.items() if name != "model_type"}
    with torch.device("meta"):
        found = transformers.AutoModelForCausalLM.from_config(
            transformers.LlamaConfig(**fields), dtype=getattr(torch, dtype)
        )
    quantizer = None
    if packed is not None:
        pytest.importorskip("bitsandbytes")
        from transformers.quantizers.auto import AutoHfQuantizer

        four = packed in ("nf4", "fp4")
        asked = transformers.BitsAndBytesConfig(load_in_4bit=four, load_in_8bit=not four)
        quantizer = AutoHfQuantizer.from_config(asked, pre_quantized=False)
        quantizer.validate_environment = lambda **_: None
        with torch.device("meta"):
            quantizer.preprocess_model(model=found, dtype=getattr(torch, dtype), device_map="auto")
    places = accelerate._get_device_map(found, "auto", None, quantizer)

    def card_of(name: str) -> int:
        return next(card for outer, card in places.items() if outer == "" or f"{name}.".startswith(f"{outer}."))

    layers = [card_of(f"model.layers.{number}") for number in range(config["num_hidden_layers"])]
    ends = [card_of(name) for name in ("model.embed_tokens", "model.norm", "lm_head")]
    return [
        ([number for number, place in enumerate(layers) if place == card], *(end == card for end in ends))
        for card in range(cards)
        if card in layers or card in (ends[0], ends[2])
    ]


@pytest.mark.parametrize("packed", [None, "nf4", "int8"])
@pytest.mark.parametrize(
    ("size", "tied", "vocabulary", "cards"),
    [
        ("70b", False, 128256, 8), ("8b", False, 128256, 2), ("8b", False, 128256, 4), ("8b", False, 128256, 8),
        ("1b", True, 128256, 2), ("1b", True, 128256, 4), ("1b", True, 128256, 8), ("small", False, 1000, 2),
        ("small", True, 1000, 3), ("small", False, 1000, 4), ("flat", False, 100, 2), ("flat", True, 100, 3),
        ("flat", False, 100000, 2),
    ],
)  # fmt: skip
def test_the_split_is_transformers_own(
    size: str, tied: bool, vocabulary: int, cards: int, packed: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(size, tied, vocabulary)
    machine = Machine(Card(), Setup(era=Era(minor(transformers.__version__))))
    for dtype in ("float32", "bfloat16"):
        theirs = decided(config, cards, dtype, packed, monkeypatch)
        mine = split(outline(model_of(machine, config), dtype, packed), cards, quantizes=packed is not None)
        assert [(list(card.layers), card.embedding, card.norm, card.head) for card in mine] == theirs, dtype
