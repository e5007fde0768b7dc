"""What people change in preference tuning, in rollouts and with images that are to need less memory: rungs of the
ladder that apply to some tasks alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tunecast.job.job import Job
from tunecast.job.kernels import liger_parts
from tunecast.job.names import ROLLOUTS
from tunecast.prediction.memory.vllm import could_use_vllm

Overrides = Mapping[str, object]

BEFORE_TRAINING = "the reference is asked once for each row before training, which takes as long as it does in an epoch"
OTHER_CARDS = "the server has cards of its own, which cost too"
ANOTHER_ENGINE = "vLLM has to be installed, and keeps its own share of the card (rl.vllm.memory_fraction)"
SHORTER = "completions that need more tokens are cut, and rewarded as they are then"
SMALLER_GROUPS = "each prompt's advantages are taken over fewer completions"
BLURRED = "what is small in an image is lost"
STILL_TOWER = "the tower sees images as it was trained to before"
LEAST_COMPLETION = 64
LEAST_GENERATIONS = 2
LEAST_FRACTION = 0.1
LEAST_PIXELS = 200_704
"""256 tokens of Qwen2.5-VL's 28 x 28 pixels, the least its authors advise (their `min_pixels`)."""
USUAL_PIXELS = 1_003_520
"""1,280 of them, the most they advise (`max_pixels` of their model card)."""


def precomputed_reference(job: Job) -> Iterator[Overrides]:
    """TRL refuses it with Liger's loss and with images (trl/trainer/dpo_trainer.py, `DPOTrainer.__init__`)."""
    if job.task not in ("dpo", "kto") or job.preference.reference in ("precomputed", "none"):
        return
    if not liger_parts(job) and not has_images(job):
        yield {"preference.reference": "precomputed"}


def smaller_generations(job: Job) -> Iterator[Overrides]:
    """The completions of a step in more pieces, each of whole groups: keys, values and logits of fewer rows."""
    if job.task not in ("grpo", "rloo"):
        return
    steps, rows = job.rl.steps_per_generation or job.grad_accum, job.micro_batch * job.hardware.cards
    for each in range(steps - 1, 0, -1):
        if steps % each == 0 and rows * each % job.rl.generations == 0:
            yield {"rl.steps_per_generation": each}


def vllm_engine(job: Job) -> Iterator[Overrides]:
    if could_use_vllm(job):
        yield {"rl.engine": "vllm"}


def sleeping_vllm(job: Job) -> Iterator[Overrides]:
    if is_colocated(job) and not job.rl.vllm.sleep:
        yield {"rl.vllm.sleep": True}


def smaller_share(job: Job) -> Iterator[Overrides]:
    share = job.rl.vllm.memory_fraction
    while is_colocated(job) and round(share / 2, 2) >= LEAST_FRACTION:
        share = round(share / 2, 2)
        yield {"rl.vllm.memory_fraction": share}


def vllm_server(job: Job) -> Iterator[Overrides]:
    if is_colocated(job):
        yield {"rl.vllm.place": "server"}


def is_colocated(job: Job) -> bool:
    return job.task in ROLLOUTS and job.rl.engine == "vllm" and job.rl.vllm.place == "colocate"


def fewer_generations(job: Job) -> Iterator[Overrides]:
    """Of as many prompts a step: what is halved divides as before."""
    if job.task not in ("grpo", "rloo") or job.rl.steps_per_generation is not None:
        return
    count, rows, steps = job.rl.generations, job.micro_batch, job.grad_accum
    while count % 2 == 0 and count // 2 >= LEAST_GENERATIONS and (rows % 2 == 0 or steps % 2 == 0):
        count //= 2
        rows, steps = (rows // 2, steps) if rows % 2 == 0 else (rows, steps // 2)
        yield {"rl.generations": count, "micro_batch": rows, "grad_accum": steps}


def shorter_completions(job: Job) -> Iterator[Overrides]:
    """Rows are shorter by as much."""
    if job.task not in ROLLOUTS or job.lengths is not None:
        return
    length = job.rl.completion_length
    prompt = job.rl.prompt_length or job.seq_len - length
    while length // 2 >= LEAST_COMPLETION and prompt > 0:
        length //= 2
        yield {"rl.completion_length": length, "seq_len": prompt + length}


def frozen_tower(job: Job) -> Iterator[Overrides]:
    trained = job.vision.trained or ("tower", "projector", "language")
    if has_images(job) and "tower" in trained:
        yield {"vision.trained": [part for part in trained if part != "tower"] or ["language"]}


def smaller_images(job: Job) -> Iterator[Overrides]:
    """Of images whose size nobody says the most that their model's authors advise comes first."""
    pixels = job.vision.pixels
    if not has_images(job):
        return
    if pixels is None:
        pixels = 2 * USUAL_PIXELS
    while pixels // 2 >= LEAST_PIXELS:
        pixels //= 2
        yield {"vision.pixels": pixels}


def has_images(job: Job) -> bool:
    return bool(job.vision.images or job.vision.frames)
