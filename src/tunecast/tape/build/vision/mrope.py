"""Positions in time, height and width: Qwen's `get_rope_index`, and the rotation by them.

Source   transformers/models/qwen2_5_vl/modeling_qwen2_5_vl.py, `Qwen2_5_VLModel.get_rope_index`,
         `Qwen2_5_VLModel.get_vision_position_ids`, `Qwen2_5_VLRotaryEmbedding.forward`,
         `Qwen2_5_VLTextModel.forward`; the same in qwen2_vl.

Where images are in a row no job says: they are taken to come after the first words of a chat (the template of Qwen's
chat models has 15 tokens before the first image's), one after the other, and the text after them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tunecast.job.images import Picture
from tunecast.tape.build import decoder
from tunecast.tape.build import functional as F
from tunecast.tape.build.decoder import Config
from tunecast.tape.build.dtypes import BOOL, INT64
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.tensor import Tensor

LEAD = 15
"""Tokens before the first that stands for a part of an image (example of trl/trainer/sft_trainer.py,
`DataCollatorForVisionLanguageModeling`)."""


def rope_index(input_ids: Tensor, attention_mask: Tensor, pictures: Sequence[Picture], merged: int) -> Tensor:
    """`get_rope_index`. What it says of each row beyond its positions (`rope_deltas`, a number a row) the model keeps
    until the next batch; here it goes at once."""
    machine = input_ids.machine
    rows, length = input_ids.shape
    mrope_position_deltas = []
    position_ids = machine.run("zeros", (), (3, rows, length), INT64)
    for batch_idx in range(rows):
        current_input_ids = input_ids[batch_idx]
        input_token_type = input_ids[batch_idx]  # of `mm_token_type_ids`, which is as large
        current_input_ids = where(current_input_ids, attention_mask[batch_idx].to(BOOL))
        input_token_type = where(input_token_type, attention_mask[batch_idx].to(BOOL))
        current_pos: Tensor | None = None
        llm_pos_ids_list = []
        for piece in pieces(pictures, length):
            if not isinstance(piece, Picture):
                counted = machine.run("arange", (), (piece,), INT64)
                llm_pos_ids_list.append(machine.run("add", (counted,), (3, piece), INT64))
                del counted
            else:
                vision_position_ids = picture_positions(machine, piece, merged)
                llm_pos_ids_list.append(vision_position_ids)
                machine.run("gt", (), (), BOOL)
                step = machine.run("floor_divide", (), (), INT64)
                current_pos = machine.run("add", (step,), (), INT64)
                del step
        llm_positions = machine.run("cat", llm_pos_ids_list, (3, length), INT64)
        put_by_mask(position_ids, attention_mask[batch_idx].to(BOOL), llm_positions)
        largest = machine.run("max", (llm_positions,), (), INT64, args=(llm_positions,))
        after = machine.run("add", (largest,), (), INT64)
        del largest
        mrope_position_deltas.append(machine.run("sub", (after,), (), INT64))
        del after
    machine.run("_to_copy", (), (rows,), INT64)
    del current_input_ids, input_token_type, current_pos
    return position_ids


def pieces(pictures: Sequence[Picture], length: int) -> Iterator[Any]:
    """Of a row: how many tokens of text, then an image, and so on."""
    left = length - sum(picture.tokens for picture in pictures)
    for number, picture in enumerate(pictures):
        words = min(LEAD, left) if number == 0 else picture.marks
        if words > 0:
            yield words
        yield picture
        left = left - words
    if left > 0:
        yield left


def picture_positions(machine: Machine, picture: Picture, merged: int) -> Tensor:
    """`get_vision_position_ids`."""
    frames, height, width = picture.grid
    llm_grid = frames, height // merged, width // merged
    counted = machine.run("arange", (), llm_grid[:1], INT64)
    position_temporal = machine.run("mul", (counted,), llm_grid[:1], INT64)
    del counted
    position_height = machine.run("arange", (), llm_grid[1:2], INT64) + 1
    position_width = machine.run("arange", (), llm_grid[2:], INT64) + 1
    grids = (position_temporal, position_height, position_width)
    vision_position_ids = machine.run("stack", grids, (3, *llm_grid), INT64).reshape(3, -1)
    machine.launch("add_", (vision_position_ids[0],), INT64, vision_position_ids.nbytes // 3)
    return vision_position_ids


def where(x: Tensor, mask: Tensor) -> Tensor:
    """x[mask], of a mask that is all ones."""
    found = x.machine.run("nonzero", (mask,), (mask.shape[0], 1), INT64, args=(mask,))
    return x.machine.run("index", (x, found), x.shape, x.dtype)


def put_by_mask(position_ids: Tensor, mask: Tensor, values: Tensor) -> None:
    """position_ids[:, row, mask] = values"""
    machine = mask.machine
    found = machine.run("nonzero", (mask,), (mask.shape[0], 1), INT64, args=(mask,))
    machine.launch("index_put_", (position_ids, found, values), INT64, values.nbytes)


class MropeRotary(decoder.RotaryEmbedding):
    """`Qwen2_5_VLRotaryEmbedding`: three angles a position, of which each frequency takes one."""

    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine, config)
        self.mrope_section = tuple(decoder.rope_scaling(config).get("mrope_section") or (16, 24, 24))

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        machine = self.machine
        self.fit_to(position_ids)
        with machine.no_grad(), machine.autocasting(None):
            rows = position_ids.shape[1]
            half = self.width // 2
            inv_freq_expanded = self.inv_freq.alias((1, 1, half, 1), None).expand(3, rows, half, 1)
            position_ids_expanded = position_ids[:, :, None, :].float()
            freqs = F.matmul(inv_freq_expanded, position_ids_expanded).transpose(2, 3)
            cos = freqs.cos() * self.attention_scaling
            sin = freqs.sin() * self.attention_scaling
            sin = self.recompose(sin)
            cos = self.recompose(cos)
        dtype = self.result_dtype(x)
        return cos.to(dtype), sin.to(dtype)

    def recompose(self, freq: Tensor) -> Tensor:
        """`recomposition_frequencies`."""
        parts = [part[place % 3] for place, part in enumerate(freq.split(self.mrope_section, -1))]
        freq = F.cat(parts, -1)
        del parts
        return F.cat((freq, freq), -1)


class MropeDecoder(decoder.Decoder):
    """`Qwen2_5_VLTextModel`."""

    def forward(
        self, input_ids: Tensor | None = None, attention_mask: Any = None, inputs_embeds: Tensor | None = None,
        position_ids: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        if inputs_embeds is None:
            inputs_embeds = self.embed_tokens(input_ids)
        rows, length, _ = inputs_embeds.shape
        if position_ids is None:
            position_ids = self.machine.run("arange", (), (length,), INT64) + 0
            position_ids = position_ids.view(1, 1, -1).expand(3, rows, length)
        masks = self.masks(attention_mask, inputs_embeds)
        hidden_states = inputs_embeds
        position_embeddings = self.rotary_emb(hidden_states, position_ids=position_ids)
        for decoder_layer, kind in zip(self.layers, self.kinds, strict=True):
            hidden_states = decoder_layer(
                hidden_states, attention_mask=masks[kind], position_embeddings=position_embeddings, position_ids=None
            )
        hidden_states = self.norm(hidden_states)
        return hidden_states
