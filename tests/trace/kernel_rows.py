"""Runs calls under the tracer, all in one process, and says what it recorded. test_workspaces.py reads it.

    python kernel_rows.py < rows.jsonl > recorded.json

A row names its inputs and its call in Python, or is a scaled dot-product attention given by its sizes.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from tunecast.tape.trace.ending import run_and_leave


def main() -> None:
    import torch
    from torch.nn import functional as F

    from tunecast.tape.card import Card
    from tunecast.tape.op import Free
    from tunecast.tape.trace import attention
    from tunecast.tape.trace.session import tracing

    def tensors(dtype: torch.dtype) -> Any:
        return lambda *sizes, grad=False: torch.empty(sizes, dtype=dtype, device="cuda").requires_grad_(grad)

    names = {
        "torch": torch, "F": F, "aten": torch.ops.aten, "bf16": tensors(torch.bfloat16), "fp16": tensors(torch.float16),
        "fp32": tensors(torch.float32), "i32": tensors(torch.int32), "i64": tensors(torch.int64),
        "flags": tensors(torch.bool),
    }  # fmt: skip

    def inputs_of_attention(call: dict[str, Any]) -> tuple[list[torch.Tensor], torch.Tensor | None]:
        dtype = getattr(torch, call["dtype"])
        made = []
        for letter, length in (("q", "queries"), ("k", "keys"), ("v", "keys")):
            heads = call["heads" if letter == "q" else "key_heads"]
            inner = (heads, call[length]) if call.get("heads_first") else (call[length], heads)
            tensor = torch.empty(call["batch"], *inner, call["width"], dtype=dtype, device="cuda")
            tensor = tensor if call.get("heads_first") else tensor.transpose(1, 2)
            made.append(tensor.requires_grad_(letter in call.get("gradients", "qkv")))
        kind, square = call["mask"], (call["queries"], call["keys"])
        if kind in ("causal", "none"):
            return made, None
        if kind.startswith("bool"):
            flags = torch.ones(square, dtype=torch.bool, device="cuda")
            shape = (1 if kind == "bool1" else call["batch"], 1, *square)
            return made, flags.expand(shape) if kind == "boolx" else flags.expand(shape).contiguous()
        mask = torch.zeros(call["batch"], 1, *square, dtype=dtype, device="cuda")
        return made, mask.expand(-1, call["heads"], -1, -1) if kind == "floath" else mask

    def enable(backend: str) -> None:
        for name, switch in (
            ("cudnn", torch.backends.cuda.enable_cudnn_sdp), ("flash", torch.backends.cuda.enable_flash_sdp),
            ("efficient", torch.backends.cuda.enable_mem_efficient_sdp),
        ):  # fmt: skip
            switch(backend in (name, "default"))

    answers: dict[str, dict[str, str]] = {}
    with tracing(Card()) as recorder:

        def events(since: int) -> str:
            text, own = [], set()
            for event in recorder._events[since:]:
                if isinstance(event, int):
                    block = recorder._blocks[event]
                    if block.nbytes and not block.module.endswith("_workspace"):
                        own.add(event)
                        text.append(f"+{block.nbytes}")
                elif isinstance(event, Free) and event.block in own:
                    text.append(f"-{recorder._blocks[event.block].nbytes}")
            return " ".join(text)

        for row in map(json.loads, sys.stdin):
            space: dict[str, Any] = dict(names)
            answer: dict[str, str] = {}
            if row["group"] == "attention":
                call = row["call"]
                made, mask = inputs_of_attention(call)
                options = (call.get("dropout", 0.0), call["mask"] == "causal")
                grouped = call["heads"] != call["key_heads"]
                chosen = attention.Attention(made[0], made[1], made[2], mask, *options, None, grouped)
                enable(call["backend"])
                answer["chosen"] = attention.choose(chosen, recorder.card)
                space |= {"q": made[0], "k": made[1], "v": made[2], "mask": mask}
                run = f"F.scaled_dot_product_attention(q, k, v, mask, *{options}, enable_gqa={grouped})"
            else:
                exec(row["make"], space)
                run = row["run"]
            since = len(recorder._events)
            y = eval(run, space)
            recorder._settle_accumulation()
            answer["forward"] = events(since)
            if "backward" in row:
                y = y[0] if isinstance(y, tuple) else y
                wanted = [t for t in space.values() if isinstance(t, torch.Tensor) and t.requires_grad]
                if "gradient" in row:
                    gradient = eval(row["gradient"], space | {"y": y})
                elif row["group"] == "attention":
                    gradient = torch.empty(y.shape, dtype=y.dtype, device="cuda")
                    if not row["call"].get("heads_first"):
                        gradient = torch.empty_like(gradient.transpose(1, 2)).contiguous().transpose(1, 2)
                else:
                    gradient = torch.empty_like(y)
                since = len(recorder._events)
                result = torch.autograd.grad(y, wanted, gradient, allow_unused=True)
                recorder._settle_accumulation()
                answer["backward"] = events(since)
                del result, gradient, wanted
            answers[row["name"]] = answer
            del y, space
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    run_and_leave(main)
