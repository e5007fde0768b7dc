"""transformers' `generate()`: nobody knows what a model without contents would write, so it writes as much as it may.

`GenerationMixin._sample` (generation/utils.py) goes on until every row has drawn its end or is as long as allowed.
Tokens drawn from scores that nobody knows are taken to be no end, so that all rows become as long as allowed. That is a
guess wherever a row may end before, since what follows is as long as the longest row.
"""

from __future__ import annotations

import functools
from itertools import count
from types import ModuleType
from typing import Any

from tunecast.tape.trace.packages import after_import
from tunecast.tape.trace.recorder import Recorder

TO_THE_END = "completions are taken to be as long as generation allows: none ends before"


def install(recorder: Recorder) -> None:
    after_import("transformers.generation.utils", lambda module: write_to_the_end(module, recorder))
    after_import("trl.generation.vllm_generation", lambda module: generate_apart(module, recorder))


def generate_apart(module: ModuleType, recorder: Recorder) -> None:
    """vLLM writes (trl/generation/vllm_generation.py, `VLLMGeneration.generate`): what follows scores it."""
    generate = module.VLLMGeneration.generate

    @functools.wraps(generate)
    def generating(self: Any, *args: Any, **kwargs: Any) -> Any:
        with recorder.scopes.generating():
            return generate(self, *args, **kwargs)

    module.VLLMGeneration.generate = generating  # type: ignore[attr-defined]


def write_to_the_end(module: ModuleType, recorder: Recorder) -> None:
    generate = module.GenerationMixin.generate

    @functools.wraps(generate)
    def generating(self: Any, *args: Any, **kwargs: Any) -> Any:
        config = kwargs.get("generation_config") or self.generation_config
        if may_end_before(config, self.generation_config, kwargs):
            recorder.guesses[TO_THE_END] = 1
        with recorder.scopes.generating(), recorder.values.drawing(plain_token(config, self.generation_config)):
            return generate(self, *args, **kwargs)

    module.GenerationMixin.generate = generating  # type: ignore[attr-defined]


def may_end_before(config: Any, default: Any, words: dict[str, Any]) -> bool:
    """Whether a token ends a completion (`EosTokenCriteria`) that need not be as long as allowed
    (`MinNewTokensLengthLogitsProcessor`). Keywords go before the configuration, that before the model's own."""

    def setting(name: str) -> Any:
        values = (words.get(name), getattr(config, name, None), getattr(default, name, None))
        return next((value for value in values if value is not None), None)

    least, most = setting("min_new_tokens"), setting("max_new_tokens")
    return setting("eos_token_id") is not None and not (least is not None and most is not None and least >= most)


def plain_token(*configs: Any) -> int:
    """The first that ends nothing and pads nothing."""
    special: set[Any] = set()
    for config in configs:
        for name in ("eos_token_id", "pad_token_id", "bos_token_id"):
            value = getattr(config, name, None)
            special.update(value if isinstance(value, (list, tuple)) else (value,))
    return next(token for token in count() if token not in special)
