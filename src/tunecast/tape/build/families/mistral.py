"""Mistral: Llama with one window over all layers (transformers/models/mistral/modeling_mistral.py)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from tunecast.tape.build import decoder
from tunecast.tape.build.decoder import FULL, SLIDING, Config
from tunecast.tape.build.tensor import Machine


class Decoder(decoder.Decoder):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine, config)
        self.mask_kinds = tuple(dict.fromkeys(self.kinds))


class CausalLM(decoder.CausalLM):
    decoder_class: Any = Decoder
    defaults: ClassVar[Config] = {"num_key_value_heads": 8, "sliding_window": 4096}

    def layer_types(self, config: Config) -> Sequence[str]:
        return [SLIDING if config.get("sliding_window") else FULL] * config["num_hidden_layers"]
