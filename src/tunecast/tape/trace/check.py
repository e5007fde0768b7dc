"""Proves at start-up that this torch can be traced, or says clearly that it cannot."""

from __future__ import annotations

import torch

from tunecast.errors import Unsupported
from tunecast.tape.op import Free, Op
from tunecast.tape.trace.recorder import Recorder

OLDEST = (2, 8)


def version() -> tuple[int, int]:
    major, minor = torch.__version__.split(".")[:2]
    return int(major), int(minor)


def require_supported_version() -> None:
    if version() < OLDEST:
        raise Unsupported(
            f"torch {torch.__version__} cannot be traced: tracing needs torch {OLDEST[0]}.{OLDEST[1]} or newer. "
            "To fix: pip install -U torch, or point --python at an environment that has it."
        )


def require_faithful_trace(recorder: Recorder) -> None:
    """Trains a 4-by-4 product one step under the tracer and compares with what paper says.

    weight (1024 B), input (1024 B), product (1024 B), mean (4 B), then backward: 1.0 (4 B), its spread over the
    product (1024 B, an expanded view divided), and the weight's gradient (1024 B).
    """
    before = len(recorder._events)
    weight = torch.ones(16, 16, device="cuda", requires_grad=True)
    values = torch.ones(16, 16, device="cuda")
    (values @ weight).mean().backward()
    sizes = [recorder._blocks[e].nbytes for e in recorder._events[before:] if isinstance(e, int)]
    names = [e.name for e in recorder._events[before:] if isinstance(e, Op)]
    graded = weight.grad is not None and weight.grad.device.type == "cuda"
    del weight, values
    expected = [1024, 1024, 1024, 4, 4, 1024, 1024]
    seen = [size for size in sizes if size < 1 << 20]  # cuBLAS workspaces apart
    alive = {e for e in recorder._events[before:] if isinstance(e, int)} - {
        e.block for e in recorder._events[before:] if isinstance(e, Free)
    }
    left = sum(recorder._blocks[b].nbytes for b in alive if recorder._blocks[b].nbytes < 1 << 20)
    if seen != expected or not graded or left:
        raise Unsupported(
            f"torch {torch.__version__} behaves in a way this tunecast does not know: a 16 by 16 product allocated "
            f"{seen} bytes where {expected} were expected, by {names}. "
            "To fix: upgrade tunecast, or trace with the newest torch it names in `tunecast trace --help`."
        )
    recorder.forget_all()
