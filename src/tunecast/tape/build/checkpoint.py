"""`from_pretrained` with a device map, on paper: everything it does to the card.

`caching_allocator_warmup` asks for one block as large as all weights and lets go of it: PyTorch keeps the segment, and
the weights are cut from it one behind the other. What is left of it, and what quantised weights leave between them,
training uses. Tensors come in the natural order of the checkpoint's names, tied ones once; a weight to be quantised
arrives in its own dtype and leaves packed; experts that a checkpoint holds apart arrive one by one and are stacked.
Buffers that no checkpoint has come last.
Source   transformers 5.17.0: caching_allocator_warmup and get_total_byte_count (modeling_utils.py),
         convert_and_load_state_dict_in_model, MergeModulelist, Concatenate (core_model_loading.py: one thread where it
         quantises); conversion_mapping.py; Bnb4BitHfQuantizer.param_element_size.
Checked  the tracer's from_pretrained, request by request (tests/trace/test_loading.py). Thirteen whole jobs on an H200
         (benchmarks/data/job_runs_dev.jsonl): model to the byte in all.
Ignored  a script without a device map, whose weights the Trainer moves one by one (as steps alone have them). Where
         nothing is quantised four threads load at a time: the order among neighbours is chance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tunecast.records import NamedTuple
from tunecast.tape.build.dtypes import FLOAT16, FLOAT32, Dtype
from tunecast.tape.build.modules import Buffer, Module, bring
from tunecast.tape.build.packed.unpacking import Unpacking, UnpackingFP8
from tunecast.tape.build.quantized import Quantizer
from tunecast.tape.build.tensor import Tensor
from tunecast.tape.op import Role
from tunecast.units import GIB, MIB

CACHED_BYTES = 2 * MIB
"""Held in the cache already, of which so much less is asked for: the segment of the program's first small tensor."""
LEFT_BY_WARM_UP_BYTES = 12 * GIB // 10
"""Of the card."""
EXPERTS_IN_ONE_TENSOR = frozenset(
    {"gpt_oss", "llama4_text", "llama4", "granitemoe", "granitemoehybrid", "mistral4", "gemma4_text"}
)
"""Architectures whose checkpoints hold a layer's experts as transformers does (conversion_mapping.py has no merge)."""
MERGED = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}
"""What a checkpoint has one of for each expert, by what transformers makes of them."""
NUMBERED = {"gate_proj": "w1", "down_proj": "w2", "up_proj": "w3"}
MIXTRAL = {".mlp.": ".block_sparse_moe.", **NUMBERED}
GRANITE = {"experts.gate_up_proj": "input_linear", "experts.down_proj": "output_linear"}
CHECKPOINT_NAMES: Mapping[str, Mapping[str, str]] = {
    "mixtral": MIXTRAL,
    "minimax_m2": MIXTRAL,
    "lfm2_moe": NUMBERED,
    "gpt_neox": {"lm_head": "embed_out"},
    "granitemoe": GRANITE,
    "granitemoehybrid": GRANITE,
    "gemma4_unified_text": {"embed_vision.multimodal_embedder": "embed_vision", "embed_vision.p": "vision_embedder.p"},
}
"""What checkpoints of an architecture call parts of the model (conversion_mapping.py), where that moves them."""
IN_FLOAT32 = "e_score_correction_bias"
"""Loaded in float32 whatever the weights' dtype (`_keep_in_fp32_modules_strict`)..."""
NOT_IN_FLOAT32 = frozenset({"minimax_m2"})
"""...but in these."""
SAVED_BUFFERS = frozenset({
    IN_FLOAT32, "expert_bias", "layer_scalar", "input_min", "input_max", "output_min", "output_max", "std_bias",
    "std_scale", "qweight", "qzeros", "scales", "g_idx",
})  # fmt: skip
"""Buffers that checkpoints have: DeepSeek's, LFM2's, Gemma 4's, GPTQ's."""


class _Entry(NamedTuple):
    """One tensor of the model, in its place among the checkpoint's."""

    order: list[tuple[int, int, str]]
    module: Module
    name: str
    tensor: Tensor


def load_checkpoint(
    model: Any, quantizer: Quantizer | None, *, cached_bytes: int = CACHED_BYTES, card_bytes: int | None = None
) -> None:
    """`cached_bytes` are in the cache when it begins; `card_bytes` is the card's memory, where the warm-up may be more
    than there is."""
    if getattr(model, "tied", False):
        model.tie()
    unpacking: Unpacking | None = getattr(model, "unpacking", None)
    parents = {id(child): (module, name) for module in model.modules() for name, child in module.children.items()}
    entries = _entries(model)
    _warm_up(entries, quantizer, cached_bytes, card_bytes)
    for _, module, name, tensor in sorted(entries, key=lambda entry: entry.order):
        sources = _sources(model, name, tensor)
        if quantizer is not None and name == "weight" and quantizer.takes(module):
            parent, place = parents[id(module)]
            with module.machine.within(module.path):
                setattr(parent, place, quantizer.quantized(module))
        elif sources:
            _merge(tensor, module.path, len(sources), unpacking)
        elif unpacking is not None and unpacking.takes(module, name, tensor):
            unpacking.unpack(tensor, module.path)
        else:
            bring(tensor, module.path, dtype=_own_dtype(model, name))


def draw_initial_weights(model: Any) -> None:
    """modeling_utils.py, `initialize_weights`, comes to modules that were loaded too: what some `_init_weights` draw
    first is made, and goes."""
    for module in model.modules():
        if module.initial_weights:
            module.machine.run("empty", (), (module.initial_weights,), FLOAT32)


def move_to_card(model: Any) -> None:
    """A model that was loaded on the host, `.to("cuda")`."""
    if getattr(model, "tied", False):
        model.tie()
    for _, module, name, tensor in _entries(model):
        bring(tensor, module.path, dtype=_own_dtype(model, name))


def _own_dtype(model: Any, name: str) -> Dtype | None:
    """Where it is not the weights'."""
    return FLOAT32 if name == IN_FLOAT32 and model.model_type not in NOT_IN_FLOAT32 else None


def _entries(model: Any) -> list[_Entry]:
    """In the order of the tree. They are loaded in that of their names (`dot_natural_key`); of a tied tensor the first
    name is the checkpoint's."""
    found: dict[int, _Entry] = {}
    unpacking: Unpacking | None = getattr(model, "unpacking", None)
    names = CHECKPOINT_NAMES.get(model.model_type, {}).items()
    for module in model.modules():
        for name, tensor in module.own.items():
            if (
                tensor.storage is not None
                or id(tensor) in found
                or (isinstance(tensor, Buffer) and name not in SAVED_BUFFERS)
            ):
                continue
            sources = _sources(model, name, tensor)
            path = f"{module.path}.0.{sources[0]}.weight" if sources else f"{module.path}.{name}"
            if unpacking is not None and unpacking.takes(module, name, tensor):
                path += unpacking.suffix
            for ours, theirs in names:
                path = path.replace(ours, theirs)
            found[id(tensor)] = _Entry([natural_order(part) for part in path.split(".")], module, name, tensor)
    return list(found.values())


def natural_order(part: str) -> tuple[int, int, str]:
    """Numbers by their value, before words."""
    return (0, int(part), "") if part.isdigit() else (1, 0, part)


def _sources(model: Any, name: str, tensor: Tensor) -> Sequence[str]:
    """Of a tensor that is put together, what the checkpoint has for each expert."""
    merged = tensor.dim() == 3 and model.model_type not in EXPERTS_IN_ONE_TENSOR
    return MERGED.get(name, ()) if merged else ()


def _merge(tensor: Tensor, path: str, sources: int, unpacking: Unpacking | None = None) -> None:
    """All arrive, those of each projection are stacked, and gate and up are joined."""
    machine, (experts, outputs, inputs), dtype = tensor.machine, tensor.shape, tensor.dtype
    one = (outputs // sources, inputs)
    with machine.within(path):
        if isinstance(unpacking, UnpackingFP8):
            arrived = unpacking.unpacked_experts(machine, one, dtype, experts, sources)
        else:
            arrived = [[machine.run("_to_copy", (), one, dtype) for _ in range(experts)] for _ in range(sources)]
        stacked = []
        while arrived:
            stacked.append(machine.run("stack", arrived[0][:3], (experts, *one), dtype))
            del arrived[0]
        tensor.storage = (stacked[0] if sources == 1 else machine.run("cat", stacked, tensor.shape, dtype)).storage
    tensor.block.role = Role.WEIGHTS


def _warm_up(entries: Sequence[_Entry], quantizer: Quantizer | None, cached_bytes: int, card_bytes: int | None) -> None:
    machine, total = entries[0].module.machine, 0
    for _, module, name, tensor in entries:
        if quantizer is not None and name == "weight" and quantizer.takes(module):
            nbytes = tensor.numel() // quantizer.elements_per_byte
        else:
            nbytes = tensor.nbytes
        total += machine.stands_for(module.path) * nbytes
    if total > 2 * cached_bytes:
        total -= cached_bytes
        if card_bytes is not None:
            total = min(total, card_bytes - LEFT_BY_WARM_UP_BYTES)
        machine.run("empty", (), (total // 2,), FLOAT16)
