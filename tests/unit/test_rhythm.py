"""How few layers stand for all, by what the layers are; and that every bundled model is predicted from a few."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from tunecast.job import job_from_dict
from tunecast.job.registry import bundled_config, bundled_names
from tunecast.tape.build import job_runs
from tunecast.tape.build.job_runs import build, fold_job
from tunecast.tape.build.layer_rhythm import job_rhythm, layer_kinds, shorter
from tunecast.tape.build.stacks import program_of
from tunecast.tape.card import Card
from tunecast.tape.program import program
from tunecast.tape.schedule import scheduled
from tunecast.tape.shorten import Rhythm, rhythm_of, stand_in, steps_to_trace, with_layers

pytestmark = pytest.mark.whole

JOB = {"model": "small", "weights_dtype": "bfloat16", "seq_len": 96, "micro_batch": 1}
LORA = {"method": "lora", "lora": {"targets": "attention", "dropout": 0.0}}
WHOLE = {
    **dict.fromkeys(
        ("gemma-3n-e2b", "gemma-3n-e4b", "gemma-4-e2b", "gemma-4-e4b"),
        "every layer has its own part of one tensor of embeddings, and later ones take earlier ones' keys",
    ),
    "automodel-qwen3-moe-proxy": "2 layers: the first, one that stands for others and a last one are 3",
    "torchtitan-gpt-oss-debug": "4 layers take turns: one of each kind (2), a period (2) and a last one are 5",
    "torchtitan-llama4-debug": "6 layers: the first without positions is the fourth, a period (4) and a last one: 9",
}
"""Bundled models no smaller model stands for, and why."""
LEAST_KNOWN = 220
"""Of the bundled models. A release that knows fewer has lost something."""


def test_layers_alike():
    # the first, the second (frees what the first left), one that stands for all others, the last
    assert rhythm_of("aaaaaaaa") == Rhythm(head=2, period=1, total=8)
    assert rhythm_of("aaaaaaaa").small == 4 and rhythm_of("aaaaaaaa").copies == 4


def test_layers_in_turns():
    assert rhythm_of("abababab") == Rhythm(head=2, period=2, total=8)
    # one of each kind first: s s s f, then the pattern s s s f, then at least one more: 9, in step with 16: 12
    rhythm = rhythm_of("sssf" * 4)
    assert rhythm == Rhythm(head=4, period=4, total=16) and (rhythm.small, rhythm.copies) == (12, 1)


def test_a_dense_beginning():
    assert rhythm_of("dddssssssss") == Rhythm(head=4, period=1, total=11)


def test_a_change_in_the_middle_is_part_of_the_head():
    rhythm = rhythm_of("aaaaabbbbb")
    assert rhythm.period == 1 and rhythm.head == 6


def test_last_layers_that_break_the_pattern_stand_for_themselves():
    # Kimi Linear's: the head (dlls), a period (llls), and of the last l l s those that fill up the step: 4 + 4 + 3
    rhythm = rhythm_of("dlls" + "llls" * 5 + "lls")
    assert rhythm == Rhythm(head=4, period=4, total=27, tail=2) and (rhythm.small, rhythm.copies) == (11, 4)
    assert [stand_in(rhythm, layer) for layer in (3, 4, 11, 22, 23, 24, 25, 26)] == [3, 4, 7, 6, 7, 8, 9, 10]


def test_a_kind_that_only_last_layers_have_stands_for_itself():
    # Llama 3.2 Vision's text: every fifth layer looks at the image, the last of them frees its features
    rhythm = rhythm_of("tttc" + "ttttc" * 6 + "tttt" + "Ct")
    assert rhythm == Rhythm(head=4, period=5, total=40, tail=2) and rhythm.copies == 5
    assert [stand_in(rhythm, layer) for layer in (3, 8, 13, 33, 37, 38, 39)] == [3, 8, 8, 8, 12, 13, 14]


def test_no_rhythm_means_all_layers():
    assert rhythm_of("abcdef").copies < 1
    assert rhythm_of("").copies < 1


@cache
def rhythm(name: str) -> Rhythm:
    return job_rhythm(job_from_dict(JOB), bundled_config(name))


@cache
def known() -> frozenset[str]:
    """The bundled models whose architecture the closed form has, or takes for another's."""
    return frozenset(name for name in bundled_names() if rhythm(name).total)


def test_nearly_all_are_known() -> None:
    assert len(known()) >= LEAST_KNOWN


@pytest.mark.parametrize("name", sorted(bundled_names()))
def test_every_bundled_model_is_folded(name: str) -> None:
    if name not in known():
        pytest.skip("an architecture the closed form leaves to the tracer")
    if name in WHOLE:
        assert rhythm(name).copies < 1, "it can be folded now: take it off the list"
    else:
        assert rhythm(name).copies >= 1
        model, config = program_of(job_from_dict(JOB)).model, bundled_config(name)
        few = shorter(model, config, rhythm(name), rhythm(name).small)
        assert few is not None
        short = layer_kinds(model, few)
        for layer, kind in enumerate(layer_kinds(model, config)):
            assert kind == short[stand_in(rhythm(name), layer)]


def fewest_folded(config: dict[str, Any], name: str) -> dict[str, Any]:
    """The bundled model cut to a head and two periods and a last layer."""
    found = rhythm(name)
    return with_layers(config, found.head + 2 * found.period + 1)


class Counted:
    """`build`, and the most layers it was asked for."""

    most = 0

    def __call__(self, job: Any, config: dict[str, Any], *args: Any, **how: Any) -> Any:
        self.most = max(self.most, config.get("text_config", config)["num_hidden_layers"])
        return build(job, config, *args, **how)


KIMI = {"hidden_size": 64, "intermediate_size": 96, "moe_intermediate_size": 32, "num_experts": 8, "vocab_size": 256}


def short_kimi() -> dict[str, Any]:
    """Kimi Linear, narrow, with as many layers as leave out one period: 4, 4, 4 and the last three."""
    whole = bundled_config("kimi-linear-48b-a3b")
    return {**with_layers(whole, 15), **KIMI, "layer_types": whole["layer_types"][-15:]}


@pytest.mark.parametrize("method", [{"method": "full", "autocast": None}, LORA], ids=["full", "lora"])
@pytest.mark.parametrize(
    ("config", "small"), [(short_kimi(), 11), (bundled_config("gemma-3-270m"), 14)], ids=["kimi", "gemma-3-270m"]
)
def test_folded_is_built_where_the_last_layers_break_the_pattern(
    config: dict[str, Any], small: int, method: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_from_dict(JOB | method)
    found = job_rhythm(job, config)
    assert found.small == small < found.total
    monkeypatch.setattr(job_runs, "build", few_layers := Counted())
    folded = fold_job(job, config, Card())
    assert few_layers.most <= small, "built whole after all"
    lengths, order = steps_to_trace(job)
    whole = program(scheduled(build(job, config, lengths, Card()), order))
    assert list(folded.program.written_out()) == list(whole.written_out())


@pytest.mark.parametrize("method", [{"method": "full", "autocast": None}, LORA], ids=["full", "lora"])
@pytest.mark.parametrize(
    "name", ["gemma-3-1b", "gemma-3-4b", "olmo-3-7b", "smollm3-3b", "gpt-oss-20b", "llama-4-scout"]
)
def test_folded_is_built(name: str, method: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Where layers take turns: the same requests and frees as with every layer built, in the same order."""
    job, config = job_from_dict(JOB | method), fewest_folded(bundled_config(name), name)
    monkeypatch.setattr(job_runs, "build", few_layers := Counted())
    folded = fold_job(job, config, Card())
    found = job_rhythm(job, config)
    assert few_layers.most <= found.small < found.total, "built whole after all"
    lengths, order = steps_to_trace(job)
    whole = program(scheduled(build(job, config, lengths, Card()), order))
    assert list(folded.program.written_out()) == list(whole.written_out())
