"""What contradicts what in a job. One small function a rule; the first field it names is to blame unless it says.

A rule is given the values of its fields and answers with a sentence, or None. It is passed over when one of them is
already known to be wrong, so that one mistake is told once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from tunecast.job import check_images, check_parallel, check_tasks
from tunecast.job.kernels import CUT_HEAD, FUSED_HEAD, FUSED_LOSS, LIGER_PARTS, LORA_TRITON
from tunecast.job.knob import Problem, knobs_of, shown
from tunecast.job.names import BITSANDBYTES, TASKS
from tunecast.job.optimizers import OPTIMIZERS
from tunecast.job.rules import Rule, adding_to
from tunecast.job.sections import Lora, Quantization, Run
from tunecast.job.stacks import DEFAULT_STACK, SFT_STACK, STACKS
from tunecast.job.task_sections import OF_OTHERS, OF_TASKS, SECTIONS

Values = Mapping[str, Any]

RULES: list[Rule] = []
rule = adding_to(RULES)


def settled(values: Values) -> dict[str, Any]:
    """The values with what follows from them filled in: qlora quantises to nf4 unless told otherwise, what
    transformers' own Trainer does not do is TRL's, and a head has as many outputs as its task usually asks for."""
    full = dict(values)
    if full["stack"] == DEFAULT_STACK and full["task"] not in STACKS[DEFAULT_STACK].tasks:
        full["stack"] = SFT_STACK
    if full["method"] == "qlora" and full["quantization.format"] is None:
        full["quantization.format"] = "nf4"
    if full["head.labels"] is None:
        full["head.labels"] = check_tasks.LABELS.get(full["task"])
    return full


def contradictions(values: Values, given: Collection[str], wrong: Collection[str] = ()) -> list[Problem]:
    """Everything in the values that cannot be together, less what is about a field that is `wrong` already.

    `given` names the fields that were set: a section that says how to do what the method does not do is refused.
    """
    found = [] if "method" in wrong else in_vain(values, [name for name in given if name not in wrong])
    wrong = {*wrong, *(problem.field for problem in found)}
    for fields, objection in (*check_tasks.RULES, *RULES, *check_images.RULES, *check_parallel.RULES):
        if not any(field in wrong for field in fields):
            told = objection(*(values[field] for field in fields))
            if told is not None:
                found.append(told if isinstance(told, Problem) else Problem(fields[0], told))
    return found


def in_vain(values: Values, given: Collection[str]) -> list[Problem]:
    method, quantised = values["method"], values["quantization.format"] not in (None, "float8")
    problems = []
    for name in given:
        section = name.partition(".")[0]
        if name.startswith("lora.") and method == "full":
            why = "with method full, which trains no adapter; allowed: with lora or qlora; nearest: method: lora"
            problems.append(Problem(name, f"got {shown(values[name])} {why}"))
        elif name.startswith("quantization.") and name != "quantization.format" and not quantised:
            packed = values["quantization.format"] or "nothing quantised"
            why = f"with method {method} and {packed}; allowed: with bitsandbytes' qlora; nearest: method: qlora"
            problems.append(Problem(name, f"got {shown(values[name])} {why}"))
        elif values["task"] not in (tasks := OF_TASKS.get(section, TASKS)):
            why = f"with task {values['task']}, {OF_OTHERS[section]}; allowed: with {', '.join(tasks)}"
            problems.append(Problem(name, f"got {shown(values[name])} {why}; nearest: task: {tasks[0]}"))
    return problems


def changed(values: Values) -> list[str]:
    """The fields of optional sections that do not hold their defaults: all that a job made in Python can show."""
    optional = {"lora": Lora, "quantization": Quantization, **SECTIONS}
    return [
        f"{section}.{name}"
        for section, of in optional.items()
        for name, knob in knobs_of(of).items()
        if values[f"{section}.{name}"] != knob.default
    ]


@rule("trained", "method", "stack")
def some_parts_of_a_whole_model(trained: tuple[str, ...] | None, method: str, stack: str) -> str | None:
    if trained is None or (method == "full" and STACKS[stack].uses_accelerate):
        return None
    if method != "full":
        return f"got {shown(trained)} with method {method}, which trains adapters; allowed: with full; nearest: null"
    known = ", ".join(name for name, each in STACKS.items() if each.uses_accelerate)
    return f"got {shown(trained)}, known of {known}; allowed with {stack}: null"


@rule("quantization.format", "method")
def quantised_means_qlora(packed: str | None, method: str) -> str | None:
    """NeMo calls float8 weights with adapters lora: its adapters know no qlora."""
    if packed is None or method == "qlora" or (packed, method) == ("float8", "lora"):
        return None
    near = "method: qlora" if method == "lora" else "null"
    return f"got {packed} with method {method}; allowed: null, or with method qlora; nearest: {near}"


@rule("quantization.double_quant", "quantization.format")
def double_quant_is_four_bit(double: bool, packed: str | None) -> str | None:
    if not double or packed in (None, "nf4", "fp4", "float8"):
        return None
    return f"got true with format {packed}, whose scales stay as they are; allowed: with nf4 or fp4; nearest: false"


@rule("quantization.experts", "quantization.format")
def experts_of_bitsandbytes(experts: bool, packed: str | None) -> str | None:
    if not experts or packed in BITSANDBYTES:
        return None
    return f"got true with format {packed}; allowed: with {', '.join(BITSANDBYTES)}; nearest: false"


@rule("lora.dora", "quantization.format")
def packed_weights_take_plain_adapters(dora: bool, packed: str | None) -> str | None:
    """peft/tuners/lora/gptq.py: "GPTQLoraLinear does not support DoRA yet, please set it to False", and awq.py the
    same. It dequantises bitsandbytes' weights alone (peft/utils/integrations.py, `dequantize_module_weight`)."""
    if not dora or packed in (None, "float8", *BITSANDBYTES):
        return None
    return (
        f"got true with weights in {packed}, which PEFT refuses; allowed: with nf4, fp4, int8 or null; nearest: false"
    )


@rule("weights_dtype", "quantization.format")
def awq_computes_in_16_bits(dtype: str, packed: str | None) -> str | None:
    """gptqmodel/nn_modules/qlinear/torch.py, `SUPPORTS_DTYPES`; optimum 2.3.0 compares none of GPTQ's with that."""
    if dtype != "float32" or packed != "awq":
        return None
    got = f"got float32 with weights in {packed}, whose layers compute in 16 bits"
    return f"{got}; allowed: float16 or bfloat16; nearest: float16"


@rule("matmul_dtype", "quantization.format", "method")
def float8_needs_plain_weights(matmul: str | None, packed: str | None, method: str) -> str | None:
    if matmul is None or method != "qlora" or packed == "float8":
        return None
    got = f"got {matmul} with weights in {packed}, which compute in autocast's dtype"
    return f"{got}; allowed: null with qlora; nearest: null"


@rule("attention", "weights_dtype", "autocast")
def flash_needs_half(attention: str, dtype: str, autocast: str | None) -> str | None:
    """flash-attn has kernels for 16-bit inputs only."""
    if not attention.startswith("flash") or dtype != "float32" or autocast is not None:
        return None
    got = f"got {attention} with weights_dtype float32 and autocast null, but it takes 16-bit inputs only"
    return f"{got}; allowed: sdpa or eager, or autocast: bfloat16; nearest: sdpa"


@rule("kernels")
def one_loss_of_liger(kernels: tuple[str, ...]) -> str | None:
    """liger_kernel/transformers/monkey_patch.py: "cross_entropy and fused_linear_cross_entropy cannot both be True"."""
    if FUSED_LOSS not in kernels or not {"liger", FUSED_HEAD} & set(kernels):
        return None
    other = FUSED_HEAD if FUSED_HEAD in kernels else "liger"
    return f"got {FUSED_LOSS} with {other}, which has a loss of its own; allowed: one of the two; nearest: {other}"


@rule("kernels")
def one_head_and_loss(kernels: tuple[str, ...]) -> str | None:
    """axolotl/utils/schemas/validation.py refuses more than one of them."""
    heads = [name for name in (CUT_HEAD, FUSED_LOSS, FUSED_HEAD, "liger") if name in kernels]
    if CUT_HEAD not in kernels or len(heads) == 1:
        return None
    other = heads[1]
    remedy = "Liger's other parts by their names" if other == "liger" else "one of the two"
    return f"got {CUT_HEAD} with {other}, which has a loss of its own; allowed: {remedy}; nearest: {CUT_HEAD}"


@rule("lora.targets", "stack")
def names_or_patterns(targets: str | tuple[str, ...] | None, stack: str) -> str | None:
    pattern = next((each for each in targets or () if "*" in each or each[:1] == "!"), None)
    if pattern is None or isinstance(targets, str) or STACKS[stack].matches_paths:
        return None
    known = ", ".join(name for name, each in STACKS.items() if each.matches_paths)
    return f"got {pattern}, a pattern, which {known} takes; allowed with {stack}: names of modules, as q_proj"


@rule("loss", "stack")
def logits_not_widened(loss: str | None, stack: str) -> str | None:
    if loss != "low_precision" or STACKS[stack].has_narrow_loss:
        return None
    known = ", ".join(name for name, each in STACKS.items() if each.has_narrow_loss)
    return f"got low_precision, known of {known}; allowed with {stack}: full, chunked or null; nearest: full"


@rule("loss", "stack")
def loss_of_megatron(loss: str | None, stack: str) -> str | None:
    if loss != "fused" or STACKS[stack].uses_megatron:
        return None
    return f"got fused, known of stacks around Megatron; allowed with {stack}: full, chunked or null; nearest: full"


@rule("kernels", "method")
def fused_adapters_need_adapters(kernels: tuple[str, ...], method: str) -> str | None:
    if LORA_TRITON not in kernels or method != "full":
        return None
    return f"got {LORA_TRITON} with method full, which has no adapters; allowed: with lora or qlora; nearest: none"


@rule("kernels")
def foak_has_its_own(kernels: tuple[str, ...]) -> str | None:
    """fms-acceleration has norms, rotations, losses and adapters of its own, and of Liger's the fused head alone."""
    others = [name for name in kernels if name in (*LIGER_PARTS, CUT_HEAD, LORA_TRITON)]
    if "foak" not in kernels or not others:
        return None
    return f"got {others[0]} with foak, which has its own; allowed: foak, or foak and liger; nearest: foak"


@rule("weights_dtype", "autocast", "method")
def scaler_needs_wide_weights(dtype: str, autocast: str | None, method: str) -> str | None:
    """torch.amp.GradScaler.unscale_ raises "Attempting to unscale FP16 gradients."."""
    if (dtype, autocast, method) != ("float16", "float16", "full"):
        return None
    return _SCALER.format(allowed="float32, or autocast: bfloat16")


@rule("lora.adapter_dtype", "autocast", "method")
def scaler_needs_wide_adapters(dtype: str, autocast: str | None, method: str) -> str | None:
    """The same, of the parameters that are trained."""
    if method == "full" or (dtype, autocast) != ("float16", "float16"):
        return None
    return _SCALER.format(allowed="float32 or bfloat16, or autocast: bfloat16")


_SCALER = (
    "got float16 with autocast float16, but the loss scaler refuses float16 gradients; "
    "allowed: {allowed}; nearest: float32"
)


@rule("optimizer_state_dtype", "optimizer", "stack")
def moments_of_their_dtype(dtype: str | None, optimizer: str, stack: str) -> str | None:
    return _of_optimizer(dtype, "state_dtypes", ("float32", "bfloat16"), optimizer, stack)


@rule("master_weights", "optimizer", "stack")
def masters_of_their_optimizer(masters: str | None, optimizer: str, stack: str) -> str | None:
    return _of_optimizer(masters, "masters", ("float32", "remainders"), optimizer, stack)


def _of_optimizer(given: str | None, able: str, of_megatron: tuple[str, ...], optimizer: str, stack: str) -> str | None:
    """The Trainer's checkpoints are told with an optimizer as it is by itself."""
    has_files, megatron = STACKS[stack].uses_trainer, STACKS[stack].uses_megatron
    own: tuple[str, ...] = of_megatron if megatron else () if has_files else getattr(OPTIMIZERS[optimizer], able)
    if given is None or given in own:
        return None
    if own:
        return f"got {given} with stack {stack}, optimizer {optimizer}; allowed: {', '.join(own)}, null; nearest: null"
    names = ", ".join(name for name, kind in OPTIMIZERS.items() if getattr(kind, able))
    stacks = ", ".join(name for name, each in STACKS.items() if each.uses_megatron)
    where = f"with {names} on a stack without transformers' Trainer, or with {stacks}"
    return f"got {given} with stack {stack}, optimizer {optimizer}; allowed: {where}; nearest: null"


@rule("lengths", "seq_len")
def lengths_within_rows(lengths: tuple[int, ...] | None, seq_len: int) -> str | None:
    longer = [(i, n) for i, n in enumerate(lengths or ()) if n > seq_len]
    if not longer:
        return None
    i, n = longer[0]
    more = f" (and {len(longer) - 1} more)" if len(longer) > 1 else ""
    got = f"got {n} as lengths[{i}]{more}, above seq_len {seq_len}; allowed: padded lengths from 1 to seq_len"
    return f"{got}; nearest: {seq_len}, or seq_len: {max(lengths or ())}"


MOST_STEPS, MOST_LENGTHS = 4096, 128
"""Every item of `lengths` is an optimizer step that is replayed, and every other length one that is built: so many take
some 10 s. 128 are all there are of rows of up to 8,192 tokens, padded to multiples of 64."""


@rule("lengths")
def lengths_are_few(lengths: tuple[int, ...] | None) -> str | None:
    steps, different = len(lengths or ()), len(set(lengths or ()))
    if steps <= MOST_STEPS and different <= MOST_LENGTHS:
        return None
    got = f"got {steps} lengths, {different} different; allowed: up to {MOST_STEPS}, {MOST_LENGTHS} different"
    return f"{got}, each the padded length of one micro-batch; the lengths of a data set's samples are data.lengths"


MOST_TOKENS = 2**27
"""Of a micro-batch: GPT-2's narrow rows alone, 768 values of 2 bytes, then hold 192 GiB, and no card as much again."""


@rule("micro_batch", "seq_len")
def micro_batch_has_an_end(rows: int, seq_len: int) -> str | None:
    if rows * seq_len <= MOST_TOKENS:
        return None
    got = f"got {rows} rows of {seq_len} tokens, {rows * seq_len} in all"
    return f"{got}; allowed: up to {MOST_TOKENS} tokens per micro-batch; nearest: {MOST_TOKENS // seq_len}"


@rule("data.packing", "lengths")
def packed_rows_are_full(packing: bool, lengths: tuple[int, ...] | None) -> str | None:
    if not packing or lengths is None:
        return None
    return "got true with lengths, but packed rows are always seq_len long; allowed: lengths: null; nearest: false"


@rule("data.max_tokens_per_batch", "data.packing")
def packed_rows_are_counted(tokens: int | None, packing: bool) -> str | None:
    if tokens is None or not packing:
        return None
    return f"got {tokens} with packing, whose rows are of one length; allowed: null, or packing: false; nearest: null"


@rule("data.path", "data.lengths")
def lengths_of_one_data_set(path: str | None, lengths: object) -> str | None:
    if path is None or lengths is None:
        return None
    got = f"got {shown(path)} with data.lengths, which says the same in another way"
    return f"{got}; allowed: one of the two; nearest: null"


@rule("data.path", "lengths")
@rule("data.lengths", "lengths")
def one_list_of_lengths(of_samples: object, lengths: tuple[int, ...] | None) -> str | None:
    if of_samples is None or lengths is None:
        return None
    got = "got the samples' lengths with lengths, which are those of padded micro-batches"
    return f"{got}; allowed: one of the two; nearest: null"


@rule("data.tokens", "data.samples", "data.lengths", "data.path")
def one_measure_of_data(tokens: int | None, samples: int | None, lengths: object, path: str | None) -> str | None:
    if tokens is None or (samples, lengths, path) == (None, None, None):
        return None
    return f"got {tokens} and samples, lengths or path too; allowed: tokens, or the others; nearest: null"


@rule("run.eval_steps", "run.eval_strategy")
def steps_between_evaluations(steps: int | None, strategy: str) -> str | None:
    if steps is None or strategy == "steps":
        return None
    got = f"got {steps} with eval_strategy {shown(strategy)}"
    return f"{got}; allowed: null, or with eval_strategy steps; nearest: null"


@rule("run.evals_per_epoch", "run.eval_steps", "run.eval_strategy")
def one_count_of_evaluations(per_epoch: float | None, steps: int | None, strategy: str) -> str | None:
    if per_epoch is None or (strategy == "steps" and steps is None):
        return None
    if strategy != "steps":
        got = f"got {per_epoch:g} with eval_strategy {shown(strategy)}"
        return f"{got}; allowed: null, or with eval_strategy steps; nearest: null"
    return f"got {per_epoch:g} and eval_steps {steps} too; allowed: one of the two; nearest: null"


@rule("run.saves_per_epoch", "run.save_steps")
def one_count_of_checkpoints(per_epoch: float | None, steps: int) -> str | None:
    if per_epoch is None or steps == knobs_of(Run)["save_steps"].default:
        return None
    return f"got {per_epoch:g} and save_steps {steps} too; allowed: one of the two; nearest: null"
