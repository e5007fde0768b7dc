"""Axolotl's expert parallelism on paper: tokens go to the ranks that have their experts, by DeepEP's kernels.

After axolotl/integrations/expert_parallel: shard.py (`shard_expert_weights`), experts_fn.py (`_deep_ep_forward`,
`_grouped_mm_local`).

    loading    every rank loads the whole model, and then keeps a copy of its part of the experts
    forward    a token goes once to each rank that has one of its experts; there it is a row for every expert it was
               given anywhere, those of other ranks with a weight of zero, so that experts see more rows than without;
               results are summed up where a token came from
    DDP        leaves the experts alone

Ignored  DeepEP's own buffer, which torch does not allocate: `hardware.reserve_bytes`.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import MethodType
from typing import Any

from tunecast.errors import UsageError
from tunecast.tape.build.autograd import Gradients, Node, finish, start
from tunecast.tape.build.dtypes import FLOAT32, INT64, Shape
from tunecast.tape.build.experts import BALANCED, Experts
from tunecast.tape.build.tensor import Tensor
from tunecast.tape.op import Role

GROUP = "expert"
FOLLOWS_SOURCE = (
    "parallel.expert: experts over ranks follow Axolotl's source and were not traced; DeepEP's kernels are priced as "
    "NCCL's"
)


def spread(model: Any, ranks: int) -> None:
    """Of weights that are on the card."""
    found = [module for module in model.modules() if isinstance(module, Experts)]
    if not found:
        raise UsageError.at("parallel.expert", f"got {ranks}, of a model without experts that can be split; allowed: 1")
    machine = model.machine
    machine.guesses[FOLLOWS_SOURCE] = machine.guesses[BALANCED] = None
    for experts in found:
        if experts.count % ranks:
            told = f"{experts.count} experts cannot be split over {ranks} cards"
            raise UsageError.at("parallel.expert", told)
        experts.count //= ranks
        with machine.within(experts.path):
            for name, tensor in list(experts.own.items()):
                part = machine.run("clone", (tensor,), (experts.count, *tensor.shape[1:]), tensor.dtype)
                part.requires_grad, part.block.role = True, Role.WEIGHTS
                setattr(experts, name, part)
                del tensor
        experts.is_apart = True
        experts.deep_ep_ranks = ranks
        object.__setattr__(experts, "forward", MethodType(forward, experts))
    machine.empty_cache()


def forward(self: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    machine, ranks = self.machine, self.deep_ep_ranks
    tokens, top_k = top_k_index.shape
    rows = received(tokens, ranks, top_k)
    topk_w_f32 = top_k_weights.to(FLOAT32)
    recv_x = exchanged(hidden_states, (rows, hidden_states.shape[1]), ranks)
    recv_topk_idx = machine.run("clone", (top_k_index,), (rows, top_k), INT64)
    recv_topk_weights = exchanged(topk_w_f32, (rows, top_k), ranks)
    safe_idx = machine.run("where", (recv_topk_idx,), (rows, top_k), INT64)
    valid = machine.run("_to_copy", (recv_topk_idx,), (rows, top_k), FLOAT32)
    local_out = Experts.forward(self, recv_x, safe_idx, recv_topk_weights * valid)
    return exchanged(local_out, hidden_states.shape, ranks)


def received(tokens: int, ranks: int, top_k: int) -> int:
    """Tokens of all ranks that chose one of this rank's experts, where all are as likely."""
    return max(1, round(tokens * ranks * (1 - (1 - 1 / ranks) ** top_k)))


def exchanged(x: Tensor, shape: Shape, ranks: int) -> Tensor:
    """`dispatch` and `combine`, each the other's backward pass."""
    machine, own = x.machine, x.shape

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        return (machine.exchange("all_to_all", GROUP, ranks, gradients[0].contiguous(), own),)

    node = start(machine, (x,), back)
    return finish(node, machine.exchange("all_to_all", GROUP, ranks, x, shape))
