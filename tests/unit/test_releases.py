"""Within the releases that are followed an answer can be exact; beyond them it is an estimate that says so."""

from __future__ import annotations

from typing import Any

import pytest

import tunecast
from tunecast.errors import UsageError
from tunecast.job import job_from_dict
from tunecast.job.releases import FIELDS, RELEASES, minor, numbers
from tunecast.tape.build.job_runs import build
from tunecast.tape.card import Card
from tunecast.tape.op import Alloc

SMALL = {"model": "llama-3.2-1b", "hardware": {"gpu": "h100-sxm-80gb"}}


def reasons(**more: Any) -> tuple[str, ...]:
    found = tunecast.predict(SMALL | more)
    assert found.exactness == ("estimate" if found.reasons else "exact")
    return tuple(found.reasons)


@pytest.mark.parametrize("release", ["4.43.0", "4.57.1", "5.17.0", "5.20", "5.22.2"])
def test_a_release_that_is_followed_is_exact(release: str) -> None:
    assert reasons(transformers_version=release) == ()


@pytest.mark.parametrize("release", ["6.3", "5.22.3", "5.23", "4.42"])
def test_one_that_is_not_is_an_estimate_and_says_why(release: str) -> None:
    (reason,) = reasons(transformers_version=release)
    assert reason.startswith(f"transformers {release} is ")


@pytest.mark.parametrize("field", FIELDS)
def test_every_package_has_a_field_that_says_so(field: str) -> None:
    (reason,) = reasons(**{field: "9999.1"})
    assert reason.startswith(f"{FIELDS[field]} 9999.1 is newer")


@pytest.mark.parametrize("gpus", [1, 2])
def test_a_torch_that_is_followed_is_exact(gpus: int) -> None:
    assert reasons(torch_version="2.15.0", hardware={"gpu": "h100-sxm-80gb", "gpus": gpus}) == ()


@pytest.mark.parametrize("release", ["banana", "", "5.", "-1", 5.2, 5, "5.2; rm", "1" * 200])
def test_a_release_is_one(release: object) -> None:
    with pytest.raises(UsageError, match="transformers_version: got"):
        job_from_dict(SMALL | {"transformers_version": release})


def test_releases_are_compared_as_numbers() -> None:
    assert numbers("2.13.0+cpu") == (2, 13, 0) and numbers("5.20.0rc1") == (5, 20, 0)
    assert minor("5") == (5, 0) and minor("5.22.2") == (5, 22)
    for followed in RELEASES.values():
        assert numbers(followed.oldest) <= numbers(followed.compared[0])
        assert sorted(followed.compared, key=numbers) == list(followed.compared)


WIDTHS = {
    "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 512, "moe_intermediate_size": 128, "num_experts": 4,
    "num_experts_per_tok": 2, "head_dim": 64,
}  # fmt: skip


@pytest.mark.parametrize(
    ("model_type", "before", "after"),
    [("qwen3_moe", "5.17.0", "5.18.0"), ("llama", "5.18.0", "5.19.0"), ("gemma2", "5.20.0", "5.21.0")],
)
def test_a_release_that_changed_something_has_another_tape(model_type: str, before: str, after: str) -> None:
    """Sentinels of experts in 5.18, angles in 5.19, Gemma 2 without sdpa in 5.21."""
    config = {"model_type": model_type, **WIDTHS}
    assert allocated(config, transformers_version=before) != allocated(config, transformers_version=after)


def allocated(config: dict[str, Any], **more: Any) -> list[int]:
    job = job_from_dict({"model": "small", "weights_dtype": "bfloat16", **more})
    return [e.nbytes for e in build(job, config, [64], Card()).events if isinstance(e, Alloc)]


def test_gradients_of_micro_batches_are_widened_one_by_one_in_torch_2_15() -> None:
    """Before, those of a unit together when it was done; as many, in another order."""
    config = {"model_type": "llama", **WIDTHS}
    sharded = {
        "hardware": {"gpus": 8}, "parallel": {"data": "fsdp", "reduce_dtype": "float32"}, "grad_accum": 2,
        "autocast": "bfloat16",
    }  # fmt: skip
    older, newer, newest = (allocated(config, torch_version=torch, **sharded) for torch in ("2.13", "2.14", "2.15"))
    assert older == newer != newest
    assert sorted(newer) == sorted(newest)
