"""How words of published tables become fields of a job, on rows that can be read off the sources by hand."""

from __future__ import annotations

import ast
import json
import re
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import rows  # noqa: E402
import rows_public  # noqa: E402
import rows_vendor  # noqa: E402
import time_left_out  # noqa: E402
import time_peers  # noqa: E402
import time_public  # noqa: E402
import timing  # noqa: E402
from time_vendor import is_lora_on_eight, order  # noqa: E402

from tunecast.hardware import known_gpu  # noqa: E402
from tunecast.job import job_from_dict  # noqa: E402

PUBLIC, VENDOR = timing.rows_of("public_runs.jsonl"), timing.rows_of("vendor_runs.jsonl")
SKIPPED = timing.rows_of("vendor_skipped.jsonl")


@pytest.mark.parametrize(
    ("text", "cards", "parallel", "beyond"),
    [
        ("fsdp full_shard (zero3) over 32", 32, {"data": "fsdp"}, {}),
        ("fsdp shard_grad_op (zero2) over 512", 512, {"data": "fsdp"}, {"reshard": "never"}),
        ("fsdp1 8", 8, {"data": "fsdp"}, {"fsdp": 1}),
        ("fsdp2 8 (reshard_after_forward=always)", 8, {"data": "fsdp"}, {"reshard": "always"}),
        ("fsdp2 4, tp 2 (sequence parallel)", 8, {"data": "fsdp", "tensor": 2}, {"sequence_parallel": True}),
        ("fsdp 2, cp 4", 8, {"data": "fsdp", "context": 4}, {}),
        ("fsdp 4, tp 2, ep 2", 8, {"data": "fsdp", "tensor": 2, "expert": 2}, {"sequence_parallel": True}),
        (
            "fsdp 8, tp 8 (async), pp 8 (interleaved 1F1B)",
            512,
            {"data": "fsdp", "tensor": 8, "pipeline": 8},
            {"async_tensor": True, "sequence_parallel": True, "schedule": "interleaved 1f1b"},
        ),
        ("hsdp 128", 128, {"data": "hsdp"}, {}),
        ("fsdp full_shard 2 + cpu offload", 2, {"data": "fsdp", "offload": "parameters"}, {}),
        ("ddp (fsdp no-shard) 2", 2, {"data": "ddp"}, {}),
        ("ddp 8", 8, {"data": "ddp"}, {}),
        ("TP4 PP8 CP1 VP5", 64, {"data": "zero1", "tensor": 4, "pipeline": 8}, {"virtual_stages": 5}),
        ("TP4 PP1 CP2 DP8 SP", 64, {"data": "zero1", "tensor": 4, "context": 2}, {"sequence_parallel": True}),
        ("TP4 PP1 CP1 DP1 SP", 4, {"data": "ddp", "tensor": 4}, {"sequence_parallel": True}),
        ("TP1 PP1 CP1 VP1 FSDP64", 64, {"data": "fsdp"}, {}),
        ("dp 8, tp 8, pp 8 (vp 8), cp 2", 1024, {"data": "zero1", "tensor": 8, "pipeline": 8, "context": 2},
         {"virtual_stages": 8}),
        ("DeepSpeed ZeRO-3 DP8", 8, {"data": "zero3"}, {}),
        ("HF accelerate FSDP512", 512, {"data": "fsdp"}, {}),
    ],
)  # fmt: skip
def test_parallelism(text: str, cards: int, parallel: Any, beyond: Any) -> None:
    assert rows.parallel_of(text, cards) == (parallel, beyond)


def test_degrees_that_do_not_divide_the_cards_are_an_error() -> None:
    with pytest.raises(ValueError, match="does not divide 12 cards"):
        rows.parallel_of("TP8 PP1", 12)


MIXED = {"weights_dtype": "float32", "autocast": "bfloat16"}


@pytest.mark.parametrize(
    ("text", "job", "beyond"),
    [
        ("amp_bf16; fsdp mixed_precision=DEFAULT", MIXED, {}),
        ("bf16; fsdp mixed_precision=PURE", MIXED, {}),
        ("amp_fp8; fsdp mixed_precision=DEFAULT", MIXED | {"matmul_dtype": "float8"}, {"low_precision": "delayed"}),
        ("bf16 (pure)", {"weights_dtype": "bfloat16", "autocast": None}, {}),
        ("float16 weights + fp16 autocast", {"weights_dtype": "float16", "autocast": "float16"}, {}),
        ("bfloat16 weights + bf16 autocast", {"weights_dtype": "bfloat16", "autocast": "bfloat16"}, {}),
        ("bf16 mixed (fp32 master), fp32 reduce-scatter", MIXED, {"reduce_dtype": "float32"}),
        (
            "bf16 mixed (fp32 master); float8 tensorwise, fp8 all-gather",
            MIXED | {"matmul_dtype": "float8"},
            {"low_precision": "tensorwise", "float8_gather": True},
        ),
        ("bf16 mixed (fp32 master); none (bfloat16)", MIXED, {}),
        ("bf16 mixed + float8 rowwise", MIXED | {"matmul_dtype": "float8"}, {"low_precision": "rowwise"}),
        ("bf16 mixed; linears MXFP8", MIXED | {"matmul_dtype": "float8"}, {"low_precision": "mxfp8"}),
        ("bf16 mixed; linears NVFP4 (27/32 layers)", MIXED | {"matmul_dtype": "float4"}, {"low_precision": "nvfp4"}),
        ("fp8-mx", MIXED | {"matmul_dtype": "float8"}, {"low_precision": "mxfp8"}),
        ("fp8-cs", MIXED | {"matmul_dtype": "float8"}, {"low_precision": "tensorwise"}),
    ],
)
def test_precision(text: str, job: Any, beyond: Any) -> None:
    assert rows.precision_of(text) == (job, beyond)


@pytest.mark.parametrize(
    ("text", "recomputes"),
    [
        ("none", (False, "nothing")),
        ("", (False, "nothing")),
        ("full", (True, "layers")),
        ("full + offload", (True, "layers")),
        ("full block 21", (True, "21 layers")),
        ("selective (per-op)", (True, "operations")),
        ("selective (every 2nd layer)", (True, "every 2nd layer")),
        ("selective", (True, "some layers")),
    ],
)
def test_recomputation(text: str, recomputes: tuple[bool, str]) -> None:
    assert rows.checkpointing_of(text) == recomputes


def test_links_are_told_a_card() -> None:
    assert rows.gigabits_between("400Gb/s RDMA per GPU; step_time derived") == 400
    assert rows.gigabits_between('section "A100 40GB with 1600 Gbps node-node interconnect (RoCE)"') == 200
    assert rows.gigabits_between("800 Gbps interconnect; seq 4096 = repo default") == 100
    assert rows.gigabits_between("no word of it") is None


def test_micro_batches_of_a_step() -> None:
    # 1024 cards in tensor 8 x pipeline 8 x context 2 are 8 replicas; 512 rows a step at 1 a time are 64 turns
    row = {"gpu_count": "1024", "global_batch": "512"}
    assert rows.accumulation(row, {"tensor": 8, "pipeline": 8, "context": 2}, 1) == 64
    with pytest.raises(ValueError, match="no multiple of 16"):
        rows.accumulation({"gpu_count": "8", "global_batch": "24"}, {}, 2)


def test_a_step_is_its_tokens_by_tokens_a_second() -> None:
    row = {"global_batch": "16", "seq_len": "8192", "tokens_per_s_per_gpu": "5762", "gpu_count": "8", "step_time_s": ""}
    assert rows.step_seconds(row) == pytest.approx(2.8435, abs=5e-5)  # torchtitan's table 1: 2 rows of 8192 a card
    with pytest.raises(ValueError, match=r"the table 3\.5"):
        rows.step_seconds({**row, "step_time_s": "3.5"})


def test_a_peak_keeps_its_unit_and_its_last_digit() -> None:
    lit = {"mem_kind": "allocated (max_memory_allocated/1e9)", "notes": "printed 4.86 GB; decimal GB",
           "peak_mem_gib": "4.526", "mem2_kind": ""}  # fmt: skip
    assert rows.measured_bytes(lit) == {"kind": "allocated", "bytes": 4_860_000_000, "resolution_bytes": 10_000_000}
    titan = {"mem_kind": "reserved", "notes": "", "peak_mem_gib": "82.4", "mem2_kind": "nvidia-smi (peak)",
             "peak_mem2_gib": "84"}  # fmt: skip
    assert rows.measured_bytes(titan) == {
        "kind": "reserved",
        "bytes": round(82.4 * 2**30),
        "resolution_bytes": round(2**30 / 10),
        "device_bytes": 84 * 2**30,
    }


def test_vendor_rows_that_say_too_little_are_skipped_with_the_reason() -> None:
    row = dict.fromkeys(("precision", "parallelism", "step_time_s", "micro_batch", "source", "model"), "x")
    assert rows_vendor.why_not(row) is None
    assert rows_vendor.why_not({**row, "precision": ""}) == "no precision is stated"
    assert rows_vendor.why_not({**row, "step_time_s": ""}) == "no time is stated"
    assert rows_vendor.why_not({**row, "parallelism": "MaxText(JAX) FSDP64+DP"}) == (
        "MaxText is JAX, which is no stack of ours"
    )


def test_a_torchtitan_row_whole() -> None:
    """Table 5 of benchmarks/llama3_h100_202412_torchtitan.md."""
    (row,) = (row for row in PUBLIC if row["id"] == "titan-230")
    job = row["job"]
    assert job["model"] == "llama-3.1-405b"
    assert (job["micro_batch"], job["grad_accum"], job["seq_len"]) == (4, 8, 8192)  # 32 rows in 8 turns
    assert job["hardware"] == {"gpu": "h100-sxm-96gb", "gpus": 8, "nodes": 64}
    assert job["parallel"] == {"data": "fsdp", "tensor": 8, "pipeline": 8}
    assert (job["matmul_dtype"], job["stack_version"]) == ("float8", "2024.12")
    assert row["beyond"]["schedule"] == "interleaved 1f1b"
    assert row["measured"]["step_s"] == 32  # 256 rows of 8192 tokens at 128 a second on each of 512 cards


def test_every_row_is_a_job_on_a_known_card() -> None:
    assert (len(PUBLIC), len(VENDOR)) == (400, 390)
    assert sum("step_s" in row["measured"] for row in PUBLIC) == 389
    assert sum("memory" in row["measured"] for row in PUBLIC) == 147
    ids = [row["id"] for row in (*PUBLIC, *VENDOR)]
    assert not [name for name, n in Counter(ids).items() if n > 1]
    for row in (*PUBLIC, *VENDOR):
        job = job_from_dict(timing.job_of(row))
        assert known_gpu(job.hardware.gpu).name == row["job"]["hardware"]["gpu"]
        tokens = job.micro_batch * job.grad_accum * job.seq_len / job.parallel.tensor / job.parallel.pipeline
        if "step_s" in row["measured"]:
            rate = tokens / job.parallel.context / row["measured"]["step_s"]
            assert rate == pytest.approx(row["measured"]["tokens_per_s_per_gpu"], rel=1e-3), row["id"]


def test_models_that_are_not_bundled_count_as_published() -> None:
    """llm-foundry: vocabulary, places and 12 d^2 + 13 d a layer; its README rounds to the names of the models."""
    for name, layers, width in (("125m", 12, 768), ("7b", 32, 4096), ("70b", 80, 8192)):
        counted = (50368 + 2048) * width + layers * (12 * width**2 + 13 * width) + 2 * width
        assert timing.parameters(f"foundry-mpt-{name}") == counted
    assert timing.parameters("llama-3.1-8b") == 8_030_261_248
    # a token passes 6 of 64 experts: the active ones count
    assert timing.parameters("deepseek-v2-lite") < 3_000_000_000


def test_a_model_file_has_the_places_of_its_run() -> None:
    (row,) = (row for row in PUBLIC if row["id"] == "foundry-216")
    config = json.loads(Path(timing.job_of(row)["model"]).read_text())
    assert (config["max_seq_len"], config["d_model"]) == (512, 768)


def test_the_rule_by_hand() -> None:
    # 8 cards, 2 rows of 1000 tokens each: 16,000 tokens x 6 x 1e9 = 9.6e13 operations; 8e14 a second at the peak
    job = {"method": "full", "micro_batch": 2, "grad_accum": 1, "seq_len": 1000, "hardware": {"gpus": 8}}
    assert time_peers.at_peak_seconds(job, 10**9, {"bf16": 1e14}) == pytest.approx(0.12)
    assert time_peers.at_peak_seconds({**job, "method": "lora"}, 10**9, {"bf16": 1e14}) == pytest.approx(0.08)
    assert time_peers.at_peak_seconds({**job, "matmul_dtype": "float8"}, 10**9, {"fp8": 2e14}) == pytest.approx(0.06)
    # tensor 2 leaves 4 replicas, so half the tokens on as many cards
    split = {**job, "parallel": {"data": "fsdp", "tensor": 2}}
    assert time_peers.at_peak_seconds(split, 10**9, {"bf16": 1e14}) == pytest.approx(0.06)


def test_the_best_share_is_fitted_and_left_out() -> None:
    ideals, measured, cards = [1.0, 2.0, 3.0, 1.0], [2.0, 4.0, 6.0, 4.0], ["a", "a", "a", "b"]
    assert time_peers.fitted_share(zip(ideals, measured, strict=True)) == 0.5
    assert time_peers.shares_left_out(ideals, measured, cards) == {"a": 0.25, "b": 0.5}
    told = time_peers.rule_answers(ideals, measured, cards)
    assert told[0]["6ND"] == {"step_s": 2.5}
    assert told[0]["6ND fitted"] == {"step_s": 2.0}
    assert told[0]["6ND left out"] == {"step_s": 4.0}


def answered(gpu: str, measured: float, said: float | None) -> dict[str, Any]:
    told = {"refused": "no"} if said is None else {"step_s": said}
    about = f"llama-2-70b lora b1x1 s8192 float8 8 {gpu} zero1"
    return {"stack": "MLPerf, NVIDIA", "gpu": gpu, "about": about, "measured_s": measured, "said": {"tunecast": told}}


def test_the_order_of_cards() -> None:
    found = [answered("h100-sxm-80gb", 3.8, 4.0), answered("h200-sxm-141gb", 3.2, 3.9)]
    assert all(is_lora_on_eight(row) for row in found)
    assert order(found)["agrees"] is True
    assert order([found[0], answered("h200-sxm-141gb", 3.2, 4.1)])["agrees"] is False
    assert order([found[0], answered("b200-sxm-180gb", 1.5, None)])["agrees"] is None


def test_groups_tell_who_answers_and_whether_ranges_hold() -> None:
    said = {"tunecast": {"step_s": 1.1, "low_s": 0.9, "high_s": 1.2}, "6ND": {"step_s": 2.0}}
    job = {"model": "m", "method": "full", "micro_batch": 1, "grad_accum": 1, "seq_len": 8, "hardware": {"gpu": "g"}}
    row = {"id": "a", "stack": "s", "job": job | {"gradient_checkpointing": False}, "measured": {"step_s": 1.0}}
    found = [timing.compared(row, said), timing.compared(row, {"tunecast": {"refused": "got 8 cards"}})]
    (group,) = timing.grouped(found, lambda row: ["all"])
    assert group["rows"] == 2
    assert group["tools"]["tunecast"]["answered"] == 1
    assert group["tools"]["tunecast"]["median"] == pytest.approx(0.1)
    assert group["tools"]["6ND"]["median_signed"] == pytest.approx(1.0)
    assert group["range_holds"] == 1
    assert group["range_half_width"] == pytest.approx(0.15 / 1.1)
    assert timing.refusals(found) == [{"stack": "s", "reason": "got N cards", "rows": 1}]


def test_a_step_that_recomputes_some_layers_lies_between_none_and_all() -> None:
    (row,) = (row for row in VENDOR if row["id"] == "mlperf-47")
    steps = {False: {"step_s": 2.0, "bound_by": "compute", "breakdown_s": {"optimizer": 0.5}}}
    steps[True] = {"step_s": 4.0, "bound_by": "memory", "breakdown_s": {"optimizer": 0.5, "recomputation": 2.0}}
    said = time_public.answered(row, lambda asked: steps[asked["job"]["gradient_checkpointing"]])  # type: ignore[arg-type, return-value]
    part = 21 / 80  # of Llama 2 70B's layers
    assert said["step_s"] == pytest.approx(2 + 2 * part)
    assert said["breakdown_s"] == pytest.approx({"optimizer": 0.5, "recomputation": 2 * part})
    refused = {"refused": "no"}
    assert time_public.answered(row, lambda asked: refused) == refused  # type: ignore[arg-type, return-value]
    whole = {**row, "beyond": {}}
    assert time_public.answered(whole, lambda asked: steps[True]) == steps[True]  # type: ignore[arg-type, return-value]


def test_megatron_bridge_is_run_as_nemo_is() -> None:
    bridge = [row for row in VENDOR if row["id"].startswith("bridge")]
    assert {row["job"]["stack"] for row in bridge} == {"nemo"}


def test_the_converter_knows_no_single_row() -> None:
    """A rule is of a source, not of a row: no word it looks for is in one row alone, nor has it a row's number."""
    tree = ast.parse((BENCHMARKS / "rows_vendor.py").read_text())
    documents = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    words = {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documents
    }
    told = [json.dumps(row) for row in (*VENDOR, *SKIPPED)]
    alone = {word for word in words if len(word) > 3 and sum(word in row for row in told) == 1}
    assert not alone - OF_ONE_ROW.keys()
    numbers = {row["id"].rpartition("-")[2] for row in (*VENDOR, *SKIPPED)}
    assert not words & {*numbers, *(row["id"] for row in (*VENDOR, *SKIPPED))}


OF_ONE_ROW = {
    "MLPerf, HF": "what it writes of runs of the Trainer, read off their notes",
    "a step from the times of its log": "what it writes of notes that say so",
    "the same figure as ": "what it writes of any row that is another's twin",
}
"""Words that are in one row because the converter writes them there by a rule, and the rule."""


def test_rows_are_read_alike_wherever_they_stand() -> None:
    """The order of a table, and who submitted a row, change nothing but its number."""
    row = {
        "source": "MLPerf Training v9.9", "source_path": "x/y", "gpu": "H100-SXM5-80GB", "gpu_count": "8", "nodes": "1",
        "model": "llama2-70b", "method": "lora", "lora_rank": "16", "lora_targets": "qkv+o (fused qkv, attn dense)",
        "precision": "fp8", "seq_len": "8192", "micro_batch": "1", "global_batch": "8",
        "parallelism": "TP4 PP1 CP1 DP2 SP", "attention_impl": "", "activation_checkpointing": "none",
        "tokens_per_s_per_gpu": "2000", "step_time_s": "4.096", "notes": "submitter A",
    }  # fmt: skip
    other = {**row, "source_path": "z", "notes": "submitter B", "step_time_s": "4.097"}
    (first, second), _ = rows_vendor.vendor_rows([row, other])
    (turned, _), _ = rows_vendor.vendor_rows([other, row])
    assert {**first["job"], "id": ""} == {**second["job"], "id": ""} == {**turned["job"], "id": ""}
    assert (first["job"]["quantization"], first["job"]["loss"]) == ({"format": "float8"}, "full")


def run(gpu: str, generation: str, precision: str, ratio: float, share: float = 1.0) -> time_left_out.Run:
    return time_left_out.Run("x-1", gpu, "m", "x", generation, precision, ratio, share)


def test_a_constant_moves_the_share_that_goes_with_it() -> None:
    # half of a step of 1.2 goes as 1 / constant: at 1.5 times the constant it takes 1/2 + 1/3 of 1.2
    assert time_left_out.error_at(run("a", "G", "16 bits", 1.2, 0.5), 1.5) == pytest.approx(0.0)
    assert time_left_out.best_factor([run("a", "G", "16 bits", 0.8)] * 3, lambda _: 1.0) == 0.8


def test_a_card_is_left_out_of_what_is_estimated() -> None:
    runs = [run("a", "G", "16 bits", 0.8)] * 3 + [run("b", "G", "16 bits", 1.0)] * 3
    parts = time_left_out.parts_of(runs, lambda one: one.gpu)
    by_card = {one["part"]: one for one in time_left_out.left_out(parts)}
    assert by_card["a"]["as it is"]["median_signed"] == pytest.approx(-0.2)
    assert by_card["a"]["left out"]["median_signed"] == pytest.approx(-0.2)  # b says nothing is wrong
    assert by_card["b"]["left out"]["median_signed"] == pytest.approx(0.25)  # a says it is a fifth slower
    float8 = [*runs, *[run("b", "G", "float8", 0.9)] * 3]
    assert time_left_out.fitted([one for one in float8 if one.gpu == "b"]).precisions == {"float8": 0.9}


def test_sources_of_public_rows_each_have_a_maker() -> None:
    prefixes = {prefix for prefix, _, _ in rows_public.SOURCES.values()}
    kept = {row["id"].rpartition("-")[0] for row in [*PUBLIC, *timing.rows_of("public_memory.jsonl")]}
    assert kept == prefixes


CONVERTERS = ("rows.py", "rows_public.py", "rows_pretrain.py", "rows_finetune.py")
LISTS = ("public_runs", "public_memory", "public_runs_skipped", "public_memory_skipped")


def test_the_converter_knows_of_no_single_row() -> None:
    """A row's number makes its name and nothing else: no text of the converters holds one, and one place reads it."""
    ids = {row["id"] for name in LISTS for row in timing.rows_of(f"{name}.jsonl")}
    numbers = {name.rpartition("-")[2] for name in ids}
    reads = 0
    for name in CONVERTERS:
        for node in ast.walk(ast.parse((BENCHMARKS / name).read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                reads += node.value == "row_id"
                assert node.value not in ids | numbers, f"{name}, line {node.lineno}: {node.value}"
                assert not re.search(r"\b(" + "|".join(map(re.escape, sorted(ids))) + r")\b", node.value), name
    assert reads == 1


def test_every_public_row_is_converted_or_skipped_with_a_reason() -> None:
    for name in ("public_runs", "public_memory"):
        kept = {row["id"] for row in timing.rows_of(f"{name}.jsonl")}
        skipped = timing.rows_of(f"{name}_skipped.jsonl")
        assert not kept & {row["id"] for row in skipped}
        assert all(row["why"] for row in skipped)


def test_a_row_without_its_number_becomes_the_same_job() -> None:
    row = defaultdict(str, FMS_ROW)
    made = [rows_public.timed(row | {"row_id": number}, "x") for number in ("1098", "7")]
    assert made[0] == made[1]
    job = made[0]["job"]
    assert job["quantization"] == {"format": "nf4", "double_quant": True, "prepare_kbit": False}
    assert job["kernels"] == ["foak"]
    assert job["lora"]["targets"] == ["q_proj", "k_proj", "v_proj", "o_proj"]
    assert (job["transformers_version"], job["trl_version"]) == ("4.48.1", "0.13")
    assert made[0]["measured"]["step_s"] == pytest.approx(4 * 4096 / 3000, rel=1e-5)


FMS_ROW = {
    "source_repo": "foundation-model-stack/fms-acceleration",
    "gpu": "A100-80GB SXM",
    "gpu_count": "1",
    "nodes": "1",
    "model": "mistral-7b",
    "method": "qlora",
    "lora_rank": "16",
    "lora_targets": "q_proj,k_proj,v_proj,o_proj,c_attn",
    "quant": "nf4 (bnb)",
    "precision": "bfloat16 weights + bf16 autocast",
    "seq_len": "4096",
    "micro_batch": "4",
    "grad_accum": "1",
    "global_batch": "4",
    "activation_checkpointing": "full",
    "tokens_per_s_per_gpu": "3000",
    "notes": "framework_config=accelerated-peft-bnb-foak; steady",
    "software": "torch 2.4.1, transformers 4.48.1, trl 0.13, peft 0.13.2",
    "time_tier": "A",
}
