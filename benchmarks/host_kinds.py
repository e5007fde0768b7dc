"""What the host takes for each kind of work: training steps of models so small that the card always waits.

    python benchmarks/host_kinds.py OUT.jsonl [--seconds 240] [--small]       every case, on a card
    python benchmarks/host_kinds.py OUT.jsonl --cold [--seconds 240]          a process each: its first steps

A row is a job with a configuration of its own, and the seconds of its steps by phase (forward, backward, clip,
optimizer, zero_grad) with the card idle between phases, the median of steps after the third. Rows without a job are
loops of `learn/measure.py` taken on the way: how fast the host was. `host_fit.py` finds what kinds of work take.
`--cold` has all steps from the first on, how many segments the allocator asked for in each, and the kernels in the
driver's cache on disk: the first run of a case finds none, the second those of the first.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "src" / "tunecast" / "learn")]

from machine import MEASURED_WITH  # noqa: E402

MODELS = ROOT / "src" / "tunecast" / "job" / "models"
PHASES = ("forward", "backward", "clip", "optimizer", "zero_grad")
WARM, TIMED = 3, 12
LAYERS = 6

TINY = {
    "hidden_size": 128, "intermediate_size": 256, "vocab_size": 512, "num_attention_heads": 2, "num_key_value_heads": 1,
    "head_dim": 64, "num_hidden_layers": LAYERS, "max_position_embeddings": 2048,
    "n_embd": 128, "n_head": 2, "n_layer": LAYERS, "n_positions": 2048, "n_inner": 256,
    "d_model": 128, "n_heads": 2, "n_layers": LAYERS, "max_seq_len": 2048, "num_layers": LAYERS, "num_heads": 2,
    "ffn_dim": 256, "word_embed_proj_dim": 128, "moe_intermediate_size": 128, "num_local_experts": 8, "num_experts": 8,
    "num_experts_per_tok": 2, "query_pre_attn_scalar": 64, "n_ctx": 2048, "multi_query": False,
}  # fmt: skip
PAD = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
ALL = {"rank": 8, "alpha": 16, "dropout": 0.0, "targets": "all-linear", "adapter_dtype": "float32"}
FULL: dict[str, Any] = {
    "method": "full", "weights_dtype": "bfloat16", "autocast": None, "optimizer": "sgd", "max_grad_norm": 1.0,
    "gradient_checkpointing": False, "attention": "sdpa", "seq_len": 256, "micro_batch": 2, "grad_accum": 1,
}  # fmt: skip
LORA = {**FULL, "method": "lora", "autocast": "bfloat16", "lora": ALL, "optimizer": "adamw_torch"}
NF4 = {"format": "nf4", "double_quant": True, "prepare_kbit": True}
QLORA = {**LORA, "method": "qlora", "quantization": NF4, "micro_batch": 4, "seq_len": 512}
"""So many tokens that the weight is dequantised (tape/kernels/four_bit.py)."""
SAVES = {"gradient_checkpointing": True}


def cases() -> Iterator[dict[str, Any]]:
    """`layers` and `experts` where they are not the usual ones."""
    llama = "llama-3.2-1b"
    yield {"model": llama, **FULL}
    yield {"model": llama, **FULL, "layers": 2 * LAYERS}
    yield {"model": llama, **FULL, "grad_accum": 2}
    for optimizer in (
        "adamw_torch", "adamw_torch_fused", "adamw_8bit", "paged_adamw_8bit", "paged_adamw_32bit", "lion_8bit",
        "adafactor", "adagrad", "rmsprop",
    ):  # fmt: skip
        yield {"model": llama, **FULL, "optimizer": optimizer}
    yield {"model": llama, **FULL, "autocast": "bfloat16"}
    yield {"model": llama, **FULL, "autocast": "bfloat16", "weights_dtype": "float32"}
    yield {"model": llama, **FULL, **SAVES}
    yield {"model": llama, **FULL, **SAVES, "layers": 2 * LAYERS}
    yield {"model": llama, **FULL, **SAVES, "autocast": "bfloat16"}
    yield {"model": llama, **FULL, "attention": "eager"}
    yield {"model": llama, **LORA}
    yield {"model": llama, **LORA, "layers": 2 * LAYERS}
    yield {"model": llama, **LORA, "autocast": None, "lora": {**ALL, "adapter_dtype": "bfloat16"}}
    yield {"model": llama, **LORA, "lora": {**ALL, "adapter_dtype": "bfloat16"}}
    yield {"model": llama, **LORA, "lora": {**ALL, "dropout": 0.1}}
    yield {"model": llama, **LORA, "lora": {**ALL, "targets": "attention"}}
    yield {"model": llama, **LORA, "lora": {**ALL, "targets": ["q_proj", "v_proj"]}}
    yield {"model": llama, **LORA, **SAVES}
    yield {"model": llama, **LORA, **SAVES, "lora": {**ALL, "dropout": 0.1}}
    yield {"model": llama, **LORA, **SAVES, "autocast": None}
    yield {"model": llama, **LORA, "optimizer": "adafactor"}
    yield {"model": llama, **LORA, "optimizer": "adamw_8bit"}
    yield {"model": llama, **LORA, "optimizer": "paged_adamw_8bit"}
    yield {"model": llama, **LORA, "grad_accum": 2}
    yield {"model": llama, **LORA, "lora": {**ALL, "dora": True}}
    yield {"model": llama, **LORA, "micro_batch": 4, "seq_len": 512}
    yield {"model": llama, **QLORA}
    yield {"model": llama, **QLORA, "layers": 2 * LAYERS}
    yield {"model": llama, **QLORA, "quantization": {**NF4, "double_quant": False}}
    yield {"model": llama, **QLORA, "quantization": {**NF4, "prepare_kbit": False}}
    yield {"model": llama, **QLORA, "quantization": {**NF4, "format": "fp4"}, "lora": {**ALL, "targets": "attention"}}
    yield {"model": llama, **QLORA, **SAVES}
    yield {"model": llama, **QLORA, **SAVES, "layers": 2 * LAYERS}
    yield {"model": llama, **QLORA, **SAVES, "lora": {**ALL, "targets": "attention", "dropout": 0.1}}
    yield {"model": llama, **QLORA, **SAVES, "quantization": {**NF4, "prepare_kbit": False}}
    yield {"model": llama, **QLORA, "micro_batch": 1, "seq_len": 16}
    int8 = {"format": "int8", "double_quant": False, "prepare_kbit": True}
    yield {"model": llama, **QLORA, "quantization": int8}
    yield {"model": llama, **QLORA, **SAVES, "quantization": int8}
    yield {"model": llama, **QLORA, **SAVES, "quantization": int8, "lora": {**ALL, "targets": "attention"}}
    for family in (
        "gpt2", "qwen2.5-0.5b", "qwen3-0.6b", "gemma-2b", "gemma-2-2b", "gemma-3-1b", "phi-3-mini", "opt-125m",
        "pythia-160m", "starcoder2-3b", "granite-3.1-2b", "mpt-7b", "bloom-560m", "olmo-2-1b", "smollm3-3b",
        "aya-expanse-8b", "glm-4-9b",
    ):  # fmt: skip
        yield {"model": family, **FULL}
    for family in ("gemma-3-1b", "phi-3-mini", "gpt2", "qwen3-0.6b"):
        yield {"model": family, **LORA, **SAVES}
    for family in ("gpt2", "opt-125m", "pythia-160m"):
        yield {"model": family, **FULL, **SAVES}
    for family in ("granite-3.1-3b-a800m", "olmoe-1b-7b", "qwen3-30b-a3b", "mixtral-8x7b"):
        yield {"model": family, **FULL}
        yield {"model": family, **FULL, "experts": 16}
        yield {"model": family, **LORA}
    yield {"model": "granite-3.1-3b-a800m", **QLORA}
    yield {"model": "olmoe-1b-7b", **QLORA}
    yield {"model": "olmoe-1b-7b", **QLORA, **SAVES}
    yield {"model": "qwen3-30b-a3b", **LORA, "lora": {**ALL, "targets": "attention"}}
    yield {"model": llama, **FULL, "optimizer": "adamw_torch_fused", "trainer": True}
    yield {"model": llama, **LORA, "optimizer": "adamw_torch_fused", "trainer": True}
    yield {"model": llama, **FULL, "optimizer": "adamw_torch", "compile": True}
    # Liger changes the classes of the model: nothing after it is without
    yield {"model": llama, **FULL, "kernels": ["liger"]}
    yield {"model": llama, **FULL, **SAVES, "kernels": ["liger"]}
    yield {"model": llama, **LORA, **SAVES, "kernels": ["liger"], "lora": {**ALL, "targets": "attention"}}


COLD: tuple[dict[str, Any], ...] = (
    {"model": "llama-3.2-1b", **FULL, "optimizer": "adamw_torch", "real": True, "seq_len": 1024},
    {"model": "llama-3.2-1b", **FULL, "optimizer": "adamw_torch"},
    {"model": "llama-3.2-1b", **LORA, "real": True, "seq_len": 1024},
    {"model": "llama-3.2-1b", **QLORA, **SAVES, "real": True},
    {"model": "gpt2", **FULL, "real": True, "seq_len": 1024},
    {"model": "qwen3-0.6b", **LORA, **SAVES, "real": True, "seq_len": 777, "optimizer": "adamw_8bit"},
)
COLD_STEPS = 8


def config_of(case: dict[str, Any]) -> dict[str, Any]:
    raw: dict[str, Any] = json.loads((MODELS / f"{case['model']}.json").read_text("utf-8"))
    if case.get("real"):
        return raw
    layers = case.get("layers", LAYERS)
    for name, value in (TINY | PAD).items():
        if name in raw or (name == "head_dim" and raw["model_type"] in ("llama", "mistral", "qwen3", "qwen3_moe")):
            raw[name] = value
    for name in ("num_hidden_layers", "n_layer", "n_layers", "num_layers"):
        if name in raw:
            raw[name] = layers
    for name in ("num_local_experts", "num_experts"):
        if name in raw:
            raw[name] = case.get("experts", 8)
    if raw.get("layer_types"):
        raw["layer_types"] = (raw["layer_types"] * layers)[:layers]
    if raw["model_type"] in ("gpt2", "opt", "gpt_neox", "starcoder2", "stablelm", "bloom", "falcon", "phi", "cohere"):
        raw.pop("num_key_value_heads", None)
    if raw["model_type"] == "olmoe":
        raw["num_key_value_heads"] = 2
    if "rope_scaling" in raw and raw["model_type"] == "phi3":
        raw["rope_scaling"] = None
    return raw


def job_values(case: dict[str, Any]) -> dict[str, Any]:
    given = {name: value for name, value in case.items() if name not in ("layers", "experts", "real", "trainer")}
    if given["method"] == "full":
        given.pop("lora", None)
    return {**given, **MEASURED_WITH, "hardware": {"gpu": "h200-sxm-141gb"}}


def steps_of_case(case: dict[str, Any], steps: int) -> dict[str, Any]:
    """Seconds of each step by phase, and the segments asked for in it."""
    import torch

    from tunecast.job import job_from_dict
    from tunecast.tape.build.fill_in import fill_in
    from tunecast.tape.trace import recipe

    device = "cuda" if torch.cuda.is_available() else "cpu"
    config = config_of(case)
    job = fill_in(job_from_dict(job_values(case)), config)
    torch.manual_seed(0)
    began = time.perf_counter()
    model = recipe.build(job, config)
    model.train()
    model = recipe.adapt(job, model)
    modules = sum(1 for _ in model.modules())
    if job.compile:
        torch._dynamo.reset()
        model = torch.compile(model)
    parameters = [p for p in model.parameters() if p.requires_grad]
    outer = [m.weight for m in (model.get_input_embeddings(), model.get_output_embeddings()) if m is not None]
    optimizer = recipe.make_optimizer(job, parameters, outer, model)
    build_s = time.perf_counter() - began
    vocabulary = model.config.get_text_config().vocab_size
    gc.collect()
    rows: list[list[float]] = []
    asked: list[int] = []

    def idle() -> float:
        if device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    for _ in range(steps):
        spent = dict.fromkeys(PHASES, 0.0)
        before = torch.cuda.memory_stats().get("num_device_alloc", 0) if device == "cuda" else 0
        for _ in range(job.grad_accum):
            at = idle()
            ids = torch.randint(0, vocabulary, (job.micro_batch, job.seq_len), device=device)
            mask = torch.ones_like(ids)
            kind = recipe.DTYPES[job.autocast or "bfloat16"]
            with torch.autocast(device, kind, enabled=job.autocast is not None):
                loss = model(input_ids=ids, attention_mask=mask, labels=ids).loss / job.grad_accum
            now = idle()
            spent["forward"] += now - at
            loss.backward()
            at = idle()
            spent["backward"] += at - now
        if job.max_grad_norm:
            torch.nn.utils.clip_grad_norm_(parameters, job.max_grad_norm)
        now = idle()
        spent["clip"] += now - at
        optimizer.step()
        at = idle()
        spent["optimizer"] += at - now
        optimizer.zero_grad(set_to_none=True)
        del loss
        spent["zero_grad"] += idle() - at
        rows.append([round(spent[name], 7) for name in PHASES])
        asked.append((torch.cuda.memory_stats().get("num_device_alloc", 0) if device == "cuda" else 0) - before)
    return {"steps": rows, "device_allocations": asked, "build_s": round(build_s, 3), "modules": modules}


def steps_of_trainer(case: dict[str, Any], steps: int) -> dict[str, Any]:
    """transformers' Trainer on the same model: from call to call of its callback, and what comes before the first."""
    import torch
    from transformers import Trainer, TrainerCallback, TrainingArguments

    from tunecast.job import job_from_dict
    from tunecast.tape.build.fill_in import fill_in
    from tunecast.tape.trace import recipe

    config = config_of(case)
    job = fill_in(job_from_dict(job_values(case)), config)
    model = recipe.adapt(job, recipe.build(job, config))
    data = [{"input_ids": torch.randint(0, 512, (job.seq_len,))} for _ in range(steps * job.micro_batch)]

    def collate(batch: list[dict[str, Any]]) -> dict[str, Any]:
        ids = torch.stack([row["input_ids"] for row in batch])
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}

    at: list[float] = []

    class Clock(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, *_: Any, **__: Any) -> None:
            at.append(time.perf_counter())

    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder, num_train_epochs=1, per_device_train_batch_size=job.micro_batch, report_to="none",
            disable_tqdm=True, save_strategy="no", optim=job.optimizer, bf16=job.autocast is not None,
        )  # fmt: skip
        trainer = Trainer(model=model, args=arguments, train_dataset=data, data_collator=collate, callbacks=[Clock()])
        at.append(time.perf_counter())
        trainer.train()
    return {"steps": [[round(b - a, 7)] for a, b in pairwise(at)], "modules": sum(1 for _ in model.modules())}


def told(case: dict[str, Any]) -> dict[str, Any]:
    row: dict[str, Any] = {"case": case, "config": config_of(case)}
    if case.get("trainer"):
        try:
            return row | steps_of_trainer(case, 40)
        except Exception:
            return row | {"error": traceback.format_exc()[-1500:]}
    try:
        found = steps_of_case(case, COLD_STEPS if case.get("real") else WARM + TIMED)
    except Exception:
        return row | {"error": traceback.format_exc()[-1500:]}
    timed = found["steps"][WARM:]
    found["median_s"] = {name: statistics.median(step[at] for step in timed) for at, name in enumerate(PHASES)}
    return row | found


def measure(out: Path, seconds: float, small: bool) -> None:
    """All in one process: the host's part does not depend on what ran before, and imports take longer than cases."""
    import measure as loops
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    began = time.monotonic()
    with out.open("a", encoding="utf-8") as file:
        for number, case in enumerate(cases()):
            if time.monotonic() - began > seconds:
                print("out of time before case", number, flush=True)
                break
            if number % 8 == 0:
                (loop,) = loops.launches(torch, device)
                file.write(json.dumps({"loop": loop}) + "\n")
            if small and case.get("compile"):
                continue
            row = told(case)
            file.write(json.dumps(row) + "\n")
            file.flush()
            told_of = row.get("error", row.get("median_s"))
            print(number, round(time.monotonic() - began, 1), case["model"], case["method"], told_of, flush=True)
            gc.collect()
            if device == "cuda":
                torch.cuda.empty_cache()


def measure_cold(out: Path, seconds: float) -> None:
    """Each in a process of its own, in which nothing has touched the card; imports are done before it starts."""
    import torch  # noqa: F401
    import transformers.models.llama.modeling_llama
    import transformers.models.qwen3.modeling_qwen3  # noqa: F401

    began = time.monotonic()
    fork = multiprocessing.get_context("fork")
    with out.open("a", encoding="utf-8") as file, tempfile.TemporaryDirectory() as folder:
        for number, case in enumerate(({}, *COLD)):
            for turn in ("empty", "full"):
                if time.monotonic() - began > seconds:
                    print("out of time before cold case", number, flush=True)
                    return
                cache, at = Path(folder) / str(number), time.monotonic()
                answers = fork.Queue()
                child = fork.Process(target=one_cold, args=(case, cache, answers))
                child.start()
                try:
                    row = answers.get(timeout=60)
                except Exception:
                    row = {"case": case, "error": "no answer"}
                child.join(3)
                if child.is_alive():
                    child.kill()
                files = sum(path.is_file() for path in cache.glob("**/*"))
                row |= {"cold": turn, "files": files, "process_s": round(time.monotonic() - at, 3)}
                file.write(json.dumps(row) + "\n")
                file.flush()
                steps = [round(sum(step), 4) for step in row.get("steps", ())]
                print(turn, number, case.get("model"), row.get("error"), files, steps, row["process_s"], flush=True)


def first_calls() -> dict[str, Any]:
    """Of a process that has not touched the card: each operation's first three calls, and segments of some sizes."""
    import torch

    def seconds(run: Any) -> float:
        torch.cuda.synchronize()
        began = time.perf_counter()
        run()
        torch.cuda.synchronize()
        return round(time.perf_counter() - began, 7)

    began = time.perf_counter()
    x = torch.ones(256, 256, device="cuda")
    torch.cuda.synchronize()
    calls: list[Any] = [["context", [round(time.perf_counter() - began, 4)]]]
    h = x.bfloat16()
    q = torch.ones(2, 2, 256, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    ids = torch.ones(2, 256, device="cuda", dtype=torch.long)
    f = torch.nn.functional
    for name, run in (
        ("mul", lambda: x * x), ("mul bf16", lambda: h * h), ("add", lambda: x + x), ("silu", lambda: f.silu(h)),
        ("pow", lambda: x.pow(2)), ("mean", lambda: x.mean(-1)), ("rsqrt", lambda: x.rsqrt()),
        ("cat", lambda: torch.cat((h, h), -1)), ("neg", lambda: -h), ("cos", lambda: x.cos()),
        ("to", lambda: x.to(torch.float16)), ("mm bf16", lambda: h @ h), ("mm bf16 t", lambda: h @ h.t()),
        ("mm bf16 tt", lambda: h.t() @ h), ("addmm bf16", lambda: f.linear(h, h, h[0])), ("mm fp32", lambda: x @ x),
        ("mm bf16 odd", lambda: h[:77] @ h), ("embedding", lambda: f.embedding(ids, h)),
        ("softmax", lambda: x.softmax(-1)), ("log_softmax", lambda: x.log_softmax(-1)),
        ("layer_norm", lambda: f.layer_norm(h, (256,))), ("gelu", lambda: f.gelu(h)),
        ("sdpa", lambda: f.scaled_dot_product_attention(q, q, q, is_causal=True)),
        ("sdpa backward", lambda: f.scaled_dot_product_attention(q, q, q, is_causal=True).sum().backward()),
        ("foreach_norm", lambda: torch._foreach_norm([x, x])), ("foreach_mul_", lambda: torch._foreach_mul_([x, x], 1)),
    ):  # fmt: skip
        calls.append([name, [seconds(run) for _ in range(3)]])
    segments = []
    for mib in (2, 20, 50, 200, 1000, 4000):
        held: list[Any] = []

        def ask(size: int = mib << 20, into: list[Any] = held) -> None:
            into.append(torch.empty(size, dtype=torch.uint8, device="cuda"))

        taken = [seconds(ask) for _ in range(6)]
        held.clear()
        segments.append([mib, taken, seconds(torch.cuda.empty_cache)])
    return {"first_calls": calls, "segments_mib": segments}


def one_cold(case: dict[str, Any], cache: Path, answers: Any) -> None:
    os.environ["CUDA_CACHE_PATH"], os.environ["TRITON_CACHE_DIR"] = str(cache / "cuda"), str(cache / "triton")
    answers.put(told(case) if case else first_calls())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", nargs="?", type=Path)
    parser.add_argument("--seconds", type=float, default=240)
    for flag in ("--small", "--cold"):
        parser.add_argument(flag, action="store_true")
    given = parser.parse_args()
    if given.cold:
        measure_cold(given.out, given.seconds)
    else:
        measure(given.out, given.seconds, given.small)


if __name__ == "__main__":
    main()
