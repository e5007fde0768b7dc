"""Packages whose kernels models take where they are installed, against the tracer: the same allocations and frees.

The packages' own Python runs; Triton's kernels are not launched, and the CUDA extensions of causal-conv1d and
mamba-ssm, where they are not compiled, are stand-ins that allocate as their C++ does (build_cases/stand_ins). A process
imports a model once, with the packages it finds then: each set of them is traced by itself, where it is installed.

    pip install fla-core==0.6.0
    CAUSAL_CONV1D_SKIP_CUDA_BUILD=TRUE pip install --no-build-isolation --no-deps causal-conv1d==1.7.0
    MAMBA_SKIP_CUDA_BUILD=TRUE pip install --no-build-isolation --no-deps mamba-ssm==2.3.2.post1
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from installed import as_installed
from test_build import CASES as EVERY
from test_build import HERE, JOB, held_after_load, loaded

from tunecast.errors import Unsupported
from tunecast.job.kernels import INSTALLED
from tunecast.tape.build.job_runs import build
from tunecast.tape.card import Card

HYBRID = loaded(HERE / "hybrid.py")
SIZES, MAMBA, DELTA = HYBRID.SIZES, HYBRID.MAMBA, HYBRID.DELTA
FULL, CHECKPOINTED = (HYBRID.TRAININGS[name] for name in ("full", "full-checkpointed"))
SETS: dict[str, tuple[list[str], tuple[str, ...]]] = {
    "delta": (["fla"], ("hybrid/qwen3_5_text", "hybrid/qwen3_next")),
    "delta-convolved": (["fla", "causal-conv1d"], ("hybrid/qwen3_5", "hybrid/qwen3_next")),
    "convolved": (["causal-conv1d"], ("convolutions/", "hybrid/qwen3_next", "hybrid/granitemoehybrid")),
    "mamba": (["mamba-ssm", "causal-conv1d"], ("hybrid/granitemoehybrid", "hybrid/falcon_h1")),
}
WIDE_KEYS = {"linear_key_head_dim": 160, "linear_value_head_dim": 72, "linear_num_value_heads": 3}
"""Two tiles of keys, and as many heads of keys as of values, which nobody repeats then."""
UNEVEN = {"mamba_n_heads": 10, "mamba_n_groups": 1, "mamba_chunk_size": 160, "mamba_d_ssm": 400}
"""Rows of the projection that begin off multiples of 8 numbers, and chunks of two tiles."""
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "wide-keys": ("delta-convolved", {"model_type": "qwen3_5_text", **DELTA, **WIDE_KEYS, "intermediate_size": 736}),
    "biased": (
        "mamba",
        HYBRID.MODELS["granitemoehybrid-dense"] | {"mamba_conv_bias": False, "mamba_proj_bias": True},
    ),
    "uneven": ("mamba", HYBRID.MODELS["falcon_h1"] | UNEVEN),
}
FAILS = "-qlora"
"""Of mamba-ssm, which multiplies by packed weights."""


def cases() -> Iterator[tuple[str, Any]]:
    for name, (kernels, models) in SETS.items():
        for case, (job, config, lengths) in EVERY.items():
            if case.startswith(models) and not (name == "mamba" and case.endswith(FAILS)):
                yield f"{name}/{case}", ({**job, "kernels": kernels}, config, lengths)
    for variant, (name, config) in VARIANTS.items():
        for training, values in (("full", FULL), ("checkpointed", CHECKPOINTED)):
            job = {**JOB, **values, "kernels": SETS[name][0]}
            yield f"{name}/{variant}-{training}", (job, SIZES | config, [JOB["seq_len"]] * 2)


CASES = {
    name: case
    for name, case in cases()
    if all(find_spec(INSTALLED[package]) is not None for package in case[0]["kernels"])
}


@pytest.fixture(scope="module")
def traced(
    selected: list[str], tmp_path_factory: pytest.TempPathFactory, trace_cases: Callable[..., dict[str, Any]]
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for kind in SETS:
        asked = [[name, *CASES[name]] for name in selected if name.startswith(f"{kind}/")]
        if asked:
            found |= trace_cases(HERE / "trace_all.py", asked, tmp_path_factory.mktemp(kind))
    return found


@pytest.mark.parametrize("name", CASES)
def test_same_allocations_as_the_tracer(traced: dict[str, Any], name: str) -> None:
    expected = traced[name]
    assert not isinstance(expected, str), f"the tracer: {expected}"
    values, config, lengths = CASES[name]
    told = loaded(HERE / "trace_all.py").told
    events = told(build(as_installed(values), config, lengths, Card()).events)
    ours, theirs = ([event for event in both if event[1] != "load"] for both in (events, expected))
    for place, (mine, their) in enumerate(zip(ours, theirs, strict=False)):
        assert mine[:3] == their[:3], f"event {place} of {len(theirs)}: built {mine}, traced {their}"
    assert len(ours) == len(theirs)
    assert abs(held_after_load(events) - held_after_load(expected)) < 4096, "small tables may differ"


@pytest.mark.parametrize(
    ("kernels", "training", "told"),
    [(["mamba-ssm"], "full", "add causal-conv1d"), (["mamba-ssm", "causal-conv1d"], "qlora", "4-bit weights fail")],
)
def test_what_fails_with_mamba_ssm_is_refused(kernels: list[str], training: str, told: str) -> None:
    job, config, lengths = EVERY[f"hybrid/granitemoehybrid-{training}"]
    with pytest.raises(Unsupported, match=told):
        build(as_installed({**job, "kernels": kernels}), config, lengths, Card())
