"""How `tunecast serve` bears what is asked of it: slider moves, 200 predictions and 20 plans at once, clients that go
away, and its memory over many requests.

    python benchmarks/serve_load.py                   all, into benchmarks/results/serve_load.json (some 10 minutes)
    python benchmarks/serve_load.py --only memory     one part; the others stay as they are in the result
    python benchmarks/serve_load.py --only small      memory over requests of small models, for a busy machine
    python benchmarks/serve_load.py --only lane       what one lane holds over as many predictions of such models

It starts a server of its own. Needs starlette, uvicorn and httpx. Beside latencies stands the CPU time that the
server's processes spent on a request: what the latency is on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import date
from itertools import count
from pathlib import Path
from statistics import quantiles
from typing import Any

import httpx

ROOT = Path(__file__).parents[1]
OUT = ROOT / "benchmarks" / "results" / "serve_load.json"
MODELS = ("llama-3.1-8b", "qwen2.5-7b", "llama-3.2-1b", "gemma-2-9b", "mistral-7b-v0.3")
BASE: dict[str, Any] = {
    "model": "llama-3.1-8b", "method": "qlora", "seq_len": 2048, "micro_batch": 2, "grad_accum": 8,
    "lora": {"rank": 16, "targets": "all-linear"}, "hardware": {"gpu": "rtx-4090"},
    "data": {"samples": 20_000, "epochs": 3},
}  # fmt: skip
SLIDERS: dict[str, tuple[Any, ...]] = {
    "seq_len": (512, 768, 1024, 1536, 2048, 3072, 4096, 8192),
    "micro_batch": (1, 2, 3, 4, 6, 8),
    "grad_accum": (1, 2, 4, 8, 16),
    "lora.rank": (4, 8, 16, 32, 64, 128),
    "gradient_checkpointing": (True, False),
    "hardware.gpu": ("rtx-4090", "a100-sxm-80gb", "h100-sxm-80gb", "l40s", "rtx-3090"),
    "method": ("qlora", "lora"),
    "optimizer": ("adamw_torch_fused", "paged_adamw_8bit"),
}
"""What the page has sliders and switches for."""
OFTEN = ("seq_len", "micro_batch", "grad_accum", "lora.rank")
"""Sliders, which send a value for every step they are dragged over; the others are switches."""


def moved(job: dict[str, Any], field: str, value: Any) -> dict[str, Any]:
    section, _, leaf = field.rpartition(".")
    return {**job, section: {**job.get(section, {}), leaf: value}} if section else {**job, leaf: value}


def moves(count: int, seed: int = 7) -> list[tuple[str, dict[str, Any]]]:
    """A person at the page: drags a slider over some values, throws a switch, drags another. Four of five moves are of
    sliders; which field moved comes with each."""
    draw, job, found = random.Random(seed), BASE, []
    while len(found) < count:
        field = draw.choice(OFTEN if draw.random() < 0.4 else tuple(SLIDERS))
        values = draw.sample(SLIDERS[field], min(len(SLIDERS[field]), 5 if field in OFTEN else 1))
        for value in values:
            job = moved(job, field, value)
            found.append((field, job))
    return found[:count]


class Server:
    def __enter__(self) -> Server:
        words = [sys.executable, "-m", "tunecast", "serve", "--no-browser", "--port", "0"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment)
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()
        return self

    def __exit__(self, *ended: object) -> None:
        self.process.send_signal(signal.SIGINT)
        self.process.wait(20)

    def processes(self) -> list[int]:
        """The server, the process workers are forked from, and the workers."""
        parents = {}
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                told = path.read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if told[0] != "Z":
                parents[int(path.parent.name)] = int(told[1])
        found = [self.process.pid]
        for each in found:
            found += [child for child, parent in parents.items() if parent == each]
        return found

    def cpu_s(self, processes: list[int]) -> float:
        """That they spent so far (the first number of schedstat, in ns)."""
        total = 0
        for each in processes:
            try:
                total += int(Path(f"/proc/{each}/schedstat").read_text().split()[0])
            except OSError:
                continue
        return total / 1e9

    def memory_bytes(self) -> int:
        """Of all its processes, what they share counted once (Pss)."""
        total = 0
        for each in self.processes():
            try:
                text = Path(f"/proc/{each}/smaps_rollup").read_text()
            except OSError:
                continue
            found = re.search(r"^Pss:\s+(\d+) kB", text, re.MULTILINE)
            total += int(found[1]) * 1024 if found else 0
        return total


def spread_ms(seconds: list[float]) -> dict[str, float]:
    cuts = quantiles(seconds, n=100, method="inclusive")
    told = {"p50": cuts[49], "p95": cuts[94], "p99": cuts[98], "most": max(seconds)}
    return {"n": len(seconds), **{name: round(each * 1e3, 1) for name, each in told.items()}}


async def post(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> tuple[int, float, bytes]:
    began_s = time.perf_counter()
    answer = await client.post(path, json=body)
    return answer.status_code, time.perf_counter() - began_s, answer.content


async def slider_moves(client: httpx.AsyncClient, server: Server, count: int) -> dict[str, Any]:
    """One person: after every move what the page shows first, then every card, one after the other, as it asks."""
    asked: dict[str, dict[str, Any]] = {"look": {"cards": False}, "cards": {}}
    found: dict[str, list[tuple[bool, float, float]]] = {question: [] for question in asked}
    for number, (field, job) in enumerate(moves(count + 40)):
        if number % 10 == 0:
            processes = server.processes()
        for question, told in found.items():
            before_s = server.cpu_s(processes)
            status, took_s, _ = await post(client, f"/api/{question}", {"job": job, **asked[question]})
            assert status == 200, (status, job)
            if number >= 40:  # the page has been open for a while
                told.append((field in OFTEN, took_s, server.cpu_s(processes) - before_s))
    return {
        name: {
            "sliders_ms": spread_ms([took for slides, took, _ in told if slides]),
            "sliders_cpu_ms": spread_ms([cpu for slides, _, cpu in told if slides]),
            "all_moves_ms": spread_ms([took for _, took, _ in told]),
            "all_moves_cpu_ms": spread_ms([cpu for *_, cpu in told]),
        }
        for name, told in found.items()
    }


async def all_at_once(client: httpx.AsyncClient, predictions: int, plans: int) -> dict[str, Any]:
    draw = random.Random(3)
    jobs = [
        {**moved(BASE, "seq_len", draw.choice(SLIDERS["seq_len"])), "model": draw.choice(MODELS), "id": number}
        for number in range(predictions)
    ]
    planned = [
        {"job": {"model": draw.choice(MODELS), "method": "lora", "data": {"samples": 5000 + n}}} for n in range(plans)
    ]

    async def plan(body: dict[str, Any]) -> tuple[bool, float]:
        status, took_s, content = await post(client, "/api/plan", body)
        return status == 200 and b"event: plan\n" in content, took_s

    began_s = time.perf_counter()
    both = await asyncio.gather(
        asyncio.gather(*(post(client, "/api/predict", {"job": job}) for job in jobs)),
        asyncio.gather(*map(plan, planned)),
    )
    whole_s = time.perf_counter() - began_s
    answered = [json.loads(content).get("id") == number for number, (_, _, content) in enumerate(both[0])]
    return {
        "predictions": {"asked": predictions, "answered": sum(answered), **_ms([took for _, took, _ in both[0]])},
        "plans": {"asked": plans, "answered": sum(done for done, _ in both[1]), **_ms([took for _, took in both[1]])},
        "whole_s": round(whole_s, 2),
    }


def _ms(seconds: list[float]) -> dict[str, Any]:
    return {"ms": spread_ms(seconds)}


async def predictions_beside_plans(client: httpx.AsyncClient) -> dict[str, Any]:
    """What a person sees while others plan: as many plans as run at a time, and slider moves beside them."""
    plans = [asyncio.ensure_future(post(client, "/api/plan", {"job": {**BASE, "seq_len": 1024 + n}})) for n in range(4)]
    seconds = []
    for _, job in moves(40, seed=11):
        status, took_s, _ = await post(client, "/api/predict", {"job": job})
        assert status == 200
        seconds.append(took_s)
        if all(plan.done() for plan in plans):
            break
    await asyncio.gather(*plans)
    return _ms(seconds)


async def clients_that_leave(client: httpx.AsyncClient, server: Server) -> dict[str, Any]:
    """Plans whose client closes the connection after the first event: how long until their processes are gone."""
    before = len(server.processes())
    took = []
    for number in range(5):
        async with client.stream("POST", "/api/plan", json={"job": {**BASE, "micro_batch": number + 1}}) as answer:
            async for _ in answer.aiter_bytes():
                break
            assert len(server.processes()) > before
        began_s = time.perf_counter()
        while len(server.processes()) > before and time.perf_counter() - began_s < 10:
            await asyncio.sleep(0.01)
        took.append(time.perf_counter() - began_s)
    return {
        "plans": len(took),
        "ended_within_ms": round(max(took) * 1e3),
        "processes_left": len(server.processes()) - before,
    }


def moved_jobs(draw: random.Random) -> Iterator[dict[str, Any]]:
    """What is asked of, without end: bundled models, as somebody moves sliders."""
    jobs = [{"job": {**job, "model": draw.choice(MODELS)}} for _, job in moves(400, seed=13)]
    while True:
        yield draw.choice(jobs)


async def memory(
    client: httpx.AsyncClient, server: Server, requests: int, of: Callable[[random.Random], Iterator[dict[str, Any]]]
) -> dict[str, Any]:
    """Mixed questions, four at a time: of ten six predictions, two of cards, a search, a job that is refused."""
    draw, told = random.Random(5), []
    jobs = of(draw)
    failed = 0

    async def one(number: int) -> None:
        nonlocal failed
        kind = number % 10
        if kind < 6:
            status, *_ = await post(client, "/api/predict", next(jobs))
        elif kind < 8:
            status, *_ = await post(client, "/api/cards", next(jobs))
        elif kind == 8:
            status = (await client.get("/api/models", params={"q": draw.choice("abcdefghijklmnop")})).status_code
        else:
            status, *_ = await post(client, "/api/predict", {"job": {"model": f"no-such-{number}"}})
            status = 200 if status == 422 else status
        failed += status != 200

    began_s = time.perf_counter()
    every = max(1, requests // 20)
    for first in range(0, requests, every):
        queue = iter(range(first, min(first + every, requests)))

        async def work(queue: Any = queue) -> None:
            for number in queue:
                await one(number)

        await asyncio.gather(*(work() for _ in range(4)))
        told.append(server.memory_bytes())
        print(f"{first + every:,} requests, {told[-1] >> 20} MiB", file=sys.stderr, flush=True)
    whole_s = time.perf_counter() - began_s
    middle, last = told[len(told) // 2 - 1], told[-1]
    return {
        "requests": requests,
        "failed": failed,
        "per_s": round(requests / whole_s, 1),
        "memory_mib": [round(each / 2**20) for each in told],
        "growth_of_second_half_mib": round((last - middle) / 2**20),
    }


SMALL: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 256, "num_hidden_layers": 1, "num_attention_heads": 8, "vocab_size": 1000,
    "num_key_value_heads": 4, "intermediate_size": 512, "torch_dtype": "bfloat16",
}  # fmt: skip
SHORT: dict[str, Any] = {
    "method": "lora", "micro_batch": 1, "grad_accum": 1, "hardware": {"gpu": "rtx-4090"}, "data": {"samples": 100}
}  # fmt: skip
MODELS_OF_LANE = 550
"""Predictions that take little, of more models than a lane keeps structures of (two of each, 1,000 in all:
tape/build/job_runs.py): it fills its room, forgets and builds again to the end."""


def small_jobs(draw: random.Random) -> Iterator[dict[str, Any]]:
    """The same of small models, each with its config.json."""
    models = [
        {**SMALL, "hidden_size": 64 * draw.randrange(2, 16), "intermediate_size": 8 * number}
        for number in range(16, 16 + MODELS_OF_LANE)
    ]
    for number in count(1):
        config = draw.choice(models)
        job = {**SHORT, "model": "small", "seq_len": draw.randrange(64, 2048), "id": number}
        job["lora"] = {"rank": draw.choice(SLIDERS["lora.rank"])}
        yield {"job": job, "model_config": config}


def lane_memory(requests: int) -> dict[str, Any]:
    """One lane without its server: started, asked and cleaned up as `workers/nursery.py` does, with predictions of
    small models. Memory of the process each 500."""
    words = [sys.executable, __file__, "--as-lane", "--requests", str(requests)]
    child = subprocess.run(
        words, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT / "src")}, check=True
    )
    found: dict[str, Any] = json.loads(child.stdout)
    return found


def be_lane(requests: int) -> dict[str, Any]:
    import gc

    from tunecast.web.asking import questions
    from tunecast.web.asking.jobs import Asker
    from tunecast.web.workers import nursery

    asker, jobs, told = Asker(False), small_jobs(random.Random(17)), []
    gc.set_threshold(nursery.GARBAGE_OBJECTS, 20)
    nursery.load(asker)
    gc.collect()
    gc.freeze()
    for number in range(1, requests + 1):
        body = json.dumps(next(jobs)).encode()
        json.dumps(questions.answer("predict", body, asker))
        nursery.collect(number)
        if number % min(500, max(1, requests // 10)) == 0:
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            told.append(round(pages * os.sysconf("SC_PAGE_SIZE") / 2**20))
            print(f"{number:,} requests, {told[-1]} MiB", file=sys.stderr, flush=True)
    return {
        "requests": requests,
        "memory_mib": told,
        "growth_of_second_half_mib": told[-1] - told[len(told) // 2 - 1],
        "cpu_ms_each": round(time.process_time() / requests * 1e3, 1),
    }


PARTS = ("moves", "beside_plans", "at_once", "leaving", "memory", "small", "lane")


async def measure(server: Server, counts: argparse.Namespace, parts: tuple[str, ...]) -> dict[str, Any]:
    limits = httpx.Limits(max_connections=400, max_keepalive_connections=400)
    async with httpx.AsyncClient(base_url=server.url, timeout=1800, limits=limits) as client:
        await post(client, "/api/predict", {"job": BASE})
        work = {
            "moves": lambda: slider_moves(client, server, counts.moves),
            "beside_plans": lambda: predictions_beside_plans(client),
            "at_once": lambda: all_at_once(client, 200, 20),
            "leaving": lambda: clients_that_leave(client, server),
            "memory": lambda: memory(client, server, counts.requests, moved_jobs),
            "small": lambda: memory(client, server, counts.requests, small_jobs),
        }
        found = {}
        for part in parts:
            found[part] = {**await work[part](), "load_average": round(os.getloadavg()[0], 1)}
            print(json.dumps({part: found[part]}), flush=True)
        return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--moves", type=int, default=200)
    parser.add_argument("--only", choices=PARTS)
    parser.add_argument("--out", default=str(OUT))
    parser.add_argument("--as-lane", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.as_lane:
        print(json.dumps(be_lane(arguments.requests)))
        return
    found = {}
    parts = PARTS if arguments.only is None else (arguments.only,)
    if "lane" in parts:
        found["lane"] = {**lane_memory(arguments.requests), "load_average": round(os.getloadavg()[0], 1)}
    parts = tuple(part for part in parts if part != "lane")
    if parts:
        with Server() as server:
            found |= asyncio.run(measure(server, arguments, parts))
    git = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    told = {
        **{"measured": date.today().isoformat(), "commit": git.stdout.strip()},
        **{"cores": os.cpu_count(), "python": platform.python_version()},
    }
    out = Path(arguments.out)
    before = json.loads(out.read_text("utf-8")) if out.exists() and arguments.only else {}
    out.write_text(json.dumps({**before, **told, **found}, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
