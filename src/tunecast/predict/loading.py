"""Loading a model: what from_pretrained takes of the host's memory and of the card's.

    safetensors file ─mmap─► page of the host ─(cast)─► card ─(quantise)─► card

Source   transformers 5.17.0: PreTrainedModel._load_pretrained_model, caching_allocator_warmup (modeling_utils.py),
         convert_and_load_state_dict_in_model (core_model_loading.py); bitsandbytes 0.50.2; safetensors 0.8.0.
"""

from __future__ import annotations

from collections.abc import Sequence

from tunecast.predict.allocator import AllocatorSettings, CachingAllocator
from tunecast.predict.checkpoint import FOUR_BIT, QUANTIZED, WIDTHS, Parameter
from tunecast.records import dataclass
from tunecast.units import GIB

LOAD_THREADS = 4
"""core_model_loading.GLOBAL_WORKERS, on a machine of at least four cores."""
LEFT_BY_WARM_UP_BYTES = 12 * GIB // 10
"""Of the card; caching_allocator_warmup."""
KERNELS_BYTES = {"nf4": 45_000_000, "nf4 twice": 75_000_000, "int8": 52_000_000}
"""Host memory of the kernels that quantising runs, which CUDA loads when they are first launched: part of the process
from then on. Measured on an H200, torch 2.11.0+cu130, a case each (benchmarks/data/outside_runs.jsonl: qlora-3b-paged;
load-3b-nf4-plain and load-3b-int8 less the import of bitsandbytes). A plain load only copies and needs none."""


@dataclass(frozen=True)
class Loading:
    host_bytes: int
    """Of the process's own memory, at most, while loading."""
    host_mapped_bytes: int
    """Pages of the checkpoint mapped into the process by the end."""
    card_allocated_bytes: int
    """torch.cuda.max_memory_allocated over from_pretrained."""
    card_reserved_bytes: int
    model_bytes: int
    """Allocated when the model is loaded."""


def loading(
    base: Sequence[Parameter],
    dtype: str,
    *,
    file_dtype: str = "bfloat16",
    device_map: bool = True,
    double_quant: bool = False,
    merged_experts: bool = True,
    buffers: Sequence[int] = (),
    settings: AllocatorSettings | None = None,
) -> Loading:
    """from_pretrained, onto the card (`device_map`) or into host memory and then `.to("cuda")`.

    Host     Tensors are views of the mapped file, so bytes read in the dtype wanted cost no memory of the process.
             A cast is done on the host (Copy.cu converts before a host-to-card copy): of the tensors that the four
             threads hold at once, or of the whole model when it is loaded there. On-the-fly quantisation loads one by
             one; int8 also brings each weight back to the host and makes a float16 of it (Bnb8bitQuantize). The
             kernels themselves come on top (`KERNELS_BYTES`).
    Card     `caching_allocator_warmup` asks for one block of the model's size first and gives it back to the cache;
             then the tensors in natural order of their names. `_card_loads` replays that.
             Buffers (bytes of each: a rotary embedding's frequencies) are moved last.
    Ignored  checkpoints in .bin files, offload to disk; 3 to 5 MB of Python's objects; what the threads' heaps keep of
             casts under 32 MiB that are done (glibc: up to 64 MiB a thread; 10 and 19 MiB of the peaks measured).
    """
    width = WIDTHS[dtype]
    warm_up = device_map or any(p.dtype in QUANTIZED for p in base)
    ordered = sorted(base, key=lambda p: natural_order(p.name)) if warm_up else base
    sizes = sorted((p.elements * width for p in base), reverse=True)
    quantized = [p for p in base if p.dtype in QUANTIZED]
    casts = file_dtype != dtype
    if not warm_up:
        host = sum(sizes) if casts else 0
    else:
        host = sum(sizes[: 1 if quantized else LOAD_THREADS]) if casts else 0
        eight_bit = [p.elements for p in quantized if p.dtype == "int8"]
        host = max([host, *((width + 2) * elements for elements in eight_bit)])
        if quantized:
            host += KERNELS_BYTES["int8" if eight_bit else "nf4 twice" if double_quant else "nf4"]
    settings = settings or AllocatorSettings()
    allocator = CachingAllocator(settings)
    _card_loads(
        allocator,
        ordered,
        width,
        warm_up_bytes=settings.device_total_bytes - LEFT_BY_WARM_UP_BYTES if warm_up else 0,
        double_quant=double_quant,
        merged_experts=merged_experts,
    )
    for number, nbytes in enumerate(buffers, start=1):
        allocator.malloc(-number, nbytes)
    return Loading(
        host_bytes=host,
        host_mapped_bytes=sum(p.elements * WIDTHS[file_dtype] for p in base),
        card_allocated_bytes=allocator.peak_allocated_bytes,
        card_reserved_bytes=allocator.peak_reserved_bytes,
        model_bytes=allocator.allocated_bytes,
    )


def natural_order(name: str) -> list[tuple[int, int, str]]:
    """The loader's order of names: layers.2 before layers.10, numbers before words (dot_natural_key)."""
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in name.split(".")]


def _card_loads(
    allocator: CachingAllocator,
    ordered: Sequence[Parameter],
    width: int,
    *,
    warm_up_bytes: int,
    double_quant: bool,
    merged_experts: bool,
) -> None:
    """Every allocation of the loader, on the allocator's model.

    4 bits   The weight arrives whole; then float32 maxima of blocks of 64, half a byte an element, 16 code values,
             and what it takes to find the largest of these. With double quantisation the maxima less their mean become
             a byte each, with a maximum for every 256 and a code book of 256 floats, a copy of one made for the first
             weight; the float32 ones go. Then the weight goes.
    int8     The weight on the card, a float16 of it come back from the host, a byte an element, a float32 a row.
    Experts  stacked and concatenated beside the tensors they came from: once more the largest pair of projections.
    """
    block = 0

    def take(nbytes: int) -> int:
        nonlocal block
        block += 1
        allocator.malloc(block, nbytes)
        return block

    if warm_up_bytes:
        # Half precision elements, whatever the dtype: an odd byte is dropped (byte_count // 2).
        bits = sum(p.elements * (4 if p.dtype in FOUR_BIT else 8 * _held_width(p, width)) for p in ordered)
        allocator.free(take(min(bits // 8, warm_up_bytes) // 2 * 2))
    code_book = 0
    for p in ordered:
        if p.dtype not in QUANTIZED:
            take(p.elements * width)
            continue
        whole = [take(p.elements * width)]
        if p.dtype == "int8":
            whole.append(take(p.elements * 2))
            take(4 * (p.elements // p.shape[-1]))
            take(p.elements)
        else:
            maxima = -(-p.elements // 64)
            absmax = take(4 * maxima)
            take(-(-p.elements // 2))
            take(4 * 16)
            magnitudes, largest = take(4 * 16), take(4)
            allocator.free(magnitudes)
            allocator.free(largest)
            if double_quant:
                take(4)
                difference = take(4 * maxima)
                code_book = code_book or take(4 * 256)
                take(4 * -(-maxima // 256))
                take(maxima)
                take(4 * 256)
                allocator.free(difference)
                allocator.free(absmax)
        for weight in whole:
            allocator.free(weight)
    pairs = [p.elements * width for p in ordered if p.is_expert_pair]
    if pairs and merged_experts:
        allocator.free(take(max(pairs)))


def _held_width(p: Parameter, width: int) -> int:
    return 1 if p.dtype == "int8" else width
