"""A model's architecture from its config.json: bundled, on disk, or on the Hub.

The file may come from anyone: sizes are bounded, numbers must be whole and plausible, and code that comes with a
model is never run. Names differ between architectures (`n_embd`, `d_model`, …); one table maps them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from os.path import isfile, join
from typing import TYPE_CHECKING, Any, TypeGuard

from tunecast.errors import NotResolved, TunecastError, UsageError, nearest
from tunecast.job.knob import Problem, shown
from tunecast.job.readers.bounds import bounded_text
from tunecast.job.readers.json import parsed
from tunecast.job.registry import bundled_config, bundled_names, bundled_spelling
from tunecast.job.registry import bundled_models as bundled_models
from tunecast.job.spellings import BY_NAME, FOLDERS, Spelling, repository_of
from tunecast.records import dataclass
from tunecast.tables import text_beside
from tunecast.units import MIB

if TYPE_CHECKING:
    from pathlib import Path

    from tunecast.job.hub import Settings
    from tunecast.job.safetensors import Weights

MOST_CONFIG_BYTES = MIB
BUNDLED = "bundled ("
"""How the source of a model begins that came with this package."""

# The name in ModelConfig, the names in config.json (the first is the one messages use), the bounds. The deepest
# bundled model has 126 layers (Llama 3.1 405B), the deepest published one 315 (mlabonne/BigLlama-3.1-1T-Instruct, a
# merge); 320 take some 10 s where every layer is built (ZeRO with adapters everywhere), 0.6 s where not.
_SIZES: Mapping[str, tuple[tuple[str, ...], int, int]] = {
    "hidden_size": (("hidden_size", "n_embd", "d_model", "dim"), 1, 262_144),
    "layers": (("num_hidden_layers", "n_layer", "n_layers", "num_layers"), 1, 320),
    "heads": (("num_attention_heads", "n_head", "n_heads", "num_heads"), 1, 8192),
    "kv_heads": (("num_key_value_heads", "num_kv_heads", "n_head_kv", "kv_n_heads"), 1, 8192),
    "head_dim": (("head_dim", "attention_head_dim", "d_kv"), 1, 65_536),
    "vocab_size": (("vocab_size", "n_vocab"), 1, 10_000_000),
    "intermediate_size": (("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", "d_ff"), 1, 4_194_304),
}
_OTHER_BOUNDS = {
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "sliding_window"), 10**10),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "n_shared_experts"), 16_384),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 4_194_304),
    **dict.fromkeys(("type_vocab_size", "vocab_size_per_layer_input"), 10_000_000),
    **dict.fromkeys(("global_head_dim", "hidden_size_per_layer_input"), 65_536),
}
"""What else decides how much transformers builds; 0 and null are meaningful there."""
_MOST_INTEGER = 10**12
_TEXT_PARTS = ("text_config", "llm_config", "language_config")
# no intermediate_size, or null: four times the hidden size (transformers, the configurations of these types)
_FOURFOLD = frozenset({"gpt2", "gptj", "gpt_neo", "gpt_bigcode", "bloom", "falcon", "codegen", "mpt"})
# one width per layer is allowed (transformers 5.17.0, Gemma3nTextConfig)
_WIDTHS = frozenset({"gemma3n_text", "gemma3n"})
_DTYPES = ("float32", "bfloat16", "float16", "float64", "float8_e4m3fn", "float8_e5m2")


@dataclass(frozen=True)
class ModelConfig:
    name: str
    """As the job gives it."""
    model_type: str
    """Of the language model, where the model has other parts."""
    hidden_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    intermediate_size: int
    """Of the widest layer, where layers differ; an expert's own width is in `raw`."""
    tied: bool
    """The head shares the embedding's weights."""
    dtype: str | None
    """What the checkpoint is stored in, where config.json or the weights' own headers say."""
    source: str
    raw_json: str
    weights: Weights | None = None
    """From the safetensors headers, where there are any."""
    notes: tuple[str, ...] = ()
    """What should be told to whoever relies on this."""

    @property
    def raw(self) -> dict[str, Any]:
        """config.json as it is, less code it asks to run; a fresh copy each time."""
        content: dict[str, Any] = json.loads(self.raw_json)
        return content


def resolve_model(name: str, *, offline: bool | None = None) -> ModelConfig:
    """The architecture a job's `model` names: a folder or a config.json on disk, a bundled name, or a Hub id.

    The Hub is right about its own: a bundled model stands in for its Hub ids only where the Hub is not reached.

    `offline` None: as HF_HUB_OFFLINE says. Raises `NotResolved` with the nearest names.
    """
    if name in bundled_names() and not isfile(name) and not isfile(join(name, "config.json")):
        return _bundled(name, name)
    from tunecast.job import hub  # a bundled name needs nothing of the network

    path = _local(name) if name.strip() else None
    if path is not None:
        weights, notes = _told(lambda: hub.folder_weights(path.parent))
        return model_config(name, bounded_config(path), str(path), weights, notes)
    if not hub.is_hub_id(name):
        found = bundled_spelling(name)
        if found is not None:
            return _standing_in(name, found, f"{name}: ") if found.because else _bundled(name, found.name)
        found = bundled_spelling(repository_of(name)) if "/" in name else None
        if found is None:
            raise _unknown(name)
        return _standing_in(name, found, f"{name} is not on this machine; ")
    found = bundled_spelling(name) if name.partition("/")[0].lower() in FOLDERS else None
    if found is not None:
        return _standing_in(name, found, f"{name} is not on this machine; ")
    return _from_hub(name, hub.settings(offline=offline))


def known_model(name: object) -> ModelConfig | None:
    """A model that is known without a network; None of any other."""
    try:
        return resolve_model(name, offline=True) if isinstance(name, str) else None
    except TunecastError:
        return None


def model_config(
    name: str, raw: object, source: str, weights: Weights | None = None, notes: tuple[str, ...] = ()
) -> ModelConfig:
    """Reads an architecture out of config.json's content; every value that is missing or absurd is told."""
    if not isinstance(raw, Mapping):
        raise NotResolved(f"{source}: got {shown(raw)}; allowed: a mapping", field="model")
    whole = _without_code(raw)
    prefix, text = language_part(whole)
    problems = _absurd(whole)
    if not source.startswith(BUNDLED):
        from tunecast.job.config_keys import wrong_kinds  # those that come along are checked by a test

        problems += wrong_kinds(whole)
    model_type = text.get("model_type") or whole.get("model_type")
    if not isinstance(model_type, str) or not 0 < len(model_type) <= 64 or not model_type.isprintable():
        problems.append(Problem("model_type", f"got {shown(model_type)}; allowed: the name of an architecture"))
        model_type = ""
    if whole != raw:
        if not any(known in _architectures("native") for known in (model_type, str(whole.get("model_type")))):
            problems.append(Problem("auto_map", f"{model_type} needs code that comes with the model; it is never run"))
        else:
            notes = (*notes, f"{source}: its own code (auto_map) is left out; transformers' {model_type} is taken")
    if whole.get("is_encoder_decoder") is True:
        problems.append(Problem("is_encoder_decoder", "got true; allowed: decoder-only language models"))
    sizes: dict[str, Any] = dict(_sizes(text, prefix, model_type, problems))
    tied = _tied(whole, text, model_type, problems)
    dtype = _dtype(whole, text, problems) or _stored_dtype(weights)
    if problems:
        first = {problem.field: problem for problem in reversed(problems)}  # of each key
        raise NotResolved("\n".join(f"{source}: {problem}" for problem in reversed(first.values())), field="model")
    quantised = whole.get("quantization_config")
    if isinstance(quantised, Mapping) and BY_NAME not in quantised:
        notes = (*notes, f"{source}: the checkpoint is stored quantised ({shown(quantised.get('quant_method'))})")
    told: dict[str, Any] = {"tied": tied, "dtype": dtype, "weights": weights, "notes": notes}
    return ModelConfig(name, model_type, **sizes, source=source, raw_json=json.dumps(whole, sort_keys=True), **told)


def is_native(model: ModelConfig) -> bool:
    """Whether transformers itself has its causal language model."""
    return any(map(is_native_type, (model.model_type, model.raw.get("model_type"))))


def is_native_type(model_type: object) -> bool:
    return str(model_type) in _architectures("native")


def bounded_config(path: Path) -> object:
    try:
        # Mamba's configurations hold `Infinity`, which Python's json writes and reads
        return parsed(bounded_text(path, MOST_CONFIG_BYTES), str(path), non_finite=True)
    except UsageError as error:
        raise NotResolved(error.message, field="model") from None


def _without_code(raw: Mapping[str, Any]) -> dict[str, Any]:
    """All but `auto_map`, which names Python files to import: what is not there cannot be run by anyone."""
    return {
        key: _without_code(value) if isinstance(value, Mapping) else value
        for key, value in raw.items()
        if key != "auto_map"
    }


def language_part(whole: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """Where the language model is described: in a part of its own when there are others (vision, audio)."""
    for part in _TEXT_PARTS:
        inner = whole.get(part)
        if isinstance(inner, Mapping):
            return f"{part}.", inner
    return "", whole


def _absurd(whole: Mapping[str, Any]) -> list[Problem]:
    """Numbers anywhere in the file that no model has, but that transformers would build."""
    problems: list[Problem] = []
    rest: list[tuple[str, Any]] = list(whole.items())
    while rest:
        name, value = rest.pop()
        if isinstance(value, Mapping):
            rest += [(f"{name}.{key}", inner) for key, inner in value.items()]
        elif isinstance(value, list):
            rest += [(f"{name}[{i}]", inner) for i, inner in enumerate(value)]
        elif _is_whole(value):
            most = _OTHER_BOUNDS.get(name.rpartition(".")[2], _MOST_INTEGER)
            if abs(value) > most:
                problems.append(Problem(_short(name), f"got {shown(value)}; allowed: at most {most}"))
    return problems[:20]


def _sizes(text: Mapping[str, Any], prefix: str, model_type: str, problems: list[Problem]) -> dict[str, int]:
    sizes: dict[str, int | None] = {}
    wrong = set()
    for name, (spellings, low, high) in _SIZES.items():
        key, value = _spelled(text, spellings)
        if isinstance(value, list) and name == "intermediate_size" and model_type in _WIDTHS:
            value = max((n for n in value if _is_whole(n)), default=0)
        sizes[name] = value
        if value is not None and not (_is_whole(value) and low <= value <= high):
            allowed = f"a whole number from {low} to {high}"
            problems.append(Problem(f"{prefix}{key}", f"got {shown(value)}; allowed: {allowed}"))
            wrong.add(name)
            sizes[name] = None
    _fill(sizes, text, model_type)
    hidden, heads, kv_heads = sizes["hidden_size"], sizes["heads"], sizes["kv_heads"]
    if sizes["head_dim"] is None and hidden and heads:
        given = f"got {heads}; allowed: a divisor of hidden_size, {hidden}, where no head_dim is given"
        problems.append(Problem(f"{prefix}num_attention_heads", given))
        wrong.add("head_dim")
    for name in [name for name, value in sizes.items() if value is None and name not in wrong]:
        spellings = _SIZES[name][0]
        if not wrong or name not in ("kv_heads", "head_dim"):  # those follow from others, perhaps the wrong ones
            problems.append(Problem(f"{prefix}{spellings[0]}", f"missing (looked for {', '.join(spellings)})"))
    if heads and kv_heads and heads % kv_heads:
        given = f"got {kv_heads}; allowed: a divisor of num_attention_heads, {heads}"
        problems.append(Problem(f"{prefix}num_key_value_heads", given))
    return {name: value or 0 for name, value in sizes.items()}


def _fill(sizes: dict[str, int | None], text: Mapping[str, Any], model_type: str) -> None:
    """What follows from the rest, as transformers' configurations have it."""
    hidden, heads = sizes["hidden_size"], sizes["heads"]
    if sizes["intermediate_size"] is None:
        sizes["intermediate_size"] = 4 * hidden if hidden and model_type in _FOURFOLD else _expert_width(text)
    if sizes["kv_heads"] is None or (model_type == "falcon" and not text.get("new_decoder_architecture")):
        one = text.get("multi_query") is True and model_type in ("falcon", "gpt_bigcode")
        attention = text.get("attn_config")
        inner = attention.get("kv_n_heads") if isinstance(attention, Mapping) else None
        sizes["kv_heads"] = 1 if one else inner if _is_whole(inner) and 0 < inner <= (heads or 0) else heads
    if sizes["head_dim"] is None and hidden and heads:
        plain, turned = text.get("qk_nope_head_dim"), text.get("qk_rope_head_dim")  # multi-head latent attention
        if hidden % heads == 0:
            sizes["head_dim"] = hidden // heads
        elif _is_whole(plain) and _is_whole(turned) and 0 < plain + turned <= _SIZES["head_dim"][2]:
            sizes["head_dim"] = plain + turned


def _expert_width(text: Mapping[str, Any]) -> int | None:
    """Of a mixture none of whose layers is dense, where config.json gives no other width."""
    inner = text.get("ffn_config")
    found = inner.get("ffn_hidden_size") if isinstance(inner, Mapping) else text.get("moe_intermediate_size")
    return found if _is_whole(found) and 0 < found <= _SIZES["intermediate_size"][2] else None


def _is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _tied(whole: Mapping[str, Any], text: Mapping[str, Any], model_type: str, problems: list[Problem]) -> bool:
    given = whole.get("tie_word_embeddings", text.get("tie_word_embeddings"))
    if given is None:
        return model_type in _architectures("tied_by_default")
    if not isinstance(given, bool):
        problems.append(Problem("tie_word_embeddings", f"got {shown(given)}; allowed: true or false"))
    return bool(given)


def _dtype(whole: Mapping[str, Any], text: Mapping[str, Any], problems: list[Problem]) -> str | None:
    names = ("dtype", "torch_dtype")
    given = next((part[name] for part in (text, whole) for name in names if part.get(name) is not None), None)
    if given is None or given == "auto":
        return None
    plain = given.removeprefix("torch.") if isinstance(given, str) else given
    if plain not in _DTYPES:
        problems.append(Problem("torch_dtype", f"got {shown(given)}; allowed: {', '.join(_DTYPES)}"))
        return None
    return str(plain)


def _stored_dtype(weights: Weights | None) -> str | None:
    """Of most values, where config.json does not say it; a packed checkpoint says nothing."""
    names = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
    return None if weights is None or not weights.by_dtype else names.get(weights.by_dtype[0][0])


def _spelled(text: Mapping[str, Any], spellings: tuple[str, ...]) -> tuple[str, Any]:
    return next(((key, text[key]) for key in spellings if text.get(key) is not None), (spellings[0], None))


def _local(name: str) -> Path | None:
    """The config.json a path names, or None when the name is no path. A path that leads nowhere is an error."""
    from pathlib import Path

    try:
        path = Path(name).expanduser()
        if (path / "config.json").is_file():
            return path / "config.json"
        if path.is_file() or name.endswith(".json"):
            return path
        if path.is_dir() and name.lower() not in bundled_names():
            raise NotResolved(f"{name}: the folder holds no config.json", field="model")
    except (OSError, ValueError, RuntimeError):  # too long, a NUL, no home
        raise NotResolved(f"{shown(name)}: neither a path nor a model's name", field="model") from None
    if name.startswith(("/", "./", "../", "~")) and bundled_spelling(repository_of(name)) is None:
        raise NotResolved(f"{name}: no such file or folder", field="model")
    return None


@lru_cache(maxsize=256)
def _bundled(name: str, key: str) -> ModelConfig:
    return model_config(name, bundled_config(key), f"{BUNDLED}{key})")


def _standing_in(name: str, found: Spelling, why: str) -> ModelConfig:
    """The bundled model in a name's place, and by which rule."""
    because = f": {found.because}" if found.because else ""
    notes = [f"{why}the bundled {found.name} stands in for it{because}"]
    if found.stored:
        notes.append(f"{name}: by its name the weights are stored otherwise ({', '.join(found.stored)})")
    bundled = _bundled(name, found.name)
    packed = {} if found.packing is None else {"quantization_config": found.packing}
    return model_config(name, {**bundled.raw, **packed}, bundled.source, notes=tuple(notes))


def _from_hub(name: str, settings: Settings) -> ModelConfig:
    from tunecast.job import hub

    try:
        found = hub.config(name, settings, MOST_CONFIG_BYTES)
    except hub.NotReached as error:
        bundled = bundled_spelling(name)
        if bundled is None:
            raise NotResolved(f"{error.message}{_did_you_mean(name)}", field="model") from None
        return _standing_in(name, bundled, f"{name}: the Hub was not reached; ")
    try:
        raw = parsed(found.text, found.source, non_finite=True)
    except UsageError as error:
        raise NotResolved(error.message, field="model") from None
    weights, notes = _told(lambda: hub.weights(name, settings, found))
    return model_config(name, raw, found.source, weights, notes)


def _told(read: Callable[[], Weights | None]) -> tuple[Weights | None, tuple[str, ...]]:
    """Headers help but are not needed: what is wrong with them is told, and the rest goes on."""
    try:
        return read(), ()
    except NotResolved as error:
        return None, (f"the weights' header was not read: {error.message}",)


def _unknown(name: str) -> NotResolved:
    allowed = "a bundled name, a Hub id (org/name), or a path to a folder holding config.json"
    return NotResolved(f"model: got {shown(name)}; allowed: {allowed}{_did_you_mean(name)}", field="model")


def _did_you_mean(name: str) -> str:
    near = nearest(name.rpartition("/")[2][:64], sorted(bundled_names()))
    return f"; nearest: {near}" if near else "; bundled: those that `tunecast models` lists"


def _short(name: str) -> str:
    return name if len(name) <= 80 and name.isprintable() else shown(name)


@cache
def _architectures(which: str) -> frozenset[str]:
    import tomllib

    return frozenset(tomllib.loads(text_beside(__file__, "architectures.toml"))[which])
