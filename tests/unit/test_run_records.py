"""Records of measured runs: what is refused, what is dropped, and what may be given to anybody."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tunecast.errors import UsageError
from tunecast.job.mapping import job_from_dict
from tunecast.learn.publishing import anonymised
from tunecast.learn.record import run_from, unknown_keys
from tunecast.learn.recordable import MOST_LENGTHS, job_fields, model_shape, percentiles, shape_from
from tunecast.records import replace

RECORD: dict[str, Any] = {
    "schema": "tunecast.run/1", "id": "0123456789abcdef" * 2, "source": "callback", "state": "done",
    "began": "2026-11-18T07:00:05Z", "ended": "2026-11-18T08:30:00Z",
    "job": {"model": "llama-3.1-8b", "method": "lora", "stack": "trl", "seq_len": 2048, "micro_batch": 2,
            "data": {"samples": 1000, "lengths": [10, 20, 30]}, "hardware": {"gpu": "rtx-4090", "country": "DE"}},
    "model_shape": None,
    "hardware": {"gpu": "rtx-4090", "device": "NVIDIA GeForce RTX 4090", "gpus": 1, "nodes": 1,
                 "memory_bytes": 25_393_692_672, "driver": "580.95.05", "cpu": "AMD EPYC 9654 96-Core Processor",
                 "cpu_cores": 16, "ram_bytes": 2**37, "host": "0123456789ab"},
    "software": {"python": "3.12.3", "torch": "2.13.0+cu130", "transformers": "5.17.0", "trl": "1.16.0+acme.3"},
    "memory": {"allocated_bytes": 10 * 2**30, "reserved_bytes": 11 * 2**30, "device_bytes": 12 * 2**30,
               "retries": 0, "by_phase_bytes": {"load": 2**33, "training": 12 * 2**30}},
    "time": {"steps": 500, "step_s": 0.5, "step_quantiles_s": [0.4, 0.5, 0.6], "total_s": 300.0,
             "phases_s": {"load": 20.0, "training": 250.0}},
    "tokens": {"trained": 1_000_000, "padding": 5}, "utilization": {"gpu_busy_fraction": 0.9, "bound_by": "card"},
    "energy_j": 1e6, "loss": [[1, 2.5], [2, 2.25]],
    "predicted": {"device_bytes": 11 * 2**30, "device_range_bytes": [10, 20], "step_s": 0.45, "exactness": "exact"},
    "note": "micro_batch: 1 would have fit", "tunecast": "0.1.0",
}  # fmt: skip


def changed(path: str, value: object) -> dict[str, Any]:
    """The record with one value changed."""
    made: dict[str, Any] = json.loads(json.dumps(RECORD))
    *outer, leaf = path.split(".")
    place = made
    for name in outer:
        place = place[name]
    place[leaf] = value
    return made


def test_a_record_is_read_as_it_was_written() -> None:
    run = run_from(RECORD)
    assert run.memory is not None and run.memory.device_bytes == 12 * 2**30
    assert run.time is not None and run.time.step_quantiles_s == (0.4, 0.5, 0.6)
    assert run.loss == ((1, 2.5), (2, 2.25))
    again = run_from(json.loads(json.dumps(run.to_dict())))
    assert again == run and again.to_dict() == run.to_dict()
    assert next(iter(run.to_dict())) == "schema"


def test_what_was_not_measured_may_be_missing() -> None:
    least = {name: RECORD[name] for name in ("schema", "id", "source", "state", "began")}
    assert run_from(least).memory is None
    assert run_from({**least, "memory": None, "ended": None}).to_dict()["memory"] is None


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("schema", "tunecast.run/2"), ("schema", None), ("id", "x"), ("id", "0" * 31), ("id", None),
        ("source", "diary"), ("state", "well"), ("began", "2026-11-18"), ("began", "2026-02-30T00:00:00Z"),
        ("began", "1999-01-01T00:00:00Z"), ("ended", "2026-11-18T07:00:04Z"), ("energy_j", float("nan")),
        ("energy_j", float("inf")), ("energy_j", -1), ("energy_j", True), ("memory.device_bytes", -1),
        ("memory.device_bytes", 1.5), ("memory.device_bytes", 10**400), ("memory.device_bytes", "12"),
        ("memory.by_phase_bytes", {"load": -1}), ("time.step_quantiles_s", [1, 2]), ("time.step_s", [1]),
        ("utilization.gpu_busy_fraction", 1.01), ("utilization.bound_by", "luck"), ("loss", [[1, 2, 3]]),
        ("loss", [[1, float("nan")]]), ("loss", [[n, 1.0] for n in range(201)]), ("loss", "2.5"),
        ("hardware.device", "/home/joe/card"), ("hardware.device", "a\nb"), ("hardware.device", "x" * 101),
        ("hardware.cpu", "\x1b[31mred"), ("hardware.host", "gpu-box-7.acme.lan"), ("hardware.gpu", "RTX 4090"),
        ("software.torch", "/opt/torch"), ("software.torch", 2.13), ("note", "see /home/joe/train.log"),
        ("note", "C:\\Users\\joe"), ("note", "~/runs"), ("note", "two\nlines"), ("note", "x" * 401),
        ("job.model", "/data/models/llama"), ("job.model", "../llama"), ("job.model", "org/name@main"),
        ("job.seq_len", 0), ("job.method", "magic"), ("job.data.lengths", "./lengths.json"),
        ("job.data.lengths", [1] * (MOST_LENGTHS + 1)), ("job.hardware.gpu", "/dev/nvidia0"),
        ("job", "llama"), ("memory", [1]), ("tunecast", "a b"), ("model_shape", {f"k{n}": n for n in range(300)}),
    ],
)  # fmt: skip
def test_what_is_wrong_is_refused_by_its_name(path: str, value: object) -> None:
    with pytest.raises(UsageError) as refused:
        run_from(changed(path, value))
    assert path.split(".")[0] in refused.value.message.partition(":")[0]


def test_everything_wrong_is_told_at_once() -> None:
    with pytest.raises(UsageError) as refused:
        run_from({**changed("memory.device_bytes", -1), "state": "well", "id": "x"})
    assert {line.partition(":")[0] for line in refused.value.message.splitlines()} == {
        "id", "state", "memory.device_bytes",
    }  # fmt: skip


@pytest.mark.parametrize("value", [None, [], "text", 3, {"a": {"b": {"c": 1}}}])
def test_what_is_no_record_is_refused(value: object) -> None:
    with pytest.raises(UsageError):
        run_from(value)


def test_depth_and_size_are_bounded() -> None:
    deep: Any = 1
    for _ in range(50):
        deep = [deep]
    with pytest.raises(UsageError, match="nested"):
        run_from({**RECORD, "else": deep})
    with pytest.raises(UsageError, match="values"):
        run_from({**RECORD, "else": list(range(30_000))})


def test_unknown_keys_are_dropped_and_named() -> None:
    """A newer tunecast may write more; what nobody checked is not stored."""
    given = {**RECORD, "path": "/home/joe", "hardware": {**RECORD["hardware"], "rack": "7b"}}
    given["software"] = {**RECORD["software"], "acme_secret": "1.0"}
    given["time"] = {**RECORD["time"], "phases_s": {"training": 1.0, "customer x": 2.0}}
    run = run_from(given)
    assert unknown_keys(given) == ("path", "hardware.rack")
    text = json.dumps(run.to_dict())
    assert not any(word in text for word in ("joe", "7b", "acme_secret", "customer"))


def test_paths_of_a_job_are_dropped_whoever_wrote_them() -> None:
    given = changed("job.data", {"path": "/home/joe/secret.jsonl", "tokenizer": "/home/joe", "samples": 7})
    given["job"]["id"] = "joes-run"
    job = run_from(given).job
    assert job is not None and job["data"] == {"samples": 7} and "id" not in job


@pytest.mark.parametrize(
    "fields",
    [
        {"method": "full"}, {"method": "qlora", "data": {"lengths": [5, 7, 9]}}, {"task": "dpo", "method": "lora"},
        {"task": "grpo", "stack": "trl"}, {"stack": "megatron"}, {"lengths": [512, 1024]},
        {"stack": "nemo", "method": "lora", "quantization": {"format": "float8"}},
    ],
    ids=str,
)  # fmt: skip
def test_a_jobs_recorded_fields_make_the_same_job(fields: dict[str, Any]) -> None:
    job = job_from_dict({"model": "llama-3.1-8b", "id": "mine", **fields})
    told = job_fields(job)
    assert job_from_dict(told) == replace(job, id=None)
    assert run_from({**RECORD, "job": told}).job == told


def test_data_becomes_its_lengths(tmp_path: Path) -> None:
    data = tmp_path / "train.jsonl"
    data.write_text("".join(json.dumps({"text": "word " * count}) + "\n" for count in (5, 50, 500)))
    job = job_from_dict({"model": "llama-3.1-8b", "data": {"path": str(data)}})
    told = job_fields(job)
    assert told["data"]["samples"] == 3 and len(told["data"]["lengths"]) == 3
    assert str(tmp_path) not in json.dumps(told)
    assert job_from_dict(told).data.path is None


def test_long_lists_become_percentiles() -> None:
    lengths = list(range(1, 2 * MOST_LENGTHS + 1))
    told = job_fields(job_from_dict({"model": "llama-3.1-8b", "data": {"lengths": lengths}}))
    assert told["data"]["samples"] == 2 * MOST_LENGTHS
    assert told["data"]["lengths"].startswith("percentiles(0=1, ") and "100=4000)" in told["data"]["lengths"]
    assert job_from_dict(told).data.lengths == told["data"]["lengths"]
    batches = [1 + number % 100 for number in lengths]
    padded = job_fields(job_from_dict({"model": "llama-3.1-8b", "lengths": batches}))["lengths"]
    assert len(padded) == MOST_LENGTHS and (min(padded), max(padded)) == (1, 100)


def test_percentiles_are_those_of_the_list() -> None:
    # of 1 to 101 the p-th percentile is p + 1
    found = percentiles(list(range(1, 102)))
    assert "50=51" in found and "90=91" in found and "0=1," in found and "100=101)" in found


def test_a_folder_becomes_the_models_shape(tmp_path: Path) -> None:
    folder = tmp_path / "acme-internal"
    folder.mkdir()
    config = {
        "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 100,
        "intermediate_size": 128, "_name_or_path": "/home/joe/base", "tie_word_embeddings": False,
        "rope_scaling": {"type": "linear", "factor": 2.0}, "auto_map": {"AutoModel": "acme.py"}, "customer": "acme",
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    job = job_from_dict({"model": str(folder)})
    assert job_fields(job)["model"] is None
    shape = model_shape(job)
    assert shape is not None and shape["hidden_size"] == 64 and shape["rope_scaling"] == {"type": "linear", "factor": 2}
    assert not {"_name_or_path", "customer"} & shape.keys() and "acme" not in json.dumps(shape)
    assert run_from({**RECORD, "model_shape": shape}).model_shape == shape


def test_a_bundled_model_needs_no_shape() -> None:
    assert model_shape(job_from_dict({"model": "llama-3.1-8b"})) is None
    assert job_fields(job_from_dict({"model": "./models/my-llama"}))["model"] is None


def test_a_shape_keeps_numbers_flags_and_known_words() -> None:
    assert shape_from({"a": 1, "b": True, "c": "text", "hidden_act": "silu", "bad key": 1, "n": float("nan"), "d": None,
                       "layer_types": ["full_attention"], "hidden_activation": "x" * 41}) == {
        "a": 1, "b": True, "hidden_act": "silu", "d": None, "layer_types": ["full_attention"],
    }  # fmt: skip


def test_what_is_published_says_nothing_of_its_owner() -> None:
    run = anonymised(run_from(RECORD))
    told = run.to_dict()
    assert told["hardware"]["host"] is None and told["note"] is None
    assert (told["began"], told["ended"]) == ("2026-11-18T00:00:00Z", "2026-11-18T00:00:00Z")
    assert told["job"]["hardware"]["country"] is None
    assert told["job"]["data"]["lengths"].startswith("percentiles(")
    assert told["software"]["torch"] == "2.13.0+cu130" and told["software"]["trl"] == "1.16.0"
    assert told["memory"] == run_from(RECORD).to_dict()["memory"]
    assert anonymised(run) == run


def test_a_hub_id_that_may_be_private_is_not_published() -> None:
    assert anonymised(run_from(changed("job.model", "acme/secret-model"))).job["model"] is None  # type: ignore[index]
    public = anonymised(run_from(changed("job.model", "meta-llama/Llama-3.1-8B"))).job
    assert public is not None and public["model"] == "meta-llama/Llama-3.1-8B"


def test_a_name_of_the_machine_that_is_left_is_refused() -> None:
    run = run_from(changed("job.lora", {"targets": ["hephaistos", "q_proj"]}))
    assert anonymised(run, ["zeus", "root"]).job
    with pytest.raises(UsageError, match=r"^job: holds 'hephaistos'"):
        anonymised(run, ["hephaistos"])


def test_a_model_of_somebody_s_own_type_is_not_published_by_its_config() -> None:
    def shape_of(**config: object) -> object:
        return anonymised(run_from(changed("model_shape", {"hidden_size": 64, **config})), ["zeus"]).model_shape

    named = {"architectures": ["ZeusForCausalLM"]}
    assert shape_of(model_type="llama", **named) == {"hidden_size": 64, "model_type": "llama"}
    assert shape_of(model_type="zeus_llm", **named) is None is shape_of(**named)
    with pytest.raises(UsageError, match="model_shape: holds 'zeus'"):
        shape_of(model_type="llama", zeus_gates=4)
