"""What contradicts what in what a job says of images (rules of `check.py`)."""

from __future__ import annotations

from tunecast.job.knob import Problem
from tunecast.job.names import HEADS, LANGUAGE, PREFERENCES
from tunecast.job.rules import Rule, adding_to
from tunecast.job.stacks import STACKS

SEEING = (*LANGUAGE, *PREFERENCES, "grpo", "rloo", "distill")
"""Tasks whose programs give a model images."""
WITHOUT_REFERENCE = ("orpo", "cpo", "simpo")
"""trl/experimental/{cpo,orpo} of 1.16.0 know no `pixel_values`; other stacks have trainers of their own."""
RULES: list[Rule] = []
rule = adding_to(RULES)


@rule("vision.images", "vision.frames", "stack", "task")
def images_are_seen(images: int, frames: int, stack: str, task: str) -> Problem | None:
    if not images and not frames:
        return None
    field, got = ("vision.images", images) if images else ("vision.frames", frames)
    if not STACKS[stack].sees_images:
        known = ", ".join(name for name, each in STACKS.items() if each.sees_images)
        return Problem(field, f"got {got}, known of {known}; allowed with {stack}: 0; nearest: 0")
    seeing = (*SEEING, *HEADS) if STACKS[stack].heads_see else SEEING
    if task not in seeing:
        return Problem(field, f"got {got} with task {task}; allowed: with {', '.join(seeing)}; nearest: 0")
    if task in WITHOUT_REFERENCE and STACKS[stack].runs_trl:
        return Problem(field, f"got {got} with task {task}, which TRL trains on text alone; allowed: 0; nearest: 0")
    return None


@rule("data.packing", "vision.images", "vision.frames", "stack")
def images_are_not_packed(packing: bool, images: int, frames: int, stack: str) -> str | None:
    """trl/trainer/sft_trainer.py: "Packing is not supported for vision datasets". Megatron Core packs them."""
    if not packing or not (images or frames) or STACKS[stack].uses_megatron:
        return None
    return "got true with images, which TRL refuses and nothing here models; allowed: false; nearest: false"


@rule("parallel.context", "vision.images", "vision.frames", "stack")
def rows_with_images_stay_whole(context: int, images: int, frames: int, stack: str) -> str | None:
    if context == 1 or not (images or frames) or STACKS[stack].spreads_images:
        return None
    return f"got {context} with images, of which no rows that cards share are written down; allowed: 1; nearest: 1"


@rule("parallel.pipeline", "vision.images", "vision.frames", "stack")
def towers_are_not_staged(pipeline: int, images: int, frames: int, stack: str) -> str | None:
    if pipeline == 1 or not (images or frames) or STACKS[stack].spreads_images:
        return None
    return f"got {pipeline} with images, of which no pipeline's stages are written down; allowed: 1; nearest: 1"
