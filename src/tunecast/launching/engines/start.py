"""What engines with machines of their own run there: which machine it is, where results are kept, and the training."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from tunecast.launching.pins import PYTHON
from tunecast.launching.rendering import OUTPUT, RESUME

IMAGE = f"docker.io/library/python:{PYTHON}"
"""With git and a C compiler: Triton compiles kernels while it trains. For x86 and for ARM."""
PORT = 29500
"""Where the first machine listens: torchrun's own (torch/distributed/run.py, --master-port)."""


INSTALLATION_S = 30 * 60
"""Left for packages to be installed before the training begins, where an engine's limit counts that too. It is not
predicted: torch and CUDA's libraries are some 6 GB, which take 27 minutes at 30 Mbit/s."""
NOTHING = "none"
"""Said in the place of a bucket or a volume: results are not kept, and that is wanted."""


def start_text(engine: str, variables: Mapping[str, str], kept: str, name: str) -> str:
    """`variables`: in the engine's own words, for several machines. `kept`: a folder that outlives the machine; '':
    there is none. Started again, it goes on from the last checkpoint that lies there."""
    lines = ["#!/usr/bin/env bash", f"# What {engine} runs on each machine.", "set -euo pipefail"]
    lines.append('cd "$(dirname "${BASH_SOURCE[0]}")"')
    if kept:
        place = shlex.quote(f"{kept}/{name}")
        lines += [f"mkdir -p {place}", f"ln -sfn {place} {OUTPUT}"]
    if variables:
        lines += [f"export {each}={value}" for each, value in {**variables, "MASTER_PORT": str(PORT)}.items()]
    return "\n".join([*lines, f"exec bash {RESUME}", ""])


def letter_first(name: str) -> str:
    """Names of launches are letters, digits and dashes; some engines want a letter first (services of Kubernetes: RFC
    1035)."""
    return name if name[:1].isalpha() else f"job-{name}"
