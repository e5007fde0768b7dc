"""torchtitan's mixture of experts on paper (torchtitan/models/moe of 0.2.2), its experts on one rank or on several
(torchtitan/distributed/expert_parallel.py, `ExpertParallel`).

Each token's rows are sorted by expert, sent to the rank that has it (all-to-all, once the host has read how many rows
go where), laid out anew so that every expert has a multiple of eight of them, multiplied in groups, and come back the
same way. Local names are those of the real files. Over ranks, tokens are taken to spread evenly over the experts: then
a rank receives as many rows as it sends. On one rank all sizes are by the rows it has.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any

from tunecast.errors import UsageError
from tunecast.records import NamedTuple
from tunecast.tape.build import functional as F
from tunecast.tape.build.autograd import Gradients, Node, finish, start
from tunecast.tape.build.dtypes import BFLOAT16, BOOL, FLOAT32, INT32, INT64
from tunecast.tape.build.experts import BALANCED, grouped_product, to_all, top_k
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.modules import Linear, Module
from tunecast.tape.build.ops.elementwise import pointwise
from tunecast.tape.build.tensor import Tensor
from tunecast.tape.op import TO_HOST

ALIGNMENT = 8
"""TOKEN_GROUP_ALIGN_SIZE_M (models/moe/utils.py), in bfloat16."""


LaidOut = tuple[tuple[int, ...], Tensor, Tensor, Tensor]
"""The rows' shape as they came, those rows by expert, where each lies, and how many each expert has."""


class Routing(NamedTuple):
    """`MoEArgs`."""

    experts: int
    top_k: int
    hidden_dim: int
    shared: Any = None
    """The experts every token has, or None."""
    is_sigmoid: bool = False
    route_norm: bool = True
    route_scale: float = 1.0
    groups: int = 1
    limited_groups: int = 1
    scores_first: bool = False
    """Tokens are weighed before the experts (`score_before_experts`), else what comes of them."""


class MoE(Module):
    def __init__(self, machine: Machine, dim: int, routing: Routing) -> None:
        super().__init__(machine)
        count = routing.experts
        self.experts = GroupedExperts(machine, count, dim, routing.hidden_dim)
        self.router = Router(machine, dim, routing)
        self.reorderer = Reorderer(machine, count)
        self.shared_experts = routing.shared
        self.scores_first = routing.scores_first
        self.expert_bias = self.buffer(count)
        self.tokens_per_expert = self.buffer(count)

    def forward(self, x: Tensor) -> Tensor:
        machine, top_k = self.machine, self.router.top_k
        bs, slen, dim = x.shape
        x = x.view(-1, dim)
        top_scores, selected_experts_indices, num_tokens_per_expert = self.router(x, self.expert_bias)
        machine.launch("add_", (self.tokens_per_expert, num_tokens_per_expert), FLOAT32, self.tokens_per_expert.nbytes)
        top_scores_experts_sorted, token_indices_experts_sorted, num_tokens_per_expert = self.reorderer(
            top_scores, selected_experts_indices
        )
        routed_input = x[token_indices_experts_sorted // top_k]
        if self.scores_first:
            routed_input = (routed_input.float() * top_scores_experts_sorted.reshape(-1, 1)).to(x.dtype)
        routed_output = self.experts(routed_input, num_tokens_per_expert)
        out = None if self.shared_experts is None else self.shared_experts(x)
        routed_output_unsorted = machine.run("zeros", (), (bs * slen * top_k, dim), routed_output.dtype)
        self.experts.sent.clear()
        routed_output_unsorted = put_at(routed_output_unsorted, token_indices_experts_sorted, routed_output)
        routed_output_unsorted = routed_output_unsorted.reshape(-1, top_k, dim)
        if self.scores_first:
            out_experts = routed_output_unsorted.sum(1)
        else:
            out_experts = weigh(top_scores, routed_output_unsorted.float()).to(x.dtype)
            out_experts = out_experts.squeeze(1)
        summed = out_experts if out is None else out + out_experts
        del top_scores_experts_sorted
        return summed.reshape(bs, slen, dim)


def weigh(scores: Tensor, rows: Tensor) -> Tensor:
    """bmm of [tokens, 1, k] and [tokens, k, width]."""
    low = F.cast_for_product(rows)
    return F.bmm(F.cast_for_product(scores.reshape(-1, 1, scores.shape[-1])), low)


class Router(Module):
    """`TokenChoiceTopKRouter` with a bias that balances."""

    def __init__(self, machine: Machine, dim: int, routing: Routing) -> None:
        super().__init__(machine)
        self.gate = Linear(machine, dim, routing.experts)
        self.routing, self.count, self.top_k = routing, routing.experts, routing.top_k

    def forward(self, x: Tensor, expert_bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        machine = self.machine
        scores = self.gate(x)
        wide = scores.float()
        scores = wide.sigmoid() if self.routing.is_sigmoid else F.softmax(wide, FLOAT32)
        del wide
        scores_for_choice = scores + expert_bias
        if self.routing.groups > 1:
            scores_for_choice = self.limit_groups(scores_for_choice)
        kept = (*scores.shape[:-1], self.top_k)
        _, selected_experts_indices = machine.run_many(
            "topk", (scores_for_choice,), ((kept, FLOAT32), (kept, INT64)), args=(scores_for_choice, self.top_k, -1)
        )
        top_scores = gather(scores, selected_experts_indices)
        if self.routing.route_norm:
            denominator = top_scores.sum(-1, keepdim=True) + 1e-20
            top_scores = top_scores / denominator
        top_scores = top_scores * self.routing.route_scale
        num_tokens_per_expert = machine.run("histc", (selected_experts_indices,), (self.count,), INT64)
        del _, scores_for_choice
        return top_scores, selected_experts_indices, num_tokens_per_expert

    def limit_groups(self, scores: Tensor) -> Tensor:
        """`_get_node_limited_routing_scores`: the best two of each group say which groups are chosen from."""
        machine, tokens, groups = self.machine, scores.shape[0], self.routing.groups
        scores_grouped = scores.view(tokens, groups, self.count // groups)
        top2_scores_in_group, _ = top_k(scores_grouped, 2)
        group_scores = top2_scores_in_group.sum(-1)
        _, group_idx = top_k(group_scores, self.routing.limited_groups)
        group_mask = machine.run("ones_like", (), group_scores.shape, BOOL)
        machine.launch("scatter_", (group_mask, group_idx), BOOL, group_idx.nbytes)
        masked = scores_grouped.masked_fill(group_mask.unsqueeze(-1), -inf)
        return masked.view(tokens, self.count)


class Reorderer(Module):
    def __init__(self, machine: Machine, experts: int) -> None:
        super().__init__(machine)
        self.count = experts

    def forward(self, top_scores: Tensor, selected_experts_indices: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        machine = self.machine
        flat = selected_experts_indices.alias((selected_experts_indices.numel(),), None)
        num_tokens_per_expert = machine.run("histc", (flat,), (self.count,), INT64)
        token_indices = machine.run_many("sort", (flat,), ((flat.shape, INT64),) * 2, args=(flat,))[1]
        return top_scores.view(-1)[token_indices], token_indices, num_tokens_per_expert


class GroupedExperts(Module):
    def __init__(self, machine: Machine, experts: int, dim: int, hidden_dim: int) -> None:
        super().__init__(machine)
        self.ranks, self.count, self.widths = 1, experts, (dim, hidden_dim)
        self.sent: list[Tensor] = []
        """What a collective reads until somebody asks for its result (`AsyncCollectiveTensor`)."""
        self.places_kept: list[Tensor] = []
        """`ExpertParallel` has a name for where rows lie until the layer runs again."""
        self.have(experts)

    def have(self, experts: int) -> None:
        self.here, (dim, hidden_dim) = experts, self.widths
        self.w1 = self.parameter(experts, hidden_dim, dim)
        self.w2 = self.parameter(experts, dim, hidden_dim)
        self.w3 = self.parameter(experts, hidden_dim, dim)

    def spread(self, ranks: int) -> None:
        """`ExpertParallel`: each rank has as many of them. Before they are brought to the card."""
        if self.count % ranks:
            raise UsageError.at("parallel.expert", f"{self.count} experts cannot be split over {ranks} cards")
        self.machine.guesses[BALANCED] = None
        self.ranks = ranks
        self.have(self.count // ranks)

    def forward(self, x: Tensor, num_tokens_per_expert: Tensor) -> Tensor:
        laid_out = self.dispatch if self.ranks > 1 else self.permute
        input_shape, routed_input, permuted_indices, num_tokens = laid_out(x, num_tokens_per_expert)
        routed_output = self.run_experts(routed_input, num_tokens)
        out = unpermute(routed_output, input_shape, permuted_indices)
        if self.ranks == 1:
            return out
        selection = getattr(self.machine, "selection", None)
        if selection is None or not selection.finds("all_to_all"):
            self.sent.append(out.detach())
        return to_all(out, self.ranks)

    def dispatch(self, routed_input: Tensor, num_tokens_per_expert: Tensor) -> LaidOut:
        """`_token_dispatch`: the host waits for the numbers of rows, of which torch must know."""
        machine, ranks = self.machine, self.ranks
        group = machine.exchange("all_to_all", "expert", ranks, num_tokens_per_expert, num_tokens_per_expert.shape)
        for counts in (num_tokens_per_expert, group):
            splits = machine.run("sum", (counts,), (ranks,), INT64)
            machine.launch(TO_HOST, (splits,), INT64, splits.nbytes)
            del splits
        machine.synchronize()
        routed_input = to_all(routed_input, ranks)
        laid_out = self.permute(routed_input, group)
        self.places_kept[:] = laid_out[2:3]
        return laid_out

    def permute(self, x: Tensor, counts: Tensor) -> LaidOut:
        """`_permute`, `generate_permute_indices`."""
        machine, (rows, width) = self.machine, x.shape
        permuted_indices, m_sizes, _offsets = self.places(
            counts, -(-(rows + self.here * ALIGNMENT) // ALIGNMENT) * ALIGNMENT
        )
        zeros = machine.run("new_zeros", (), (1, width), x.dtype)
        x = F.cat([x, zeros], 0)
        del zeros
        shape, x = x.shape, x[permuted_indices]
        del _offsets
        return shape, x, permuted_indices, m_sizes

    def places(self, counts: Tensor, max_len: int) -> tuple[Tensor, Tensor, Tensor]:
        machine, here = self.machine, (self.here,)
        start_index_values = cumulative(counts, INT64) - 1
        totals = machine.run("sum", (counts,), here, INT64)
        totals = pointwise("clamp_min", totals)
        m_sizes = totals + 1
        for name in ("sub", "floor_divide", "mul"):
            m_sizes = pointwise(name, m_sizes)
        m_sizes = m_sizes.to(INT32)
        wide = m_sizes.to(INT64)
        m_offsets = cumulative(wide, INT64)
        del wide
        write_offsets = m_offsets - 1
        permuted_indices = machine.run("full", (), (max_len,), INT32)
        starts = (counts, start_index_values, write_offsets)
        machine.launch("triton::_fill_indices_kernel", starts, INT32, permuted_indices.nbytes)
        return permuted_indices, m_sizes, m_offsets.to(INT32)

    def run_experts(self, x: Tensor, num_tokens_per_expert: Tensor) -> Tensor:
        """`_run_experts_grouped_mm`."""
        offsets = cumulative(num_tokens_per_expert, INT32)
        h = F.silu(grouped_product(x.to(BFLOAT16), transpose_experts(self.w1), offsets))
        h = h * grouped_product(x.to(BFLOAT16), transpose_experts(self.w3), offsets)
        return grouped_product(h, transpose_experts(self.w2), offsets).to(x.dtype)


def transpose_experts(weight: Tensor) -> Tensor:
    return weight.to(BFLOAT16).transpose(1, 2)


def cumulative(counts: Tensor, dtype: Any) -> Tensor:
    return counts.machine.run("cumsum", (counts,), counts.shape, dtype, args=(counts, 0))


def gather(x: Tensor, places: Tensor) -> Tensor:
    """x.gather(-1, places): the gradient is added up in zeros."""
    machine, shape, dtype = x.machine, x.shape, x.dtype

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        zeros, places = machine.run("new_zeros", (), shape, dtype), node.take(0)
        machine.launch("scatter_add_", (zeros, places, gradients[0]), dtype, gradients[0].nbytes)
        return (zeros,)

    node = start(machine, (x,), back, (places,))
    return finish(node, machine.run("gather", (x, places), places.shape, dtype))


def put_at(target: Tensor, places: Tensor, values: Tensor) -> Tensor:
    """target[places] = values, of a target nobody else has; the gradient is what lies there."""
    machine = target.machine

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        places = node.take(0)
        return (machine.run("index", (gradients[0], places), values_shape, gradients[0].dtype),)

    values_shape = values.shape
    node = start(machine, (values,), back, (places,))
    machine.launch("index_put_", (target, places, values), target.dtype, values.nbytes)
    return finish(node, target.alias(target.shape, target.strides))


def unpermute(out: Tensor, shape: tuple[int, ...], permuted_indices: Tensor) -> Tensor:
    """`_unpermute`: back where they were; padding has the last row, which goes."""
    out_unpermuted = out.machine.run("new_empty", (), shape, out.dtype)
    out_unpermuted = put_at(out_unpermuted, permuted_indices, out)
    return out_unpermuted[: shape[0] - 1]
