"""What a checkpoint of the Trainer weighs on disk, from the model's tensors and the optimizer's state.

    checkpoint-500/  model.safetensors | adapter_model.safetensors   `safetensors_bytes`
                     optimizer.pt                                    `optimizer_file_bytes`
                     scheduler.pt, rng_state.pth, config.json, ...   `SMALL_FILES_BYTES`

Source   Trainer._save_checkpoint, transformers 5.17.0; PeftModel.save_pretrained, PEFT 0.21.0; the optimizers of torch
         2.11.0, transformers and bitsandbytes 0.50.2.
Ignored  the tokenizer, which is saved along where the Trainer was given one: from 1 MB to 35 MB.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from math import prod

from tunecast.records import NamedTuple
from tunecast.tape.build.optimizers import State, state_of
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
CODE_BOOK_BYTES = 4 * 256
"""Of 8-bit blocks: the values their codes stand for."""


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
    def part(self) -> str:
        """As optimizers tell parameters apart (`state_of`)."""
        if self.is_embedding:
            return "embedding"
        if self.name.endswith(HEADS):
            return "head"
        return "linear" if len(self.shape) == 2 else ""

    @property
    def is_expert_pair(self) -> bool:
        """Gate and up projections of all experts of a layer in one tensor, as transformers 5 holds them."""
        return self.name.endswith("experts.gate_up_proj") and len(self.shape) == 3


EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "wpe.weight", "word_embeddings.weight", "embed_in.weight")
HEADS = ("lm_head.weight", "embed_out.weight")
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


@lru_cache(maxsize=4096)
def _state(optimizer: str, shape: tuple[int, ...], dtype: str, part: str) -> tuple[State, ...]:
    """Layers have parameters of few kinds."""
    return state_of(optimizer, shape, dtype, part)


def optimizer_states(optimizer: str, parameters: Iterable[Parameter]) -> list[State]:
    """What the optimizer keeps of each parameter that trains, tensor by tensor, but for what all share until the run
    is resumed (`code_book_bytes`)."""
    return [state for state in _every_state(optimizer, parameters) if not state.shared]


def code_book_bytes(optimizer: str, parameters: Iterable[Parameter]) -> int:
    """Code books of a state read from a file, where every 8-bit parameter has its own."""
    return sum(state.nbytes for state in _every_state(optimizer, parameters) if state.shared)


def _every_state(optimizer: str, parameters: Iterable[Parameter]) -> Iterator[State]:
    return (state for p in parameters if p.trainable for state in _state(optimizer, p.shape, p.dtype, p.part))


def optimizer_file_bytes(states: Sequence[State]) -> int:
    """optimizer.pt: torch.save of the state, and some 280 bytes a tensor around it."""
    return TORCH_SAVE_BYTES + sum(state.nbytes + TORCH_SAVE_TENSOR_BYTES for state in states)
