"""`loss: chunked` without TRL's trainer: the fused head of TRL 1.16 (`add_fused_lm_head`) in the plain loop."""

from __future__ import annotations

from types import MethodType
from typing import Any

from tunecast.errors import Unsupported
from tunecast.tape.build.decoder import CausalLM
from tunecast.tape.build.tensor import Tensor


def apply(model: Any) -> None:
    """Every label counts: which ones a data set masks out a job does not say."""
    if not isinstance(model, CausalLM):
        raise Unsupported(f"loss: got chunked, which is not known for {model.model_type}", field="loss")
    model.forward = MethodType(fused_forward, model)  # type: ignore[method-assign]


def fused_forward(self: Any, input_ids: Tensor, attention_mask: Tensor, labels: Tensor) -> Tensor:
    from tunecast.tape.build.stacks import trl  # it imports the stack that asks for this

    return trl.fused_forward(self, input_ids, attention_mask, labels).loss
