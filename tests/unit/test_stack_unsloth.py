"""Unsloth on paper against the real package, as tests/golden/stacks/unsloth keeps it; and what paper alone decides."""

from __future__ import annotations

import gzip
import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tunecast.errors import TunecastError
from tunecast.job.mapping import job_from_dict
from tunecast.job.registry import bundled_config
from tunecast.tape.build.compiler.graph import EXTERN, ITEM, MANY, Graph
from tunecast.tape.build.compiler.launches import launches_of
from tunecast.tape.build.compiler.memory import pooled, reusing
from tunecast.tape.build.compiler.passes import Pass
from tunecast.tape.build.dtypes import BFLOAT16
from tunecast.tape.build.job_runs import build, fold_job
from tunecast.tape.build.stacks import unsloth as stack
from tunecast.tape.build.unsloth import loss
from tunecast.tape.build.unsloth.model import XFORMERS
from tunecast.tape.card import Card
from tunecast.tape.op import Alloc, Free
from tunecast.tape.program import program

pytestmark = pytest.mark.whole

GOLDEN = Path(__file__).parents[1] / "golden" / "stacks" / "unsloth"


def loaded(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, GOLDEN / f"{name.removeprefix('unsloth_make_')}.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


cases = loaded("unsloth_cases")
make = loaded("unsloth_make_make")
EVENTS: dict[str, list[int]] = json.loads(gzip.decompress((GOLDEN / "events.json.gz").read_bytes()))
FLOPS: dict[str, dict[str, int]] = json.loads((GOLDEN / "flops.json").read_text())
JOB, LLAMA, MISTRAL, H200 = cases.JOB, cases.LLAMA, cases.MISTRAL, cases.H200


@pytest.mark.parametrize("name", cases.CASES)
def test_paper_asks_for_and_frees_what_unsloth_does(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNSLOTH_COMPILE_DISABLE", "1" if name.startswith("eager") else "0")
    values, config, card = cases.CASES[name]
    job = job_from_dict(values)
    assert make.told(build(job, config, list(job.lengths or [job.seq_len] * make.STEPS), card).events) == EVENTS[name]


@pytest.mark.parametrize("name", FLOPS)
def test_paper_computes_what_unsloth_does(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every product and attention of a step, by name and FLOPs."""
    monkeypatch.setenv("UNSLOTH_COMPILE_DISABLE", "1" if name.startswith("eager") else "0")
    values, config, card = cases.CASES[name]
    job = job_from_dict(values)
    assert make.computed(build(job, config, [job.seq_len] * make.STEPS, card)) == FLOPS[name]


def test_a_family_unsloth_is_not_written_down_for_is_refused_by_name() -> None:
    with pytest.raises(TunecastError, match="'gemma2'"):
        build(job_from_dict(JOB), LLAMA | {"model_type": "gemma2"}, [256], H200)


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("method", {"method": "full", "lora": {}}),
        ("kernels", {"kernels": ["liger"]}),
        ("attention", {"attention": "eager"}),
        ("lora.dora", {"lora": {"rank": 16, "dora": True}}),
        ("lora.targets", {"lora": {"rank": 16, "targets": "attention"}}),
    ],
)
def test_what_is_not_written_down_is_refused_by_field(field: str, values: dict[str, Any]) -> None:
    with pytest.raises(TunecastError) as refused:
        build(job_from_dict(JOB | values), LLAMA, [256], H200)
    assert refused.value.field == field


def test_a_window_shorter_than_the_rows_is_refused() -> None:
    with pytest.raises(TunecastError, match="128"):
        build(job_from_dict(JOB), MISTRAL | {"sliding_window": 128}, [256], H200)


def test_rows_of_the_loss() -> None:
    """512 * 151936 logits at least: of 128256 words 606 rows, and the power of two below; never over 4096."""
    assert loss.chunk_rows(2046, 2048, 128256) == 512
    assert loss.chunk_rows(100_000, 4096, 5000) == 4096
    assert loss.chunk_rows(30, 2048, 128256) == 30


def test_reuse_and_pools_of_a_graph_on_paper() -> None:
    """Three steps of a chain, each of 100 numbers: trained, the third takes the first's memory; not trained, the
    second lies in a pool of its own, and the third, which goes out, shares one with the first."""

    graph = Graph()
    empty = graph.add("empty", (), (100,), BFLOAT16, kind=EXTERN).number
    fill = graph.add("triton::fill", (empty,), (), BFLOAT16, kind=MANY).number
    full = graph.add("getitem", (fill,), (100,), BFLOAT16, kind=ITEM, over=empty).number
    second = graph.add("mm", (full, full), (100,), BFLOAT16).number
    third = graph.add("mm", (second, second), (100,), BFLOAT16).number
    launches = launches_of(graph, Pass([empty, fill, full, second, third], set(), [third]), frozenset())
    trained = reusing(launches, "forward", int)
    assert [line.kind for line in trained.lines] == ["make", "run", "make", "run", "reuse", "run"]
    plan = pooled(launches, "inference", int)
    assert [line.kind for line in plan.lines if line.kind in ("pool", "drain")] == ["pool", "pool", "drain"]
    assert {pool.nbytes(int) for pool in plan.pools.values()} == {200}


def test_compilation_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UNSLOTH_COMPILE_DISABLE", raising=False)
    assert stack.compiles()
    monkeypatch.setenv("UNSLOTH_COMPILE_DISABLE", "1")
    assert not stack.compiles()


def test_a_card_whose_compiled_graphs_nobody_wrote_down_gets_a_guess(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turing has no flash attention: the layers are taken as they run without compilation, and attention over shared
    keys as torch's efficient kernel instead of xformers'. Both are said."""
    monkeypatch.delenv("UNSLOTH_COMPILE_DISABLE", raising=False)
    turing = Card("Tesla T4", 15_000_000_000, (7, 5), 40)
    half = JOB | {"weights_dtype": "float16", "autocast": "float16"}
    assert build(job_from_dict(half), LLAMA, [256], turing).guesses == (stack.NOT_COMPILED.format("llama"), XFORMERS)
    assert build(job_from_dict(JOB), LLAMA, [256], H200).guesses == ()


def test_folded_layers_ask_for_what_all_layers_do() -> None:
    """The last layer is not offloaded, and kernels are tuned in it: two last layers stand for themselves."""
    job = job_from_dict(JOB | {"seq_len": 1200})
    config = LLAMA | {"num_hidden_layers": 9}
    folded = fold_job(job, config, H200)
    whole = build(job, config, [1200] * 3, H200)
    first_steps = folded.make_tape()
    assert sizes_of(first_steps.events) == sizes_of(whole.events)
    assert peak(first_steps.events) == peak(whole.events)


def test_releases_of_2024_have_tables_in_every_layer_and_all_logits() -> None:
    """Cosines and sines of 4 x 8,192 positions, logits in bfloat16 and as accelerate copies them to float32."""
    config = LLAMA | {"num_hidden_layers": 3, "max_position_embeddings": 131_072}
    early = build(job_from_dict(JOB | {"unsloth_version": "2024.8"}), config, [200], H200)
    width = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    tables = [e for e in early.events if isinstance(e, Alloc) and e.nbytes == 4 * 8192 * width * 2]
    assert [e.module for e in tables] == [f"model.layers.{layer}" for layer in range(3) for _ in range(2)]
    logits = JOB["micro_batch"] * 200 * config["vocab_size"]
    now = build(job_from_dict(JOB), config, [200], H200)
    assert {2 * logits, 4 * logits} <= sizes_of(early.events) and 2 * logits not in sizes_of(now.events)
    assert early.guesses == ("unsloth 2024.8 is older than what is followed, 2026.10.9",)


def test_folded_layers_of_2024_ask_for_what_all_layers_do() -> None:
    job = job_from_dict(JOB | {"unsloth_version": "2024.8"})
    config = LLAMA | {"num_hidden_layers": 9}
    first_steps, whole = fold_job(job, config, H200).make_tape(), build(job, config, [job.seq_len] * 3, H200)
    assert sizes_of(first_steps.events) == sizes_of(whole.events)
    assert peak(first_steps.events) == peak(whole.events)


def sizes_of(events: Any) -> set[int]:
    return {event.nbytes for event in events if isinstance(event, Alloc)}


def peak(events: Any) -> int:
    sizes: dict[int, int] = {}
    now = most = 0
    for event in events:
        if isinstance(event, Alloc):
            sizes[event.block] = event.nbytes
            now += event.nbytes
            most = max(most, now)
        elif isinstance(event, Free):
            now -= sizes[event.block]
    return most


@pytest.mark.parametrize("method", ["lora", "qlora"])
def test_the_first_request_is_for_all_layers(method: str) -> None:
    """`caching_allocator_warmup` asks for as much as the whole model takes, of which four layers are built."""
    config = {**bundled_config("llama-3.2-1b"), "num_hidden_layers": 9}
    job = job_from_dict({"model": "llama-3.2-1b", "method": method, "stack": "unsloth", "seq_len": 512})
    folded = fold_job(job, config, Card()).program
    whole = program(build(job, config, [512], Card()))
    assert max(folded.sizes[: folded.bounds[0]]) == max(whole.sizes[: whole.bounds[0]])
