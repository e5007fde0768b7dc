"""What the host takes for a pass that autograd does not record: passes of models so small that the card always waits.

    python benchmarks/host_generation.py OUT.jsonl        on a card

Of each model, by turns, so that a host that changes its speed changes all alike: a forward pass with history, the same
without (`torch.no_grad`), and tokens of `generate()`: seconds each, the median of `TURNS`, and how many operations and
modules of each. `host_fit.py`'s figures are of passes with history; these say what the others are of them.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
MODELS = HERE.parent / "src" / "tunecast" / "job" / "models"
TINY = {
    "hidden_size": 128, "intermediate_size": 256, "vocab_size": 512, "num_attention_heads": 2, "num_key_value_heads": 1,
    "head_dim": 64, "num_hidden_layers": 6, "max_position_embeddings": 2048, "layer_types": None,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
NAMES = ("llama-3.2-1b", "qwen2.5-0.5b", "qwen3-0.6b", "gemma-3-1b", "olmo-2-1b")
ALL, TWO = "all-linear", ["q_proj", "v_proj"]
TURNS, ROWS, LENGTH = 25, 2, 64
FEW, MANY = 8, 40


def counted(torch: Any, run: Callable[[], Any]) -> dict[str, int]:
    from torch.nn.modules.module import register_module_forward_pre_hook
    from torch.utils._python_dispatch import TorchDispatchMode

    class Count(TorchDispatchMode):  # type: ignore[misc]
        operations = 0

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.operations += not function.is_view
            return function(*args, **(kwargs or {}))

    calls = [0]

    def called(*_: Any) -> None:
        calls[0] += 1

    hook = register_module_forward_pre_hook(called)
    with Count() as count:
        run()
    hook.remove()
    return {"operations": count.operations, "modules": calls[0]}


def seconds(torch: Any, run: Callable[[], Any]) -> float:
    torch.cuda.synchronize()
    began = time.perf_counter()
    run()
    ended = time.perf_counter()
    torch.cuda.synchronize()
    return ended - began


def measured(name: str, targets: Any) -> dict[str, Any]:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    raw = json.loads((MODELS / f"{name}.json").read_text()) | TINY
    config = AutoConfig.for_model(raw.pop("model_type"), **raw)
    with torch.device("cuda"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    if targets is not None:
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(model, LoraConfig(r=8, target_modules=targets, task_type="CAUSAL_LM"))
    ids = torch.randint(3, 500, (ROWS, LENGTH), device="cuda")
    mask = torch.ones_like(ids)
    adapted = targets is not None

    def forward() -> Any:
        with torch.autocast("cuda", torch.bfloat16, enabled=adapted):
            return model(input_ids=ids, attention_mask=mask, use_cache=False, logits_to_keep=1)

    def without() -> Any:
        with torch.no_grad():
            return forward()

    def generate(tokens: int) -> Any:
        with torch.no_grad(), torch.autocast("cuda", torch.bfloat16, enabled=adapted):
            return model.generate(
                input_ids=ids, attention_mask=mask, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=True,
                use_cache=True,
            )  # fmt: skip

    runs = {
        "recorded": forward, "not_recorded": without, "few": lambda: generate(FEW), "many": lambda: generate(MANY),
    }  # fmt: skip
    for run in runs.values():
        run()
        run()
    spent: dict[str, list[float]] = {kind: [] for kind in runs}
    for _ in range(TURNS):
        for kind, run in runs.items():
            spent[kind].append(seconds(torch, run))
    counts = {kind: counted(torch, run) for kind, run in runs.items()}
    middle = {kind: statistics.median(values) for kind, values in spent.items()}
    per_token = [(m - f) / (MANY - FEW) for m, f in zip(spent["many"], spent["few"], strict=True)]
    per = {key: (counts["many"][key] - counts["few"][key]) / (MANY - FEW) for key in ("operations", "modules")}
    return {
        "model": name, "targets": targets, "autocast": adapted,
        "recorded": {"s": middle["recorded"], **counts["recorded"]},
        "not_recorded": {"s": middle["not_recorded"], **counts["not_recorded"]},
        "token": {"s": statistics.median(per_token), **per},
        "ratio": statistics.median(b / a for a, b in zip(spent["recorded"], spent["not_recorded"], strict=True)),
    }  # fmt: skip


def main() -> None:
    with Path(sys.argv[1]).open("a") as out:
        for name in NAMES:
            for targets in (None, ALL, TWO):
                row = measured(name, targets)
                out.write(json.dumps(row) + "\n")
                out.flush()
                print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
