"""GPT-2: learned positions, one product for queries, keys and values, dropout everywhere. StarCoder 1 and SantaCoder:
the same in plain linear layers, all heads sharing one key. GPT-Neo: attention by hand in fp32, each layer with a mask
of its own. GPT-J: the same beside the MLP, positions looked up in every layer
(transformers/models/{gpt2,gpt_bigcode,gpt_neo,gptj})."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from tunecast.tape.build import attention, flash
from tunecast.tape.build import functional as F
from tunecast.tape.build.autograd import Gradients, Node, finish, start
from tunecast.tape.build.decoder import CheckpointingLayer, Config
from tunecast.tape.build.dtypes import BOOL, FLOAT32, INT64
from tunecast.tape.build.families import named
from tunecast.tape.build.families.cohere import rotate
from tunecast.tape.build.families.named import GPT_NAMES
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.masks import causal_mask, positions
from tunecast.tape.build.modules import Dropout, Embedding, LayerNorm, Linear, Module, ModuleList, PlainMLP
from tunecast.tape.build.tensor import Tensor

# ---------------------------------------------------------------------------------------------------------------- GPT-2


class Conv1D(Linear):
    """transformers/pytorch_utils.py: a linear layer whose weight is stored the other way round."""

    fan_in_fan_out = True

    def __init__(self, machine: Machine, inputs: int, outputs: int, bias: bool = True) -> None:
        super().__init__(machine, inputs, outputs, bias)
        self.weight = self.parameter(inputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        shape = (*x.shape[:-1], self.outputs)
        x = F.addmm(self.bias, x.view(-1, x.shape[-1]), self.weight)
        x = x.view(*shape)
        return x


def eager_attention(
    query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, groups: int, dropout: float
) -> tuple[Tensor, Tensor]:
    """`eager_attention_forward`: softmax in whatever precision it gets, the result left where it lies."""
    scaling = query.shape[-1] ** -0.5
    attn_weights = F.matmul(query, key.transpose(2, 3)) * scaling
    if attention_mask is not None:
        attn_weights = attn_weights + attention_mask
    attn_weights = F.softmax(attn_weights)
    attn_weights = attn_weights.to(value.dtype)
    attn_weights = F.dropout(attn_weights, dropout)
    attn_output = F.matmul(attn_weights, value)
    attn_output = attn_output.transpose(1, 2)
    return attn_output, attn_weights


class Gpt2Attention(Module):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        self.width = config["hidden_size"]
        self.head_dim = self.width // config["num_attention_heads"]
        self.c_attn = Conv1D(machine, self.width, 3 * self.width)
        self.c_proj = Conv1D(machine, self.width, self.width)
        self.attn_dropout = Dropout(machine, config["attn_pdrop"])
        self.resid_dropout = Dropout(machine, config["resid_pdrop"])

    def forward(self, hidden_states: Tensor, attention_mask: Any, position_ids: Tensor) -> tuple[Tensor, Any]:
        query_states, key_states, value_states = self.c_attn(hidden_states).split([self.width] * 3, 2)
        shape = (*key_states.shape[:-1], -1, self.head_dim)
        key_states = key_states.view(*shape).transpose(1, 2)
        value_states = value_states.view(*shape).transpose(1, 2)
        query_states = query_states.view(*shape).transpose(1, 2)
        attn_output, attn_weights = attention.attend(
            query_states, key_states, value_states, attention_mask, dropout=self.attn_dropout.probability,
            position_ids=position_ids, eager=eager_attention,
        )  # fmt: skip
        attn_output = attn_output.reshape(*attn_output.shape[:-2], -1).contiguous()
        attn_output = self.c_proj(attn_output)
        attn_output = self.resid_dropout(attn_output)
        return attn_output, attn_weights


class LinearMLP(PlainMLP):
    up, down = "c_fc", "c_proj"

    def __init__(self, machine: Machine, inner: int, config: Config) -> None:
        super().__init__(machine, config["hidden_size"], inner, config["activation_function"])
        self.dropout = Dropout(machine, config["resid_pdrop"])

    def forward(self, hidden_states: Tensor) -> Tensor:
        return self.dropout(super().forward(hidden_states))


class Gpt2MLP(LinearMLP):
    linear_class = Conv1D


class Gpt2Block(CheckpointingLayer):
    attention_class: Any = Gpt2Attention
    mlp_class: Any = Gpt2MLP

    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        width = config["hidden_size"]
        self.ln_1 = LayerNorm(machine, width)
        self.attn = self.attention_class(machine, config)
        self.ln_2 = LayerNorm(machine, width)
        self.mlp = self.mlp_class(machine, config.get("n_inner") or 4 * width, config)

    def forward(self, hidden_states: Tensor, attention_mask: Any, position_ids: Tensor | None = None) -> Tensor:
        residual = hidden_states
        hidden_states = self.ln_1(hidden_states)
        attn_output, _ = self.attn(hidden_states, attention_mask=attention_mask, position_ids=position_ids)
        hidden_states = attn_output + residual
        residual = hidden_states
        hidden_states = self.ln_2(hidden_states)
        feed_forward_hidden_states = self.mlp(hidden_states)
        hidden_states = residual + feed_forward_hidden_states
        return hidden_states


class Gpt2Body(Module):
    block_class: Any = Gpt2Block
    learns_positions = True

    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        width = config["hidden_size"]
        self.wte = Embedding(machine, config["vocab_size"], width)
        if self.learns_positions:
            self.wpe = Embedding(machine, config["max_position_embeddings"], width)
        self.drop = Dropout(machine, config["embd_pdrop"])
        self.h = ModuleList(machine, [self.block_class(machine, config) for _ in range(config["num_hidden_layers"])])
        self.ln_f = LayerNorm(machine, width)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        inputs_embeds = self.wte(input_ids)
        position_ids = positions(self.machine, input_ids.shape[1]).unsqueeze(0)
        position_embeds = self.wpe(position_ids)
        hidden_states = inputs_embeds + position_embeds
        mask = causal_mask(attention_mask, inputs_embeds)
        hidden_states = self.drop(hidden_states)
        for block in self.h:
            hidden_states = block(hidden_states, mask, position_ids=position_ids)
        hidden_states = self.ln_f(hidden_states)
        hidden_states = hidden_states.view(*hidden_states.shape)
        return hidden_states


class Gpt2(named.CausalLM):
    decoder_class = Gpt2Body
    usual_names: ClassVar[Config] = GPT_NAMES | {"n_positions": "max_position_embeddings"}
    defaults: ClassVar[Config] = {
        "hidden_size": 768, "num_attention_heads": 12, "num_hidden_layers": 12, "max_position_embeddings": 1024,
        "vocab_size": 50257, "resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1,
        "activation_function": "gelu_new", "tie_word_embeddings": True,
    }  # fmt: skip


# ------------------------------------------------------------------------------------------- StarCoder 1 and SantaCoder


class BigCodeAttention(Module):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        self.width, self.heads = config["hidden_size"], config["num_attention_heads"]
        self.head_dim = self.width // self.heads
        self.multi_query = bool(config["multi_query"])
        kv_heads = 1 if self.multi_query else self.heads
        self.kv_width, self.groups = kv_heads * self.head_dim, self.heads // kv_heads
        self.c_attn = Linear(machine, self.width, self.width + 2 * self.kv_width, bias=True)
        self.c_proj = Linear(machine, self.width, self.width, bias=True)
        self.attn_dropout = config["attn_pdrop"]
        self.resid_dropout = Dropout(machine, config["resid_pdrop"])

    def forward(self, hidden_states: Tensor, attention_mask: Any, position_ids: Any) -> tuple[Tensor, Any]:
        """Positions are none of its business."""
        batch, length, _ = hidden_states.shape
        query, key, value = self.project(hidden_states)
        attn_output, attn_weights = attention.attend(
            query, key, value, attention_mask, self.groups, dropout=self.attn_dropout
        )
        attn_output = attn_output.reshape(batch, length, -1).contiguous()
        attn_output = self.c_proj(attn_output)
        attn_output = self.resid_dropout(attn_output)
        return attn_output, attn_weights

    def project(self, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        batch, length, _ = hidden_states.shape
        if self.multi_query:
            widths = [self.width, self.kv_width, self.kv_width]
            query, key, value = self.c_attn(hidden_states).unsqueeze(1).split(widths, 3)
            query = query.view(batch, length, -1, self.head_dim).transpose(1, 2)
            return query, key, value
        whole = self.c_attn(hidden_states).view(batch, length, self.heads, 3 * self.head_dim)
        query, key, value = whole.transpose(1, 2).split([self.head_dim] * 3, 3)
        return query, key, value


class BigCodeBlock(Gpt2Block):
    attention_class: Any = BigCodeAttention
    mlp_class: Any = LinearMLP


class BigCodeBody(Gpt2Body):
    block_class: Any = BigCodeBlock

    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine, config)
        longest = config["max_position_embeddings"]
        self.bias = self.buffer(longest, longest, dtype=BOOL)  # which nothing reads any more

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        inputs_embeds = self.wte(input_ids)
        position_ids = positions(self.machine, input_ids.shape[1]).unsqueeze(0)
        mask = causal_mask(attention_mask, inputs_embeds)
        position_embeds = self.wpe(position_ids)
        hidden_states = inputs_embeds + position_embeds
        hidden_states = self.drop(hidden_states)
        for block in self.h:
            hidden_states = block(hidden_states, attention_mask=mask)
        hidden_states = self.ln_f(hidden_states)
        hidden_states = hidden_states.view(*hidden_states.shape)
        return hidden_states


class BigCode(named.CausalLM):
    decoder_class: Any = BigCodeBody
    usual_names: ClassVar[Config] = Gpt2.usual_names
    defaults: ClassVar[Config] = {
        **Gpt2.defaults, "activation_function": "gelu_pytorch_tanh", "multi_query": True,
    }  # fmt: skip


# -------------------------------------------------------------------------------------------------------------- GPT-Neo


def where(condition: Tensor, x: Tensor, other: Tensor) -> Tensor:
    """Of `x` and a number on the card."""
    machine = x.machine

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        gradient, kept = gradients[0], node.take(0)
        zero = machine.run("scalar_tensor", (), (), gradient.dtype)
        return (machine.run("where", (kept, gradient, zero), gradient.shape, gradient.dtype),)

    node = start(machine, (x,), back, (condition,))
    return finish(node, machine.run("where", (condition, x, other), x.shape, x.dtype))


class NeoSelfAttention(Module):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        width, longest = config["hidden_size"], config["max_position_embeddings"]
        self.heads = config["num_attention_heads"]
        self.bias = self.buffer(1, 1, longest, longest, dtype=BOOL)
        self.attn_dropout = Dropout(machine, config["attention_dropout"])
        self.resid_dropout = Dropout(machine, config["resid_pdrop"])
        self.k_proj = Linear(machine, width, width)
        self.v_proj = Linear(machine, width, width)
        self.q_proj = Linear(machine, width, width)
        self.out_proj = Linear(machine, width, width, bias=True)

    def split_heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:-1], self.heads, -1).permute(0, 2, 1, 3)

    def attn(self, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
        query = query.float()
        key = key.float()
        attn_weights = F.matmul(query, key.transpose(2, 3))
        length = query.shape[2]
        own_mask = self.bias[:, :, :length][:, :, :, :length]
        mask_value = self.machine.run("_to_copy", (), (), attn_weights.dtype)
        attn_weights = where(own_mask, attn_weights, mask_value)
        attn_weights = attn_weights + attention_mask
        attn_weights = F.softmax(attn_weights)
        attn_weights = attn_weights.to(value.dtype)
        attn_weights = self.attn_dropout(attn_weights)
        attn_output = F.matmul(attn_weights, value)
        return attn_output, attn_weights

    def forward(self, hidden_states: Tensor, attention_mask: Any) -> tuple[Tensor, Tensor]:
        batch, length, _ = hidden_states.shape
        query = self.q_proj(hidden_states)
        key = self.k_proj(hidden_states)
        value = self.v_proj(hidden_states)
        query = self.split_heads(query)
        key = self.split_heads(key)
        value = self.split_heads(value)
        if self.machine.is_flash:
            dtype = flash.taken_dtype(query)
            query = query.transpose(1, 2).to(dtype)
            key = key.transpose(1, 2).to(dtype)
            value = value.transpose(1, 2).to(dtype)
            attn_output = flash.attend(query, key, value, self.attn_dropout.probability, None, None, None)
            attn_weights = attn_output.reshape(batch, length, -1)
            attn_output = self.out_proj(attn_weights)
        else:
            attn_output, attn_weights = self.attn(query, key, value, attention_mask)
            attn_output = merge_heads(attn_output)
            attn_output = self.out_proj(attn_output)
        attn_output = self.resid_dropout(attn_output)
        return attn_output, attn_weights


def merge_heads(x: Tensor) -> Tensor:
    x = x.permute(0, 2, 1, 3).contiguous()
    return x.view(*x.shape[:-2], -1)


class NeoAttention(Module):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        self.attention = NeoSelfAttention(machine, config)

    def forward(self, hidden_states: Tensor, attention_mask: Any) -> Any:
        return self.attention(hidden_states, attention_mask=attention_mask)


class NeoBlock(Gpt2Block):
    attention_class = NeoAttention
    mlp_class = LinearMLP

    def forward(self, hidden_states: Tensor, attention_mask: Any) -> tuple[Tensor, Any]:  # type: ignore[override]
        residual = hidden_states
        hidden_states = self.ln_1(hidden_states)
        attn_output, attn_weights = self.attn(hidden_states, attention_mask=attention_mask)
        hidden_states = attn_output + residual
        residual = hidden_states
        hidden_states = self.ln_2(hidden_states)
        feed_forward_hidden_states = self.mlp(hidden_states)
        hidden_states = residual + feed_forward_hidden_states
        return hidden_states, attn_weights


class NeoBody(Gpt2Body):
    block_class = NeoBlock

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        inputs_embeds = self.wte(input_ids)
        position_ids = positions(self.machine, input_ids.shape[1]).unsqueeze(0)
        mask = causal_mask(attention_mask, inputs_embeds)
        position_embeds = self.wpe(position_ids)
        hidden_states = inputs_embeds + position_embeds
        hidden_states = self.drop(hidden_states)
        for block in self.h:
            outputs = block(hidden_states, attention_mask=mask)
            hidden_states = outputs[0]
        hidden_states = self.ln_f(hidden_states)
        hidden_states = hidden_states.view(*hidden_states.shape)
        return hidden_states


class GptNeo(named.CausalLM):
    decoder_class: Any = NeoBody
    attentions = ("eager", "flash_attention_2")
    usual_names: ClassVar[Config] = {
        "num_heads": "num_attention_heads", "num_layers": "num_hidden_layers", "intermediate_size": "n_inner",
        "embed_dropout": "embd_pdrop", "resid_dropout": "resid_pdrop",
    }  # fmt: skip
    defaults: ClassVar[Config] = {
        "hidden_size": 2048, "num_attention_heads": 16, "num_hidden_layers": 24, "max_position_embeddings": 2048,
        "vocab_size": 50257, "n_inner": None, "activation_function": "gelu_new", "resid_pdrop": 0.0, "embd_pdrop": 0.0,
        "attention_dropout": 0.0, "tie_word_embeddings": True,
    }  # fmt: skip


# ---------------------------------------------------------------------------------------------------------------- GPT-J


def rotate_by_pairs(x: Tensor, sin: Tensor, cos: Tensor) -> Tensor:
    """Neighbouring dimensions turn together."""
    sin = sin.unsqueeze(2).repeat_interleave(2, 3)
    cos = cos.unsqueeze(2).repeat_interleave(2, 3)
    return rotate(x, cos, sin)


class GptjAttention(Module):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        width = config["hidden_size"]
        self.heads = config["num_attention_heads"]
        self.scale_attn = (width // self.heads) ** 0.5
        self.attn_dropout = Dropout(machine, config["attn_pdrop"])
        self.resid_dropout = Dropout(machine, config["resid_pdrop"])
        self.k_proj = Linear(machine, width, width)
        self.v_proj = Linear(machine, width, width)
        self.q_proj = Linear(machine, width, width)
        self.out_proj = Linear(machine, width, width)
        self.rotary_dim = config["rotary_dim"]
        self.embed_positions = self.buffer(config["max_position_embeddings"], self.rotary_dim or width)

    def attn(self, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
        query = query.float()
        key = key.float()
        attn_weights = F.matmul(query, key.transpose(2, 3))
        attn_weights = attn_weights / self.scale_attn
        attn_weights = attn_weights + attention_mask
        attn_weights = F.softmax(attn_weights)
        attn_weights = attn_weights.to(value.dtype)
        attn_weights = self.attn_dropout(attn_weights)
        attn_output = F.matmul(attn_weights, value)
        return attn_output, attn_weights

    def forward(self, hidden_states: Tensor, attention_mask: Any, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        machine, (batch, length, width) = self.machine, hidden_states.shape
        shape = (batch, length, self.heads, width // self.heads)
        query = self.q_proj(hidden_states)
        key = self.k_proj(hidden_states)
        value = self.v_proj(hidden_states)
        query = query.view(*shape)
        key = key.view(*shape)
        value = value.view(*shape).permute(0, 2, 1, 3)
        table = self.embed_positions
        embed_positions = machine.run("repeat", (table,), (1, *table.shape), FLOAT32)
        turned = table.shape[1]
        repeated_position_ids = machine.run("repeat", (position_ids,), (1, length, turned), INT64)
        found = machine.run("gather", (embed_positions, repeated_position_ids), (1, length, turned), FLOAT32)
        sincos = found.to(key.dtype)
        del found
        sin, cos = sincos.chunk(2, -1)
        if self.rotary_dim is not None:
            k_rot, k_pass = key[:, :, :, :turned], key[:, :, :, turned : shape[3]]
            q_rot, q_pass = query[:, :, :, :turned], query[:, :, :, turned : shape[3]]
            k_rot = rotate_by_pairs(k_rot, sin, cos)
            q_rot = rotate_by_pairs(q_rot, sin, cos)
            key = F.cat((k_rot, k_pass), -1)
            query = F.cat((q_rot, q_pass), -1)
        else:
            key = rotate_by_pairs(key, sin, cos)
            query = rotate_by_pairs(query, sin, cos)
        if machine.is_flash:
            value = value.permute(0, 2, 1, 3).contiguous()
            dtype = flash.taken_dtype(query)
            query = query.to(dtype)
            key = key.to(dtype)
            value = value.to(dtype)
            attn_weights = flash.attend(query, key, value, self.attn_dropout.probability, None, None, None)
            attn_output = attn_weights.reshape(batch, length, width)
        else:
            key = key.permute(0, 2, 1, 3)
            query = query.permute(0, 2, 1, 3)
            attn_output, attn_weights = self.attn(query, key, value, attention_mask)
            attn_output = merge_heads(attn_output)
        attn_output = self.out_proj(attn_output)
        attn_output = self.resid_dropout(attn_output)
        return attn_output, attn_weights


class GptjMLP(LinearMLP):
    up, down = "fc_in", "fc_out"


class GptjBlock(CheckpointingLayer):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        width = config["hidden_size"]
        self.ln_1 = LayerNorm(machine, width)
        self.attn = GptjAttention(machine, config)
        self.mlp = GptjMLP(machine, config.get("n_inner") or 4 * width, config)

    def forward(self, hidden_states: Tensor, attention_mask: Any, position_ids: Tensor) -> tuple[Tensor, Any]:
        residual = hidden_states
        hidden_states = self.ln_1(hidden_states)
        attn_outputs, attn_weights = self.attn(hidden_states, attention_mask=attention_mask, position_ids=position_ids)
        feed_forward_hidden_states = self.mlp(hidden_states)
        hidden_states = attn_outputs + feed_forward_hidden_states + residual
        return hidden_states, attn_weights


class GptjBody(Gpt2Body):
    block_class = GptjBlock
    learns_positions = False

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        inputs_embeds = self.wte(input_ids)
        position_ids = positions(self.machine, input_ids.shape[1]).unsqueeze(0)
        mask = causal_mask(attention_mask, inputs_embeds)
        hidden_states = inputs_embeds
        hidden_states = self.drop(hidden_states)
        for block in self.h:
            outputs = block(hidden_states, attention_mask=mask, position_ids=position_ids)
            hidden_states = outputs[0]
        hidden_states = self.ln_f(hidden_states)
        hidden_states = hidden_states.view(*hidden_states.shape)
        return hidden_states


class Gptj(named.CausalLM):
    decoder_class: Any = GptjBody
    attentions = ("eager", "flash_attention_2")
    has_head_bias = True
    usual_names: ClassVar[Config] = GPT_NAMES | {"n_positions": "max_position_embeddings"}
    defaults: ClassVar[Config] = {
        **Gpt2.defaults, "hidden_size": 4096, "num_hidden_layers": 28, "num_attention_heads": 16,
        "max_position_embeddings": 2048, "vocab_size": 50400, "rotary_dim": 64, "resid_pdrop": 0.0, "embd_pdrop": 0.0,
        "attn_pdrop": 0.0, "tie_word_embeddings": False,
    }  # fmt: skip
