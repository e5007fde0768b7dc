"""Trace program.py with the real packages; writes events.json.gz.

    PYTHONPATH=src python tests/golden/stacks/gptqmodel/make.py ENV/bin/python

ENV: gptqmodel 7.7.0, transformers 5.22.2, peft 0.21.2, torch 2.15.0.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Iterable
from pathlib import Path

from tunecast.tape.card import Card
from tunecast.tape.op import Event
from tunecast.tape.trace.run import trace_script

HERE = Path(__file__).parent
sys.path.append(str(HERE.parents[1] / "tools"))  # not stacks: its folders would pass for packages
import sizes  # noqa: E402

CARD = Card()
CONFIG = {
    "model_type": "llama", "hidden_size": 256, "intermediate_size": 640, "num_hidden_layers": 2,
    "num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 2048, "max_position_embeddings": 1024,
}  # fmt: skip
GPTQ = {
    "config": CONFIG, "format": "gptq", "bits": 4, "group": 128, "autocast": "float16", "recomputed": False, "batch": 2,
    "length": 192, "stored": {"quant_method": "gptq", "bits": 4, "group_size": 128},
}  # fmt: skip
"""`stored` is what config.json says of it."""
AWQ = GPTQ | {"format": "awq", "stored": {"quant_method": "awq", "bits": 4, "group_size": 128}}
BIASED = CONFIG | {"attention_bias": True, "mlp_bias": True}
CASES = {
    "kept": GPTQ,
    "recomputed": GPTQ | {"recomputed": True},
    "8 bits, groups of 32": GPTQ
    | {"bits": 8, "group": 32, "stored": {"quant_method": "gptq", "bits": 8, "group_size": 32}},
    "awq": AWQ,
    "awq recomputed": AWQ | {"recomputed": True},
    "awq biased, groups of 64": AWQ
    | {"config": BIASED, "group": 64, "stored": {"quant_method": "awq", "bits": 4, "group_size": 64}},
    "awq long": AWQ | {"length": 768},
    "awq in bfloat16": AWQ | {"autocast": "bfloat16", "length": 768, "recomputed": True},
}
"""768 tokens of two rows are beyond where AWQ's kernel dequantises whole weights."""
SMALL, LARGE = 25_000, 30_000_000
"""Left out: tables of positions, which transformers 5.22 makes otherwise than the 5.17 that is followed, and the
workspace its matrix product would have brought."""


def told(events: Iterable[Event]) -> list[int]:
    return sizes.told(events, lambda nbytes: SMALL < nbytes < LARGE)


def main() -> None:
    found = {}
    for name, case in CASES.items():
        tape, answer = trace_script(
            str(HERE / "program.py"), [json.dumps(case)], CARD, as_module=False, steps=2, nproc_per_node=1, nnodes=1,
            models={}, python=sys.argv[1],
        )  # fmt: skip
        if answer.error:
            raise SystemExit(f"{name}: {answer.error}\n{answer.detail}")
        found[name] = told(tape.events)
        print(name, len(found[name]), flush=True)
    (HERE / "events.json.gz").write_bytes(gzip.compress(json.dumps(found).encode(), mtime=0))


if __name__ == "__main__":
    main()
