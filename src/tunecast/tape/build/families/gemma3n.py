"""Gemma 3n, its text part: four streams of hidden states of which a layer computes one and corrects the others (AltUp),
a low-rank residual (Laurel), an embedding for every layer, keys that the last layers share, and MLPs whose weak
activations are cut off (transformers/models/gemma3n/modeling_gemma3n.py)."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Sequence
from typing import Any, ClassVar

from tunecast.tape.build import decoder
from tunecast.tape.build import functional as F
from tunecast.tape.build.autograd import Gradients, Node, finish, record, start
from tunecast.tape.build.decoder import Config
from tunecast.tape.build.dtypes import BOOL, FLOAT32, INT64, promote
from tunecast.tape.build.families.gemma import Gemma2
from tunecast.tape.build.families.gemma4 import Gemma4Attention, Gemma4Decoder, Gemma4Norm, SharedKeys, rotate
from tunecast.tape.build.families.olmo import windows_but_every
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.modules import Activation, Linear, Module, ModuleList
from tunecast.tape.build.ops.elementwise import div, mul, pointwise
from tunecast.tape.build.ops.reductions import reduce
from tunecast.tape.build.quantized import Linear4bit, Linear8bit
from tunecast.tape.build.tensor import Tensor

# ---------------------------------------------------------------------------------------------------------- operations


def root(x: Tensor) -> Tensor:
    """grad / (2 * result)."""

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        doubled = pointwise("mul", node.take(0))
        return (div(gradients[0], doubled),)

    node = start(x.machine, (x,), back)
    out = pointwise("sqrt", x)
    return finish(node, out, out.detach())


def at_least(x: Tensor, least: Tensor) -> Tensor:
    """`torch.maximum` with a constant: half the gradient where both are alike, none where the constant is larger. Until
    torch 2.14 that was filled in in place (derivatives.yaml, `maximum`)."""
    machine = x.machine
    in_place = machine.torch < (2, 15)

    def smaller(kept: Tensor) -> Tensor:
        return machine.run("lt", (kept,), kept.shape, BOOL)

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        gradient, kept = gradients[0], node.take(0)
        mask = None if in_place else smaller(kept)
        halved = pointwise("div", gradient)  # C++ makes the last argument first
        alike = machine.run("eq", (kept,), kept.shape, BOOL)
        out = machine.run("where", (alike, halved, gradient), gradient.shape, gradient.dtype)
        if mask is not None:
            return (pointwise("masked_fill", out),)
        mask = smaller(kept)
        machine.launch("masked_fill_", (out, mask), out.dtype, out.nbytes)
        return (out,)

    return finish(start(machine, (x,), back, (x, least)), machine.run("maximum", (x, least), x.shape, x.dtype))


def deviation(x: Tensor) -> Tensor:
    """`torch.std` of rows (FunctionsManual.cpp, `std_backward`, `var_backward`)."""
    machine = x.machine

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        kept, result = node.take(0), node.take(1)
        doubled = pointwise("mul", result)
        gradient = div(gradients[0], doubled)
        zero = machine.run("eq", (result,), result.shape, BOOL)
        machine.launch("masked_fill_", (gradient, zero), gradient.dtype, gradient.nbytes)
        del doubled, zero
        average = reduce("mean", kept, -1, keepdim=True)  # C++ keeps temporaries until the whole expression is done
        centred = kept - average
        scaled = pointwise("mul", gradient)
        return (mul(scaled, centred),)

    node = start(machine, (x,), back, (x,))
    out = reduce("std", x, -1, keepdim=True)
    return finish(node, out, out.detach())


def stack_first(parts: Sequence[Tensor]) -> Tensor:
    """In a new first dimension, of the widest type; the gradients are views."""
    machine, count = parts[0].machine, len(parts)
    dtype = parts[0].dtype
    for part in parts[1:]:
        dtype = promote(dtype, part.dtype)

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        gradient = gradients[0]
        return [gradient.select(0, place) for place in range(count)]

    return record(machine.run("stack", parts, (count, *parts[0].shape), dtype), parts, back)


def repeat_first(x: Tensor, count: int) -> Tensor:
    """`x.repeat(count, 1, 1, 1)` of three dimensions."""
    out = x.machine.run("repeat", (x,), (count, *x.shape), x.dtype)
    return record(out, (x,), lambda node, gradients: (reduce("sum", gradients[0], 0),))


# ------------------------------------------------------------------------------------------------------------- modules


class Laurel(Module):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        hidden, rank = config["hidden_size"], config["laurel_rank"]
        self.linear_left = Linear(machine, hidden, rank)
        self.linear_right = Linear(machine, rank, hidden)
        self.post_laurel_norm = Gemma4Norm(machine, hidden)

    def forward(self, hidden_states: Tensor) -> Tensor:
        laurel_hidden_states = self.linear_left(hidden_states)
        laurel_hidden_states = self.linear_right(laurel_hidden_states)
        normed_laurel_hidden_states = self.post_laurel_norm(laurel_hidden_states)
        return hidden_states + normed_laurel_hidden_states


class Gemma3nMLP(Module):
    def __init__(self, machine: Machine, config: Config, index: int) -> None:
        super().__init__(machine)
        hidden, inner = config["hidden_size"], config["intermediate_size"][index]
        self.gate_proj = Linear(machine, hidden, inner)
        self.up_proj = Linear(machine, hidden, inner)
        self.down_proj = Linear(machine, inner, hidden)
        self.act_fn = Activation(machine, config["hidden_act"])
        self.activation_sparsity = float(config["activation_sparsity_pattern"][index])

    def forward(self, hidden_states: Tensor) -> Tensor:
        gate_proj = self.gate_proj(hidden_states)
        if self.activation_sparsity > 0.0:
            gate_proj = self.gaussian_topk(gate_proj)
        activations = self.act_fn(gate_proj)
        up_proj = self.up_proj(hidden_states)
        down_proj = self.down_proj(activations * up_proj)
        return down_proj

    def gaussian_topk(self, inputs: Tensor) -> Tensor:
        machine = self.machine
        target_sparsity_tensor = machine.run("_to_copy", (), (), FLOAT32)
        std_multiplier = quantile(target_sparsity_tensor)
        std_multiplier = std_multiplier.to(inputs.dtype)
        inputs_mean = inputs.mean(-1, keepdim=True)
        inputs_std = deviation(inputs)
        cutoff_x = inputs_mean + inputs_std * std_multiplier
        return F.relu(inputs - cutoff_x)


def quantile(value: Tensor) -> Tensor:
    """torch/distributions/normal.py, `Normal.icdf`."""
    return pointwise("erfinv", value * 2.0 - 1.0) * 1.0 * 1.0 + 0.0


UNPACKED = (
    "Gemma 3n's coefficients of AltUp are taken as left out of quantisation (llm_int8_skip_modules): transformers fails"
    " where it clamps packed ones"
)


class AltUp(Module):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        hidden, self.inputs = config["hidden_size"], config["altup_num_inputs"]
        self.active, self.clips = config["altup_active_idx"], config["altup_coef_clip"] is not None
        self.correct_output_scale = self.parameter(hidden)
        self.correction_coefs = Linear(machine, self.inputs, self.inputs)
        self.prediction_coefs = Linear(machine, self.inputs, self.inputs**2)
        self.correction_coefs.stays = self.prediction_coefs.stays = self.clips
        self.modality_router = Linear(machine, hidden, self.inputs)
        self.router_norm = Gemma4Norm(machine, hidden)
        self.router_input_scale = self.buffer(dtype=machine.weights_dtype)

    def compute_router_modalities(self, x: Tensor) -> Tensor:
        router_inputs = self.router_norm(x) * self.router_input_scale
        routed = self.modality_router(router_inputs)
        return routed.float().tanh().to(x.dtype)

    def predict(self, hidden_states: Tensor) -> Tensor:
        if self.clips and isinstance(without_adapter(self.modality_router), Linear4bit | Linear8bit):
            self.machine.guesses[UNPACKED] = None
        modalities = self.compute_router_modalities(hidden_states[self.active])
        all_coefs = self.prediction_coefs(modalities)
        all_coefs = all_coefs.reshape(*modalities.shape[:-1], self.inputs, self.inputs).permute(0, 1, 3, 2)
        predictions = F.matmul(hidden_states.permute(1, 2, 3, 0), all_coefs)
        predictions = F.add_to_part(predictions, in_streams, hidden_states)
        predictions = in_streams(predictions)
        return predictions.contiguous().to(hidden_states.dtype)

    def correct(self, predictions: Tensor, activated: Tensor) -> Tensor:
        modalities = self.compute_router_modalities(activated)
        innovation = activated - predictions[self.active]
        innovation = repeat_first(innovation, self.inputs)
        if self.clips:
            weight = without_adapter(self.correction_coefs).weight.clamp(-1.0, 1.0)
            all_coefs = F.linear(modalities, weight) + 1.0
        else:
            all_coefs = self.correction_coefs(modalities) + 1.0
        all_coefs = all_coefs.permute(2, 0, 1).unsqueeze(-1)
        corrected = innovation * all_coefs
        corrected = corrected.add_(predictions)
        return corrected.contiguous().to(activated.dtype)

    def forward(self, corrected: Tensor) -> Tensor:
        scale = self.correct_output_scale
        return (corrected.to(scale.dtype) * scale).to(corrected.dtype)


def without_adapter(layer: Any) -> Any:
    return getattr(layer, "base_layer", layer)


def in_streams(x: Tensor) -> Tensor:
    """The streams first."""
    return x.permute(3, 0, 1, 2)


class Gemma3nAttention(Gemma4Attention):
    def add_projections(self, machine: Machine, config: Config) -> None:
        hidden, heads = config["hidden_size"], config["num_attention_heads"]
        bias, width = bool(config["attention_bias"]), config["num_key_value_heads"] * self.head_dim
        self.q_proj = Linear(machine, hidden, heads * self.head_dim, bias)
        self.q_norm = Gemma4Norm(machine, self.head_dim)
        if not self.is_kv_shared_layer:
            self.k_proj = Linear(machine, hidden, width, bias)
            self.v_proj = Linear(machine, hidden, width, bias)
            self.k_norm = Gemma4Norm(machine, self.head_dim)
            self.v_norm = Gemma4Norm(machine, self.head_dim, with_scale=False)
        self.o_proj = Linear(machine, heads * self.head_dim, hidden, bias)

    def keys_and_values(self, hidden_states: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        hidden_shape = (*hidden_states.shape[:2], -1, self.head_dim)
        key_states = self.k_proj(hidden_states).view(*hidden_shape)
        key_states = self.k_norm(key_states)
        key_states = rotate(key_states, cos, sin)
        key_states = key_states.transpose(1, 2)
        value_states = self.v_proj(hidden_states).view(*hidden_shape)
        value_states = self.v_norm(value_states)
        value_states = value_states.transpose(1, 2)
        return key_states, value_states


class Gemma3nLayer(decoder.CheckpointingLayer):
    def __init__(self, machine: Machine, config: Config, index: int, family: type[decoder.CausalLM]) -> None:
        super().__init__(machine)
        hidden, own = config["hidden_size"], config["hidden_size_per_layer_input"]
        self.place = index
        """A layer with an embedding of its own stands for no other: all are columns of one table."""
        self.scales = bool(config["altup_correct_scale"])
        self.self_attn = Gemma3nAttention(machine, config, index)
        self.mlp = Gemma3nMLP(machine, config, index)
        self.input_layernorm = Gemma4Norm(machine, hidden)
        self.post_attention_layernorm = Gemma4Norm(machine, hidden)
        self.pre_feedforward_layernorm = Gemma4Norm(machine, hidden)
        self.post_feedforward_layernorm = Gemma4Norm(machine, hidden)
        self.act_fn = Activation(machine, config["hidden_act"])
        self.altup = AltUp(machine, config)
        self.laurel = Laurel(machine, config)
        self.per_layer_input_gate = Linear(machine, hidden, own)
        self.per_layer_projection = Linear(machine, own, hidden)
        self.post_per_layer_input_norm = Gemma4Norm(machine, hidden)

    def forward(
        self, hidden_states: Tensor, position_embeddings: Any, per_layer_input: Tensor, shared_kv_states: SharedKeys,
        attention_mask: Any, position_ids: Tensor,
    ) -> Tensor:  # fmt: skip
        predictions = self.altup.predict(hidden_states)
        active_prediction = predictions[self.altup.active]
        active_prediction_normed = self.input_layernorm(active_prediction)
        laurel_output = self.laurel(active_prediction_normed)
        attn, _ = self.self_attn(
            hidden_states=active_prediction_normed, attention_mask=attention_mask, shared_kv_states=shared_kv_states,
            position_ids=position_ids, position_embeddings=position_embeddings,
        )  # fmt: skip
        attn = self.post_attention_layernorm(attn)
        attn_gated = active_prediction + attn
        attn_laurel = (attn_gated + laurel_output) / 2.0
        attn_norm = self.pre_feedforward_layernorm(attn_laurel)
        attn_ffw = self.mlp(attn_norm)
        attn_ffw_norm = self.post_feedforward_layernorm(attn_ffw)
        attn_ffw_laurel_gated = attn_laurel + attn_ffw_norm
        corrected_predictions = self.altup.correct(predictions, attn_ffw_laurel_gated)
        first_prediction = corrected_predictions[self.altup.active].clone()
        if self.scales:
            first_prediction = self.altup.forward(first_prediction)
        first_prediction = self.per_layer_input_gate(first_prediction)
        first_prediction = self.act_fn(first_prediction)
        first_prediction = first_prediction * per_layer_input
        first_prediction = self.per_layer_projection(first_prediction)
        first_prediction = self.post_per_layer_input_norm(first_prediction)
        corrected_predictions = F.add_to_part(corrected_predictions, others, first_prediction)
        corrected_predictions = F.assign(corrected_predictions, others, others(corrected_predictions))
        return corrected_predictions


def others(streams: Tensor) -> Tensor:
    return streams[1:]


class Gemma3nDecoder(Gemma4Decoder):
    def __init__(self, machine: Machine, config: Config, family: type[decoder.CausalLM]) -> None:
        super().__init__(machine, config, family)
        hidden, self.inputs = config["hidden_size"], config["altup_num_inputs"]
        self.altup_projections = ModuleList(machine, [Linear(machine, hidden, hidden) for _ in range(1, self.inputs)])
        self.altup_unembed_projections = ModuleList(
            machine, [Linear(machine, hidden, hidden) for _ in range(1, self.inputs)]
        )
        self.per_layer_projection_scale = self.buffer(dtype=machine.weights_dtype)
        self.per_layer_input_scale = self.buffer(dtype=machine.weights_dtype)

    def forward(
        self, input_ids: Tensor | None = None, attention_mask: Any = None, inputs_embeds: Tensor | None = None,
        per_layer_inputs: Tensor | None = None, position_ids: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        machine = self.machine
        inputs_embeds = self.embed_tokens(input_ids)
        per_layer_inputs = self.get_per_layer_inputs(input_ids)
        per_layer_inputs = self.project_per_layer_inputs(inputs_embeds, per_layer_inputs)
        position_ids = attention_mask if machine.packs else self.position_ids(inputs_embeds.shape[1])
        masks = self.masks(attention_mask, inputs_embeds)
        hidden_states_0 = inputs_embeds
        target_magnitude = hidden_states_0.pow(2).mean(-1, keepdim=True).pow(0.5)
        temp_hidden_states = [hidden_states_0]
        for altup_projection in self.altup_projections:
            altup_proj = altup_projection(hidden_states_0)
            current_hidden_state = altup_proj.to(hidden_states_0.dtype)
            new_magnitude = current_hidden_state.pow(2).mean(-1, keepdim=True)
            new_magnitude = root(at_least(new_magnitude, machine.run("_to_copy", (), (), FLOAT32)))
            current_hidden_state = current_hidden_state * target_magnitude / new_magnitude
            temp_hidden_states.append(current_hidden_state)
        hidden_states = stack_first(temp_hidden_states)
        position_embeddings = self.positions(hidden_states, position_ids)
        shared_kv_states: SharedKeys = UserDict()
        for i, (decoder_layer, kind) in enumerate(zip(self.layers, self.kinds, strict=True)):
            causal_mask = masks[kind]
            per_layer_input = per_layer_inputs[:, :, i, :]
            hidden_states = decoder_layer(
                hidden_states, position_embeddings[kind], per_layer_input, shared_kv_states=shared_kv_states,
                attention_mask=causal_mask, position_ids=position_ids,
            )  # fmt: skip
        target_magnitude = hidden_states[0].pow(2).mean(-1, keepdim=True).pow(0.5)
        temp_hidden_states = [hidden_states[0]]
        for i, altup_unembed_projection in enumerate(self.altup_unembed_projections, start=1):
            altup_unemb_proj = altup_unembed_projection(hidden_states[i])
            current_hidden_state = altup_unemb_proj.to(hidden_states_0.dtype)
            new_magnitude = current_hidden_state.pow(2).mean(-1, keepdim=True)
            new_magnitude = root(at_least(new_magnitude, machine.run("_to_copy", (), (), FLOAT32)))
            current_hidden_state = current_hidden_state * target_magnitude / new_magnitude
            temp_hidden_states.append(current_hidden_state)
        hidden_states = stack_first(temp_hidden_states)
        hidden_states = hidden_states.mean(0)
        hidden_states = self.norm(hidden_states)
        return hidden_states

    def get_per_layer_inputs(self, input_ids: Any) -> Tensor:
        machine = self.machine
        if machine.era.checks_per_layer_ids:
            in_table = machine.run("logical_and", (input_ids.ge(0), input_ids.lt(1)), input_ids.shape, BOOL)
            zero = machine.run("scalar_tensor", (), (), INT64)
            input_ids = machine.run("where", (in_table, input_ids, zero), input_ids.shape, INT64)
            del zero
        return super().get_per_layer_inputs(input_ids)

    def project_per_layer_inputs(self, inputs_embeds: Tensor, per_layer_inputs: Tensor) -> Tensor:
        dtype = inputs_embeds.dtype
        per_layer_projection = self.per_layer_model_projection(inputs_embeds)
        per_layer_projection = per_layer_projection.mul_(self.per_layer_projection_scale.to(dtype))
        per_layer_projection = per_layer_projection.reshape(*inputs_embeds.shape[:-1], *self.shape_per_layer)
        per_layer_projection = self.per_layer_projection_norm(per_layer_projection)
        return (per_layer_projection + per_layer_inputs) * self.per_layer_input_scale.to(dtype)


SPARSITY = "activation_sparsity_pattern"
"""What share of a layer's activations is cut off, by layer."""


class Gemma3n(Gemma2):
    decoder_class = Gemma3nDecoder
    layer_class = Gemma3nLayer
    norm_class = Gemma4Norm
    rotary_class = decoder.RotaryByKind
    pattern = 5
    is_capped = False
    defaults: ClassVar[Config] = {
        "hidden_size": 2048, "intermediate_size": 16384, "num_hidden_layers": 35, "num_attention_heads": 8,
        "num_key_value_heads": 2, "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh", "sliding_window": 512,
        "tie_word_embeddings": True, "attention_bias": False, "vocab_size": 262400, "final_logit_softcapping": 30.0,
        "vocab_size_per_layer_input": 262144, "hidden_size_per_layer_input": 256, "altup_active_idx": 0,
        "altup_coef_clip": 120.0, "altup_correct_scale": True, "altup_num_inputs": 4, "num_kv_shared_layers": 15,
        "laurel_rank": 64, "attention_k_eq_v": False, SPARSITY: None,
    }  # fmt: skip

    def complete(self, config: Config) -> dict[str, Any]:
        whole = super().complete(config)
        layers, inner, sparsity = whole["num_hidden_layers"], whole["intermediate_size"], whole[SPARSITY]
        sparse = 10 if layers > 10 else 0
        return {
            **whole,
            "intermediate_size": inner if isinstance(inner, Sequence) else [inner] * layers,
            SPARSITY: [0.95] * sparse + [0.0] * (layers - sparse) if sparsity is None else sparsity,
            "per_layer_config": {},
        }

    def layer_types(self, config: Config) -> Sequence[str]:
        return windows_but_every(config["sliding_window_pattern"], config)
