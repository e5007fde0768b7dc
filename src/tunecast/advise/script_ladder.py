"""What people change in a script that is to need less memory: the ladder of jobs, in the script's own arguments.

A setting is known by its name (`ALIASES`); where it is given several times, on the command line, in a file and in a
call, the outermost is changed, since the others follow it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tunecast.advise.ladder import A_STEP, EIGHT_BIT, LEAST_RANK, LEAST_TOKENS, Harm
from tunecast.job.optimizers import OPTIMIZERS
from tunecast.records import NamedTuple
from tunecast.tape.trace.facts import ScriptSetting, plain_name

ALIASES: Mapping[str, tuple[str, ...]] = {
    "micro_batch": (
        *("per_device_train_batch_size", "per_device_batch_size", "micro_batch_size", "device_batch_size"),
        *("train_batch_size", "micro_batch", "batch_size"),
    ),
    "grad_accum": (
        *("gradient_accumulation_steps", "grad_accumulation_steps", "gradient_accumulation", "grad_accum"),
        *("accumulate_grad_batches", "accumulation_steps", "accum_steps"),
    ),
    "seq_len": (
        *("max_seq_length", "max_length", "max_seq_len", "seq_len", "seq_length", "sequence_length", "sequence_len"),
        *("block_size", "context_length", "cutoff_len", "model_max_length"),
    ),
    "gradient_checkpointing": (
        *("gradient_checkpointing", "grad_checkpointing", "activation_checkpointing", "use_gradient_checkpointing"),
    ),
    "optimizer": ("optim", "optimizer"),
    "liger": ("use_liger_kernel", "use_liger"),
    "attention": ("attn_implementation", "attention"),
    "rank": ("lora_r", "lora_rank", "r"),
    "bf16": ("bf16",),
    "fp16": ("fp16",),
}
PLACES = ("option", "file", "call")
MOST_PIECES = 32
"""Micro-batches of a step that are still traced: each takes as long as the first."""
FEWER_ROWS = "fewer rows per step: the script has no argument for accumulating gradients that would make up for it"


class ScriptSet(NamedTuple):
    """A setting of the script, and another value for it."""

    setting: ScriptSetting
    value: Any

    @property
    def name(self) -> str:
        """`--batch-size`, `TrainingArguments.bf16`, `config.yaml: train.batch_size`."""
        setting = self.setting
        if setting.place == "option":
            return setting.spelled
        if setting.place == "call":
            return f"{setting.spelled}.{setting.name}"
        return f"{setting.spelled.rpartition('/')[2]}: {setting.name}"

    @property
    def words(self) -> list[str]:
        """What is added to the command line, of an option."""
        setting = self.setting
        if setting.takes == "value":
            return [setting.spelled, str(self.value)]
        off = setting.takes == "switch" and not self.value
        return [f"--no-{setting.spelled[2:]}" if off else setting.spelled]


Sets = tuple[ScriptSet, ...]


class ScriptRung(NamedTuple):
    group: str
    """Of rungs of one group one is taken; of `Harm.OTHER` it is the name `--allow` takes."""
    harm: Harm
    settings: tuple[Sets, ...]
    """The mildest first."""
    quality: tuple[str, ...] = ()
    note: str | None = None


ALLOWED_OF_SCRIPTS = ("micro_batch", "rank", "seq_len")
"""What only the user can allow, by name."""


class SettingsByMeaning:
    """Settings of a script by what they mean: one each, the outermost."""

    def __init__(self, found: Sequence[ScriptSetting]) -> None:
        self.by_meaning = {meaning: setting for meaning in ALIASES if (setting := _outermost(found, meaning))}

    def value(self, meaning: str) -> Any:
        setting = self.by_meaning.get(meaning)
        return None if setting is None else setting.value

    def to(self, meaning: str, value: Any) -> Sets:
        return (ScriptSet(self.by_meaning[meaning], value),)

    def can_switch_on(self, meaning: str) -> bool:
        """Whether it is off, and can be given as on."""
        setting = self.by_meaning.get(meaning)
        return setting is not None and setting.takes != "no flag" and _is_off(setting.value)


def _outermost(found: Sequence[ScriptSetting], meaning: str) -> ScriptSetting | None:
    names = ALIASES[meaning]
    alike = [each for each in found if plain_name(each.name) in names]
    return min(alike, key=lambda each: (PLACES.index(each.place), names.index(plain_name(each.name))), default=None)


def _is_off(value: Any) -> bool:
    return value in (False, None) or str(value).lower() in ("false", "none", "no", "0", "")


def rungs_of(found: Sequence[ScriptSetting]) -> list[ScriptRung]:
    """What a script's own arguments can change, from least harm to most: in the order of `ladder.LESS_MEMORY`."""
    return [rung for rung in _rungs(SettingsByMeaning(found)) if rung.settings]


def _rungs(of: SettingsByMeaning) -> Iterator[ScriptRung]:
    same, rounded, other = Harm
    for group in ("gradient_checkpointing", "liger"):
        yield ScriptRung(group, same, (of.to(group, True),) if of.can_switch_on(group) else ())
    yield ScriptRung("attention", same, (of.to("attention", "sdpa"),) if of.value("attention") == "eager" else ())
    optimizer = OPTIMIZERS.get(str(of.value("optimizer")))
    fused, eight_bit = (None, None) if optimizer is None else (optimizer.fused, optimizer.eight_bit)
    yield ScriptRung("optimizer", same, (of.to("optimizer", fused),) if fused else ())
    batches = tuple(_smaller_batches(of))
    accumulates = "grad_accum" in of.by_meaning
    yield ScriptRung("micro_batch", same, batches if accumulates else ())
    yield ScriptRung("optimizer", rounded, (of.to("optimizer", eight_bit),) if eight_bit else (), (EIGHT_BIT,))
    is_float32 = of.can_switch_on("bf16") and _is_off(of.value("fp16"))
    yield ScriptRung("precision", rounded, (of.to("bf16", True),) if is_float32 else ())
    yield ScriptRung("micro_batch", other, () if accumulates else batches, note=FEWER_ROWS)
    yield ScriptRung("rank", other, tuple(_halves(of, "rank", LEAST_RANK)))
    yield ScriptRung("seq_len", other, tuple(_halves(of, "seq_len", LEAST_TOKENS)))


def _smaller_batches(of: SettingsByMeaning) -> Iterator[Sets]:
    """The same rows per step in more pieces, where gradients can be accumulated; else fewer."""
    batch, pieces = of.value("micro_batch"), of.value("grad_accum")
    if not _is_count(batch):
        return
    accumulates = "grad_accum" in of.by_meaning
    rows = batch * (pieces if _is_count(pieces) else 1)
    last = float(batch)
    for each in range(batch - 1, 0, -1):
        if rows // each > MOST_PIECES and accumulates:
            return
        if rows % each == 0 and (last / each >= A_STEP or each == 1):
            last = each
            yield (*of.to("micro_batch", each), *(of.to("grad_accum", rows // each) if accumulates else ()))


def _halves(of: SettingsByMeaning, meaning: str, least: int) -> Iterator[Sets]:
    value = of.value(meaning)
    while _is_count(value) and value // 2 >= least:
        value //= 2
        yield of.to(meaning, value)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
