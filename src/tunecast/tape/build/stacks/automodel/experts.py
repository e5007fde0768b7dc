"""Automodel's own experts (components/moe/experts.py, `GroupedExpertsDeepEP`), in the place of transformers'.

Rows are sorted by expert and sent to the card that has it, multiplied in groups, weighed together with the activation
(one compiled kernel), multiplied again and added up by token. The backward pass needs the rows, what the first product
gives and what enters the second; transformers weighs after the second, and keeps its result too.

Source   components/moe/experts.py, `GroupedExpertsDeepEP.forward`, `_torch_mm_experts_fwd`; components/moe/megatron/
         moe_utils.py, `WeightedSwiGLUFunction`, `permute`, `unpermute`.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import MethodType
from typing import Any

from tunecast.tape.build.autograd import Gradients, Node, finish, start
from tunecast.tape.build.dtypes import INT32, INT64
from tunecast.tape.build.experts import Experts
from tunecast.tape.build.tensor import Tensor


def use_own_experts(model: Any) -> None:
    for module in model.modules():
        if isinstance(module, Experts):
            object.__setattr__(module, "forward", MethodType(forward, module))


def forward(self: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    machine, tokens, top_k = self.machine, hidden_states.shape[0], top_k_index.shape[-1]
    expert_ids = top_k_index.reshape(-1)
    pairs = expert_ids.shape
    sorted_ids, perm = machine.run_many("sort", (expert_ids,), ((pairs, INT64),) * 2, args=(expert_ids,))
    places = perm // top_k
    rows = self.sent(hidden_states[places])
    permuted_probs = self.sent(top_k_weights.reshape(-1)[perm].unsqueeze(-1))
    counts = machine.run("histc", (sorted_ids,), (self.count,), INT32)
    offs = machine.run("cumsum", (counts,), (self.count,), INT32, args=(counts, 0))
    bias = self.gate_up_proj_bias[sorted_ids] if self.biased else None
    output1 = self.product(rows, getattr(self, self.first), offs, bias)
    del rows, bias
    output1 = weighted(output1, permuted_probs, output1.shape[1] // (2 if self.gated else 1))
    bias = self.down_proj_bias[sorted_ids] if self.biased else None
    output2 = self.sent(self.product(output1, self.down_proj, offs, bias))
    del output1, bias
    return added_up(output2, places, tokens)


def weighted(x: Tensor, weights: Tensor, width: int) -> Tensor:
    """`weighted_swiglu` and its kin."""
    machine, rows = x.machine, x.shape[0]

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        kept, given = node.take(0), node.take(1)
        read = (gradients[0], kept, given)
        return [machine.run("triton::weighted_backward", read, t.shape, t.dtype) for t in (kept, given)]

    node = start(machine, (x, weights), back, (x, weights))
    return finish(node, machine.run("triton::weighted", (x, weights), (rows, width), x.dtype))


def added_up(rows: Tensor, places: Tensor, tokens: int) -> Tensor:
    """`unpermute`: a token's rows are added; each gets the token's gradient back."""
    machine, shape, dtype = rows.machine, rows.shape, rows.dtype

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        places = node.take(0)
        return (machine.run("index", (gradients[0], places), shape, dtype),)

    node = start(machine, (rows,), back, (places,))
    out = machine.run("zeros", (), (tokens, shape[1]), dtype)
    machine.launch("scatter_add_", (out, places, rows), dtype, out.nbytes)
    return finish(node, out)
