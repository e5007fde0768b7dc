"""Whom a loss of preferences asks beside the policy, and what its rows are labelled with: what DPO and KTO share."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tunecast.errors import Unsupported
from tunecast.job.job import Job
from tunecast.job.stacks import stack_of
from tunecast.records import replace_unchecked
from tunecast.tape.build import functional as F
from tunecast.tape.build.adapters import adapt, adapters_off
from tunecast.tape.build.autograd import Gradients, Node, finish, start
from tunecast.tape.build.chunked import LOG_PROBS, Outputs, fused_forward
from tunecast.tape.build.dtypes import DTYPES, FLOAT32, INT64
from tunecast.tape.build.experts import SparseMoe
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.modules import Dropout
from tunecast.tape.build.optimizers import Optimizer
from tunecast.tape.build.sharding.second import second_scheme
from tunecast.tape.build.stacks import TRACE_INSTEAD, trl
from tunecast.tape.build.stacks.trainer import Batch, Collated
from tunecast.tape.build.stacks.transformers import load, prepared
from tunecast.tape.build.tasks.scores import log_probs_of, logits_of
from tunecast.tape.build.tensor import Tensor
from tunecast.tape.build.vision.batches import images_in

COLUMNS = 3
"""Of rows in a batch: tokens, mask, and which of them are completions."""
FUSED = "fused"
SEVERAL = "preferences on several cards follow the source of TRL's trainers; nobody traced them"
OWN_HEAD = "preferences with {}: {}"
PACKED = "data.packing: rows of preferences are taken as one sample each, as TRL makes them"
IMAGES = "images beside preferences: each answer is taken to have those of its prompt; nobody traced them"
BALANCE = "the loss that balances experts, which TRL's trainers of preferences add, is left out"
BEFORE = "the pass over the data that gives a reference's log-probabilities before training is not in the time"
NOT_BEFORE = "got precomputed, which {} does not do; allowed: model, adapters_off with adapters. To fix: leave it out"
HEADS = {
    FUSED: "TRL's trainer is taken over transformers' model; what the stack patches is left out",
    "rows": "log-probabilities are taken of all logits, as TRL 1.9.0 does; nothing else of the stack was traced",
    "softmax": "log-probabilities are taken of a log_softmax of all logits, as its source says; nobody traced it",
}
"""By `Stack.preference_head`: what is taken."""


def head_of(job: Job) -> str:
    """How log-probabilities are taken: TRL's newest head never makes all logits, older ones and other stacks do."""
    stack = stack_of(job)
    if stack.runs_trl and trl.release_of_job(job) < trl.FUSED:
        return "rows"
    return stack.preference_head


def set_up(
    job: Job, config: Mapping[str, Any], machine: Machine, reference: Reference
) -> tuple[Any, list[Tensor], Optimizer]:
    """Model, what is trained of it, and its optimizer; what was not traced is said."""
    if job.parallel.context > 1:
        raise Unsupported.at("parallel.context", f"TRL's trainers of preferences split no rows. {TRACE_INSTEAD}")
    mark_untraced(job, machine)
    if stack_of(job).adapts_itself:
        if reference.kind == "precomputed":
            raise Unsupported.at("preference.reference", NOT_BEFORE.format(job.stack))

        def adapting(job: Job, model: Any) -> None:
            adapt(job, model)
            reference.prepare(model)

        return prepared(job, config, machine, adapting, in_trainer=True)
    return trl.set_up(job, config, machine, trl.release_of(job, machine.era), reference.prepare)


def mark_untraced(job: Job, machine: Machine) -> None:
    stack = stack_of(job)
    if job.hardware.cards > 1:
        machine.guesses[SEVERAL] = None
    if job.data.packing:
        machine.guesses[PACKED] = None
    if machine.pictures is not None:
        machine.guesses[IMAGES] = None
    if not stack.runs_trl or head_of(job) != FUSED:
        machine.guesses[OWN_HEAD.format(stack.name, HEADS[head_of(job)])] = None


def labels_of(input_ids: Tensor, completion_mask: Tensor) -> Tensor:
    return input_ids.masked_fill(completion_mask.eq(0), -100)


def labelled(job: Job, rows: int, length: int) -> int:
    """How many of the shifted labels are of completions: the first of a row has no token before it. A prompt leaves
    room for one at least."""
    prompt = min(job.preference.prompt_length, length - 1)
    return rows * (length - (prompt if prompt > 1 else 1))


class Reference:
    """Who gives the reference's log-probabilities, and from where."""

    def __init__(
        self, job: Job, config: Mapping[str, Any], machine: Machine, asked: Sequence[str], collated: Collated,
        lengths: Sequence[int],
    ) -> None:  # fmt: skip
        """`asked`: what the policy's head is asked for."""
        self.job, self.config, self.machine, self.asked, self.collated = job, config, machine, asked, collated
        self.longest = max(job.lengths) if job.lengths else lengths[0]
        self.kind = job.preference.reference
        self.model: Any = None
        self.scheme: Any = None
        """How this rank holds it."""

    def prepare(self, model: Any) -> None:
        """What `__init__` does when the model is there: dropout goes, and a second model comes."""
        disable_dropout(model)
        if any(isinstance(module, SparseMoe) for module in model.modules()):
            self.machine.guesses[BALANCE] = None
        if self.kind == "model":
            self.scheme = second_scheme(self.job, self.machine)
            self.model = self.second_model()
            disable_dropout(self.model)
            with self.machine.on_stream(0):
                self.scheme.wrap(self.model)
        elif self.kind == "precomputed":
            self.precompute(model)

    def second_model(self) -> Any:
        """In the trained one's dtype; or in autocast's, where the stack widens what is trained and nothing else."""
        machine, autocast = self.machine, self.job.autocast
        narrow = stack_of(self.job).widens_trained and autocast
        with machine.loading_in(DTYPES[autocast] if narrow and autocast else machine.weights_dtype):
            return load(as_loaded(self.job), self.config, machine)

    def precompute(self, model: Any) -> None:
        """`_precompute_ref_logps`, of the longest batch: all data go through the model before it is trained. What it
        used stays cached until the Trainer begins."""
        job, machine = self.job, self.machine
        machine.assumptions[BEFORE] = None
        unasked = replace_unchecked(job, preference=replace_unchecked(job.preference, reference="none"))
        batch = self.collated(unasked, machine, self.longest)
        images = images_in(machine, batch)
        batch = batch[: len(batch) - len(images)]
        found = []
        with machine.no_grad(), contextlib.nullcontext() if job.method == "full" else adapters_off(model):
            for first in range(0, len(batch) - COLUMNS + 1, COLUMNS):
                ids, mask, completion_mask = batch[first : first + COLUMNS]
                found.append(self.score(model, ids, mask, completion_mask, **images))
        for logps in found:
            logps.sum(1)

    def score(self, model: Any, ids: Tensor, mask: Tensor, completion_mask: Tensor, **images: Tensor) -> Tensor:
        """Log-probabilities of each token."""
        head = head_of(self.job)
        if head != FUSED:
            return log_probs_of(head, logits_of(model, ids, mask, **images), ids, completion_mask)
        labels = labels_of(ids, completion_mask)
        return call(model, (ids, mask), labels, self.asked, labelled(self.job, *ids.shape), **images).log_probs

    @contextlib.contextmanager
    def running(self, policy: Any) -> Iterator[tuple[Any, Sequence[str]]]:
        """The model to be called, without a graph, and what its head is asked for: all that the policy gives, where it
        is the policy without its adapters."""
        with self.machine.no_grad():
            if self.model is not None:
                with self.machine.held_by(self.scheme):
                    self.scheme.begin_forward()
                    yield self.model, (LOG_PROBS,)
                return
            with adapters_off(policy):
                yield policy, self.asked


def as_loaded(job: Job) -> Job:
    """Of the reference: no adapters, nothing recomputed, and Liger's kernels only where they replace a function of the
    whole module, since the Trainer gives its instance the others (transformers/trainer.py, `_inner_training_loop`)."""
    return replace_unchecked(job, gradient_checkpointing=False, kernels=())


def disable_dropout(model: Any) -> None:
    """trl/trainer/utils.py, `disable_dropout_in_model`: every nn.Dropout's probability is 0; PEFT's is one."""
    for module in model.modules():
        if isinstance(module, Dropout):
            module.probability = 0.0


def call(model: Any, inputs: Batch, labels: Tensor, outputs: Sequence[str], count: int, **images: Tensor) -> Outputs:
    """`model(**model_kwargs, labels=labels, fused_lm_head=True)`."""

    def forward(model: Any, input_ids: Tensor, attention_mask: Tensor, labels: Tensor) -> Outputs:
        return fused_forward(model, input_ids, attention_mask, labels, outputs, count, **images)

    scheme = model.machine.scheme
    ask = scheme.call if model.machine.grad_enabled else scheme.ask
    found: Outputs = ask(model, forward, inputs[0], inputs[1], labels)
    return found


def note_rewards(job: Job, chosen: Tensor, rejected: Tensor, *logps: Tensor) -> None:
    """Metrics of a number or two a pair: rewards, their accuracy and margins, log-probabilities."""
    chosen_rewards, rejected_rewards = chosen * job.preference.beta, rejected * job.preference.beta
    for rewards in (chosen_rewards, rejected_rewards):
        rewards.mean(0)
    chosen_rewards.gt(rejected_rewards).to(FLOAT32).mean(0)
    (chosen_rewards - rejected_rewards).mean(0)
    for each in logps:
        each.detach().mean(0)


def unpaired_losses(
    job: Job, logps: Sequence[Tensor], ref_logps: Sequence[Tensor], KL_logps: Tensor, ref_KL_logps: Tensor
) -> Tensor:
    """Of the good answers, then of the bad ones (trl/trainer/kto_trainer.py, `_compute_loss`)."""
    machine, beta = KL_logps.machine, job.preference.beta
    kl = (KL_logps - ref_KL_logps).mean(0).detach()
    kl = machine.run("mean", (kl,), (), FLOAT32).clamp(0)
    chosen_logratios, rejected_logratios = (own - other for own, other in zip(logps, ref_logps, strict=True))
    chosen_losses = 1 - ((chosen_logratios - kl) * beta).sigmoid()
    rejected_losses = 1 - ((kl - rejected_logratios) * beta).sigmoid()
    for logratios in (chosen_logratios, rejected_logratios):
        logratios.detach() * beta
    return F.cat((chosen_losses * 1.0, rejected_losses * 1.0), 0)


def label_of(job: Job, batch: Batch) -> Tensor:
    """Which answers of KTO's rows are good: behind both kinds of rows, and the reference's numbers."""
    return batch[8 if job.preference.reference == "precomputed" else 6]


def places(flags: Tensor, count: int) -> Tensor:
    """`torch.nonzero(flags).view(-1)`, of which so many are set."""
    return flags.machine.run("nonzero", (flags,), (count, 1), INT64, args=(flags,)).view(-1)


def index_select(x: Tensor, index: Tensor) -> Tensor:
    """Rows of `x`; the gradient is added up in zeros."""
    machine, shape, dtype = x.machine, x.shape, x.dtype

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        zeros = machine.run("new_zeros", (), shape, dtype)
        return (machine.run("index_add", (zeros, node.take(0), gradients[0]), shape, dtype),)

    node = start(machine, (x,), back, (index,))
    return finish(node, machine.run("index_select", (x, index), (index.shape[0], *shape[1:]), dtype))
