"""Log-probabilities of completions from whole logits, as trainers of preferences take them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from tunecast.tape.build.autograd import Gradients, Node, finish, start
from tunecast.tape.build.log_probs import by_rows, by_softmax
from tunecast.tape.build.tensor import Tensor
from tunecast.tape.op import PASS

LogProbs = Callable[[Tensor, Tensor], Tensor]
HEADS: Mapping[str, LogProbs] = {"rows": by_rows, "softmax": by_softmax}
"""By `Stack.preference_head`."""


def logits_of(model: Any, input_ids: Tensor, attention_mask: Tensor, **images: Tensor) -> Tensor:
    """`model(input_ids, attention_mask=...).logits`, widened where autocast was on."""
    machine = model.machine
    scheme = machine.scheme
    machine.of_host(PASS)
    if machine.grad_enabled:
        scheme.begin_forward()
    logits: Tensor = scheme.ask(model, partial(forward_to_logits, **images), input_ids, attention_mask)
    if scheme.autocast is not None:
        with machine.within(model.path):
            logits = logits.float()
    if machine.grad_enabled:
        logits = scheme.end_forward(logits)
    return logits


def forward_to_logits(model: Any, input_ids: Tensor, attention_mask: Tensor, **images: Tensor) -> Tensor:
    """Without labels there is no loss; a head that Liger has fused makes logits then, too."""
    vars(model)["output"] = lambda logits, labels: logits
    try:
        logits: Tensor = type(model).forward(model, input_ids, attention_mask, None, **images)
        return logits
    finally:
        del vars(model)["output"]


def completions_alone(per_token_logps: Tensor, completion_mask: Tensor) -> Tensor:
    """`per_token_logps[completion_mask == 0] = 0.0`, in a view: its gradient is copied to be changed in place
    (torch/csrc/autograd/functions/tensor.cpp, `CopySlices`)."""
    machine, shape, dtype = per_token_logps.machine, per_token_logps.shape, per_token_logps.dtype

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        result = machine.run("new_empty_strided", gradients, shape, dtype)
        part = machine.run("clone", (result,), shape, dtype)
        machine.launch("index_put_", (part, node.take(0)), dtype, part.nbytes)
        return (result,)

    masked = completion_mask.eq(0)
    node = start(machine, (per_token_logps,), back, (masked,))
    machine.launch("index_put_", (per_token_logps, masked), dtype, per_token_logps.nbytes)
    return finish(node, per_token_logps.detach())


def log_probs_of(head: str, logits: Tensor, ids: Tensor, completion_mask: Tensor) -> Tensor:
    """Of each token that follows another; 0 where it is no completion's."""
    length = ids.shape[1]
    per_token_logps = HEADS[head](logits[:, : length - 1, :], ids[:, 1:length])
    return completions_alone(per_token_logps, completion_mask[:, 1:length])
