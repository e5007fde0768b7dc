"""Numbers that remember how they came about, and programs built on them."""

from __future__ import annotations

import operator
from collections.abc import Callable
from itertools import product
from math import prod
from typing import Any

import pytest

from tunecast.job import job_from_dict
from tunecast.tape.build.job_runs import Builder, fold_job, paper_run
from tunecast.tape.build.request import BuildRequest, Contents
from tunecast.tape.card import Card
from tunecast.tape.kernels.lists import list_launches
from tunecast.tape.symbols import Guards, NumberNeeded, ask, listed

pytestmark = pytest.mark.whole

CONFIG = {
    "model_type": "llama", "hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 9,
    "num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 3001, "max_position_embeddings": 4096,
    "tie_word_embeddings": True,
}  # fmt: skip
JOBS: dict[str, dict[str, Any]] = {
    "full": {"method": "full", "autocast": None, "gradient_checkpointing": True},
    "lora": {"method": "lora", "lora": {"targets": "all-linear"}},
    "qlora": {"method": "qlora", "quantization": {"format": "nf4"}, "gradient_checkpointing": True},
    "eager": {"method": "lora", "attention": "eager"},
    "liger": {"method": "lora", "kernels": ["liger"]},
    "chunked": {"method": "lora", "loss": "chunked"},
}


def test_arithmetic_is_kept_and_questions_are_noted() -> None:
    guards = Guards()
    batch, length = guards.symbol("batch", 2), guards.symbol("length", 100)
    size = prod((batch, length, 8)) + 4 * -(-length // 64)
    assert guards.compile([size.code], "batch, length")(3, 65) == (3 * 65 * 8 + 4 * 2,)
    assert size == 1608 and list(range(batch)) == [0, 1]
    assert list(guards.answers.values()) == [True, True, True, 2]  # both above 1; equal? how many?
    assert guards.compile(guards.answers, "batch, length")(2, 99) == (True, True, False, 2)


def test_what_holds_for_all_values_is_no_question() -> None:
    guards = Guards()
    batch, length = guards.symbol("batch", 3), guards.symbol("length", 100)
    before = dict(guards.answers)
    assert (batch * length * 4096) // (batch * length * -128) == -32
    assert 2 * (batch + 7) - batch * 2 == 14 and batch * length % (2 * batch) != 1 and (batch * length * 6) % batch == 0
    assert batch > 1 and batch * length > 3 and 8 * batch != 15 and max(batch, 1) is batch and min(1, batch) == 1
    assert (
        -batch < 0
        and -3 * batch < -5
        and -batch < 7
        and batch * length > 0
        and 3 * batch != 2 * batch
        and 2 * length > length
    )
    guards.answers.pop("(-1+1*((1*batch*length)%(2*batch)))!=0")
    assert guards.answers == before
    assert guards.symbol("rank", 1) == 1 and type(guards.symbol("rank", 1)) is int and guards.answers["rank"] == 1


def test_whatever_is_known_is_so_for_all_values() -> None:
    """Every comparison of small polynomials, guards of symbols, against what the numbers say."""
    signs = (operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne)
    values = [(a, b) for a in (2, 3, 5) for b in (2, 4, 7)]
    for first, second, constant, against in product((-3, -1, 0, 2), (-2, 0, 1, 3), (-9, 0, 4), (-13, -4, 0, 1, 6, 20)):
        for of in signs:
            guards = Guards()
            a, b = guards.symbol("a", 3), guards.symbol("b", 4)
            told = of(first * a * b + second * b + constant, against)
            same = [v for v in values if guards.compile(guards.answers, "a, b")(*v) == tuple(guards.answers.values())]
            assert (3, 4) in same
            assert all(of(first * a * b + second * b + constant, against) == told for a, b in same)


def test_a_function_is_one_question() -> None:
    guards = Guards()
    halves = ask(lambda least, *numbers: min(numbers) // 2 > least, 10, [guards.symbol("batch", 50), 30])
    assert halves and list(guards.answers.values()) == [True, True]
    assert [guards.compile(guards.answers, "batch")(batch)[1] for batch in (22, 21)] == [True, False]


def test_what_only_a_number_can_do_is_refused() -> None:
    """A cache would answer for other questions; what is not recorded would hold for one size alone."""
    batch, capability = Guards().symbol("batch", 2), Guards().fact("capability", (9, 0))
    cannot: list[Callable[[], Any]] = [
        lambda: hash(batch), lambda: {(batch, 1): 0}, lambda: batch**2, lambda: 2**batch, lambda: batch << 1,
        lambda: divmod(batch, 2), lambda: round(batch), lambda: batch & 1, lambda: batch.real, lambda: hash(capability),
    ]  # fmt: skip
    for use in cannot:
        with pytest.raises(NumberNeeded):
            use()
    assert not hasattr(batch, "real")


def test_a_symbol_that_is_printed_is_asked_for() -> None:
    guards = Guards()
    batch, capability = guards.symbol("batch", 1234), guards.fact("capability", (9, 0))
    assert f"{batch:,} {batch} {capability}" == "1,234 1234 (9, 0)"
    assert guards.answers == {"batch>1": True, "(1*batch)": 1234, "capability": (9, 0)}


def test_a_function_may_be_one_more_number() -> None:
    """Launches of lists of tensors: 320 blocks of 65,536 elements each are one."""
    guards = Guards()
    rank = guards.symbol("rank", 16)
    launches: Any = list_launches([4096 * rank] * 200 + [1024 * rank] * 200, 1)
    assert set(guards.answers.values()) == {True}  # that the rank is not 1, and nothing else
    (told,) = guards.compile([launches.code], "rank")(64)
    assert told == list_launches([4096 * 64] * 200 + [1024 * 64] * 200, 1) != launches.value


def test_a_list_holds_few_sizes() -> None:
    guards = Guards()
    batch = guards.symbol("batch", 3)
    order, sizes = listed([4, batch, 3, 2 * batch, batch, 4, batch * 2])
    assert order == (0, 1, 2, 3, 1, 0, 3)
    assert [type(size) is int for size in sizes] == [True, False, True, False]


def test_the_same_sum_is_the_same_symbol() -> None:
    guards = Guards()
    batch, length = guards.symbol("batch", 3), guards.symbol("length", 5)
    assert batch * length + 2 * batch is 2 * (batch + 0) + length * batch
    assert batch * 3 is not length * 3


def test_facts_answer_comparisons() -> None:
    guards = Guards()
    capability = guards.fact("capability", (8, 6))
    assert capability >= (8, 0) and capability in ((7, 5), (8, 6)) and capability[0] != 9
    major, _ = capability
    assert major == 8
    assert guards.answers == {
        "capability>=(8, 0)": True, "capability==(7, 5)": False, "capability==(8, 6)": True, "capability[0]!=9": True,
        "capability": (8, 6),
    }  # fmt: skip
    assert guards.compile(list(guards.answers)[:4], "capability")((9, 0)) == (True, False, False, False)


@pytest.mark.parametrize("name", JOBS)
def test_a_program_of_symbols_is_the_program(name: str) -> None:
    builder = Builder()
    sizes = [(1, 256, 8), (2, 256, 8), (2, 320, 8), (4, 96, 8), (1, 512, 8), (1, 640, 16), (3, 777, 32), (2, 2048, 16)]
    for batch, length, rank in sizes:
        values = {"model": "small", "weights_dtype": "bfloat16", "seq_len": length, "micro_batch": batch, **JOBS[name]}
        if values["method"] != "full":
            values["lora"] = {**values.get("lora", {}), "rank": rank}
        job = job_from_dict(values)
        served = fold_job(job, CONFIG, Card(), keeps_ops=True, builder=builder)
        plain = paper_run(BuildRequest(job, CONFIG, Card(), length, Contents.BOTH))
        assert served.program == plain.program
        assert served.operations is not None and plain.operations is not None
        assert served.operations.lengths == plain.operations.lengths
        step = served.operations.pattern.step(1, 1, served.operations.values)
        assert step == plain.operations.pattern.step(1, 1)
    (key,) = builder.keys
    made = builder.structures(key)
    assert not builder.fallbacks
    if name not in ("liger", "chunked"):  # these losses count their parts: hardly two sizes do the same
        assert 0 < len(made) < len(sizes)  # some were built for others
