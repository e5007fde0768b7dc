"""Mistral: Llama with one window over all layers (transformers/models/mistral/modeling_mistral.py)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from tunecast.tape.build import decoder
from tunecast.tape.build.decoder import FULL, SLIDING, Config


class CausalLM(decoder.CausalLM):
    mask_kinds = ()
    defaults: ClassVar[Config] = {"num_key_value_heads": 8, "sliding_window": 4096}

    def layer_types(self, config: Config) -> Sequence[str]:
        return [SLIDING if config.get("sliding_window") else FULL] * config["num_hidden_layers"]
