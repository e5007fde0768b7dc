"""What Automodel trains for beyond the language model's own loss: a student of a teacher, an encoder of texts.

Source   NVIDIA-NeMo/Automodel at 36044ad3: recipes/llm/kd.py, `_build_teacher_model` and `_forward_backward_step` (the
         teacher is spread as the student is, and asked first; on a mesh of its own its logits arrive);
         recipes/vlm/kd.py does the same with images; components/loss/kd_loss.py, `KDLoss.forward`;
         recipes/retrieval/train_bi_encoder.py, `_forward_backward_step` (queries, then all passages) and
         train_cross_encoder.py. Nobody traced any of it.
Taken    every token is labelled, and the whole loss at once (`chunk_size` 0); every text of an encoder is as long as
         its longest, and attends as a language model does
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tunecast.errors import Unsupported
from tunecast.job.further import TEACHER, further_config
from tunecast.job.job import Job
from tunecast.job.names import HEADS
from tunecast.records import replace_unchecked
from tunecast.tape.build import functional as F
from tunecast.tape.build.beside import frozen_model
from tunecast.tape.build.chunked import where
from tunecast.tape.build.dtypes import BOOL, INT64
from tunecast.tape.build.families import model_of
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.recompute import first_of
from tunecast.tape.build.stacks import TRACE_INSTEAD
from tunecast.tape.build.stacks.automodel.parallel import scheme
from tunecast.tape.build.stacks.transformers import Making
from tunecast.tape.build.tensor import Tensor
from tunecast.tape.build.vision.parts import WithParts
from tunecast.tape.op import Phase

UNTRACED = "task {} of Automodel follows its source; nobody traced it"
ATTENTION = "of encoders, whose tokens see all others, attention is told as a language model's"


def making(job: Job) -> Making:
    if job.task not in HEADS:
        return model_of
    from tunecast.tape.build.tasks import embeddings

    return embeddings.making(job)


def mark(job: Job, machine: Machine) -> None:
    if job.task in ("sft", "pretrain"):
        return
    machine.guesses[UNTRACED.format(job.task)] = None
    if job.task in HEADS:
        machine.guesses[ATTENTION] = None
    split = next((name for name in ("tensor", "pipeline", "expert") if getattr(job.parallel, name) > 1), None)
    if split is not None and (job.task in HEADS or job.distill.place == "card"):
        told = f"with task {job.task} of Automodel, a model that {split} parallelism splits is not written down"
        raise Unsupported.at(f"parallel.{split}", f"{told}; allowed: 1. {TRACE_INSTEAD}")


# ------------------------------------------------------------------------------------------------------ distillation


class AutomodelTeacher:
    """Beside the student, or elsewhere."""

    def __init__(self, job: Job, config: Mapping[str, Any], machine: Machine) -> None:
        self.job, self.machine = job, machine
        self.model: Any = None
        self.words = config.get("text_config", config)["vocab_size"]
        if job.distill.place == "server":
            return
        own = replace_unchecked(job, method="full", gradient_checkpointing=False)
        of_teacher = further_config(config, TEACHER)
        self.scheme = scheme(own, machine)
        with self.scheme.loading():
            self.model = frozen_model(machine, of_teacher, TEACHER, job.seq_len)
        if machine.pictures is not None and not isinstance(self.model, WithParts):
            raise Unsupported.at("distill.teacher", f"{self.model.model_type} sees no images. {TRACE_INSTEAD}")
        vars(self.model)["output"] = lambda logits, labels: logits
        self.scheme.wrap(self.model)

    def logits(self, batch: Sequence[Tensor], images: Mapping[str, Tensor]) -> Tensor:
        """A copy of its own; of a teacher elsewhere, what arrives."""
        machine = self.machine
        if self.model is None:
            rows, length = batch[0].shape
            return machine.run("empty", (), (rows, length, self.words), machine.weights_dtype)
        before, machine.phase = machine.phase, Phase.SCORE
        with machine.no_grad(), machine.held_by(self.scheme):
            self.scheme.begin_forward()
            found: Tensor = first_of(self.model(*batch[:3], **images)).detach().clone()
        machine.phase = before
        return found


def kd_loss(student_logits: Tensor, teacher_logits: Tensor, labels: Tensor) -> Tensor:
    """`KDLoss.forward`, with `fp32_upcast`."""
    machine = student_logits.machine
    with machine.within("loss"):
        valid_mask = machine.run("ne", (labels,), (labels.numel(),), BOOL)
        t_logits, s_logits = (
            where(each.view(-1, each.shape[-1]), valid_mask, labels.numel()).float()
            for each in (teacher_logits, student_logits)
        )
        teacher_logprob, student_logprob = F.log_softmax(t_logits), F.log_softmax(s_logits)
        kl_per_token = forward_kl(teacher_logprob, student_logprob)
        return kl_per_token.sum() / 1


def forward_kl(teacher_log_prob: Tensor, student_log_prob: Tensor) -> Tensor:
    """`_forward_kl_from_log_probs`."""
    machine = teacher_log_prob.machine
    teacher_prob = teacher_log_prob.exp()
    log_ratio = teacher_log_prob - student_log_prob
    positive = machine.run("gt", (teacher_prob,), teacher_prob.shape, BOOL)
    zeros = machine.run("zeros_like", (), log_ratio.shape, log_ratio.dtype)
    log_ratio = F.where(positive, log_ratio, zeros)
    del positive, zeros
    product: Tensor = (teacher_prob * log_ratio).sum(-1)
    return product


# ---------------------------------------------------------------------------------------------------------- encoders


def encoder_forward(job: Job, model: Any, length: int) -> tuple[Sequence[Tensor], Tensor, Tensor]:
    """The batch, what the model makes of it, and the loss: of an embedder queries and passages, each a pass."""
    machine = model.machine
    passages = job.micro_batch * (1 + job.head.negatives)
    counts = [passages] if job.task == "rerank" else [job.micro_batch, passages]
    batch = [machine.run("_to_copy", (), (rows, length), INT64) for rows in counts for _ in range(2)]
    machine.phase, machine.in_forward = Phase.FORWARD, True
    outputs = []
    for place, rows in enumerate(counts):
        machine.scheme.begin_forward()
        ids, mask = batch[2 * place : 2 * place + 2]
        outputs.append(model(ids, mask) if job.task == "rerank" else pooled(model, ids, mask, rows))
    with machine.within("loss"):
        if job.task == "rerank":
            return batch, outputs[0], outputs[0].float().sum()
        scores = F.mm(outputs[0], outputs[1].transpose(0, 1))
        return batch, scores, scores.float().sum()


def pooled(model: Any, input_ids: Tensor, attention_mask: Tensor, rows: int) -> Tensor:
    """A text's embedding: the mean of its tokens' hidden states (_transformers/retrieval.py, `pool`)."""
    hidden: Tensor = first_of(model.base()(input_ids, attention_mask=attention_mask))
    mask = attention_mask.unsqueeze(-1).to(hidden.dtype)
    means = (hidden * mask).sum(1) / rows
    found: Tensor = means.float()
    return found
