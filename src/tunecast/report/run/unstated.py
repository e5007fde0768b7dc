"""What a job does not say, what was taken for it, and what another value would change. Pure: effects in, text out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tunecast.advise.unstated import Effect, Taken
from tunecast.hardware.catalog import gpu as gpu_named
from tunecast.hardware.spec import card_name
from tunecast.job.stacks import STACKS
from tunecast.planning.choice import DOLLARS
from tunecast.planning.taken import BATCH, LARGER
from tunecast.prediction.verdict import Verdict
from tunecast.report.draw.figures import shown
from tunecast.report.draw.text import DEFAULT, Terminal, section, wrapped
from tunecast.report.plan.words import amount
from tunecast.report.run.time import duration
from tunecast.units import MIB, gib

TITLE = "Not given, so taken"
WORTH_BYTES = 50 * MIB
"""Less is not told of what fills a card."""

NAMES: Mapping[str, Callable[[Any], str]] = {
    "hardware.gpu": lambda name: card_name(gpu_named(name).name),
    "stack": lambda stack: STACKS[stack].title or stack,
    "rl.engine": lambda engine: f"completions by {_engine(engine)}",
    "method": lambda method: {"full": "full fine-tuning", "lora": "LoRA", "qlora": "QLoRA"}[method],
    "micro_batch": lambda rows: f"batch {rows} per GPU",
    "global_batch": lambda rows: f"{rows} rows per optimizer step",
    "seq_len": lambda tokens: f"{tokens:,} tokens per row",
    "data.lengths": lambda _: "every row full",
    "weights_dtype": lambda dtype: f"{dtype} weights",
    "lora.targets": lambda given: f"adapters on {given if isinstance(given, str) else ', '.join(given)}",
    "lora.rank": lambda rank: f"rank {rank}",
    "optimizer": str,
    "gradient_checkpointing": lambda on: f"gradient checkpointing {'on' if on else 'off'}",
    "kernels": lambda names: f"with {' and '.join(names)}" if names else "no kernels for layers without attention",
    "data.epochs": lambda epochs: f"{epochs:g} epoch{'' if epochs == 1 else 's'}",
    "run.save_steps": lambda steps: f"a checkpoint every {steps:g} steps",
    "run.save_strategy": lambda when: {"epoch": "one per epoch", "no": "none"}[when],
}
"""How a field's value is said."""
INSTEAD: Mapping[str, Callable[[Any], str]] = {
    **NAMES,
    "micro_batch": lambda rows: f"batch {rows}",
    "rl.engine": lambda engine: _engine(engine),
    "seq_len": lambda tokens: f"{tokens:,}",
    "weights_dtype": str,
    "lora.targets": str,
    "gradient_checkpointing": lambda on: "on" if on else "off",
}
"""The same beside the value it replaces."""


def _engine(name: str) -> str:
    return "vLLM" if name == "vllm" else "transformers' generate()"


def taken_text(every: Sequence[Taken], found: Sequence[Effect], before: Verdict, terminal: Terminal = DEFAULT) -> str:
    """`every` that was taken; `found`: of those worth it, what another value would do. '' where all was given."""
    return section(TITLE, wrapped(taken_lines(every, found, before), "  ", terminal), terminal)


def taken_lines(every: Sequence[Taken], found: Sequence[Effect], before: Verdict) -> list[str]:
    """A line each, those whose other value moves nothing in one."""
    effects = {effect.taken.field: effect for effect in found}
    lines = [
        f"{value_words(each)}; {effect_words(effects[each.field], before)}" for each in every if each.field in effects
    ]
    rest = "; ".join(value_words(each) for each in every if each.field not in effects)
    return [shown(line) for line in (*lines, rest) if line]


def value_words(each: Taken) -> str:
    """`batch 8 per GPU (transformers' default)`."""
    value = NAMES[each.field](each.value)
    if each.field == "hardware.gpu":
        return f"on one {value} (--gpu names another)"
    return f"{value} ({each.whose})" if each.whose else value


def effect_words(effect: Effect, before: Verdict) -> str:
    """`batch 1: 12.30 GiB less, fits, 4 % slower per token`; of a whole job its time and cost."""
    told = []
    if abs(effect.more_bytes) >= WORTH_BYTES:
        told.append(f"{gib(abs(effect.more_bytes))} {'more' if effect.more_bytes > 0 else 'less'}")
    if effect.verdict != before:
        told.append(effect.verdict)
    if effect.verdict == "does not fit":
        pass  # it neither takes time nor costs anything here
    elif effect.total_s is not None:
        told.append(duration(effect.total_s))
        told += [] if effect.usd is None else [amount(effect.usd, DOLLARS)]
    elif effect.time_ratio is not None and abs(percent := 100 * (effect.time_ratio - 1)) >= 1:
        told.append(f"{abs(percent):.0f} % {'slower' if percent > 0 else 'faster'} per token")
    return f"{_instead(effect.taken)}: {', '.join(told) or 'hardly any difference'}"


def _instead(each: Taken) -> str:
    if each.field == BATCH:
        return f"{LARGER * each.value} rows"
    field, value = next(iter(each.instead.items()))
    return INSTEAD[field](value)
