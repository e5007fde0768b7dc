"""What a refusal says to do instead, done: it leads to an answer."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import tunecast
from tunecast.errors import TunecastError, UsageError
from tunecast.job.stacks import STACKS

pytestmark = pytest.mark.whole

MOST_ROUNDS = 4
"""A remedy may uncover what was hidden behind the first refusal; no more than this."""


def remedy(line: str) -> tuple[str, Any]:
    """The field and value a line of a refusal names: after `To fix:`, or else the first that is allowed."""
    found = re.search(r"To fix: (?!trace)([a-z_.]+):? ([\w.+-]+)", line)
    if found and "." not in found[2]:
        field, value = found.groups()
    else:
        field = line.partition(":")[0]
        allowed = re.search(r"allowed: ([\w.-]+)", line)
        assert allowed, line
        value = allowed[1]
    given: Any = {"null": None, "true": True, "false": False, "none": []}.get(value, value)
    return field, int(given) if isinstance(given, str) and given.isdecimal() else given


def changed(job: dict[str, Any], field: str, value: Any) -> dict[str, Any]:
    section, _, name = field.rpartition(".")
    return {**job, section: {**job.get(section, {}), name: value}} if section else {**job, field: value}


@pytest.mark.parametrize(
    ("method", "extra"),
    [
        *[(method, extra) for method in ("full", "lora", "qlora") for extra in ({}, {"hardware": {"gpus": 2}})],
        *[("lora", extra) for extra in ({"compile": True}, {"loss": "chunked"})],
    ],
)
@pytest.mark.parametrize("stack", STACKS)
def test_what_a_refusal_says_works(stack: str, method: str, extra: dict[str, Any]) -> None:
    job: dict[str, Any] = {"model": "llama-3.2-1b", "seq_len": 64, "stack": stack, "method": method, **extra}
    told: list[str] = []
    for _ in range(MOST_ROUNDS):
        try:
            tunecast.predict(job)
            return
        except TunecastError as error:
            told.append(error.message)
            for line in error.message.splitlines():
                job = changed(job, *remedy(line))
    pytest.fail(f"{job}\n" + "\n".join(told))


def test_the_traced_engine_is_named_only_where_it_runs_the_job() -> None:
    for stack in STACKS:
        for field, value in (("compile", True), ("kernels", ["liger"]), ("method", "qlora")):
            with_flash = {"attention": "flash_attention_2"} if stack == "transformers" else {}
            try:
                tunecast.predict({"model": "llama-3.2-1b", "stack": stack, field: value, **with_flash})
            except TunecastError as error:
                assert stack == "transformers" or "--engine traced" not in error.message


def test_unsloth_over_a_compiled_model_is_refused_by_name() -> None:
    with pytest.raises(
        TunecastError, match=r"^compile: got true, .* of unsloth; allowed: false\. To fix: compile false"
    ):
        tunecast.predict({"model": "llama-3.2-1b", "stack": "unsloth", "method": "lora", "compile": True})


MAMBA = {
    "model_type": "mamba2", "hidden_size": 64, "num_hidden_layers": 2, "num_heads": 4, "head_dim": 16,
    "vocab_size": 128, "ssm_cfg": {}, "intermediate_size": 128,
}  # fmt: skip
"""Known to transformers, not to the closed form, which guesses nothing of it."""


def refused(job: dict[str, Any], engine: str) -> str | None:
    """By rules alone: nothing is traced."""
    from tunecast.job import job_from_dict
    from tunecast.job.model import resolve_model
    from tunecast.prediction import remedies
    from tunecast.prediction.modelled import require_traceable
    from tunecast.tape.build.fill_in import fill_in_of

    try:
        if engine == "analytic":
            tunecast.predict(job)
        else:
            filled = fill_in_of(job_from_dict(job), resolve_model(job["model"]))
            try:
                require_traceable(filled)
            except UsageError as error:
                raise remedies.of_tracer(error, filled) from None
    except TunecastError as error:
        return error.message
    return None


@pytest.mark.parametrize("hardware", [{}, {"gpus": 8}, {"gpus": 8, "nodes": 2}])
@pytest.mark.parametrize("method", ["full", "lora", "qlora"])
@pytest.mark.parametrize("stack", STACKS)
def test_no_engine_sends_to_one_that_refuses_too(
    stack: str, method: str, hardware: dict[str, int], tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(MAMBA))
    for model in ("llama-3.2-1b", "mpt-7b", str(tmp_path)):
        job = {"model": model, "stack": stack, "method": method, "seq_len": 64, "hardware": hardware}
        job |= {"weights_dtype": "bfloat16"}
        told = {engine: refused(job, engine) for engine in ("analytic", "traced")}
        for engine, other in (("analytic", "traced"), ("traced", "analytic")):
            message = told[engine]
            if message is None:
                continue
            assert f"--engine {engine}" not in message
            if f"--engine {other}" in message:
                assert told[other] is None, f"{model}: {engine} says {message}; {other} says {told[other]}"
            else:
                assert "To fix: " in message or "allowed: " in message, message
