"""Packages of kernels: such as somebody chooses, and such as models take by themselves where they are installed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tunecast.job.job import Job

CHOSEN = ("liger", "foak")
INSTALLED: Mapping[str, str] = {"fla": "fla", "causal-conv1d": "causal_conv1d", "mamba-ssm": "mamba_ssm"}
"""As Python imports them. Of flash-linear-attention, fla-core is the part that has them; transformers looks when it
imports a model (integrations/hub_kernels.py, `use_kernel_func_from_hub_with_fallback`)."""


def chosen_kernels(job: Job) -> tuple[str, ...]:
    return tuple(name for name in job.kernels if name in CHOSEN)
