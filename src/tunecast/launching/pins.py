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
BUILD = "pip install --no-build-isolation"
BUILT = (*FLASH.values(), "causal-conv1d", "mamba-ssm")
"""Those whose builds import the torch that they are for (flash-attn's setup.py): pip installs them after it, and not in
an environment apart from it, where it builds others."""
PUBLISHED = {"fla": "flash-linear-attention"}
"""On PyPI, where that is not what a job calls it."""
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
    kernels = tuple(PUBLISHED.get(name, name) for name in job.kernels if name in INSTALLED)
    attention = (FLASH[job.attention],) if job.attention in FLASH else ()
    optimizer = optimizer_of(job).package
    return tuple(dict.fromkeys((*attention, *kernels, *((optimizer,) if optimizer else ()))))


def requirements_text(program: TrainingProgram) -> str:
    """For `pip install -r`."""
    lines = ["# The releases that were predicted."]
    lines += [f"{package}=={release}" for package, release in sorted(program.releases.items())]
    built = built_of(program)
    others = [each for each in program.unpinned if each not in built]
    if others:
        lines += ["# Needed too; no release of these is followed.", *others]
    if built:
        lines += [f"# Then, for the torch above: {BUILD} {' '.join(built)}"]
    return "\n".join([*lines, ""])


def built_of(program: TrainingProgram) -> tuple[str, ...]:
    return tuple(each for each in program.unpinned if each in BUILT)


def installation(program: TrainingProgram, folder: str = "") -> str:
    """For a shell; `folder`: where requirements.txt lies."""
    first = f"pip install --requirement {folder}{REQUIREMENTS}"
    if not (built := built_of(program)):
        return first
    return f"{first} && pip install ninja packaging setuptools wheel && {BUILD} {' '.join(built)}"


def built_notes(program: TrainingProgram) -> tuple[str, ...]:
    built = ", ".join(built_of(program))
    told = f"{built}: compiled, which needs nvcc, where there is no wheel for torch {program.releases.get('torch', '')}"
    return (
        (f"{told}. To fix: an image that has nvcc or the package; for attention also --attention sdpa",)
        if built
        else ()
    )


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
        "ENV PIP_NO_CACHE_DIR=1",
        f"RUN {installation(program, '/opt/')}",
        "WORKDIR /job",
    ]
    return "\n".join([*lines, ""])
