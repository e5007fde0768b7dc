"""SmolVLM: tiles of an image in a tower like SigLIP's, whose positions are counted for each, and features that are put
among tokens by their places (transformers/models/smolvlm/modeling_smolvlm.py)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isqrt
from typing import Any, ClassVar

from tunecast.tape.build import functional as F
from tunecast.tape.build.autograd import Gradients, Node, finish, start
from tunecast.tape.build.decoder import Config
from tunecast.tape.build.dtypes import FLOAT32, INT64
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.modules import Embedding, LayerNorm, Linear, Module
from tunecast.tape.build.tensor import Tensor
from tunecast.tape.build.vision.clip import ClipEncoder
from tunecast.tape.build.vision.features import Convolution
from tunecast.tape.build.vision.text import WithAnyText, text_model


class SmolEmbeddings(Module):
    """`SmolVLMVisionEmbeddings`."""

    gives_gradient = False

    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        width, patch = config["hidden_size"], config["patch_size"]
        self.patch_embedding = Convolution(machine, config["num_channels"], width, patch)
        self.position_embedding = Embedding(machine, (config["image_size"] // patch) ** 2, width)

    def forward(self, pixel_values: Tensor, patch_attention_mask: Tensor) -> Tensor:
        patch_embeds = self.patch_embedding(pixel_values)
        embeddings = patch_embeds.flatten(2).transpose(1, 2)
        position_ids, _pos_ids = self.places(patch_attention_mask)
        embeddings = embeddings + self.position_embedding(position_ids)
        if self.gives_gradient:
            embeddings.requires_grad = True
        return embeddings

    def places(self, patch_attention_mask: Tensor) -> tuple[Tensor, Tensor]:
        """Of each image by itself, from how many of its patches there are in a row and a column; and those that were
        written into them, which the caller keeps."""
        machine, (images, height, width) = self.machine, patch_attention_mask.shape
        position_ids = machine.run("full", (), (images, height * width), INT64)
        steps = [machine.run("reciprocal", (position_ids,), (images,), FLOAT32) for _ in range(2)]
        coordinates = [machine.run("bucketize", (step,), (images, height), INT64) for step in steps]
        pos_ids = machine.run("add", coordinates, (images, height * width), INT64)
        mask = patch_attention_mask.view(images, -1)
        chosen = at(mask, pos_ids)
        write_at(position_ids, mask, chosen)
        return position_ids, pos_ids


def at(mask: Tensor, x: Tensor) -> Tensor:
    """x[mask] where every flag is set, of which nobody takes a gradient."""
    machine, count = x.machine, mask.numel()
    found = machine.run("nonzero", (mask,), (count, mask.dim()), INT64, args=(mask,))
    return machine.run("index", (x, found), (count,), x.dtype)


def write_at(x: Tensor, mask: Tensor, values: Tensor) -> None:
    """x[mask] = values."""
    machine = x.machine
    found = machine.run("nonzero", (mask,), (values.shape[0], mask.dim()), INT64, args=(mask,))
    machine.launch("index_put_", (x, found, values), x.dtype, values.nbytes)


class SmolVision(Module):
    """`SmolVLMVisionTransformer`."""

    defaults: ClassVar[Config] = {
        "hidden_size": 1152, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 16,
        "num_channels": 3, "image_size": 224, "patch_size": 32, "hidden_act": "gelu_pytorch_tanh",
    }  # fmt: skip

    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        config = {**self.defaults, **config}
        self.patch_size = config["patch_size"]
        self.embeddings = SmolEmbeddings(machine, config)
        self.encoder = ClipEncoder(machine, config)
        self.post_layernorm = LayerNorm(machine, config["hidden_size"])

    def forward(self, pixel_values: Tensor, patch_attention_mask: Tensor) -> Tensor:
        hidden_states = self.embeddings(pixel_values=pixel_values, patch_attention_mask=patch_attention_mask)
        patch_attention_mask.view(pixel_values.shape[0], -1).all()  # no tile has padding, so that there is no mask
        last_hidden_state = self.encoder(inputs_embeds=hidden_states)
        last_hidden_state = self.post_layernorm(last_hidden_state)
        return last_hidden_state

    def layers(self) -> Iterator[Any]:
        return iter(self.encoder.layers)

    def input_embedding(self) -> SmolEmbeddings:
        return self.embeddings


class SimpleMLP(Module):
    def __init__(self, machine: Machine, inputs: int, outputs: int) -> None:
        super().__init__(machine)
        self.proj = Linear(machine, inputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(x)


class Connector(Module):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        self.scale_factor = config["scale_factor"]
        width = {**SmolVision.defaults, **config["vision_config"]}["hidden_size"] * self.scale_factor**2
        self.modality_projection = SimpleMLP(machine, width, config["text_config"]["hidden_size"])

    def forward(self, image_hidden_states: Tensor) -> Tensor:
        image_hidden_states = self.pixel_shuffle(image_hidden_states)
        image_hidden_states = self.modality_projection(image_hidden_states)
        return image_hidden_states

    def pixel_shuffle(self, x: Tensor) -> Tensor:
        (bsz, seq, embed_dim), by = x.shape, self.scale_factor
        height = width = isqrt(seq)
        x = x.view(bsz, height, width, embed_dim)
        x = x.view(bsz, height, width // by, embed_dim * by)
        x = x.permute(0, 2, 1, 3)
        x = x.reshape(bsz, width // by, height // by, embed_dim * by**2)
        x = x.permute(0, 2, 1, 3)
        x = x.reshape(bsz, seq // by**2, embed_dim * by**2)
        return x


class SmolParts(Module):
    """`SmolVLMModel`."""

    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        self.vision_model = SmolVision(machine, config["vision_config"])
        self.connector = Connector(machine, config)
        self.text_model = text_model(machine, config["text_config"])

    def forward(
        self, input_ids: Tensor, attention_mask: Any, pixel_values: Tensor | None = None,
        pixel_attention_mask: Any = None,
    ) -> Any:  # fmt: skip
        inputs_embeds = self.text_model.embed_tokens(input_ids)
        image_hidden_states = None
        if pixel_values is not None:
            image_hidden_states = self.get_image_features(pixel_values, pixel_attention_mask)
            inputs_embeds = self.inputs_merger(input_ids, inputs_embeds, image_hidden_states)
        outputs = self.text_model(inputs_embeds=inputs_embeds, attention_mask=attention_mask)
        return outputs if image_hidden_states is None else (outputs, image_hidden_states)

    def get_image_features(self, pixel_values: Tensor, pixel_attention_mask: Tensor) -> Tensor:
        machine, (batch_size, num_images, *image) = self.machine, pixel_values.shape
        images = batch_size * num_images
        pixel_values = pixel_values.to(machine.weights_dtype)
        pixel_values = pixel_values.view(images, *image)
        real_images_inds = pixel_values.eq(0).sum((1, 2, 3)).ne(0)
        pixel_values = rows_seen(pixel_values, real_images_inds)
        pixel_attention_mask = pixel_attention_mask.view(images, *image[1:])
        pixel_attention_mask = rows_seen(pixel_attention_mask, real_images_inds)
        patch = self.vision_model.patch_size
        grid = (images, *[size // patch for size in image[1:]])
        patch_attention_mask = machine.run("sum", (pixel_attention_mask,), grid, INT64).gt(0)
        image_hidden_states = self.vision_model(pixel_values=pixel_values, patch_attention_mask=patch_attention_mask)
        image_features = self.connector(image_hidden_states)
        return image_features

    def inputs_merger(self, input_ids: Tensor, inputs_embeds: Tensor, image_hidden_states: Tensor) -> Tensor:
        """Each token of an image has the number of its tile and its place in that."""
        machine, shape = self.machine, input_ids.shape
        image_mask = input_ids.eq(0)
        num_image_tokens = image_mask.sum(1)
        blocks_per_sample = num_image_tokens // 1
        before = machine.run(
            "cumsum", (blocks_per_sample,), blocks_per_sample.shape, INT64, args=(blocks_per_sample, 0)
        )
        offsets = machine.run("constant_pad_nd", (before,), (shape[0] + 1,), INT64)
        del before
        row_cum = machine.run("cumsum", (image_mask,), shape, INT64, args=(image_mask, -1))
        chunk_idx = (row_cum - 1) // 1
        local_idx = machine.run("remainder", (row_cum - 1,), shape, INT64)
        block_idx = machine.run("add", (offsets, chunk_idx), shape, INT64)
        image_embeds = machine.run("zeros_like", (inputs_embeds,), inputs_embeds.shape, inputs_embeds.dtype)
        image_embeds = put_at(image_embeds, image_mask, *chosen_features(
            image_hidden_states, image_mask, block_idx, local_idx
        ))  # fmt: skip
        merged_embeds = F.where(image_mask.unsqueeze(-1), image_embeds, inputs_embeds)
        del row_cum
        return merged_embeds


def rows_seen(x: Tensor, mask: Tensor) -> Tensor:
    """x[mask]: images that only pad are left out, and there are none here."""
    found = x.machine.run("nonzero", (mask,), (mask.shape[0], 1), INT64, args=(mask,))
    return x.machine.run("index", (x, found), x.shape, x.dtype)


def chosen_features(features: Tensor, mask: Tensor, block_idx: Tensor, local_idx: Tensor) -> tuple[Tensor, ...]:
    """`image_hidden_states[block_idx[image_mask], local_idx[image_mask], :]`."""
    machine, shape = features.machine, features.shape
    count = shape[0] * shape[1]
    places = []
    for idx in (block_idx, local_idx):
        found = machine.run("nonzero", (mask,), (count, 2), INT64, args=(mask,))
        places.append(machine.run("index", (idx, found), (count,), INT64))
        del found

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        zeros = machine.run("new_zeros", (), shape, gradients[0].dtype)
        args = (zeros, [node.take(0), node.take(1)], gradients[0], True)
        return machine.run_many("index_put", (zeros, gradients[0]), ((shape, zeros.dtype),), args=args)

    node = start(machine, (features,), back, places)
    return (finish(node, machine.run("index", (features, *places), (count, shape[2]), features.dtype)),)


def put_at(x: Tensor, mask: Tensor, values: Tensor) -> Tensor:
    """x[mask] = values, into zeros that nobody else has."""
    machine, count = x.machine, values.shape

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        kept = node.take(0)
        found = machine.run("nonzero", (kept,), (count[0], 2), INT64, args=(kept,))
        return (machine.run("index", (gradients[0], found), count, gradients[0].dtype),)

    node = start(machine, (values,), back, (mask,))
    write_at(x, mask, values)
    return finish(node, x.detach())


class SmolVLM(WithAnyText):
    parts_class = SmolParts
    config_defaults: ClassVar[Config] = {"scale_factor": 2, "tie_word_embeddings": False}
    tower_paths: Sequence[str] = ("model.vision_model",)
    projector_paths: Sequence[str] = ("model.connector",)

    def layers(self) -> Any:
        return iter(self.model.text_model.layers)

    def towers(self) -> Sequence[Any]:
        return [self.model.vision_model]

    def input_embedding(self) -> Any:
        return self.model.text_model.embed_tokens
