"""What ms-swift trains with Megatron Core beyond the language model's own loss, and images beside text.

Source   swift/megatron/trainers of ms-swift 4.6.0: rlhf_mixin.py, `MegatronRLHFTrainer.prepare_model` (a second model
         where all weights are trained, else the policy without its adapters) and `get_logps` (log-probabilities are
         the model's own losses of a token each); dpo_trainer.py, kto_trainer.py and grpo_trainer.py, `forward_step` and
         `_maybe_compute_logps`: which passes come before the one that is trained on. Towers are transformers' own,
         whole on every card of a pipeline's first stage; their features are put among the embeddings before these are
         scattered over ranks (swift/megatron/model, `HuggingFaceVit.get_inputs_embeds`).
Ignored  numbers of which there is one a token, or fewer; what gathers weights for vLLM; positions of images in three
         dimensions, and the deeper features of Qwen3-VL, which take no more than the embeddings do
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from tunecast.errors import Unsupported
from tunecast.job.job import Job
from tunecast.job.names import HEADS
from tunecast.tape.build.families import model_of
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.modules import Module
from tunecast.tape.build.recompute import first_of
from tunecast.tape.build.stacks import TRACE_INSTEAD
from tunecast.tape.build.tensor import Tensor
from tunecast.tape.build.vision.parts import WithParts

PAIRED = ("dpo", "reward")
"""Tasks whose rows come two a sample."""
UNTRACED = "task {} with Megatron Core follows ms-swift's trainer; nobody traced it"
TOWER = "images with Megatron Core: transformers' tower stands whole on the first stage's cards; nobody traced it"
TOWER_ADAPTERS = "adapters of the tower are left out"


def rows_of(job: Job) -> int:
    return job.micro_batch * (2 if job.task in PAIRED else 1)


def has_head(job: Job) -> bool:
    return job.task in HEADS


def asks_reference(job: Job) -> bool:
    return job.task in ("dpo", "kto") or (job.task == "grpo" and bool(job.rl.beta))


def passes_sent(job: Job) -> int:
    """What a pipeline's stage sends of each micro-batch, in its own hidden states: those of all passes in one."""
    return {"dpo": 2, "kto": 4}.get(job.task, 1)


def passes_before(job: Job) -> list[bool]:
    """Passes without a graph before the one that is trained on: whether each is the reference's."""
    if job.task == "dpo":
        return [True]
    if job.task == "kto":  # mismatched rows and its own by the reference, mismatched rows by the policy
        return [True, True, False]
    return []


def passes_of_rollout(job: Job) -> list[bool]:
    """The same after it has written, of all micro-batches: the reference's, then the policy's as it was."""
    return [True, False] if asks_reference(job) else [False]


@contextlib.contextmanager
def asked(gpt: Any, reference: Any, by_reference: bool) -> Iterator[Any]:
    """The model that answers, without a graph: a second one, or the trained one, whose adapters are off where it is the
    reference."""
    found = reference if by_reference and reference is not None else gpt
    gathers, reduces = found.exchange.gathers, found.exchange.reduces
    found.exchange.gathers = found.exchange.reduces = False
    layers = [layer for layer in found.layers() if layer.recomputed]
    adapted = [module for module in found.modules() if getattr(module, "lora_a", None) is not None]
    held = [(module, module.lora_a) for module in adapted] if by_reference else []
    for layer in layers:
        layer.recomputed = False
    for module, _ in held:
        object.__setattr__(module, "lora_a", None)
    try:
        with found.machine.no_grad():
            yield found
    finally:
        for module, lora_a in held:
            object.__setattr__(module, "lora_a", lora_a)
        for layer in layers:
            layer.recomputed = True
        found.exchange.gathers, found.exchange.reduces = gathers, reduces


class GivenEmbeddings(Module):
    """In the language model's place: gives the embeddings that Megatron made, and takes what is put among them."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine)
        self.embeddings: list[Tensor] = []
        """One while it runs."""

    def embed_tokens(self, input_ids: Tensor) -> Tensor:
        return self.embeddings.pop()

    def forward(self, *, inputs_embeds: Tensor, **others: Any) -> Tensor:
        return inputs_embeds


class Tower(Module):
    """Tower and projector of transformers' model, without its language model."""

    def __init__(self, machine: Machine, config: Mapping[str, Any]) -> None:
        super().__init__(machine)
        made = model_of(machine, config)
        language_model = made.model.language_model if isinstance(made, WithParts) and hasattr(made, "model") else None
        if not hasattr(language_model, "embed_tokens") or hasattr(language_model, "shape_per_layer"):  # Gemma 4's
            told = f"with Megatron Core, what {config['model_type']} makes of images is not written down"
            raise Unsupported.at("vision.images", f"{told}. {TRACE_INSTEAD}")
        self.model = made.model
        self.model.language_model = GivenEmbeddings(machine)
        self._part_of = made.part_of

    def is_trained(self, path: str, parts: tuple[str, ...] | None) -> bool:
        return parts is None or self._part_of(path.removeprefix("visual.")) in parts

    def forward(self, embeddings: Tensor, input_ids: Tensor, **images: Tensor) -> Tensor:
        self.model.language_model.embeddings.append(embeddings)
        found: Tensor = first_of(self.model(input_ids, attention_mask=input_ids, **images))
        return found


def mark(job: Job, machine: Machine) -> None:
    if job.task not in ("sft", "pretrain"):
        machine.guesses[UNTRACED.format(job.task)] = None
    if machine.pictures is not None:
        machine.guesses[TOWER] = None
        if job.method != "full" and set(job.vision.trained or ()) & {"tower", "projector"}:
            machine.guesses[TOWER_ADAPTERS] = None
