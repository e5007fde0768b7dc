"""What changed in torchtitan, and when. It had no releases before June 2025, so a version is a month.

Rows and logs name commits; the months are those of the commits that brought the change (pytorch/torchtitan).
"""

from __future__ import annotations

from collections.abc import Iterator

from tunecast.errors import UsageError
from tunecast.job.releases import minor, numbers
from tunecast.records import NamedTuple

Month = tuple[int, int]
NEWEST: Month = (2026, 2)
"""What a job that names no release has: all of 0.2.2 is written down, of 0.3 a part."""
REWRITTEN: Month = (2026, 9)
"""0.3.0: one decoder for all families, and nearly every function another."""
RELEASES: dict[Month, Month] = {(0, 1): (2025, 6), (0, 2): (2025, 10), (0, 3): REWRITTEN}
"""0.1.0, 0.2.x and 0.3.0 of PyPI by the month of their code."""
OLDEST: Month = (2024, 3)
GRAPHS = (
    "torchtitan 0.3 replays a CUDA graph of both passes (training.disable_cuda_graphs), whose own pool of memory is "
    "not modelled; taken as run anew in every step, with gradients that stay where they are"
)


class TitanRelease(NamedTuple):
    own_norm: bool
    """torchtitan/models/norms.py until March 2025; then torch.nn.RMSNorm."""
    fused_norm: bool
    """torch's one kernel for it, since 2.9 (nightlies of July 2025)."""
    shards_ends_apart: bool
    """Embedding, and norm with head, are FSDP groups of their own; before they were the root's (August 2025)."""
    keeps_last_layer: bool
    """The last layer is not let go after its forward pass: its backward pass comes next."""
    keeps_logits: bool
    """The model's own result is fp32, and the loop's name for it outlives the backward pass, into the next forward pass
    (train.py until summer 2024)."""
    splits_loss: bool
    """Logits stay in parts (`loss_parallel`, on by default since April 2024)."""
    copies_apart: bool
    """torch's FSDP2 put gradients together in the scatter stream's memory (`foreach_reduce_scatter`, before 2.5)."""
    gives_root_back: bool
    """torch lets go of the root's weights after the forward pass too, where told so (2.8, nightlies of June 2025)."""
    compiles_loss: bool
    """With the layers; in the first half of 2024 only the model was. Between December 2024 and February 2025 it was
    left out: "compiling loss function causes CUDA errors, turning off for now" (train.py)."""
    repeats_heads: bool
    """Keys and values are copied for every query head; 0.2.1 leaves that to the kernel (`enable_gqa`)."""
    returns_outputs: bool
    """A pipeline's last stage keeps the logits of all micro-batches; 0.2.1 has `return_outputs=False` (train.py)."""
    old_experts: bool
    """Experts as they were before 0.2.2, which is what is written down."""
    attention: tuple[str, ...]
    """The kernels `sdpa_kernel` is given, first come first."""
    saves: frozenset[str]
    """What selective checkpointing keeps besides `selective.SAVED`: cuDNN's attention since 0.2.1; for some weeks of
    January 2025 float8's absolute values; since 0.3 compiled flex attention."""
    stops_early: bool
    """Recomputation ends with the last thing that is needed; since 0.3 it runs to the layer's end (`early_stop`)."""
    is_rewritten: bool
    """0.3's decoder (decoder.py) and step (step.py): FSDP2 is around a model on one card too, for its mixed precision,
    the head's product is the loss's, and gradients stay where they are between steps, for CUDA graphs."""


def month_of(version: str | None) -> Month:
    if version is None:
        return NEWEST
    given = minor(version)
    month = RELEASES.get(given, given)
    if not OLDEST <= month < (2100, 1):
        raise UsageError.at("stack_version", f"got {version}; torchtitan by month from 2024.3 on, or 0.1, 0.2, 0.3")
    return month


def guesses_of(version: str | None) -> Iterator[str]:
    """A sentence where no tape was compared with that code."""
    month = month_of(version)
    if NEWEST < month < REWRITTEN:
        yield f"torchtitan {version} lies between 0.2.2 and 0.3.0, which is another program; 0.2.2's code is taken"
    elif month > REWRITTEN or (version is not None and (0, 3, 0) < numbers(version) < (1,)):
        yield f"torchtitan {version} is newer than what is followed, 0.3.0, whose code is taken"
    if month >= REWRITTEN:
        yield GRAPHS


def release_of(version: str | None, capability: tuple[int, int]) -> TitanRelease:
    month = month_of(version)
    if month >= (2025, 10):
        attention: tuple[str, ...] = ("cudnn", "flash", "efficient")
    elif month >= (2025, 3) and capability[0] == 10:
        attention = ("cudnn", "flash", "efficient")
    else:
        attention = ("flash", "efficient")
    saves = ["_scaled_dot_product_cudnn_attention"] if month >= (2025, 12) else []
    saves += ["abs"] if month == (2025, 1) else []
    saves += ["flex_attention"] if month >= REWRITTEN else []
    return TitanRelease(
        own_norm=month < (2025, 4),
        fused_norm=month >= (2025, 7),
        shards_ends_apart=month >= (2025, 8),
        keeps_last_layer=month < (2025, 8),
        keeps_logits=month < (2024, 7),
        splits_loss=month >= (2024, 4),
        copies_apart=month < (2024, 9),
        gives_root_back=(2025, 6) <= month < (2025, 8),
        compiles_loss=(2024, 7) <= month < (2024, 12) or month >= (2025, 3),
        repeats_heads=month < (2025, 12),
        returns_outputs=month < (2025, 12),
        old_experts=month < (2026, 2),
        attention=attention,
        saves=frozenset(saves),
        stops_early=month < REWRITTEN,
        is_rewritten=month >= REWRITTEN,
    )
