"""What contradicts what in what a job is trained for (rules of `check.py`)."""

from __future__ import annotations

from tunecast.job.kernels import CUT_HEAD, FUSED_HEAD, LIGER_PARTS
from tunecast.job.knob import shown
from tunecast.job.names import HEADS, PREFERENCES, REFERENCED
from tunecast.job.rules import Rule, adding_to
from tunecast.job.stacks import STACKS, stacks_where

RULES: list[Rule] = []
rule = adding_to(RULES)
LABELS = {"reward": 1, "rerank": 1, "classify": 2, "prm": 2}
"""Outputs of a task's head where nobody says: one of a reward (trl/trainer/reward_trainer.py) and of a reranker, else
`num_labels` of transformers' configurations."""


@rule("task", "stack")
def task_is_modelled(task: str, stack: str) -> str | None:
    if task in STACKS[stack].tasks:
        return None
    known = ", ".join(name for name, each in STACKS.items() if task in each.tasks)
    got = f"got {task}, which is not modelled of {stack}; allowed there: {', '.join(STACKS[stack].tasks)}"
    return f"{got}. To fix: stack {known}; or trace your own script, `tunecast trace -- train.py`"


@rule("head.labels", "task")
def outputs_of_a_head(labels: int | None, task: str) -> str | None:
    """trl/trainer/reward_trainer.py: "reward models require `num_labels=1`"."""
    if task == "reward" and labels != 1:
        return f"got {labels} with task reward, whose trainer takes a model of one output; allowed: 1; nearest: 1"
    if task == "embed" and labels is not None:
        return f"got {labels} with task embed, which compares hidden states and has no head; allowed: null"
    return None


@rule("head.negatives", "task", "stack")
def texts_of_a_sample(negatives: int, task: str, stack: str) -> str | None:
    """Of rerankers `micro_batch` counts pairs, but for Automodel's, whose samples are a query's passages."""
    if not negatives or task == "embed" or (task == "rerank" and STACKS[stack].runs_own_tasks):
        return None
    return f"got {negatives} with task {task}, whose samples are single texts; allowed: 0; nearest: 0"


@rule("distill.teacher", "task", "stack")
def a_student_has_a_teacher(teacher: str | None, task: str, stack: str) -> str | None:
    if teacher is not None or task != "distill" or task not in STACKS[stack].tasks:
        return None
    return "got null with task distill, which learns from another model; allowed: a model's name, as llama-3.1-70b"


@rule("distill.teacher", "task", "stack")
def a_teacher_of_rollouts(teacher: str | None, task: str, stack: str) -> str | None:
    """swift/rlhf_trainers/grpo_trainer.py, `_setup_teacher`; TRL's GRPOTrainer has none."""
    if teacher is None or task == "distill" or STACKS[stack].hears_teachers:
        return None
    known = stacks_where(lambda each: each.hears_teachers)
    return f"got {teacher} with task {task}; known of {known}; allowed with {stack}: null; nearest: null"


@rule("distill.on_policy", "task")
def rollouts_are_the_students(share: float | None, task: str) -> str | None:
    if share is None or task == "distill":
        return None
    return f"got {shown(share)} with task {task}, which generates all completions; allowed: null; nearest: null"


@rule("distill.top_k", "task", "stack", "distill.place")
def largest_logits(top: int | None, task: str, stack: str, place: str) -> str | None:
    """swift/megatron/trainers/gkd_trainer.py, `gkd_logits_topk`."""
    if top is None or (task == "distill" and (STACKS[stack].uses_megatron or place == "server")):
        return None
    got = f"got {top} with task {task} of {stack} and a teacher on its cards"
    return f"{got}; allowed: null, or distill of megatron, or distill.place server; nearest: null"


@rule("data.packing", "task", "stack")
def rows_of_their_own(packing: bool, task: str, stack: str) -> str | None:
    """Their collators pad (trl/trainer/reward_trainer.py, `DataCollatorForPreference`; transformers' with padding);
    Megatron Core's rows are packed whatever the head (swift/megatron/trainers/base.py)."""
    if not packing or task not in (*HEADS, "distill") or STACKS[stack].uses_megatron:
        return None
    return f"got true with task {task}, whose trainer pads rows and packs none; allowed: false; nearest: false"


@rule("preference.reference", "task", "method")
def reference_of_its_task(reference: str | None, task: str, method: str) -> str | None:
    """Where adapters are trained the model without them may be the reference; else it takes a model of its own."""
    if reference is None or task not in PREFERENCES:
        return None
    if task not in REFERENCED:
        told = f"with task {task}, whose loss asks no reference; allowed: null; nearest: null"
        return None if reference == "none" else f"got {reference} {told}"
    if reference == "none":
        return f"got none with task {task}, whose loss asks one; allowed: model, precomputed, null; nearest: null"
    if reference == "adapters_off" and method == "full":
        return "got adapters_off with method full, which has no adapters; allowed: model, precomputed; nearest: model"
    return None


@rule("preference.sft_weight", "task")
def sft_weight_of_its_task(weight: float | None, task: str) -> str | None:
    if not weight or task not in PREFERENCES or task in ("cpo", "simpo"):
        return None
    return f"got {shown(weight)} with task {task}; allowed: with cpo, simpo; nearest: null"


@rule("kernels", "task")
def heads_of_their_own(kernels: tuple[str, ...], task: str) -> str | None:
    """liger_kernel/transformers/monkey_patch.py, `apply_liger_kernel_to_llama`: an instance is given the forward pass
    of a language model, which looks for its `lm_head`. sentence-transformers' model is none of transformers', and Liger
    leaves it as it is (transformers/integrations/liger.py, `apply_liger_kernel`)."""
    fused = [name for name in kernels if name in ("liger", FUSED_HEAD, CUT_HEAD)]
    if task not in HEADS or not fused:
        return None
    parts = ", ".join(name for name in LIGER_PARTS if name != FUSED_HEAD)
    return f"got {fused[0]} with task {task}, whose model has no vocabulary to fuse; allowed: {parts}; nearest: none"


@rule("loss", "task")
def no_logits_to_chunk(loss: str | None, task: str) -> str | None:
    if loss is None or task not in HEADS:
        return None
    return f"got {loss} with task {task}, whose model makes no logits of a vocabulary; allowed: null; nearest: null"
