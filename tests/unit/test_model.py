"""Architectures from config.json, which may come from anyone."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from tunecast.errors import NotResolved
from tunecast.job.model import MOST_CONFIG_BYTES, bundled_models, model_config, resolve_model

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "intermediate_size": 128,
    "vocab_size": 1000,
}


def refusal(raw: object) -> list[str]:
    with pytest.raises(NotResolved) as caught:
        model_config("m", raw, "config.json")
    assert (caught.value.exit_code, caught.value.field) == (5, "model")
    return caught.value.message.splitlines()


def test_a_folder_a_file_and_a_bundled_name(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    for name in (str(tmp_path), str(tmp_path / "config.json")):
        model = resolve_model(name)
        assert (model.hidden_size, model.layers, model.heads, model.kv_heads) == (64, 2, 8, 4)
        assert (model.head_dim, model.vocab_size, model.intermediate_size) == (8, 1000, 128)
        assert (model.name, model.source, model.tied) == (name, str(tmp_path / "config.json"), False)
    assert resolve_model("Llama-3.1-8B").layers == 32


def test_a_model_is_a_value_and_its_configuration_a_copy():
    model = model_config("m", LLAMA, "here")
    assert model == model_config("m", dict(LLAMA), "here")
    assert hash(model) == hash(model_config("m", dict(LLAMA), "here"))
    model.raw["hidden_size"] = 0
    assert model.raw == LLAMA


@pytest.mark.parametrize(
    ("raw", "sizes"),
    [
        ({"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50257, "n_inner": None},
         (768, 12, 12, 12, 64, 3072)),
        ({"model_type": "opt", "hidden_size": 512, "ffn_dim": 2048, "num_hidden_layers": 4, "num_attention_heads": 8,
          "vocab_size": 9}, (512, 4, 8, 8, 64, 2048)),
        ({"model_type": "mpt", "d_model": 128, "n_layers": 2, "n_heads": 4, "vocab_size": 9,
          "attn_config": {"kv_n_heads": 2}}, (128, 2, 4, 2, 32, 512)),
        ({"model_type": "bloom", "hidden_size": 64, "n_layer": 2, "n_head": 4, "vocab_size": 9},
         (64, 2, 4, 4, 16, 256)),
        ({"model_type": "falcon", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 9,
          "multi_query": True}, (64, 2, 4, 1, 16, 256)),
        ({"model_type": "falcon", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 9,
          "num_kv_heads": 2, "new_decoder_architecture": True, "multi_query": True}, (64, 2, 4, 2, 16, 256)),
        ({**LLAMA, "head_dim": 32}, (64, 2, 8, 4, 32, 128)),
        ({**LLAMA, "model_type": "gemma3n_text", "intermediate_size": [100, 200]}, (64, 2, 8, 4, 8, 200)),
    ],
)  # fmt: skip
def test_names_differ_between_architectures(raw, sizes):
    model = model_config("m", raw, "config.json")
    got = (model.hidden_size, model.layers, model.heads, model.kv_heads, model.head_dim, model.intermediate_size)
    assert got == sizes


def test_the_language_part_of_a_model_that_also_sees():
    raw = {"model_type": "llava", "text_config": LLAMA, "vision_config": {"hidden_size": 999}, "torch_dtype": "float16"}
    model = model_config("m", raw, "config.json")
    assert (model.model_type, model.hidden_size, model.dtype) == ("llama", 64, "float16")
    assert model.raw == raw
    part = {key: value for key, value in LLAMA.items() if key != "hidden_size"}
    assert refusal({"text_config": part})[0].startswith("config.json: text_config.hidden_size: missing")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": 0}, "hidden_size: got 0; allowed: a whole number from 1 to 262144"),
        ({"hidden_size": -5}, "hidden_size: got -5; allowed: a whole number from 1 to 262144"),
        ({"hidden_size": 64.0}, "hidden_size: got 64.0; allowed: a whole number from 1 to 262144"),
        ({"hidden_size": "64"}, "hidden_size: got '64'; allowed: a whole number from 1 to 262144"),
        ({"hidden_size": True}, "hidden_size: got true; allowed: a whole number from 1 to 262144"),
        ({"num_hidden_layers": 10**6}, "num_hidden_layers: got 1000000; allowed: a whole number from 1 to 320"),
        ({"vocab_size": 10**9}, "vocab_size: got 1000000000; allowed: a whole number from 1 to 10000000"),
        ({"vocab_size": None}, "vocab_size: missing (looked for vocab_size, n_vocab)"),
        ({"num_key_value_heads": 3}, "num_key_value_heads: got 3; allowed: a divisor of num_attention_heads, 8"),
        (
            {"num_attention_heads": 7, "num_key_value_heads": 7},
            "num_attention_heads: got 7; allowed: a divisor of hidden_size",
        ),
        ({"num_experts": 10**6}, "num_experts: got 1000000; allowed: at most 16384"),
        (
            {"rope_scaling": {"factor": 10**13}},
            "rope_scaling.factor: got 10000000000000; allowed: at most 1000000000000",
        ),
        ({"model_type": None}, "model_type: got null; allowed: the name of an architecture"),
        ({"torch_dtype": "int3"}, "torch_dtype: got 'int3'; allowed: float32, bfloat16"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings: got 'no'; allowed: true or false"),
        ({"is_encoder_decoder": True}, "is_encoder_decoder: got true; allowed: decoder-only language models"),
        ({"intermediate_size": [128]}, "intermediate_size: got [128]; allowed: a whole number"),
        ({"model_type": "gemma3n_text", "intermediate_size": []}, "intermediate_size: got 0"),
    ],
)
def test_absurd_or_missing_values_are_named(change, message):
    [line] = refusal({**LLAMA, **change})
    assert line.startswith(f"config.json: {message}")


def test_all_of_them_at_once():
    lines = refusal({"model_type": "llama"})
    assert [line.split(": ")[1] for line in lines] == [
        "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size",
        "intermediate_size",
    ]  # fmt: skip


def test_code_that_comes_with_a_model_is_never_run():
    code = {"auto_map": {"AutoConfig": "evil.Config"}}
    [line] = refusal({**LLAMA, **code, "model_type": "evil"})
    assert line == "config.json: auto_map: evil needs code that comes with the model; it is never run"
    # transformers has this one itself, and without trust_remote_code takes its own
    model = model_config("m", {**LLAMA, **code}, "config.json")
    assert "auto_map" not in model.raw_json
    assert model.notes == ("config.json: its own code (auto_map) is left out; transformers' llama is taken",)
    nested = model_config("m", {"model_type": "llava", "text_config": {**LLAMA, **code}}, "config.json")
    assert "auto_map" not in nested.raw_json


def test_whether_the_head_is_tied():
    assert model_config("m", {**LLAMA, "tie_word_embeddings": True}, "").tied
    assert not model_config("m", LLAMA, "").tied
    assert model_config("m", {**LLAMA, "model_type": "gemma2"}, "").tied


def test_the_stored_dtype():
    assert model_config("m", LLAMA, "").dtype is None
    assert model_config("m", {**LLAMA, "torch_dtype": "torch.bfloat16"}, "").dtype == "bfloat16"
    assert model_config("m", {**LLAMA, "dtype": "float16"}, "").dtype == "float16"
    [note] = model_config("m", {**LLAMA, "quantization_config": {"quant_method": "bitsandbytes"}}, "here").notes
    assert note == "here: the checkpoint is stored quantised ('bitsandbytes')"


def test_an_unknown_name_is_answered_with_the_nearest(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NotResolved, match=r"got 'lama-3.1-8b'.*org/name.*; nearest: llama-3.1-8b$") as caught:
        resolve_model("lama-3.1-8b")
    assert caught.value.exit_code == 5
    for name, message in {
        "./nothing": "./nothing: no such file or folder",
        "nothing.json": "nothing.json: no such file",
        "": "model: got ''",
        "a/b/c": "model: got 'a/b/c'",
        "../" * 3000: "neither a path nor",
        "a\0b": "'a\\x00b'",
    }.items():
        with pytest.raises(NotResolved) as caught:
            resolve_model(name)
        assert message in caught.value.message


def test_a_folder_without_a_configuration(tmp_path, monkeypatch):
    with pytest.raises(NotResolved, match=r"the folder holds no config.json"):
        resolve_model(str(tmp_path))
    # a folder that only happens to have a bundled model's name does not hide it
    monkeypatch.chdir(tmp_path)
    Path("gpt2").mkdir()
    assert resolve_model("gpt2").layers == 12


@pytest.mark.parametrize("content", ["", "{", "[]", "null", '{"a": 1, "a": 2}', "[" * 9999, b"\xff", "9" * 9999])
def test_a_broken_file(tmp_path, content):
    path = tmp_path / "config.json"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(NotResolved) as caught:
        resolve_model(str(tmp_path))
    assert caught.value.message.startswith(str(path))


def test_a_huge_file(tmp_path):
    (tmp_path / "config.json").write_bytes(b" " * (MOST_CONFIG_BYTES + 1))
    with pytest.raises(NotResolved, match="larger than 1048576 bytes"):
        resolve_model(str(tmp_path))


def test_infinity_is_in_real_configurations(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA, "time_step_limit": [0.0, float("inf")]}))
    assert resolve_model(str(tmp_path)).raw["time_step_limit"] == [0.0, float("inf")]


def stored(tensors: dict[str, Any], data: bytes = b"") -> bytes:
    header = json.dumps(tensors).encode()
    return struct.pack("<Q", len(header)) + header + data


def test_the_weights_of_a_folder_are_counted_from_their_headers(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    tensors = {
        "__metadata__": {"format": "pt"},
        "a": {"dtype": "BF16", "shape": [3, 5], "data_offsets": [0, 30]},
        "b": {"dtype": "F32", "shape": [], "data_offsets": [30, 34]},
    }
    (tmp_path / "model.safetensors").write_bytes(stored(tensors, bytes(34)))
    weights = resolve_model(str(tmp_path)).weights
    assert weights is not None
    # 3 x 5 in two bytes, and a scalar in four
    assert (weights.values, weights.by_dtype, weights.nbytes) == (16, (("BF16", 15), ("F32", 1)), 34)


def test_shards_are_added_up(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    one = {"a": {"dtype": "BF16", "shape": [4], "data_offsets": [0, 8]}}
    two = {"b": {"dtype": "BF16", "shape": [6], "data_offsets": [0, 12]}}
    (tmp_path / "1.safetensors").write_bytes(stored(one))
    index = {"weight_map": {"a": "1.safetensors", "b": "2.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert resolve_model(str(tmp_path)).weights is None  # one is not there
    (tmp_path / "2.safetensors").write_bytes(stored(two))
    weights = resolve_model(str(tmp_path)).weights
    assert weights is not None and weights.values == 10


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "ends before its header's length"),
        (struct.pack("<Q", 100) + b"{}", "ends inside its header (2 of 100 bytes)"),
        (struct.pack("<Q", 2**63), "a header of 9223372036854775808 bytes"),
        (stored({"a": 5}), "'a': not a dtype, a shape and data_offsets"),
        (stored({"a": {"dtype": "BF16", "shape": [-1], "data_offsets": [0, 2]}}), "'a': not a dtype"),
        (stored({"a": {"dtype": "X", "shape": [1], "data_offsets": [0, 2]}}), "'a': not a dtype"),
        (stored({"a": {"dtype": "BF16", "shape": [True], "data_offsets": [0, 2]}}), "'a': not a dtype"),
        (
            stored({"a": {"dtype": "BF16", "shape": [9], "data_offsets": [0, 2]}}),
            "its shape and its data_offsets differ",
        ),
        (struct.pack("<Q", 2) + b"[]", "not a mapping"),
        (struct.pack("<Q", 2) + b"\xff\xff", "not UTF-8"),
    ],
)
def test_a_broken_header_is_told_and_the_model_is_still_read(tmp_path, content, message):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    (tmp_path / "model.safetensors").write_bytes(content)
    model = resolve_model(str(tmp_path))
    assert model.weights is None
    [note] = model.notes
    assert note.startswith("the weights' header was not read: ") and message in note


@pytest.mark.parametrize(
    "name", ["../../etc/passwd", "/x.safetensors", "a/b.safetensors", "x.bin", "", 5, "..safetensors"]
)
def test_an_index_cannot_lead_out_of_the_folder(tmp_path, name):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
    [note] = resolve_model(str(tmp_path)).notes
    assert "is not the name of a safetensors file" in note


def test_every_bundled_model_is_read():
    for name in bundled_models():
        model = resolve_model(name)
        assert model.notes == ()
        assert model.source.startswith("bundled (")
