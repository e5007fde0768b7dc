"""What holds for every job: it is read back as it was, and nothing but a `TunecastError` comes of a wrong one."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tunecast.errors import TunecastError, UsageError
from tunecast.hardware import Gpu, gpu
from tunecast.job import Job, JobError, job_from_dict, read_jobs
from tunecast.job.job import all_knobs, sections
from tunecast.job.knob import Knob
from tunecast.job.model import ModelConfig, model_config
from tunecast.job.readers import json as json_reader
from tunecast.job.readers import yaml as yaml_reader

scalar = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=-3, max_value=70_000)
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(sorted({choice for knob in all_knobs().values() for choice in knob.choices}))
)


def tree(leaf: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.recursive(
        leaf,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
        max_leaves=8,
    )


from_json = tree(scalar)
anything = tree(scalar | st.binary(max_size=4) | st.dates())


def right(knob: Knob) -> st.SearchStrategy[Any]:
    """Values the field takes."""
    low, high = max(knob.low, 0), min(knob.high, 10**6)
    values: dict[str, st.SearchStrategy[Any]] = {
        "bool": st.booleans(),
        "int": st.integers(int(low), int(high)),
        "int or choice": st.integers(int(low), int(high)) | st.sampled_from(knob.choices or ("",)),
        "bytes": st.integers(int(low), int(high)) | st.integers(1, 99).map(lambda size: f"{size}MiB"),
        "float": st.floats(low, high, exclude_min=knob.above_low),
        "text": st.text(st.characters(codec="ascii", categories=("L", "N")), min_size=1, max_size=9),
        "id": st.integers(-(2**62), 2**62) | st.sampled_from(["a", "run 1"]),
        "release": st.sampled_from(["4.48.1", "5.22", "2.13.0+cpu", "2026.10.9", "0"]),
        "choice": st.sampled_from(knob.choices or ("",)),
        "names": (
            st.sampled_from([list(knob.choices), *knob.choices])
            if knob.default is None
            else st.lists(st.sampled_from(knob.choices or ("",)), unique=True, max_size=3)
        ),
        "ints": st.lists(st.integers(1, 4096), min_size=1, max_size=4),
        "ints or text": st.lists(st.integers(1, 4096), min_size=1, max_size=4) | st.just("uniform(1, 9)"),
    }
    return values[knob.kind] | st.none() if knob.nullable else values[knob.kind]


def nested(values: dict[str, Any]) -> dict[str, Any]:
    whole: dict[str, Any] = {}
    for dotted, value in values.items():
        section, _, leaf = dotted.rpartition(".")
        (whole.setdefault(section, {}) if section else whole)[leaf] = value
    return whole


likely = st.fixed_dictionaries(
    {"model": st.just("gpt2")}, optional={name: right(knob) for name, knob in all_knobs().items() if name != "model"}
).map(nested)
wild = st.dictionaries(
    st.sampled_from([*all_knobs(), *sections()]) | st.text(max_size=9),
    anything
    | st.dictionaries(st.sampled_from([name.rpartition(".")[2] for name in all_knobs()]), anything, max_size=5),
    max_size=8,
)


def read(mapping: object) -> Job | None:
    try:
        return job_from_dict(mapping)
    except UsageError as error:
        assert error.message and error.field
        return None


@settings(max_examples=300, deadline=None)
@given(likely)
def test_a_job_is_read_back_as_it_was(mapping):
    job = read(mapping)
    if job is not None:
        again = job_from_dict(json.loads(json.dumps(job.to_dict())))
        assert again == job
        assert hash(again) == hash(job)


few = st.lists(st.sampled_from([name for name in all_knobs() if name != "model"]), max_size=4, unique=True).flatmap(
    lambda names: st.fixed_dictionaries({name: right(all_knobs()[name]) for name in names})
)
methods = st.fixed_dictionaries(
    {name: right(all_knobs()[name]) for name in ("method", "quantization.format", "weights_dtype")}
)


@settings(max_examples=400, deadline=None)
@given(few, methods)
def test_a_job_of_any_method_and_few_other_fields_is_read_back_as_it_was(others, method):
    """Most jobs of many drawn fields contradict themselves; of few fields most do not."""
    job = read(nested({"model": "gpt2", **others, **method}))
    if job is not None:
        assert job_from_dict(job.to_dict()) == job


@settings(max_examples=200, deadline=None)
@given(likely)
def test_each_field_that_was_given_is_held_or_refused(mapping):
    job = read({**mapping, "method": "lora", "quantization": None, "task": "sft"})
    if job is not None and isinstance(mapping.get("lora"), dict):
        for name, value in mapping["lora"].items():
            held = getattr(job.lora, name)
            assert held == (tuple(value) if isinstance(value, list) else value)


@settings(max_examples=400, deadline=None)
@given(wild | anything)
def test_any_mapping_is_a_job_or_a_tunecast_error(mapping):
    read(mapping)
    if isinstance(mapping, dict):
        read({**mapping, "model": "gpt2"})


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=200) | likely.map(str) | wild.map(str))
def test_any_text_is_a_document_or_a_tunecast_error(text):
    for parsed in (yaml_reader.parsed, json_reader.parsed):
        try:
            parsed(text, "text")
        except TunecastError as error:
            assert error.message.startswith("text: ")


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=30), st.dictionaries(st.sampled_from([*all_knobs()]), st.text(max_size=9), max_size=3))
def test_any_source_and_flags(source, overrides):
    try:
        for job in read_jobs(source, overrides):
            assert isinstance(job, (Job, JobError))
    except UsageError as error:
        assert error.field in overrides


@settings(max_examples=200, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(
            ["hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "intermediate_size", "model_type",
             "text_config", "auto_map", "torch_dtype", "tie_word_embeddings", "attn_config", "num_experts", "head_dim"]
        ),
        from_json,
    )
    | from_json
)  # fmt: skip
def test_any_config_is_a_model_or_a_tunecast_error(raw):
    try:
        assert isinstance(model_config("m", raw, "config.json"), ModelConfig)
    except TunecastError as error:
        assert error.exit_code == 5
        assert all(line.startswith("config.json: ") for line in error.message.splitlines())


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=20) | st.from_regex(r"(nvidia )?[a-z]{1,3}\d{1,4}[- ](sxm|pcie|nvl)?\d?", fullmatch=True))
def test_any_name_is_a_card_or_a_usage_error(name):
    try:
        assert isinstance(gpu(name), Gpu)
    except UsageError as error:
        assert error.field == "hardware.gpu"
