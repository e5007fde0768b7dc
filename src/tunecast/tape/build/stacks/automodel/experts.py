"""Automodel's own experts (components/moe/experts.py, `GroupedExpertsDeepEP`), in the place of transformers'.

A token goes once to every card that has an expert of it, there its rows are sorted by expert and multiplied in groups,
weighed together with the activation (one compiled kernel), multiplied again, added up by token and sent back. The
backward pass needs the rows, what the first product gives and what enters the second; transformers weighs after the
second, and keeps its result too. Between machines a token travels once to each, and on from there over the links inside
it.

Source   components/moe/experts.py, `GroupedExpertsDeepEP.forward`, `_torch_mm_experts_fwd`; components/moe/megatron/
         moe_utils.py, `WeightedSwiGLUFunction`, `permute`, `unpermute`; fused_a2a.py, `FusedDispatch`, `FusedCombine`;
         deepseek-ai/DeepEP, README.md, "Normal kernels".
Ignored  DeepEP's buffers; the dispatcher `torch`, which gathers all tokens of the cards that share experts.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import MethodType
from typing import Any

from tunecast.job.job import Job
from tunecast.records import NamedTuple
from tunecast.tape.build.autograd import Gradients, Node, finish, start
from tunecast.tape.build.dtypes import INT32, INT64
from tunecast.tape.build.experts import Experts
from tunecast.tape.build.tensor import Tensor

PARTS = 64
"""Numbers of copies are taken in parts of this size."""


class Dispatcher(NamedTuple):
    """Where the rows of a batch of tokens go: `ranks` cards have the experts, `machines` those cards."""

    tokens: int
    top_k: int
    ranks: int
    machines: int
    places: Tensor
    """Of each row, the token's."""

    @property
    def received(self) -> int:
        """Tokens a card gets, as many as it sends: each once to every card it goes to."""
        return self.tokens * round(PARTS * distinct(self.top_k, self.ranks)) // PARTS

    @property
    def sent(self) -> int:
        """Tokens that leave a card over the slowest links they need."""
        over = self.machines if self.machines > 1 else self.ranks
        return self.tokens * round(PARTS * distinct(self.top_k, over)) // PARTS

    def exchange(self, like: Tensor) -> None:
        if self.ranks > 1:
            like.machine.collective_of("all_to_all", "expert", self.ranks, like.dtype, self.sent * like.shape[1])

    def dispatch(self, tokens: Tensor) -> Tensor:
        machine, width = tokens.machine, tokens.shape[1]
        received = tokens
        if self.ranks > 1:
            self.exchange(tokens)
            received = machine.run("empty", (), (self.received, width), tokens.dtype)
        return machine.run("index", (received, self.places), (self.places.shape[0], width), tokens.dtype)

    def combine(self, rows: Tensor) -> Tensor:
        machine, width = rows.machine, rows.shape[1]
        summed = machine.run("zeros", (), (self.received, width), rows.dtype)
        machine.launch("scatter_add_", (summed, self.places, rows), rows.dtype, summed.nbytes)
        if self.ranks == 1:
            return summed
        self.exchange(rows)
        return machine.run("empty", (), (self.tokens, width), rows.dtype)


def distinct(choices: int, of: int) -> float:
    """How many of so many are chosen at least once, where every choice is as likely."""
    return of * (1 - (1 - 1 / of) ** choices)


def use_own_experts(job: Job, model: Any) -> None:
    machines = -(-job.parallel.expert // job.hardware.gpus)
    for module in model.modules():
        if isinstance(module, Experts):
            vars(module)["machines"] = machines
            object.__setattr__(module, "forward", MethodType(forward, module))


def forward(self: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    machine, tokens, top_k = self.machine, hidden_states.shape[0], top_k_index.shape[-1]
    expert_ids = top_k_index.reshape(-1)
    pairs = expert_ids.shape
    sorted_ids, perm = machine.run_many("sort", (expert_ids,), ((pairs, INT64),) * 2, args=(expert_ids,))
    dispatcher = Dispatcher(tokens, top_k, self.ranks, self.machines, perm // top_k)
    rows = moved(hidden_states, dispatcher, out=True)
    permuted_probs = top_k_weights.reshape(-1)[perm].unsqueeze(-1)
    counts = machine.run("histc", (sorted_ids,), (self.count,), INT32)
    offs = machine.run("cumsum", (counts,), (self.count,), INT32, args=(counts, 0))
    bias = self.gate_up_proj_bias[sorted_ids] if self.biased else None
    output1 = self.product(rows, getattr(self, self.first), offs, bias)
    del rows, bias
    output1 = weighted(output1, permuted_probs, output1.shape[1] // (2 if self.gated else 1))
    bias = self.down_proj_bias[sorted_ids] if self.biased else None
    output2 = self.product(output1, self.down_proj, offs, bias)
    del output1, bias
    return moved(output2, dispatcher, out=False)


def moved(x: Tensor, dispatcher: Dispatcher, out: bool) -> Tensor:
    """To the experts (`FusedDispatch`, `permute`), or back (`unpermute`, `FusedCombine`): each is the other's
    gradient."""
    there, back_again = (dispatcher.dispatch, dispatcher.combine)[:: 1 if out else -1]
    node = start(x.machine, (x,), lambda node, gradients: (back_again(gradients[0]),), (dispatcher.places,))
    return finish(node, there(x.detach()))


def weighted(x: Tensor, weights: Tensor, width: int) -> Tensor:
    """`weighted_swiglu` and its kin."""
    machine, rows = x.machine, x.shape[0]

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        kept, given = node.take(0), node.take(1)
        read = (gradients[0], kept, given)
        return [machine.run("triton::weighted_backward", read, t.shape, t.dtype) for t in (kept, given)]

    node = start(machine, (x, weights), back, (x, weights))
    return finish(node, machine.run("triton::weighted", (x, weights), (rows, width), x.dtype))
