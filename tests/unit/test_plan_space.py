"""What a plan may choose between, on spaces small enough to write down."""

from __future__ import annotations

from datetime import date

import pytest

from tunecast.door.read import read
from tunecast.errors import UsageError
from tunecast.job.mapping import job_from_dict
from tunecast.market.offer import Offer
from tunecast.planning.constraints import _remedy
from tunecast.planning.search import Need
from tunecast.planning.space import (
    Freedom,
    Setting,
    Space,
    Split,
    Spread,
    divisors,
    freed_fields,
    kept_fields,
    space_of,
)

DAY = date(2026, 11, 1)


def offer(gpu: str = "h100-sxm-80gb", gpus: int = 1, **fields: object) -> Offer:
    given = {"provider": "lambda", "kind": "on-demand", "usd_per_hour": 2.0, "dated": DAY, "source": "test"}
    return Offer(gpu=gpu, gpus=gpus, **{**given, **fields})  # type: ignore[arg-type]


def space(*offers: Offer, written: tuple[str, ...] = (), **fields: object) -> Space:
    job = job_from_dict({"model": "qwen3-0.6b", "weights_dtype": "bfloat16", "micro_batch": 4, **fields})
    return space_of(job, Freedom(frozenset(written)), offers)


def only_rig(of: Space):
    (rig,) = of.offers
    return rig


def test_divisors():
    assert divisors(12) == [1, 2, 3, 4, 6, 12]
    assert divisors(1) == [1]


def test_the_global_batch_is_split_in_every_way():
    of = space(offer(gpus=2))
    rig = only_rig(of)
    assert of.splits(rig, Spread("ddp", 1)) == (Split(1, 2), Split(2, 1))
    assert of.splits(rig, Spread("ddp", 2)) == (Split(1, 4), Split(2, 2), Split(4, 1))


def test_the_batch_of_a_job_on_several_cards_counts_them():
    of = space(offer(gpus=2), hardware={"gpus": 4}, grad_accum=2)
    assert of.global_batch == 32


def test_spreads_of_one_two_and_joined_machines():
    assert space(offer()).spreads(only_rig(space(offer()))) == [Spread("ddp", 1)]
    two = space(offer(gpus=2, max_nodes=2))
    by_nodes = {rig.nodes: two.spreads(rig) for rig in two.offers}
    zero = [Spread("zero1", 1), Spread("zero2", 1), Spread("zero3", 1)]
    fsdp = [Spread("fsdp", 1), Spread("fsdp", 1, sync_each_batch=True)]
    hsdp = [Spread("hsdp", 1), Spread("hsdp", 1, sync_each_batch=True)]
    assert by_nodes[1] == [Spread("ddp", 1), *fsdp, *zero, Spread("ddp", 2)]
    assert by_nodes[2] == [Spread("ddp", 1), *fsdp, *hsdp, *zero]


def test_gradients_are_summed_every_time_only_where_all_weights_are_trained_and_several_times_are_left():
    of = space(offer(gpus=2), method="lora")
    assert not any(each.sync_each_batch for each in of.spreads(only_rig(of)))
    of = space(offer(gpus=2), grad_accum=2)
    assert of.splits(only_rig(of), Spread("fsdp", 1)) == (Split(1, 4), Split(2, 2), Split(4, 1))
    assert of.splits(only_rig(of), Spread("fsdp", 1, sync_each_batch=True)) == (Split(1, 4), Split(2, 2))
    of = space(offer(gpus=2), written=("parallel.sync_each_batch",), parallel={"sync_each_batch": True})
    assert {each.sync_each_batch for each in of.spreads(only_rig(of))} == {True}


def test_zero_is_a_last_resort_unless_it_is_allowed_or_asked_for():
    def zero(freedom: Freedom, **fields: object) -> set[tuple[bool, bool]]:
        job = job_from_dict({"model": "qwen3-0.6b", "micro_batch": 4, **fields})
        of = space_of(job, freedom, [offer(gpus=2)])
        blocks = [block for block in of.blocks(only_rig(of)) if block.spread.data == "zero3"]
        return {(of.comes_late(block), of.is_last_resort(block)) for block in blocks}

    assert zero(Freedom()) == {(True, True)}
    assert zero(Freedom(allow=freed_fields(["zero"]))) == {(True, False)}
    asked = Freedom(frozenset({"parallel.data"}))
    assert zero(asked, parallel={"data": "zero3"}) == {(False, False)}


def test_machines_join_only_where_somebody_says_so():
    assert {rig.nodes for rig in space(offer(gpus=2)).offers} == {1}
    assert space(offer(gpus=2)).alone == ("lambda",)
    known = offer(gpus=8, instance="p5.48xlarge", provider="aws")
    of = space(known, grad_accum=8)
    assert {(rig.nodes, rig.inter_node_gbps) for rig in of.offers} == {(1, None), (2, 400.0), (4, 400.0)}


def test_cards_that_cannot_share_the_batch_are_refused():
    of = space(offer(gpus=3), written=("parallel.layers",))
    assert not of.offers
    assert list(of.refused.values()) == ["the global batch of 4 rows cannot be shared evenly by 3 cards"]


def test_a_job_too_large_for_a_machine_is_told_when_its_batch_feeds_no_more():
    """Eight rows per step leave nothing to a second machine of eight cards: without more of them no advice helps."""
    joined = offer(gpus=8, instance="p5.48xlarge", provider="aws")
    few, many = space(joined, grad_accum=2), space(joined, grad_accum=8)
    alone = space(offer(gpus=8), grad_accum=2)
    block = next(few.blocks(only_rig(few)))
    need = Need(2**50, 2**36, Setting(block.technique, block.spread, block.splits[0]), proven=True)
    one_machine = [min(of.offers, key=lambda rig: rig.nodes) for of in (few, many, alone)]
    told = [_remedy(rig, need, of, ()) for rig, of in zip(one_machine, (few, many, alone), strict=True)]
    assert told[0].endswith("; more cards also need more rows per step (--grad-accum): 8 feed at most 8")
    assert not any("rows per step" in each for each in told[1:])


def test_techniques_are_those_the_user_left_open():
    open_ones = {(r.gradient_checkpointing, r.kernels) for r in space(offer()).techniques}
    assert open_ones == {(True, ()), (True, ("liger",)), (False, ()), (False, ("liger",))}
    of = space(offer(), written=("gradient_checkpointing", "kernels"))
    assert len(of.techniques) == 1
    job = job_from_dict({"model": "qwen3-0.6b", "weights_dtype": "bfloat16"})
    freely = space_of(job, Freedom(allow=freed_fields(["method", "optimizer"])), [offer()])
    assert {technique.method for technique in freely.techniques} == {"full", "lora", "qlora"}
    assert {technique.optimizer for technique in freely.techniques} == {
        "adamw_torch_fused",
        "adamw_8bit",
        "paged_adamw_8bit",
    }


def test_compile_and_float8_are_tried_where_allowed_and_alone():
    def tried(
        *names: str, gpu: str = "h100-sxm-80gb", **fields: object
    ) -> set[tuple[bool, str | None, tuple[str, ...]]]:
        job = job_from_dict({"model": "qwen3-0.6b", "micro_batch": 4, **fields})
        of = space_of(job, Freedom(allow=freed_fields(names)), [offer(gpu)])
        techniques = [block.technique for block in of.blocks(only_rig(of))]
        return {(each.compile, each.matmul_dtype, each.kernels) for each in techniques}

    plain = {(False, None, ()), (False, None, ("liger",))}
    assert tried() == plain
    assert tried("compile") == plain | {(True, None, ())}
    assert tried("precision") == plain | {(False, "float8", ())}
    assert tried("compile", "precision") == plain | {(True, None, ()), (False, "float8", ())}
    assert tried("precision", gpu="a100-sxm-80gb") == plain, "no matrix units for float8"
    assert tried("compile", stack="trl") == plain, "the closed form follows torch.compile of transformers alone"
    assert tried("compile", data={"samples": 100, "lengths": "uniform(50, 900)"}) == plain


def test_quantised_bases_are_not_cast_to_float32_unless_the_user_says_so():
    def prepared(*written: str, **fields: object) -> set[bool]:
        return {each.prepare_kbit for each in space(offer(), written=written, method="qlora", **fields).techniques}

    assert prepared() == {False}
    assert prepared(stack="trl") == {False}
    assert prepared("quantization.prepare_kbit") == {True}
    assert prepared(stack="axolotl") == {True}, "whose own code decides"
    of = space(offer(), method="qlora")
    rig = only_rig(of)
    block = next(of.blocks(rig))
    assert of.job_of(rig, Setting(block.technique, block.spread, block.splits[0])).quantization.prepare_kbit is False


def test_every_core_prepares_data_where_the_offer_says_how_many_there_are():
    of = space(offer())
    assert of.processes(offer(vcpus=26)) == 13
    assert of.processes(offer()) == 1
    assert of.processes(offer(vcpus=1)) == 1
    assert space(offer(), data={"num_proc": 8}).processes(offer(vcpus=4)) == 8
    written = space(offer(), written=("data.num_proc",), data={"num_proc": 2})
    assert written.processes(offer(vcpus=26)) == 2


def test_what_no_engine_models_is_not_in_the_space():
    """Liger with adapters on cut weights is refused by prediction/spreading.py."""
    of = space(offer(gpus=2), method="lora")
    blocks = {(block.spread.data, block.spread.layers, block.technique.kernels) for block in of.blocks(only_rig(of))}
    assert ("ddp", 1, ("liger",)) in blocks
    assert ("fsdp", 1, ()) in blocks
    assert ("fsdp", 1, ("liger",)) not in blocks


def test_a_job_of_a_setting():
    of = space(offer(gpus=2))
    rig = only_rig(of)
    block = next(block for block in of.blocks(rig) if block.spread.data == "fsdp")
    job = of.job_of(rig, Setting(block.technique, block.spread, Split(2, 1)))
    assert (job.hardware.gpus, job.parallel.data, job.micro_batch, job.grad_accum) == (2, "fsdp", 2, 1)
    assert job.seq_len == of.job.seq_len


@pytest.mark.parametrize("names", [["seq_len"], ["method", "x"]])
def test_what_may_not_be_freed(names):
    with pytest.raises(UsageError, match="--allow"):
        freed_fields(names)
    with pytest.raises(UsageError, match="--keep"):
        kept_fields(names)


def test_fields_that_were_given(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text("model: qwen3-0.6b\nmethod: lora\nlora:\n  rank: 8\nparallel: null\nhardware: {gpu: l4}\n")
    found = read(path, {"seq_len": "512"}).given
    assert found == {"model", "method", "lora.rank", "hardware.gpu", "seq_len"}
    assert read("qwen3-0.6b", {"method": "lora"}).given == {"model", "method"}
