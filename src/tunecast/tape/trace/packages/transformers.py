"""transformers: fake tensors are to it what they stand for, and `from_pretrained` needs no weights.

The loader itself runs unchanged (device map, dtype, quantiser, the allocator's warm-up, tied weights): it is handed
a checkpoint that is only a header. Where the real checkpoint lies on this machine its own header is read; where only
the configuration is known, the header is made from the model the configuration describes.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from tunecast.tape.trace.packages import after_import
from tunecast.tape.trace.recorder import Recorder

CONFIG = "config.json"
_offered: dict[str, Path] = {}
"""Folders holding a config.json, by the name a script loads the model under."""
_made_up = Path(os.devnull)
"""Where headers of checkpoints that are not here are written."""


class NotOnThisMachine(OSError):
    """A model's or tokenizer's files are not here, and tracing uses no network. An OSError, as transformers raises."""


def offer(models: Mapping[str, Mapping[str, Any]], folder: Path) -> None:
    """Let scripts load these configurations by name."""
    global _made_up
    _made_up = folder / "checkpoints"
    for number, (name, config) in enumerate(models.items()):
        _offered[name] = folder / str(number)
        _offered[name].mkdir(parents=True, exist_ok=True)
        (_offered[name] / CONFIG).write_text(json.dumps(dict(config)))


def install(recorder: Recorder) -> None:
    def not_compiling(module: ModuleType) -> None:
        """On fake tensors transformers believes it is being compiled and keeps masks a real run would drop."""
        module.is_fake_tensor = lambda tensor: False  # type: ignore[attr-defined]

    os.environ["HF_DEACTIVATE_ASYNC_LOAD"] = "1"  # threads load in an order of chance; the sum is the same
    after_import("transformers.utils.import_utils", not_compiling)
    after_import("transformers.utils.hub", lambda module: find_offered_models(module, recorder))
    after_import("transformers.modeling_utils", lambda module: load_headers_only(module, recorder))
    after_import("transformers.models.auto.tokenization_auto", explain_missing_tokenizers)
    after_import("transformers.trainer", lambda module: keep_off_the_hub(module.Trainer, recorder))
    after_import("transformers.utils.hub", lambda module: keep_off_the_hub(module.PushToHubMixin, recorder))


def find_offered_models(module: ModuleType, recorder: Recorder) -> None:
    """`cached_files` is where every name becomes a path."""
    if not hasattr(module, "cached_files"):  # older releases: scripts that make their model from a config run
        return
    find = module.cached_files

    def cached_files(path_or_repo_id: Any, filenames: Any, *args: Any, **kwargs: Any) -> Any:
        name = str(path_or_repo_id)
        offered = _offered.get(name) if list(filenames) == [CONFIG] else None
        try:
            found = find(path_or_repo_id, filenames, *args, **kwargs)
        except OSError as error:
            if offered is None and (CONFIG not in filenames or os.path.isdir(name)):
                raise
            if offered is None:
                raise NotOnThisMachine(
                    f"the configuration of the model {name!r} is not on this machine, and tracing uses no network. "
                    f"To fix: --model {name}=path/to/config.json, or run `hf download {name} {CONFIG}` once."
                ) from error
            found = None
        if found is None and offered is not None:
            recorder.assumptions[f"{name}: its configuration is the one tunecast was given or has for this name"] = 1
            return [str(offered / CONFIG)]
        return found

    module.cached_files = cached_files  # type: ignore[attr-defined]


def load_headers_only(module: ModuleType, recorder: Recorder) -> None:
    from tunecast.tape.trace.tensor_files import HUB_FOLDER

    if not hasattr(module, "_get_resolved_checkpoint_files"):  # transformers before 4.50
        return
    resolve, quantizer = module._get_resolved_checkpoint_files, module.get_hf_quantizer
    loading: list[Any] = []  # the model's configuration and how its checkpoint is stored, which `resolve` is not told

    def get_hf_quantizer(config: Any, quantization_config: Any = None, *args: Any, **kwargs: Any) -> Any:
        stored = getattr(config, "quantization_config", None)
        loading[:] = [config, stored]
        if stored is not None and quantization_config is None and not has_weights(config._name_or_path):
            quantization_config = quantize_while_loading(config, stored, recorder)
        return quantizer(config, quantization_config, *args, **kwargs)

    def _get_resolved_checkpoint_files(*args: Any, **kwargs: Any) -> Any:
        name = kwargs.get("pretrained_model_name_or_path", args[0] if args else None)
        try:
            files, metadata = resolve(*args, **kwargs)
        except OSError:
            files, metadata = None, None
        if name is None or (files and all(str(file).endswith((".safetensors", ".gguf")) for file in files)):
            return files, metadata
        place = _made_up if os.path.isdir(str(name)) else _made_up / f"{HUB_FOLDER}{str(name).replace('/', '--')}"
        path = place / f"{len(list(_made_up.rglob('*.safetensors')))}.safetensors"
        make_header(path, loading[0], loading[1], recorder)
        return [str(path)], None

    module.get_hf_quantizer = get_hf_quantizer  # type: ignore[attr-defined]
    module._get_resolved_checkpoint_files = _get_resolved_checkpoint_files  # type: ignore[attr-defined]


def has_weights(name: str) -> bool:
    if os.path.isdir(name):
        return any(file.endswith(".safetensors") for file in os.listdir(name))
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        found = [try_to_load_from_cache(name, file) for file in ("model.safetensors", "model.safetensors.index.json")]
    except HFValidationError:
        return False
    return any(isinstance(path, str) for path in found)


def quantize_while_loading(config: Any, stored: Any, recorder: Recorder) -> Any:
    """A checkpoint stored in 8 bits by bitsandbytes, of which nothing is here: load it as if it were quantised now."""
    values = stored if isinstance(stored, dict) else stored.to_dict()
    if not values.get("load_in_8bit"):
        return None
    from transformers import BitsAndBytesConfig

    recorder.assumptions[
        "a checkpoint stored quantised was loaded as one quantised while loading: the same model, other temporaries"
    ] += 1
    del config.quantization_config
    return BitsAndBytesConfig.from_dict(values)


def make_header(path: Path, config: Any, stored: Any, recorder: Recorder) -> None:
    """What `save_pretrained` would store of the architecture the configuration names."""
    import transformers

    from tunecast.tape.trace.tensor_files import write_header

    raw = config.to_dict()
    raw.pop("quantization_config", None)
    plain = type(config).from_dict(raw)
    dtype = getattr(config, "dtype", None)
    if dtype is None:
        recorder.assumptions[f"{config.model_type}: the configuration names no dtype; float32 was taken"] += 1
    kind = next((getattr(transformers, n) for n in config.architectures or () if hasattr(transformers, n)), None)
    build = transformers.AutoModelForCausalLM.from_config if kind is None else kind._from_config
    with torch.device("meta"), weights_in_one_piece():
        model = build(plain, dtype=dtype or torch.float32)
    tensors = model.state_dict()
    for name in tied_names(model):
        tensors.pop(name, None)
    try:
        from transformers.core_model_loading import revert_weight_conversion
    except ImportError:
        pass
    else:
        tensors = revert_weight_conversion(model, tensors)
    write_header(path, *packed_as(stored, tensors))


@contextlib.contextmanager
def weights_in_one_piece() -> Iterator[None]:
    """With a ZeRO-3 configuration every model is made in `zero.Init`, which leaves a rank its part of each weight
    (modeling_utils.py, `get_init_context`); files have them whole."""
    from transformers.integrations import deepspeed

    kept = deepspeed._hf_deepspeed_config_weak_ref
    deepspeed._hf_deepspeed_config_weak_ref = None
    try:
        yield
    finally:
        deepspeed._hf_deepspeed_config_weak_ref = kept


Packed = tuple[dict[str, torch.Tensor], dict[str, bytes]]
"""What takes a tensor's place in a checkpoint, by its name in full, and what of it has contents."""


def packed_as(stored: Any, tensors: Mapping[str, torch.Tensor]) -> Packed:
    """The tensors as a checkpoint holds them that was saved quantised."""
    values = stored if isinstance(stored, dict) else {} if stored is None else stored.to_dict()
    method = values.get("quant_method")  # the name, or transformers' enumeration of names, which equals it
    skipped = values.get("modules_to_not_convert") or values.get("llm_int8_skip_modules") or ()
    out, contents = dict(tensors), dict[str, bytes]()
    for name, tensor in tensors.items():
        made: Packed | None = None
        if method == "mxfp4" and name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            made = in_mxfp4(name, tensor)
        elif tensor.dim() == 2 and is_linear(name, skipped):
            if method == "fp8":
                made = in_fp8(name, tensor, values.get("weight_block_size") or tensor.shape)
            elif values.get("load_in_4bit"):
                made = in_four_bits(name, tensor, values)
        if made is not None:
            del out[name]
            out |= made[0]
            contents |= made[1]
    return out, contents


def in_mxfp4(name: str, tensor: torch.Tensor) -> Packed:
    experts, inputs, outputs = tensor.shape
    blocks = torch.empty(experts, outputs, inputs // 32, 16, dtype=torch.uint8, device="meta")
    return {f"{name}_blocks": blocks, f"{name}_scales": blocks[..., 0]}, {}


def in_fp8(name: str, tensor: torch.Tensor, block: Sequence[int]) -> Packed:
    scales = [-(-size // part) for size, part in zip(tensor.shape, block, strict=True)]
    packed = tensor.to(torch.float8_e4m3fn)
    return {name: packed, f"{name}_scale_inv": torch.empty(scales, dtype=torch.float32, device="meta")}, {}


def in_four_bits(name: str, tensor: torch.Tensor, values: Mapping[str, Any]) -> Packed:
    """bitsandbytes' functional.py, `QuantState.as_dict`."""
    kind, double = values.get("bnb_4bit_quant_type", "fp4"), values.get("bnb_4bit_use_double_quant")
    blocks = -(-tensor.numel() // 64)
    state = {
        "quant_type": kind, "blocksize": 64, "dtype": str(tensor.dtype).removeprefix("torch."),
        "shape": list(tensor.shape),
    }  # fmt: skip
    if double:
        state |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": 0.5}
    written = json.dumps(state).encode()
    sizes = {
        "": ((tensor.numel() + 1) // 2, torch.uint8),
        ".absmax": (blocks, torch.uint8 if double else torch.float32),
        ".quant_map": (16, torch.float32),
        f".quant_state.bitsandbytes__{kind}": (len(written), torch.uint8),
    }
    if double:
        sizes |= {".nested_absmax": (-(-blocks // 256), torch.float32), ".nested_quant_map": (256, torch.float32)}
    made = {f"{name}{end}": torch.empty(size, dtype=of, device="meta") for end, (size, of) in sizes.items()}
    made[name] = made[name].unsqueeze(1)
    return made, {f"{name}.quant_state.bitsandbytes__{kind}": written}


def is_linear(name: str, skipped: Sequence[str]) -> bool:
    """Of a weight with two dimensions: neither a table of embeddings nor left as it is."""
    if any(part in name for part in ("embed", "lm_head", "mlp.gate.")):
        return False
    return name.endswith(".weight") and not any(part in name for part in skipped)


def tied_names(model: Any) -> list[str]:
    """Saved once, under the other name."""
    if not getattr(model.config.get_text_config(), "tie_word_embeddings", False):
        return []
    return list(getattr(model, "all_tied_weights_keys", None) or model._tied_weights_keys or ())


def explain_missing_tokenizers(module: ModuleType) -> None:
    load = module.AutoTokenizer.from_pretrained.__func__

    def from_pretrained(cls: Any, name: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return load(cls, name, *args, **kwargs)
        except (OSError, ValueError, TypeError, AttributeError) as error:
            if os.path.isdir(str(name)) and not isinstance(error, NotOnThisMachine):
                raise
            raise NotOnThisMachine(
                f"the tokenizer of {str(name)!r} is not on this machine, and tracing uses no network. "
                f"To fix: run `hf download {name} --include 'token*' --include '*.json'` once."
            ) from error

    module.AutoTokenizer.from_pretrained = classmethod(from_pretrained)  # type: ignore[attr-defined]


def keep_off_the_hub(kind: Any, recorder: Recorder) -> None:
    def nothing(*args: Any, **kwargs: Any) -> None:
        recorder.assumptions["uploading to the Hub was skipped: tracing uses no network"] += 1

    for name in ("init_hf_repo", "push_to_hub", "_push_from_checkpoint"):
        if hasattr(kind, name):
            setattr(kind, name, nothing)
