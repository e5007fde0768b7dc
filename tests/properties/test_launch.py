"""Whatever job is rendered is the job that is read back; whatever a value holds, YAML gives it back."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tunecast.errors import TunecastError, Unsupported
from tunecast.job.mapping import job_from_dict
from tunecast.launching.programs import files_of, program_of
from tunecast.launching.referee import differences, read_back
from tunecast.launching.texts import yaml_text
from tunecast.prediction.modelled import require_modelled

yaml = pytest.importorskip("yaml")

TEXTS = st.text(max_size=20)
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-(10**12), 10**12), st.floats(allow_nan=False, allow_infinity=False), TEXTS
)


@given(
    st.dictionaries(
        TEXTS, st.one_of(SCALARS, st.lists(SCALARS, max_size=3), st.dictionaries(TEXTS, SCALARS, max_size=3))
    )
)
def test_yaml_gives_back_what_was_written(values: dict[str, Any]) -> None:
    assert (yaml.safe_load(yaml_text(values)) or {}) == values


def some(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Any of the fields."""
    return st.fixed_dictionaries({}, optional=fields)


LORA = some(
    rank=st.integers(1, 512),
    alpha=st.sampled_from([8, 16.5, 64]),
    dropout=st.sampled_from([0.0, 0.05, 0.1]),
    targets=st.sampled_from(["all-linear", ["q_proj", "v_proj"], ["gate_proj"]]),
    dora=st.booleans(),
    rslora=st.booleans(),
)
DATA = some(
    epochs=st.sampled_from([0.5, 1, 3, 7.25]),
    packing=st.booleans(),
    packing_strategy=st.sampled_from(["bfd", "wrapped"]),
    group_by_length=st.booleans(),
    pad_to_multiple_of=st.sampled_from([8, 64]),
    drop_last=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
    workers=st.integers(0, 8),
    num_proc=st.integers(1, 8),
    completion_only=st.booleans(),
)
RUN = some(
    max_steps=st.integers(1, 10**6),
    save_strategy=st.sampled_from(["no", "steps", "epoch"]),
    save_steps=st.integers(1, 10**5),
    save_total_limit=st.integers(1, 9),
    save_only_model=st.booleans(),
)
HARDWARE = st.fixed_dictionaries({"gpus": st.sampled_from([8, 2, 1])}, optional={"nodes": st.sampled_from([1, 2])})
PARALLEL = some(
    data=st.sampled_from(["ddp", "zero1", "zero2", "zero3", "fsdp", "hsdp"]),
    fsdp_version=st.sampled_from([1, 2]),
    use_orig_params=st.booleans(),
    reshard_after_forward=st.booleans(),
    sync_each_batch=st.booleans(),
    cpu_ram_efficient_loading=st.booleans(),
    state_dict_type=st.sampled_from(["full", "sharded"]),
    offload=st.sampled_from(["none", "optimizer", "parameters"]),
    reduce_bucket_size=st.sampled_from([10**7, "auto"]),
    sub_group_size=st.sampled_from([10**9]),
    overlap_comm=st.booleans(),
    round_robin_gradients=st.booleans(),
)
OTHERS = some(
    method=st.sampled_from(["full", "lora", "qlora"]),
    task=st.sampled_from(["sft", "dpo", "kto", "reward"]),
    seq_len=st.integers(16, 32768),
    micro_batch=st.integers(1, 64),
    grad_accum=st.integers(1, 64),
    optimizer=st.sampled_from(
        ["adamw_torch", "adamw_torch_fused", "adamw_8bit", "paged_adamw_32bit", "adafactor", "sgd"]
    ),
    max_grad_norm=st.sampled_from([0, 0.3, 1]),
    weights_dtype=st.sampled_from(["auto", "float32", "bfloat16", "float16"]),
    autocast=st.sampled_from(["bfloat16", "float16", None]),
    gradient_checkpointing=st.booleans(),
    checkpoint_reentrant=st.booleans(),
    attention=st.sampled_from(["sdpa", "eager", "flash_attention_2"]),
    kernels=st.sampled_from([[], ["liger"], ["liger_rope", "liger_rms_norm"]]),
    offload_activations=st.booleans(),
    compile=st.booleans(),
    allocator=st.sampled_from(["native", "expandable_segments"]),
    lora=LORA,
    data=DATA,
    run=RUN,
    parallel=PARALLEL,
)
JOBS = st.tuples(OTHERS, HARDWARE).map(lambda both: {**both[0], "hardware": both[1]})


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
@given(JOBS)
def test_what_is_rendered_is_the_job(fields: dict[str, Any]) -> None:
    """What the job's own rules refuse is no job; what TRL's other trainers have no words for is refused, and never left
    out."""
    if fields.get("method", "full") == "full":
        fields.pop("lora", None)
    try:
        job = job_from_dict({"model": "llama-3.2-1b", "stack": "trl", **fields})
        require_modelled(job)
    except TunecastError:
        assume(False)
    try:
        files = files_of(program_of(job), job)
    except Unsupported:
        assert job.task != "sft"
        return
    assert differences(job, read_back(job, files).job) == []
