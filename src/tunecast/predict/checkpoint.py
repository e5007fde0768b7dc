"""What a checkpoint of the Trainer weighs on disk, from the model's tensors and the optimizer's name.

    checkpoint-500/  model.safetensors | adapter_model.safetensors   `safetensors_bytes`
                     optimizer.pt                                    `optimizer_file_bytes`
                     scheduler.pt, rng_state.pth, config.json, ...   `SMALL_FILES_BYTES`

Source   Trainer._save_checkpoint, transformers 5.17.0; PeftModel.save_pretrained, PEFT 0.21.0; the optimizers of torch
         2.11.0, transformers and bitsandbytes 0.50.2.
Ignored  the tokenizer, which is saved along where the Trainer was given one: from 1 MB to 35 MB.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import NamedTuple

from tunecast.errors import Unsupported
from tunecast.units import GB, KIB

WIDTHS: Mapping[str, int] = {"float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1, "uint8": 1, "int8": 1}
FOUR_BIT = ("nf4", "fp4")
QUANTIZED = (*FOUR_BIT, "int8")

SMALL_FILES_BYTES = 28 * KIB
"""rng_state.pth 14 kB, README.md of an adapter 5 kB, training_args.bin 6 kB, and some of 1 kB. trainer_state.json grows
by about 200 bytes with each line of the log."""
SMALL_FILES_OF_MODEL_BYTES = 12 * KIB
"""The same of a checkpoint that is the model alone: without rng_state.pth and scheduler.pt."""
SHARD_BYTES = 50 * GB
"""save_pretrained's max_shard_size; transformers 4 cuts at 5 GB."""
TORCH_SAVE_TENSOR_BYTES = 283
"""torch.save: a tensor's zip records, padding to 64 bytes and pickle. Counted on an H200: 278 to 285 for each of 400 to
1200; of bitsandbytes' 8-bit states, which are pickled with more beside them, up to 335."""
TORCH_SAVE_BYTES = 2 * KIB
PAGED_ELEMENTS = 100_000
"""bitsandbytes pages the state of parameters this large, and keeps that of smaller ones on the card."""


class Parameter(NamedTuple):
    """One tensor of the model that trains. Tied weights are one parameter."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    """As it lies on the card while training; nf4, fp4 or int8 where bitsandbytes packed it."""
    trainable: bool

    @property
    def elements(self) -> int:
        return prod(self.shape)

    @property
    def is_adapter(self) -> bool:
        return ".lora_" in self.name or ".modules_to_save." in self.name or ".trainable_tokens_" in self.name

    @property
    def is_embedding(self) -> bool:
        return self.name.endswith(EMBEDDINGS)

    @property
    def is_expert_pair(self) -> bool:
        """Gate and up projections of all experts of a layer in one tensor, as transformers 5 holds them."""
        return self.name.endswith("experts.gate_up_proj") and len(self.shape) == 3


EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "wpe.weight", "word_embeddings.weight", "embed_in.weight")
SAFETENSORS_NAMES: Mapping[str, str] = {
    "float32": "F32", "bfloat16": "BF16", "float16": "F16", "float8_e4m3fn": "F8_E4M3", "uint8": "U8", "int8": "I8"
}  # fmt: skip


def saved_parameters(parameters: Iterable[Parameter]) -> list[Parameter]:
    """The adapters alone where there are any, less the adapter's name (get_peft_model_state_dict); else everything."""
    every = list(parameters)
    adapters = [p._replace(name=p.name.replace(".default", "")) for p in every if p.is_adapter]
    return adapters or every


def weights_bytes(parameters: Iterable[Parameter]) -> int:
    return sum(p.elements * WIDTHS[p.dtype] for p in parameters)


def safetensors_bytes(parameters: Sequence[Parameter]) -> int:
    """Size of the file: 8 bytes, a JSON header padded to 8, the tensors back to back. Exact, for one file.

    Source   safetensors 0.8.0, serialize: widest types first, then by name; metadata {"format": "pt"}.
    Ignored  that over 50 GB there are several files, with a header each and an index beside them.
    """
    entries = ['"__metadata__":{"format":"pt"}']
    start = 0
    for p in sorted(parameters, key=lambda p: (-WIDTHS[p.dtype], p.name)):
        end = start + p.elements * WIDTHS[p.dtype]
        shape = ",".join(map(str, p.shape))
        entries.append(
            f'"{p.name}":{{"dtype":"{SAFETENSORS_NAMES[p.dtype]}","shape":[{shape}],"data_offsets":[{start},{end}]}}'
        )
        start = end
    header = len(("{" + ",".join(entries) + "}").encode())
    return 8 + -(-header // 8) * 8 + start


def largest_shard_bytes(parameters: Iterable[Parameter], shard_bytes: int = SHARD_BYTES) -> int:
    """The fullest file: tensors in order, a new file where one would pass the limit.

    Source   split_state_dict_into_shards_factory (huggingface_hub), which save_pretrained calls.
    """
    most = now = 0
    for p in parameters:
        nbytes = p.elements * WIDTHS[p.dtype]
        now = nbytes if now + nbytes > shard_bytes else now + nbytes
        most = max(most, now)
    return most


class Kept(NamedTuple):
    """What an optimizer keeps of a parameter: so many tensors of its shape."""

    copies: int
    width_bytes: int | None = None
    """Of an element; None: the parameter's own. 1: bitsandbytes' 8-bit blocks."""
    step_tensor: bool = False
    """torch's optimizers count steps in a float32 tensor a parameter."""
    paged: bool = False

    @property
    def code_books(self) -> int:
        """Tables an 8-bit parameter's state refers to: one for the first average, one for all others."""
        return min(self.copies, 2) if self.width_bytes == 1 else 0

    def packs(self, p: Parameter) -> bool:
        return self.width_bytes == 1 and p.elements >= MIN_8BIT_ELEMENTS and not p.is_embedding


STATES: Mapping[str, Kept] = {
    "adamw_torch": Kept(2, step_tensor=True),
    "adamw_torch_fused": Kept(2, step_tensor=True),
    "sgd": Kept(0),
    "adagrad": Kept(1, step_tensor=True),
    "rmsprop": Kept(1, step_tensor=True),
    "adamw_8bit": Kept(2, 1),
    "adamw_bnb_8bit": Kept(2, 1),
    "paged_adamw_32bit": Kept(2, 4, paged=True),
    "paged_adamw_8bit": Kept(2, 1, paged=True),
    "ademamix": Kept(3, 4),
    "ademamix_8bit": Kept(3, 1),
    "paged_ademamix_32bit": Kept(3, 4, paged=True),
    "paged_ademamix_8bit": Kept(3, 1, paged=True),
    "lion_32bit": Kept(1, 4),
    "lion_8bit": Kept(1, 1),
    "paged_lion_32bit": Kept(1, 4, paged=True),
    "paged_lion_8bit": Kept(1, 1, paged=True),
    "rmsprop_bnb": Kept(1, 4),
    "rmsprop_bnb_32bit": Kept(1, 4),
    "rmsprop_bnb_8bit": Kept(1, 1),
}
"""As Trainer.create_optimizer makes them: SGD without momentum. AdEMAMix holds its two averages in one tensor."""
MIN_8BIT_ELEMENTS = 4096
BLOCK_8BIT_ELEMENTS = 256
CODE_BOOK_BYTES = 4 * 256


class State(NamedTuple):
    """One tensor of an optimizer's state."""

    nbytes: int
    paged: bool = False


def state_tensors(optimizer: str, p: Parameter) -> Iterator[State]:
    """What the optimizer keeps of one parameter, tensor by tensor.

    8-bit    a byte an element and a float32 a block of 256; parameters under 4096 elements, and embeddings, stay
             32-bit: the Trainer registers an override for every nn.Embedding (Trainer.create_optimizer).
    Adafactor keeps a row's and a column's mean of a matrix, a whole copy of a vector, in float32, and the RMS.
    Ignored  the two 1 KiB code books of the 8-bit optimizers, which all parameters share until the run is resumed
             (`code_book_bytes`).
    """
    if optimizer == "adafactor":
        if len(p.shape) >= 2:
            yield State(4 * prod(p.shape[:-1]))
            yield State(4 * prod(p.shape[:-2]) * p.shape[-1])
        else:
            yield State(4 * p.elements)
        yield State(4)
        return
    if optimizer not in STATES:
        known = ", ".join(sorted([*STATES, "adafactor"]))
        raise Unsupported(f"optimizer: what {optimizer!r} saves is not written down; known: {known}", field="optimizer")
    kept = STATES[optimizer]
    if kept.step_tensor:
        yield State(4)
    width = WIDTHS[p.dtype] if kept.width_bytes is None else kept.width_bytes
    if kept.packs(p):
        blocks = -(-p.elements // BLOCK_8BIT_ELEMENTS)
        yield from (State(4 * blocks) for _ in range(kept.copies))
    elif kept.width_bytes == 1:
        width = 4
    for _ in range(kept.copies):
        yield State(width * p.elements, paged=kept.paged and p.elements >= PAGED_ELEMENTS)


def optimizer_states(optimizer: str, parameters: Iterable[Parameter]) -> list[State]:
    return [state for p in parameters if p.trainable for state in state_tensors(optimizer, p)]


def code_book_bytes(optimizer: str, parameters: Iterable[Parameter]) -> int:
    """Code books of a state read from a file, where every 8-bit parameter has its own."""
    kept = STATES.get(optimizer)
    if kept is None:
        return 0
    return kept.code_books * CODE_BOOK_BYTES * sum(p.trainable and kept.packs(p) for p in parameters)


def optimizer_file_bytes(states: Sequence[State]) -> int:
    """optimizer.pt: torch.save of the state, and some 280 bytes a tensor around it."""
    return TORCH_SAVE_BYTES + sum(state.nbytes + TORCH_SAVE_TENSOR_BYTES for state in states)
