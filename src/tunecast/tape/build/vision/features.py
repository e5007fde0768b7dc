"""What a model with eyes does between its tower and its language model (transformers 5.17.0): an embedding of patches,
attention over them, and image features put where the text has tokens for them."""

from __future__ import annotations

from typing import Any

from tunecast.tape.build import attention
from tunecast.tape.build import functional as F
from tunecast.tape.build.dtypes import BOOL, INT64
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.modules import Activation, Linear, Module
from tunecast.tape.build.tensor import Tensor

NO_WORKSPACE = (
    "what cuDNN borrows while a convolution cuts images into patches is not counted: nothing or 15 MB forward, 15 to "
    "149 MB for the weight's gradient, which comes last of a backward pass"
)
"""As an H200 did (benchmarks/patch_convolutions.py, data/patch_convolutions.jsonl)."""


class Convolution(Module):
    """Patches of an image to vectors."""

    gives_gradient = False
    """transformers' `enable_input_require_grads` makes what comes out of each tower's embedding need a gradient."""

    def __init__(self, machine: Machine, channels: int, width: int, patch: int, bias: bool = True) -> None:
        super().__init__(machine)
        self.patch = patch
        self.weight = self.parameter(width, channels, patch, patch)
        self.bias: Any = self.parameter(width) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        self.machine.assumptions[NO_WORKSPACE] = None
        out = F.conv2d(x, self.weight, self.bias, self.patch)
        if self.gives_gradient:
            out.requires_grad = True
        return out


def attend_to_all(
    query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None = None, dropout: float = 0.0,
    eager: Any = None,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """`attention_interface` of a tower: no token comes before another (`is_causal=False`)."""
    return attention.attend(query, key, value, attention_mask, dropout=dropout, eager=eager, causal=False)


class Projector(Module):
    """Two layers with an activation between, as LLaVA's."""

    def __init__(self, machine: Machine, inputs: int, outputs: int, activation: str, bias: bool = True) -> None:
        super().__init__(machine)
        self.linear_1 = Linear(machine, inputs, outputs, bias)
        self.act = Activation(machine, activation)
        self.linear_2 = Linear(machine, outputs, outputs, bias)

    def forward(self, image_features: Tensor) -> Tensor:
        hidden_states = self.linear_1(image_features)
        hidden_states = self.act(hidden_states)
        hidden_states = self.linear_2(hidden_states)
        return hidden_states


def placeholder_mask(input_ids: Tensor) -> Tensor:
    """`get_placeholder_mask`: which tokens stand for features, of which it checks that there are as many."""
    special_image_mask = input_ids.eq(0)
    n_image_tokens = special_image_mask.sum(range(2), dtype=INT64)
    special_image_mask = special_image_mask.unsqueeze(-1)
    check_count(n_image_tokens)
    return special_image_mask


def placeholder_masks(input_ids: Tensor, is_video: bool) -> tuple[Tensor, Tensor]:
    """The same of models that know videos too: both masks. Counted are those that it is called for."""
    special_image_mask = input_ids.eq(0)
    special_video_mask = input_ids.eq(0)
    n_image_tokens = special_image_mask.sum(range(2), dtype=INT64)
    special_image_mask = special_image_mask.unsqueeze(-1)
    if not is_video:
        check_count(n_image_tokens)
    n_video_tokens = special_video_mask.sum(range(2), dtype=INT64)
    special_video_mask = special_video_mask.unsqueeze(-1)
    if is_video:
        check_count(n_video_tokens)
    return special_image_mask, special_video_mask


def check_count(tokens: Tensor) -> None:
    """`torch_compilable_check`: tokens times their width are compared with the features' values."""
    is_same = tokens.machine.run("eq", (tokens * 1,), (), BOOL)
    tokens.machine.run("_is_all_true", (is_same,), (), BOOL)


def put_features(inputs_embeds: Tensor, input_ids: Tensor, image_features: Tensor) -> Tensor:
    special_image_mask = placeholder_mask(input_ids)
    return F.masked_scatter(inputs_embeds, special_image_mask, image_features)
