"""Layers spread over cards: which of them the fullest card of a job holds.

A pipeline's stages, and the cards of `device_map="auto"`, hold some layers whole and no others: their program is that
of a model with fewer layers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tunecast.errors import UsageError
from tunecast.job.job import Job
from tunecast.tape.shorten import LAYER_COUNTS, with_layers


def held(job: Job, config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The config.json of what one card holds: of a pipeline, the first stage, which waits longest for its gradients and
    takes what does not divide."""
    stages = job.parallel.pipeline
    if stages == 1:
        return config
    total = layer_count(config)
    if total < stages:
        raise UsageError(
            f"parallel.pipeline: {total} layers for {stages} stages. To fix: fewer stages", field="parallel.pipeline"
        )
    return with_layers(config, -(-total // stages))


def layer_count(config: Mapping[str, Any]) -> int:
    text = config.get("text_config", config)
    return next(int(text[name]) for name in LAYER_COUNTS if name in text)
