"""Mixtures of experts on paper: routers, and experts whose tokens are sorted and multiplied in groups.

After transformers/integrations/moe.py, `grouped_mm_experts_forward`, which 5.17.0 takes on cards from Ampere on. All
sizes are by tokens times experts a token, so how many tokens an expert gets changes nothing here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tunecast.errors import Unsupported, UsageError
from tunecast.tape.build import functional as F
from tunecast.tape.build.autograd import Gradients, Node, finish, start
from tunecast.tape.build.dtypes import FLOAT32, INT32, INT64
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.modules import Activation, Module
from tunecast.tape.build.ops.elementwise import pointwise
from tunecast.tape.build.tensor import Tensor

# ------------------------------------------------------------------------------------------------------ operations


def top_k(x: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The largest of each row and their places."""
    return _select("topk", x, count, (x, count, -1))


def largest(x: Tensor) -> Tensor:
    """The largest of each row, the dimension kept."""
    return _select("max", x, 1, (x, -1, True))[0]


def _select(name: str, x: Tensor, count: int, args: tuple[Any, ...]) -> tuple[Tensor, Tensor]:
    """The gradient is scattered into zeros."""
    machine, shape, dtype = x.machine, x.shape, x.dtype
    kept = (*shape[:-1], count)

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        zeros, places = machine.run("zeros", (), shape, dtype), node.take(0)
        return (machine.run("scatter", (zeros, places, gradients[0]), shape, dtype, args=(zeros, -1, places)),)

    node = start(machine, (x,), back)
    values, places = machine.run_many(name, (x,), ((kept, dtype), (kept, INT64)), args=args)
    return finish(node, values, places), places


def fill_rows(x: Tensor, mask: Tensor | None, in_place: bool = False) -> Tensor:
    """Zeros where the mask says, if there is one."""
    if mask is None:
        return x
    machine = x.machine

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        return (pointwise("masked_fill", gradients[0]) if node.take(0) is not None else None,)

    node = start(machine, (x,), back, (mask,))
    if not in_place:
        return finish(node, pointwise("masked_fill", x))
    machine.launch("masked_fill_", (x, mask), x.dtype, x.nbytes)
    return finish(node, x.alias(x.shape, x.strides))


def grouped_product(x: Tensor, weights: Tensor, offsets: Tensor) -> Tensor:
    """Each group of rows with the matrix of its expert: [S, k] x [E, k, m]."""
    machine = x.machine
    rows, k, m = x.shape[0], x.shape[1], weights.shape[2]
    layout = weights.stride()

    def run(a: Tensor, b: Tensor, shape: tuple[int, ...], offsets: Tensor) -> Tensor:
        return machine.run("_grouped_mm", (a, b, offsets), shape, a.dtype, 2 * rows * k * m, args=(a, b, offsets))

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        gradient, offsets = gradients[0], node.take(2)
        second = first = None
        if node.needs[1]:
            x, experts = node.take(0), offsets.shape[0]
            if layout[1] == 1:  # laid out as the second factor is
                second = run(gradient.transpose(0, 1), x, (experts, m, k), offsets).transpose(1, 2)
            else:
                second = run(x.transpose(0, 1), gradient, (experts, k, m), offsets)
        if node.needs[0]:
            first = run(gradient, node.take(1).transpose(1, 2), (rows, k), offsets)
        return first, second

    saved = (x if weights.requires_grad else None, weights if x.requires_grad else None, offsets)
    node = start(machine, (x, weights), back, saved)
    return finish(node, run(x, weights, (rows, m), offsets))


def to_all(x: Tensor, ranks: int) -> Tensor:
    """`all_to_all_single_autograd`: rows change ranks, and their gradients change back."""
    machine = x.machine

    def sent(given: Tensor) -> Tensor:
        return machine.exchange("all_to_all", "expert", ranks, given.contiguous(), given.shape)

    node = start(machine, (x,), lambda node, gradients: (sent(gradients[0]),))
    return finish(node, sent(x))


# --------------------------------------------------------------------------------------------------------- modules


BALANCED = "tokens are taken to be spread evenly over a router's experts; a rank that gets more holds more"


class Routed(Module):
    """Its parameters may be adapted: then reading one computes it, once a call. They may be packed: then reading one
    dequantises it (packed/experts.py)."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine)
        self.computed: dict[str, Any] = {}
        self.packed: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        proxies = self.__dict__.get("computed", {})
        if name not in proxies:
            states = self.__dict__.get("packed", {})
            if name in states:
                return states[name].dequantize()
            raise AttributeError(name)
        value = proxies[name]
        if not isinstance(value, Tensor):
            value = proxies[name] = value()
        return value


class Experts(Routed):
    """All experts' weights, stacked. Some families store them the other way round, with a bias, or without a gate."""

    transposed = False
    biased = False
    gated = True
    ranks = 1
    """Cards they are split over: rows go to the card that has their expert, and come back."""
    is_apart = False
    """No other rank has the same: replicas neither send them nor sum their gradients."""

    def __init__(self, machine: Machine, experts: int, hidden: int, inner: int, activation: str = "silu") -> None:
        super().__init__(machine)
        self.count = experts
        up, down = (2 * inner if self.gated else inner, hidden), (hidden, inner)
        setattr(self, self.first, self.parameter(experts, *(reversed(up) if self.transposed else up)))
        if self.biased:
            self.gate_up_proj_bias: Any = self.parameter(experts, 2 * inner)
        self.down_proj = self.parameter(experts, *(reversed(down) if self.transposed else down))
        if self.biased:
            self.down_proj_bias: Any = self.parameter(experts, hidden)
        self.act_fn = Activation(machine, activation)

    def spread(self, ranks: int) -> None:
        """Each card has as many of them. Before they are brought to it."""
        if self.count % ranks:
            raise UsageError.at("parallel.expert", f"{self.count} experts cannot be split over {ranks} cards")
        self.machine.guesses[BALANCED] = None
        self.ranks, self.count = ranks, self.count // ranks
        for name, tensor in list(self.own.items()):
            setattr(self, name, self.parameter(self.count, *tensor.shape[1:]))

    @property
    def first(self) -> str:
        """What the tokens are multiplied with first."""
        return "gate_up_proj" if self.gated else "up_proj"

    def forward(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        machine = self.machine
        num_tokens, num_top_k, hidden_dim = hidden_states.shape[0], top_k_index.shape[-1], hidden_states.shape[-1]
        sample_weights = top_k_weights.reshape(-1)
        expert_ids = top_k_index.reshape(-1)
        pairs = expert_ids.shape
        expert_ids_g, perm = machine.run_many("sort", (expert_ids,), ((pairs, INT64),) * 2, args=(expert_ids,))
        selected_hidden_states_g = self.sent(hidden_states[perm // num_top_k])
        sample_weights_g = sample_weights[perm]
        histc_input = expert_ids_g.to(INT32)
        tokens_per_expert = machine.run("histc", (histc_input,), (self.count,), INT32)
        offsets = machine.run("cumsum", (tokens_per_expert,), (self.count,), INT32, args=(tokens_per_expert, 0))
        sentinel_mask = None
        if machine.era.fills_sentinels:
            sentinel_mask = expert_ids_g.ge(0).unsqueeze(-1)
            machine.launch("clamp_", (expert_ids_g,), INT64, expert_ids_g.nbytes)
        selected_weights = getattr(self, self.first)
        selected_biases = self.gate_up_proj_bias[expert_ids_g] if self.biased else None
        selected_hidden_states_g = fill_rows(selected_hidden_states_g, sentinel_mask, in_place=True)
        proj_out = self.product(selected_hidden_states_g, selected_weights, offsets, selected_biases)
        proj_out = fill_rows(proj_out, sentinel_mask)
        proj_out = self.apply_gate(proj_out)
        selected_weights = self.down_proj
        selected_biases = self.down_proj_bias[expert_ids_g] if self.biased else None
        proj_out = self.product(proj_out, selected_weights, offsets, selected_biases)
        proj_out = self.sent(fill_rows(proj_out, sentinel_mask))
        weighted_out = proj_out * sample_weights_g.unsqueeze(-1)
        inv_perm = machine.run("empty_like", (perm,), pairs, INT64)
        positions = machine.run("arange", (), pairs, INT64)
        machine.launch("index_put_", (inv_perm, perm, positions), INT64, inv_perm.nbytes)
        del positions
        weighted_out = weighted_out[inv_perm]
        final_hidden_states = weighted_out.view(num_tokens, num_top_k, hidden_dim).sum(1)
        return final_hidden_states.to(hidden_states.dtype)

    def sent(self, rows: Tensor) -> Tensor:
        """Evenly spread, a card gets as many as it sends."""
        return rows if self.ranks == 1 else to_all(rows, self.ranks)

    def product(self, x: Tensor, weights: Tensor, offsets: Tensor, bias: Tensor | None) -> Tensor:
        """`_grouped_linear`: not known to autocast, so the input takes the weights' type."""
        turned = weights if self.transposed else weights.transpose(1, 2)
        out = grouped_product(x.to(weights.dtype), turned, offsets)
        return out if bias is None else out.add_(bias)

    def apply_gate(self, gate_up_out: Tensor) -> Tensor:
        if not self.gated:
            return self.act_fn(gate_up_out)
        gate, up = gate_up_out.chunk(2, -1)
        return self.act_fn(gate) * up


def experts_of(machine: Machine, config: Mapping[str, Any], count: str, inner: str) -> Experts:
    """By the names a family's config.json has for how many there are and how wide they are."""
    size = config[count], config["hidden_size"], config[inner]
    return Experts(machine, *size, config.get("hidden_act", "silu"))


class Router(Routed):
    """A linear layer that is no `nn.Linear` (adapters pass it by), softmax in fp32, the k most probable experts."""

    def __init__(self, machine: Machine, experts: int, hidden: int, top_k: int, normalized: bool = True) -> None:
        super().__init__(machine)
        self.top_k, self.normalized = top_k, normalized
        self.weight = self.parameter(experts, hidden)

    def forward(self, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hidden_states = hidden_states.reshape(-1, hidden_states.shape[-1])
        router_logits = F.linear(hidden_states, self.weight)
        router_probs = F.softmax(router_logits, FLOAT32)
        router_top_value, router_indices = top_k(router_probs, self.top_k)
        if self.normalized:
            router_top_value = router_top_value.div_(router_top_value.sum(-1, keepdim=True))
        router_top_value = router_top_value.to(router_logits.dtype)
        return router_logits, router_top_value, router_indices


class SparseMoe(Module):
    """In the place of an MLP."""

    gate: Module
    experts: Module

    def forward(self, hidden_states: Tensor) -> Tensor:
        batch_size, sequence_length, hidden_dim = hidden_states.shape
        hidden_states = hidden_states.view(-1, hidden_dim)
        _, top_k_weights, top_k_index = self.gate(hidden_states)
        hidden_states = self.experts(hidden_states, top_k_index, top_k_weights)
        hidden_states = hidden_states.reshape(batch_size, sequence_length, hidden_dim)
        return hidden_states


def refuse_router_loss(config: Mapping[str, Any]) -> None:
    if config.get("output_router_logits"):
        raise Unsupported(
            "model: the closed form does not know the load balancing loss (output_router_logits in config.json)"
        )
