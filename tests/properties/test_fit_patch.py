"""However a job is written down, the edited text is the same job with other values, and every other line stays."""

from __future__ import annotations

import json
from typing import Any

import yaml
from hypothesis import assume, given
from hypothesis import strategies as st

from tunecast.job.mapping import job_from_dict, with_overrides
from tunecast.planning.fit.patch import edited

FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "id": st.text(st.characters(codec="utf-8", categories=("L", "N", "P", "S")), min_size=1, max_size=12),
    "seq_len": st.integers(1, 9999),
    "micro_batch": st.integers(1, 99),
    "kernels": st.lists(st.sampled_from(["liger", "foak"]), unique=True),
    "gradient_checkpointing": st.booleans(),
    "optimizer": st.sampled_from(["sgd", "adamw_torch"]),
    "lora": st.none()
    | st.fixed_dictionaries({}, optional={"rank": st.integers(1, 64), "targets": st.just(["c_attn"])}),
    "hardware": st.fixed_dictionaries({}, optional={"gpu": st.just("l4"), "gpus": st.integers(1, 8)}),
    "data": st.none() | st.fixed_dictionaries({"tokens": st.integers(1, 10**9)}),
}
CHANGES: dict[str, st.SearchStrategy[Any]] = {
    "micro_batch": st.integers(1, 99),
    "kernels": st.just(["liger"]),
    "gradient_checkpointing": st.booleans(),
    "optimizer": st.just("adamw_8bit"),
    "lora.rank": st.integers(1, 64),
    "lora.alpha": st.integers(1, 64),
    "hardware.gpus": st.integers(1, 8),
    "parallel.data": st.just("fsdp"),
}
JOBS = st.fixed_dictionaries({"model": st.just("gpt2"), "method": st.just("lora")}, optional=FIELDS)


@given(JOBS, st.fixed_dictionaries({}, optional=CHANGES), st.sampled_from([None, True, False]), st.booleans())
def test_yaml(job: dict[str, Any], changes: dict[str, Any], flow: bool | None, commented: bool) -> None:
    text = yaml.safe_dump(job, default_flow_style=flow, allow_unicode=True, sort_keys=False)
    if commented and flow is False and "id" not in job:
        text = "# first\n" + "".join(f"{line}  # why\n" for line in text.splitlines()) + "\n# last\n"
    assume(not (commented and _has_lists(job)))
    after = edited(text, changes)
    assert job_from_dict(yaml.safe_load(after)) == job_from_dict(with_overrides(job, changes))
    if flow is False:
        kept = {
            line
            for line in text.splitlines()
            if not any(_names(line, name) for name in (*changes, *_sections(changes)))
        }
        assert kept <= set(after.splitlines())


@given(JOBS, st.fixed_dictionaries({}, optional=CHANGES), st.sampled_from([None, 2, "\t"]))
def test_json(job: dict[str, Any], changes: dict[str, Any], indent: int | str | None) -> None:
    after = edited(json.dumps(job, indent=indent), changes, is_json=True)
    assert job_from_dict(json.loads(after)) == job_from_dict(with_overrides(job, changes))


def _has_lists(job: dict[str, Any]) -> bool:
    """A list of a line each, with comments of its own, is not touched."""
    return bool(job.get("kernels")) or bool((job.get("lora") or {}).get("targets"))


def _names(line: str, name: str) -> bool:
    leaf = name.rpartition(".")[2]
    return line.strip().startswith((f"{leaf}:", "- "))


def _sections(changes: dict[str, Any]) -> list[str]:
    return [name.partition(".")[0] for name in changes if "." in name]
