"""Floors of the planner: no prediction lies below them, on a seeded sample of settings of several families."""

from __future__ import annotations

import random
from datetime import date

import pytest

from tunecast.errors import TunecastError
from tunecast.job.mapping import job_from_dict
from tunecast.job.model import resolve_model
from tunecast.market.offer import Offer
from tunecast.planning.bill import Biller, Terms
from tunecast.planning.bounds import memory_floor_bytes
from tunecast.planning.estimate import Estimator
from tunecast.planning.search import Search
from tunecast.planning.space import Freedom, Rig, Setting, Space, Spread, freed_fields, space_of
from tunecast.tape.build.fill_in import fill_in

pytestmark = pytest.mark.whole

DAY = date(2026, 11, 1)
CARDS = ("rtx-4090", "l4", "a100-pcie-40gb", "a100-sxm-80gb", "h100-sxm-80gb", "h200-sxm-141gb", "b200-sxm-180gb")
JOBS = {
    "lora in 16 bits": {"model": "qwen3-0.6b", "method": "lora", "weights_dtype": "bfloat16"},
    "lora in 32 bits": {"model": "llama-3.2-1b", "method": "lora", "weights_dtype": "float32"},
    "full in 16 bits": {"model": "gemma-3-1b", "weights_dtype": "bfloat16"},
    "full in 32 bits": {"model": "llama-3.2-1b", "weights_dtype": "float32"},
    "gradients summed after each micro-batch": {"model": "llama-3.2-1b", "parallel": {"sync_each_batch": True}},
    "qlora": {"model": "llama-3.2-1b", "method": "qlora", "weights_dtype": "bfloat16"},
    "mixture of experts": {"model": "qwen3-30b-a3b", "method": "lora", "lora": {"targets": "attention"}},
    "lengths that vary": {
        "model": "qwen3-0.6b",
        "method": "lora",
        "data": {"samples": 5000, "lengths": "uniform(50, 900)"},
    },
}


def offer(gpu: str, gpus: int, **fields: object) -> Offer:
    given = {"provider": "lambda", "kind": "on-demand", "usd_per_hour": 2.0 * gpus, "dated": DAY, "source": "test"}
    return Offer(gpu=gpu, gpus=gpus, **{"ram_bytes": 2**43, **given, **fields})  # type: ignore[arg-type]


def space(fields: dict[str, object], *allowed: str) -> Space:
    given = {"data": {"tokens": 2_000_000}, "micro_batch": 4, "grad_accum": 2, **fields}
    offers = [offer(gpu, gpus, vcpus=8 * gpus, max_nodes=2 if gpus == 4 else 1) for gpu in CARDS for gpus in (1, 2, 4)]
    config = resolve_model(str(fields["model"])).raw
    return space_of(fill_in(job_from_dict(given), config), Freedom(allow=freed_fields(allowed)), offers, config)


def settings(of: Space) -> list[tuple[Rig, Setting]]:
    return [
        (rig, Setting(block.technique, block.spread, split))
        for rig in of.offers
        for block in of.blocks(rig)
        for split in block.splits
    ]


def drawn(draw: random.Random, every: list[tuple[Rig, Setting]], has_lengths: bool) -> list[tuple[Rig, Setting]]:
    """Of every kind of spread; ZeRO's tapes take longest, and one for every length minutes."""
    kinds: dict[tuple[str, bool], list[tuple[Rig, Setting]]] = {}
    for each in every:
        spread = each[1].spread
        kinds.setdefault((spread.data, spread.sync_each_batch), []).append(each)
    dear = 0 if has_lengths else 1
    return [
        each
        for (data, _), group in kinds.items()
        for each in draw.sample(group, dear if data.startswith("zero") else 3)
    ]


@pytest.mark.parametrize("name", JOBS)
def test_no_prediction_lies_below_its_floors(name: str) -> None:
    of = space(JOBS[name])
    assert_floors_hold(of, drawn(random.Random(name), settings(of), of.job.data.lengths is not None), least=4)


@pytest.mark.parametrize("name", ["lora in 16 bits", "lora in 32 bits", "full in 16 bits", "qlora"])
def test_no_compiled_prediction_lies_below_its_floors(name: str) -> None:
    of = space(JOBS[name], "compile")
    compiled = [each for each in settings(of) if each[1].technique.compile and each[1].spread.layers == 1]
    assert_floors_hold(of, random.Random(name).sample(compiled, 3), least=3)


@pytest.mark.parametrize("name", ["lora in 16 bits", "full in 16 bits"])
def test_no_prediction_in_float8_lies_below_its_floors(name: str) -> None:
    of = space(JOBS[name], "precision")
    narrow = [each for each in settings(of) if each[1].technique.matmul_dtype and each[1].spread.layers == 1]
    assert_floors_hold(of, random.Random(name).sample(narrow, 4), least=4)


def assert_floors_hold(of: Space, sample: list[tuple[Rig, Setting]], least: int) -> None:
    estimator = Estimator(of, resolve_model(of.job.model))
    search = Search(of, estimator, Biller(of.job, Terms()))
    checked = 0
    for rig, setting in sample:
        try:
            timed, held = estimator.time_run(rig, setting), estimator.replay(rig, setting)
        except TunecastError:
            continue
        tensors = estimator.tensors(setting.technique, setting.spread.data)
        accumulates = setting.split.grad_accum > 1
        micro_batch = setting.split.micro_batch
        floor_bytes = memory_floor_bytes(tensors, of.job, rig, setting.spread, micro_batch, accumulates=accumulates)
        assert 0 < floor_bytes <= held.needs_bytes, setting
        if setting.spread.layers == 1:
            assert estimator.least_bytes(rig, setting) <= held.needs_bytes, (rig, setting)
        (rented,) = of.offers[rig]
        timed = estimator.with_processes(timed, of.processes(rented))
        cost = search.biller.likely(timed, rented, rig.nodes)
        for close in (False, True):
            ((usd, seconds),) = search._floors(rig, setting, close=close)
            assert 0 < seconds <= cost.wall_s, (rig, setting)
            assert 0 < usd <= cost.total_usd, (rig, setting)
        checked += 1
    assert checked >= least


def test_preparing_a_quantised_base_takes_no_less_time_and_memory() -> None:
    """What the space leaves out is of no use: float32 norms, embeddings and head."""
    of = space(JOBS["qlora"])
    estimator = Estimator(of, resolve_model(of.job.model))
    every = [each for each in settings(of) if not each[1].spread.data.startswith("zero") and each[1].spread.layers == 1]
    for rig, setting in random.Random(7).sample(every, 6):
        prepared = setting._replace(technique=setting.technique._replace(prepare_kbit=True))
        assert not setting.technique.prepare_kbit
        assert estimator.time_run(rig, prepared).step_s >= estimator.time_run(rig, setting).step_s, (rig, setting)
        assert estimator.replay(rig, prepared).needs_bytes >= estimator.replay(rig, setting).needs_bytes, (rig, setting)


@pytest.mark.parametrize("name", ["lora in 16 bits", "full in 32 bits"])
def test_checkpointing_takes_no_less_time(name: str) -> None:
    of = space(JOBS[name])
    estimator = Estimator(of, resolve_model(of.job.model))
    plain = [(rig, each) for rig, each in settings(of) if not each.technique.gradient_checkpointing]
    for rig, setting in random.Random(7).sample(plain, 3):
        with_it = setting._replace(technique=setting.technique._replace(gradient_checkpointing=True))
        assert estimator.time_run(rig, with_it).step_s >= estimator.time_run(rig, setting).step_s


def test_summing_gradients_every_time_takes_no_less_time_and_no_more_memory() -> None:
    of = space(JOBS["full in 32 bits"])
    estimator = Estimator(of, resolve_model(of.job.model))
    every = [(rig, each) for rig, each in settings(of) if each.spread.sync_each_batch]
    for rig, setting in random.Random(7).sample(every, 3):
        without = of.without_sync(rig, setting)
        assert without is not None
        assert estimator.time_run(rig, setting).step_s >= estimator.time_run(rig, without).step_s
        assert estimator.replay(rig, setting).needs_bytes <= estimator.replay(rig, without).needs_bytes


@pytest.mark.parametrize("data", ["zero1", "zero2", "zero3"])
def test_the_close_floor_of_zero_is_close(data: str) -> None:
    of = space({"model": "llama-3.2-1b", "method": "lora"})
    estimator = Estimator(of, resolve_model(of.job.model))
    search = Search(of, estimator, Biller(of.job, Terms()))
    found = [each for each in settings(of) if each[0].gpu_name == "h100-sxm-80gb" and each[1].spread.data == data]
    rig, setting = found[-1]
    ((_, seconds),) = search._floors(rig, setting)
    (rented,) = of.offers[rig]
    assert seconds > 0.8 * search.biller.likely(estimator.time_run(rig, setting), rented, rig.nodes).wall_s


def test_more_processes_shorten_the_preparation_as_a_prediction_has_it() -> None:
    of = space({"model": "qwen3-0.6b", "method": "lora", "data": {"tokens": 50_000_000}})
    estimator = Estimator(of, resolve_model(of.job.model))
    rig, setting = settings(of)[0]
    one = estimator.time_run(rig, setting)
    more = Estimator(
        space({**JOBS["lora in 16 bits"], "weights_dtype": "float32", "data": {"tokens": 50_000_000, "num_proc": 8}}),
        estimator.model,
    )
    expected = more.time_run(rig, setting).whole
    found = estimator.with_processes(one, 8).whole
    assert found.phases_s["preparation"] < one.whole.phases_s["preparation"] / 2
    assert found.phases_s == pytest.approx(expected.phases_s)
    assert (found.total_s, found.low_s, found.high_s) == pytest.approx(
        (expected.total_s, expected.low_s, expected.high_s)
    )
    assert estimator.with_processes(one, 1) is one


def test_floors_are_close_where_weights_are_whole() -> None:
    """A floor of 0 would pass the test above: these cut."""
    of = space({"model": "llama-3.2-1b", "method": "lora", "weights_dtype": "bfloat16"})
    estimator = Estimator(of, resolve_model(of.job.model))
    search = Search(of, estimator, Biller(of.job, Terms()))
    rig = next(rig for rig in of.offers if rig.gpu_name == "h100-sxm-80gb" and rig.cards == 1)
    block = next(of.blocks(rig))
    setting = Setting(block.technique, block.spread, block.splits[-1])
    ((_, seconds),) = search._floors(rig, setting)
    (rented,) = of.offers[rig]
    assert seconds > 0.8 * search.biller.likely(estimator.time_run(rig, setting), rented, 1).wall_s


def test_the_floor_of_memory_on_paper() -> None:
    """16-bit weights, gradients and Adam's two averages: 8 bytes a parameter, and a fourth of it on four cards."""
    of = space({"model": "llama-3.2-1b", "weights_dtype": "bfloat16", "autocast": None})
    estimator = Estimator(of, resolve_model(of.job.model))
    parameters = 1_235_814_400
    blocks = {
        (rig.cards, block.spread.data, block.spread.layers): block
        for rig in of.offers
        if rig.gpu_name == "h100-sxm-80gb" and rig.nodes == 1
        for block in of.blocks(rig)
    }
    for (cards, data, layers), block in blocks.items():
        floor = memory_floor_bytes(
            estimator.tensors(block.technique, block.spread.data), of.job, block.rig, block.spread, 0
        )
        if not data.startswith("zero"):
            parts = cards if data == "fsdp" else layers
            assert floor == pytest.approx(8 * parameters / parts, rel=0.001)


def test_the_floor_of_zero_s_memory_on_paper() -> None:
    """Masters and Adam's averages in float32 are 12 bytes a parameter, cut; weights in 16 bits are cut by ZeRO 3 alone.
    At a step its part of the gradients is there in 16 bits, once more in one piece, and in float32: ZeRO 3 keeps the
    first and its bucket of 500 million elements, and has the others of all of so small a model."""
    of = space({"model": "llama-3.2-1b"})
    estimator, n = Estimator(of, resolve_model(of.job.model)), 1_235_814_400
    rig = next(rig for rig in of.offers if rig.cards == 4 and rig.nodes == 1)
    technique = of.techniques[0]
    found = {
        data: memory_floor_bytes(estimator.tensors(technique, data), of.job, rig, Spread(data, 1), 0)
        for data in ("zero1", "zero2", "zero3")
    }
    assert found["zero1"] == pytest.approx(2 * n + 12 * n / 4 + max(8 * n / 4, 2 * n), rel=0.001)
    assert found["zero2"] == pytest.approx(2 * n + 12 * n / 4 + 8 * n / 4, rel=0.001)
    assert found["zero3"] == pytest.approx((2 + 12 + 2 + 6) * n / 4 + 1e9, rel=0.001)
