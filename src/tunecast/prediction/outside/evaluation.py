"""Evaluation between two steps, read off its tape: a batch of the Trainer's evaluation after the run's last step."""

from __future__ import annotations

from tunecast.errors import Unsupported
from tunecast.job.job import Job
from tunecast.job.model import ModelConfig
from tunecast.prediction.memory.replay import LongReplays
from tunecast.prediction.modelled import card_of
from tunecast.prediction.on_card import OnCard
from tunecast.records import dataclass
from tunecast.tape.build.job_runs import SHARED, Builder, evaluation_run
from tunecast.tape.build.loads import in_plain_loop
from tunecast.tape.compose import composed, with_evaluation
from tunecast.tape.program import Program


@dataclass(frozen=True)
class Evaluation:
    batch: int
    seq_len: int
    transient_bytes: int
    """What the forward pass and the loss hold on top of what training leaves on the card."""
    card_allocated_bytes: int
    cache_growth_bytes: int
    """What reserved memory grows by: none of training's cached blocks holds logits larger than its own."""
    card_reserved_bytes: int
    above_training_bytes: int
    """Peak allocated less that of the training step; negative: evaluation needs less."""


def evaluation(job: Job, model: ModelConfig, on_card: OnCard, builder: Builder = SHARED) -> Evaluation | None:
    """Trainer.evaluate between two steps, without compute_metrics: gradients are gone, state stays, logits are dropped.
    Its batches are full: `run.eval_batch` rows of `seq_len` tokens. None where the model has no such tape.

    The run is replayed once more with the batch behind it, so training's segments stay and what fits into them needs
    no new ones.
    Checked  on an H200, Llama 3.2 1B and 3B, 8 x 1024 tokens after steps of 1 x 1024, five runs: allocated to 5 KiB of
             13 to 18 GB, growth of reserved memory to the byte (benchmarks/data/outside_runs.jsonl).
    Ignored  compute_metrics, which keeps float32 logits of every batch on the card and joins them to the others anew
             for each (EvalLoopContainer.add); SFTTrainer's own metrics. Of stacks whose evaluation is not written
             down, what is not the Trainer's.
    """
    batch, length = job.run.eval_batch, job.seq_len
    try:
        rows = _program(job, model, on_card, batch, length, builder)
    except Unsupported:
        return None
    run = on_card.program
    replay = LongReplays(with_evaluation(composed(run) if isinstance(run, Program) else run, rows), on_card.settings)
    course = replay.unlimited.courses[-1]
    trained = on_card.unlimited
    return Evaluation(
        batch=batch,
        seq_len=length,
        transient_bytes=course.peak_bytes - course.start_bytes,
        card_allocated_bytes=course.peak_bytes,
        cache_growth_bytes=replay.unlimited.reserved_bytes - trained.reserved_bytes,
        card_reserved_bytes=replay.unlimited.reserved_bytes,
        above_training_bytes=course.peak_bytes - trained.allocated_bytes,
    )


def _program(job: Job, model: ModelConfig, on_card: OnCard, batch: int, length: int, builder: Builder) -> Program:
    card = card_of(on_card.gpu)
    try:
        return evaluation_run(job, model.raw, card, batch, length, builder=builder).program
    except Unsupported:
        return evaluation_run(in_plain_loop(job), model.raw, card, batch, length, builder=builder).program
