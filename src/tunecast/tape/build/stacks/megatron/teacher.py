"""A teacher beside a student of Megatron Core, as ms-swift has it: of its logits (GKD), or of what it thinks of
completions (GRPO with a teacher).

Source   swift/megatron/trainers of ms-swift 4.6.0: rollout_mixin.py, `_load_teacher_model` (spread as the student is;
         with adapters and the student's own name, the student without them); gkd_trainer.py,
         `_compute_teacher_logits_local` (of all micro-batches before any is trained on, each with its logits kept, or
         the largest of them) and `loss_func`; swift/rlhf_trainers/gkd_loss.py, `gkd_loss` and `jsd_loss`;
         vocab_parallel_utils.py, `vocab_parallel_log_softmax` and `vocab_parallel_kl_div`. grpo_trainer.py,
         `_compute_teacher_logps`: one more pass than a reference takes.
Taken    where data have the completions, every token is one; beta is neither 0 nor 1, so that the two are compared with
         their mixture; a teacher that waits in host memory while the student trains is on the card all the time
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from tunecast.errors import Unsupported
from tunecast.job.job import Job
from tunecast.tape.build import functional as F
from tunecast.tape.build.chunked import where
from tunecast.tape.build.dtypes import BOOL, FLOAT32, INT64
from tunecast.tape.build.ops.views import narrow
from tunecast.tape.build.score import gather
from tunecast.tape.build.stacks.megatron.linears import MegatronRank
from tunecast.tape.build.stacks.megatron.shape import MegatronShape
from tunecast.tape.build.tensor import Tensor
from tunecast.tape.op import Phase
from tunecast.tape.symbols import starts

CHUNK = 512
"""Tokens that are compared at a time (`jsd_loss`, chunk_size)."""
TEMPERATURE = 1.0
TOP = 64
"""Of a teacher elsewhere, as ms-swift's examples ask for (`gkd_logits_topk`)."""
ON_POLICY = (
    "distill.on_policy: completions are taken as given; what writing them takes, in memory and time, is left out"
)


def is_taught(job: Job) -> bool:
    return job.distill.teacher is not None


def require_one_vocabulary(job: Job, student: MegatronShape, teacher: MegatronShape) -> None:
    """ms-swift fills the smaller one up (`_align_vocab`)."""
    if job.task == "distill" and teacher.vocabulary != student.vocabulary:
        told = (
            f"has {teacher.vocabulary} words, the student {student.vocabulary}; two vocabularies are not written down"
        )
        raise Unsupported.at("distill.teacher", f"{told}. To fix: a teacher of the student's family")


class MegatronTeacher:
    """Who is asked, and what was said of a step's micro-batches: all before the first of them is trained on."""

    def __init__(self, job: Job, gpt: Any, model: Any) -> None:
        """`model`: None where the student is its own teacher, or the teacher elsewhere."""
        self.job, self.gpt, self.model = job, gpt, model
        self.outputs: list[tuple[Tensor, ...]] = []
        if job.task == "distill":
            gpt.machine.guesses[ON_POLICY] = None
            gpt.loss = self.loss

    def ask(self, found: Any, given: Tensor, labels: Tensor | None, tokens: int, images: Mapping[str, Tensor]) -> None:
        """`_compute_teacher_logits_local`, of one micro-batch; `found` gives its logits as they are."""
        machine = self.gpt.machine
        machine.phase, machine.in_forward = Phase.SCORE, False
        own, found.loss = found.loss, logits_as_they_are
        try:
            logits = found(given, labels, tokens, **images)
        finally:
            found.loss = own
        if labels is not None:
            self.outputs.append(self.kept(logits))

    def hear(self, rows: int, tokens: int) -> None:
        """The same of a teacher elsewhere (`_assemble_teacher_outputs`)."""
        machine, top = self.gpt.machine, self.job.distill.top_k or TOP
        if self.gpt.last:
            pair = (FLOAT32, INT64)
            self.outputs.append(tuple(machine.run("_to_copy", (), (rows, tokens, top), dtype) for dtype in pair))

    def kept(self, logits: Tensor) -> tuple[Tensor, ...]:
        machine, top, parts = logits.machine, self.job.distill.top_k, self.gpt.parts
        if top is None:
            return (logits,)
        shape = (*logits.shape[:2], top)
        found = machine.run("topk", (logits,), shape, logits.dtype), machine.run("topk", (), shape, INT64)
        if parts.tensor > 1:
            for each in found:
                machine.collective_of("all_gather", "tensor", parts.tensor, each.dtype, each.numel())
        return found

    def loss(self, logits: Tensor, labels: Tensor, parts: MegatronRank) -> Tensor:
        """The student's, whose logits the last stage gives in float32 (megatron/core/transformer/module.py,
        `Float16Module.forward`)."""
        student = logits_as_they_are(logits, labels, parts)
        del logits
        student = student.float()
        return divergence(student, self.outputs.pop(0), self.labelled(student), parts)

    def labelled(self, student: Tensor) -> int:
        """Tokens that are compared: completions, where the student writes them all, else every one."""
        rows, tokens = student.shape[:2]
        written = -(-self.job.rl.completion_length // self.job.parallel.context)
        return rows * (min(written, tokens) if self.job.distill.on_policy == 1 else tokens)


def logits_as_they_are(logits: Tensor, labels: Tensor, parts: MegatronRank) -> Tensor:
    """`GPTModel.forward` without labels."""
    found: Tensor = logits.transpose(0, 1).contiguous()
    return found


def divergence(student: Tensor, told: tuple[Tensor, ...], rows: int, parts: MegatronRank) -> Tensor:
    """`gkd_loss` and `jsd_loss`, of so many tokens."""
    words = student.shape[-1]
    s_logits, active = student.view(-1, words), [each.view(-1, each.shape[-1]) for each in told]
    mask = student.machine.run("ne", (), (student.numel() // words,), BOOL)
    s_logits, *active = (where(each, mask, rows) for each in (s_logits, *active))
    log_softmax: Callable[[Tensor], Tensor] = partial(vocabulary_log_softmax, parts=parts)
    if len(active) > 1:
        s_logits, log_softmax = gather(s_logits, active[1]), F.log_softmax
    s_logits, t_logits = s_logits / TEMPERATURE, active[0] / TEMPERATURE
    del active
    machine = s_logits.machine
    beta = machine.run("_to_copy", (), (), s_logits.dtype)
    total = machine.run("new_zeros", (), (), s_logits.dtype)
    for start in starts(rows, CHUNK):
        end = min(start + CHUNK, rows)
        s_log = log_softmax(narrow(s_logits, 0, start, end))
        t_log = log_softmax(narrow(t_logits, 0, start, end))
        m_log = F.logsumexp(F.stack([s_log + beta, t_log + beta], 0), 0)
        jsd = beta * kl_div(m_log, t_log, parts) + beta * kl_div(m_log, s_log, parts)
        total = total + jsd.sum()
    return total


def vocabulary_log_softmax(logits: Tensor, parts: MegatronRank) -> Tensor:
    machine = logits.machine
    if parts.tensor == 1:
        return F.log_softmax(logits)
    one = (logits.shape[0], 1)
    logits_max = machine.run("amax", (logits,), one, logits.dtype)
    machine.collective_of("all_reduce", "tensor", parts.tensor, logits.dtype, logits.shape[0])
    exp_logits = (logits - logits_max).exp()
    sum_exp = exp_logits.sum(-1)
    machine.collective_of("all_reduce", "tensor", parts.tensor, logits.dtype, logits.shape[0])
    return (logits - logits_max) - sum_exp.view(*one)


def kl_div(input_log_probs: Tensor, target_log_probs: Tensor, parts: MegatronRank) -> Tensor:
    target_probs = target_log_probs.exp()
    partial_kl: Tensor = (target_probs * (target_log_probs - input_log_probs)).sum(-1)
    if parts.tensor > 1:
        machine = partial_kl.machine
        machine.collective_of("all_reduce", "tensor", parts.tensor, partial_kl.dtype, partial_kl.numel())
    return partial_kl
