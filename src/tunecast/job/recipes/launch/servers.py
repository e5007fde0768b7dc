"""Servers that generate for a training of the same script: `trl vllm-serve`, `swift rollout`, `vllm serve`.

Options: trl/scripts/vllm_serve.py, `ScriptArguments`; swift/arguments/deploy_args.py, `RolloutArguments`.
"""

from __future__ import annotations

from collections.abc import Sequence

from tunecast.job.recipes.draft import Draft
from tunecast.job.recipes.recipe import Place
from tunecast.job.recipes.values import number, whole
from tunecast.job.recipes.words import Word, flags_of

CARDS = (
    ("vllm_tensor_parallel_size", "tensor_parallel_size", "tp"),
    ("vllm_data_parallel_size", "data_parallel_size", "dp"),
    ("vllm_pipeline_parallel_size", "pipeline_parallel_size", "pp"),
)
"""Whose product is the number of its cards."""
SHARE = ("vllm_gpu_memory_utilization", "gpu_memory_utilization")


def take_server(draft: Draft, words: Sequence[Word], file: str) -> bool:
    """Whether the training asks this server: then its cards are the job's too."""
    if draft.fields.get("rl.vllm.place") != "server" or "rl.vllm.cards" in draft.places:
        return False
    given = flags_of(list(words[1:]))
    cards = 1
    for names in CARDS:
        cards *= next((count for name in names if (count := whole(given.values.get(name)))), 1)
    share = next((part for name in SHARE if (part := number(given.values.get(name)))), None)
    said = {"rl.vllm.cards": cards, "rl.vllm.memory_fraction": share}
    for field, value in said.items():
        if value is not None:
            draft.fields[field] = value
            draft.places[field] = Place(file, words[0].line, " ".join(words[:2]))
            draft.assumed.pop(field, None)
    return True
