"""What a training is installed from: the releases that were predicted, as requirements and as a container recipe."""

from __future__ import annotations

from tunecast.errors import Unsupported
from tunecast.job.job import Job
from tunecast.job.kernels import INSTALLED
from tunecast.job.optimizers import optimizer_of
from tunecast.job.releases import RELEASES, minor, stated
from tunecast.job.shardings import sharding_of
from tunecast.job.stacks import stack_of
from tunecast.launching.rendering import REQUIREMENTS, TrainingProgram

FLASH = {"flash_attention_2": "flash-attn", "flash_attention_3": "flash-attn-3", "xformers": "xformers"}
"""Packages of attention's kernels."""
PYTHON = "3.12"
"""A Python that every release of torch followed has wheels for: those of 2.2 came with 3.12 first."""
OLDEST_TORCH = (2, 2)


def releases_of(job: Job, own: str = "") -> dict[str, str]:
    """Of the packages that a job's training imports, the releases it was predicted with. `own`: the framework's, where
    it is a package of its own that the stack follows by another table."""
    followed = {**stack_of(job).follows, **stated(job)}
    if own:
        followed[job.stack] = job.stack_version or own
    if sharding_of(job).is_zero:
        followed["deepspeed"] = RELEASES["deepspeed"].newest
    needed = {
        "peft": job.method != "full",
        "bitsandbytes": job.quantization.format in ("nf4", "fp4", "int8") or optimizer_of(job).is_bitsandbytes,
        "liger-kernel": any(name.startswith("liger") for name in job.kernels),
    }
    return {package: release for package, release in followed.items() if needed.get(package, True)}


def unpinned_of(job: Job) -> tuple[str, ...]:
    """Packages it imports of which no release is followed."""
    kernels = tuple(name for name in job.kernels if name in INSTALLED)
    attention = (FLASH[job.attention],) if job.attention in FLASH else ()
    optimizer = optimizer_of(job).package
    return tuple(dict.fromkeys((*attention, *kernels, *((optimizer,) if optimizer else ()))))


def requirements_text(program: TrainingProgram) -> str:
    """For `pip install -r`."""
    lines = ["# The releases that were predicted."]
    lines += [f"{package}=={release}" for package, release in sorted(program.releases.items())]
    if program.unpinned:
        lines += ["# Needed too; no release of these is followed: take one that is built for the torch above."]
        lines += program.unpinned
    return "\n".join([*lines, ""])


def container_text(program: TrainingProgram) -> str:
    """For `podman build` or `docker build`. torch's wheels bring CUDA's libraries; the driver is the machine's."""
    torch = program.releases.get("torch", RELEASES["torch"].newest)
    if minor(torch) < OLDEST_TORCH:
        raise Unsupported.at("torch_version", f"got {torch}; a container is rendered from 2.2 on, with Python {PYTHON}")
    lines = [
        f"FROM docker.io/library/python:{PYTHON}-slim",
        "# git and a C compiler: Triton compiles kernels while it trains",
        "RUN apt-get update && apt-get install --yes --no-install-recommends gcc git libc6-dev \\",
        "    && rm -rf /var/lib/apt/lists/*",
        f"COPY {REQUIREMENTS} /opt/{REQUIREMENTS}",
        f"RUN pip install --no-cache-dir --requirement /opt/{REQUIREMENTS}",
        "WORKDIR /job",
    ]
    return "\n".join([*lines, ""])
