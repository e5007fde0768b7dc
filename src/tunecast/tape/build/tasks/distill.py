"""TRL's GKDTrainer on paper (trl/experimental/gkd/gkd_trainer.py of 1.16.0), where a student learns a teacher's
distribution, and its DistillationTrainer (trl/trainer/distillation_trainer.py), which does so without logits.

With GKDTrainer student and teacher make all logits, and the loss several copies of them. `loss: chunked` asks for the
other, whose student writes all completions itself. Of such a batch what follows the writing is written down.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from tunecast.errors import Unsupported, UsageError
from tunecast.job.further import TEACHER, further_config
from tunecast.job.job import Job
from tunecast.job.shardings import sharding_of
from tunecast.job.stacks import SFT_STACK, stack_of
from tunecast.tape.build import functional as F
from tunecast.tape.build.beside import caching, frozen_model, give_logits, logits_of
from tunecast.tape.build.chunked import where
from tunecast.tape.build.divergence import reverse_divergence
from tunecast.tape.build.dtypes import BOOL, FLOAT32, INT64
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.ops.views import narrow
from tunecast.tape.build.score import gather
from tunecast.tape.build.sharding.second import second_scheme
from tunecast.tape.build.stacks import TRACE_INSTEAD, Refusals, trl
from tunecast.tape.build.stacks.trainer import Batch, rows, take_steps
from tunecast.tape.build.stacks.trl import defaults, model, scheme, setup
from tunecast.tape.build.tasks import scores
from tunecast.tape.build.tasks.reference import disable_dropout
from tunecast.tape.build.tensor import Tensor
from tunecast.tape.build.vision.batches import images_in
from tunecast.tape.build.vision.parts import WithParts

__all__ = ["REFUSES", "defaults", "model", "scheme", "setup", "train"]

REFUSES: Refusals = {**trl.REFUSES, "loss": lambda job: job.loss == "chunked" and job.distill.place == "server"}
UNWRITTEN = (
    "distill.on_policy: the completions that the student writes itself are taken as given; what writing them takes, in "
    "memory and time, is left out"
)


OWN_LOSS = (
    "{stack} is taken to distil as TRL's GKDTrainer does; a loss of its own may go over a few tokens at a time and "
    "hold fewer copies of the logits"
)


IMAGES = "images beside a teacher, who is taken to see the student's as they are; nobody traced them"
UNSEEN = "what TRL's DistillationTrainer (loss chunked) does with images is not written down"
FROM_SERVER = (
    "distill.place: of a teacher elsewhere its {} likeliest tokens are taken to arrive, and the loss to be over them, "
    "as ms-swift does with gkd_logits_topk; nobody traced it"
)
TOP = 64


def train(job: Job, config: Mapping[str, Any], lengths: Sequence[int], machine: Machine) -> None:
    refuse_spread_teachers(job)
    if machine.pictures is not None:
        if job.loss == "chunked":
            raise Unsupported.at("vision.images", f"{UNSEEN}. {TRACE_INSTEAD}")
        machine.guesses[IMAGES] = None
    if job.distill.on_policy != 0:
        machine.guesses[UNWRITTEN] = None
    if stack_of(job).program != SFT_STACK:
        machine.guesses[OWN_LOSS.format(stack=job.stack)] = None
    dropout = (
        None if job.loss == "chunked" else disable_dropout
    )  # `disable_dropout` of GKDConfig is on, of the other off
    model, parameters, optimizer = trl.set_up(job, config, machine, trl.release_of(job, machine.era), dropout)
    give_logits(model)
    if job.distill.place == "server":
        machine.guesses[FROM_SERVER.format(job.distill.top_k or TOP)] = None
        take_steps(job, model, parameters, optimizer, lengths, compute_loss_of_top, collated)
    else:
        teacher = Teacher(job, further_config(config, TEACHER), machine)
        require_one_vocabulary(model, teacher.model)
        if job.loss == "chunked":
            loss = partial(chunked_loss, teacher=teacher.model)
            take_steps(job, model, parameters, optimizer, lengths, loss, completions, counts_labels=False)
        else:
            loss = partial(compute_loss, teacher=teacher)
            take_steps(job, model, parameters, optimizer, lengths, loss, collated)
    machine.end()


def refuse_spread_teachers(job: Job) -> None:
    """`device_map="auto"` would spread the teacher's layers too, and `DistillationTrainer` asks a cut teacher for its
    head's weight; neither is written down."""
    if job.distill.place == "server":
        return
    if job.parallel.layers > 1:
        field, got, instead = "parallel.layers", str(job.parallel.layers), "1"
    elif job.loss == "chunked" and sharding_of(job).cuts_weights:
        field, got, instead = "parallel.data", job.parallel.data, "ddp"
    else:
        return
    remedy = f"To fix: {field} {instead}; distill.place server; or {TRACE_INSTEAD.removeprefix('To fix: ')}"
    raise Unsupported.at(field, f"got {got} with a teacher on the card, which the closed form does not cut. {remedy}")


def require_one_vocabulary(student: Any, teacher: Any) -> None:
    """`GKDTrainer.__init__` and `DistillationTrainer.__init__` raise."""
    if student.vocabulary != teacher.vocabulary:
        raise UsageError.at(
            "distill.teacher",
            f"has a vocabulary of {teacher.vocabulary} words, the student {student.vocabulary}; TRL's trainers compare "
            "all of them and refuse two. To fix: a teacher of the student's family",
        )


class Teacher:
    """`GKDTrainer.__init__`: it is there before the optimizer's state, and cut where the student is
    (`prepare_deepspeed`, or accelerate's `prepare_model` with `evaluation_mode`)."""

    def __init__(self, job: Job, config: Mapping[str, Any], machine: Machine) -> None:
        self.scheme = second_scheme(job, machine) if sharding_of(job).cuts_weights else machine.scheme
        self.is_cut = self.scheme is not machine.scheme
        with self.scheme.loading() if self.is_cut else contextlib.nullcontext():
            self.model = frozen_model(machine, config, TEACHER, job.seq_len)
        if machine.pictures is not None and not isinstance(self.model, WithParts):
            raise UsageError.at("distill.teacher", f"{self.model.model_type} sees no images. To fix: vision.images 0")
        dtype = self.model.input_embedding().weight.dtype
        machine.assumptions[f"the teacher is in {dtype}, as its checkpoint is"] = None
        self.use_cache = config.get("text_config", config).get("use_cache", True)
        if self.is_cut:
            with machine.on_stream(0):
                self.scheme.wrap(self.model)
        else:
            give_logits(self.model)

    def kept(self) -> contextlib.AbstractContextManager[Any]:
        """Keys and values of its pass."""
        return caching(self.model, TEACHER) if self.use_cache else contextlib.nullcontext()

    def logits(self, input_ids: Tensor, attention_mask: Tensor, **images: Tensor) -> Tensor:
        if not self.is_cut:
            return logits_of(self.model, input_ids, attention_mask, **images)
        with self.model.machine.held_by(self.scheme):
            self.scheme.begin_forward()
            return scores.logits_of(self.model, input_ids, attention_mask, **images)


PROMPT = 1
"""Tokens of the prompts that come beside the rows: how long they are no job says."""


def collated(job: Job, machine: Machine, length: int) -> Batch:
    """trl/experimental/utils.py, `DataCollatorForChatML`: prompts by themselves, and where in the text tokens are."""
    ids, mask, labels, *images = rows(job, machine, length)
    prompts = [machine.run("_to_copy", (), (job.micro_batch, PROMPT), INT64) for _ in range(2)]
    offsets = machine.run("_to_copy", (), (job.micro_batch, length, 2), INT64)
    return ids, mask, labels, *prompts, offsets, *images


def compute_loss(job: Job, model: Any, inputs: Batch, num_items_in_batch: Tensor, *, teacher: Teacher) -> Tensor:
    machine, length = model.machine, inputs[0].shape[1]
    machine.scheme.begin_forward()
    images = images_in(machine, inputs)
    student_outputs = machine.scheme.end_forward(logits_of(model, inputs[0], inputs[1], **images))
    with machine.no_grad(), teacher.kept() as past_key_values:
        teacher_outputs = teacher.logits(inputs[0], inputs[1], **images)
    shifted_student_logits = student_outputs[:, : length - 1, :]
    shifted_teacher_logits = teacher_outputs[:, : length - 1, :]
    shifted_labels = inputs[2][:, 1:length]
    loss = generalized_jsd_loss(shifted_student_logits, shifted_teacher_logits, shifted_labels, num_items_in_batch)
    machine.empty_cache()
    del past_key_values  # with the teacher's other outputs
    return loss


def compute_loss_of_top(job: Job, model: Any, inputs: Batch, num_items_in_batch: Tensor) -> Tensor:
    """ms-swift's with a teacher that is asked (swift/rlhf_trainers/gkd_trainer.py, `GKDTrainer.compute_loss`, and
    gkd_loss.py, `gkd_loss`)."""
    machine, (rows, length) = model.machine, inputs[0].shape
    top = job.distill.top_k or TOP
    topk_logprobs = machine.run("_to_copy", (), (rows * length, top), FLOAT32)
    topk_indices = machine.run("_to_copy", (), (rows * length, top), INT64)
    machine.scheme.begin_forward()
    images = images_in(machine, inputs)
    student_logits = machine.scheme.end_forward(logits_of(model, inputs[0], inputs[1], **images))
    mask = machine.run("ne", (inputs[2],), inputs[2].shape, BOOL)
    s_logits = gather(where(student_logits, mask, rows * length), topk_indices) / TEMPERATURE
    s_log = F.log_softmax(s_logits)
    t_log = F.log_softmax(topk_logprobs)
    beta = machine.run("_to_copy", (), (), FLOAT32)
    m_log = F.logsumexp(F.stack([s_log + beta, t_log + beta], 0), 0)
    jsd = beta * kl_div(m_log, t_log).sum(-1) + beta * kl_div(m_log, s_log).sum(-1)
    return jsd.sum() / num_items_in_batch


TEMPERATURE = 1.0


def generalized_jsd_loss(
    student_logits: Tensor, teacher_logits: Tensor, labels: Tensor, num_items_in_batch: Tensor
) -> Tensor:
    machine = student_logits.machine
    student_logits = student_logits / TEMPERATURE
    teacher_logits = teacher_logits / TEMPERATURE
    student_log_probs = F.log_softmax(student_logits)
    teacher_log_probs = F.log_softmax(teacher_logits)
    beta = machine.run("_to_copy", (), (), FLOAT32)
    mixture_log_probs = F.logsumexp(F.stack([student_log_probs + beta, teacher_log_probs + beta], 0), 0)
    kl_teacher = kl_div(mixture_log_probs, teacher_log_probs)
    kl_student = kl_div(mixture_log_probs, student_log_probs)
    jsd = beta * kl_teacher + beta * kl_student
    mask = machine.run("ne", (labels,), labels.shape, BOOL)
    jsd = where(jsd, mask, mask.numel() - machine.padding)
    jsd_sum = jsd.sum()
    return jsd_sum / num_items_in_batch


def kl_div(input: Tensor, target: Tensor) -> Tensor:
    """aten/src/ATen/native/Loss.cpp, `kl_div` with log_target. Compiled, the second factor comes first."""
    difference = target - input
    return target.exp() * difference


# ------------------------------------------------------------------------------------------------ DistillationTrainer


def completions(job: Job, machine: Machine, length: int) -> Batch:
    """Tokens and mask of prompts and of completions, and how many of these there are."""
    shapes = ((job.micro_batch, PROMPT),) * 2 + ((job.micro_batch, length - PROMPT),) * 2
    return *[machine.run("_to_copy", (), shape, INT64) for shape in shapes], machine.run("_to_copy", (), (), INT64)


def chunked_loss(job: Job, model: Any, inputs: Batch, num_items_in_batch: None, *, teacher: Any) -> Tensor:
    """`DistillationTrainer.compute_loss`. `_ForwardRedirection` puts its own in the place of what accelerate made of
    the model's forward pass: there is no autocast."""
    machine, scheme = model.machine, model.machine.scheme
    scheme.begin_forward()
    with machine.within(model.path):
        loss: Tensor = scheme.run(model, partial(divergence_forward, teacher=teacher), *inputs)
    loss = scheme.end_forward(loss)
    for _ in range(2):  # the number of tokens and their entropy
        machine.run("sum", (loss,), (), FLOAT32)
    return loss


def divergence_forward(
    model: Any, prompt_ids: Tensor, prompt_mask: Tensor, completion_ids: Tensor, completion_mask: Tensor, count: Tensor,
    *, teacher: Any,
) -> Tensor:  # fmt: skip
    """`_compute_loss`."""
    machine, kept = model.machine, completion_ids.shape[1]
    input_ids = F.cat([prompt_ids, completion_ids], 1)
    attention_mask = F.cat([prompt_mask, completion_mask], 1)
    student_hidden_states = last_hidden_state(model, input_ids, attention_mask, kept)
    with machine.no_grad():
        teacher_hidden_states = last_hidden_state(teacher, input_ids, attention_mask, kept)
    heads = [machine.scheme.whole(each.output_embedding().weight) for each in (model, teacher)]
    return chunked_divergence(student_hidden_states, teacher_hidden_states, heads, completion_mask, count)


def last_hidden_state(model: Any, input_ids: Tensor, attention_mask: Tensor, kept: int) -> Tensor:
    """`_get_last_hidden_state`."""
    last_hidden_state = model.base()(input_ids, attention_mask=attention_mask)
    length = last_hidden_state.shape[1]
    last_hidden_state = narrow(last_hidden_state, 1, 0, length - 1)
    last_hidden_state = narrow(last_hidden_state, 1, length - 1 - kept, length - 1)
    return last_hidden_state


def chunked_divergence(
    student: Tensor, teacher: Tensor, heads: Sequence[Tensor], completion_mask: Tensor, num_items_in_batch: Tensor
) -> Tensor:
    """`_chunked_divergence_loss`."""
    machine, rows = student.machine, completion_mask.numel()
    valid = machine.run("ne", (completion_mask,), (rows,), BOOL)
    valid.sum(range(1))
    h_s = student.reshape(-1, student.shape[-1])
    h_t = teacher.reshape(-1, teacher.shape[-1])
    h_s, h_t = (where(each, valid, rows - machine.padding) for each in (h_s, h_t))
    per_token_divergence, per_token_entropy = reverse_divergence(h_s, heads[0], h_t, heads[1])
    loss = per_token_divergence.sum()
    per_token_entropy.sum()
    return loss / num_items_in_batch
