"""Doors that only read: fields of a job, files of jobs, config.json, lengths, logs, calibrations, price lists."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable, Mapping
from datetime import date
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from tunecast.errors import TunecastError
from tunecast.job import job_from_dict
from tunecast.job.job import Data, all_knobs, sections
from tunecast.job.lengths import sample_lengths
from tunecast.job.model import model_config, resolve_model
from tunecast.job.readers import JobError, read_jobs
from tunecast.job.registry import bundled_config, bundled_names
from tunecast.job.safetensors import header_counts, shards
from tunecast.learn.store import own_calibration, path_of
from tunecast.market import store
from tunecast.market.clean import cleaned
from tunecast.market.cost import RATE
from tunecast.market.own import FIELDS as OWN_FIELDS
from tunecast.market.own import own_offers
from tunecast.market.sources import gpuhunt, skypilot
from tunecast.market.table import COLUMNS, offers_from
from tunecast.prediction.time.calibration import reference

from .junk import JUNK, MARKS, NUMBERS, PYTHON_JUNK, TEXTS, any_value, edges, junk, legal, plain, shown, spoiled
from .outcomes import Input, Said, said_by_main
from .rooms import JOB, OOM_LOG, OWN_OFFER

TODAY = date(2026, 11, 15)
METHODS = ("full", "lora", "qlora")
QUICK_MODELS = ("gpt2", "pythia-70m", "llama-3.2-1b", "qwen3-0.6b", "smollm2-135m", "llama-3.1-8b")


def _answer(act: Callable[[], object]) -> Callable[[], Said]:
    def ask() -> Said:
        act()
        return Said(0)

    return ask


# fields of a job


@cache
def _grid() -> tuple[tuple[str, int, str], ...]:
    """Every field, with every value junk or at its edge, by every method."""
    return tuple(
        (name, place, method)
        for name, knob in all_knobs().items()
        for place in range(len(JUNK) + len(PYTHON_JUNK) + len(edges(knob)))
        for method in METHODS
    )


def field_input(rng: Random, number: int) -> Input:
    grid = _grid()
    if rng.random() < 0.5:
        name, place, method = grid[(number * 7919) % len(grid)]
        value = [*JUNK, *PYTHON_JUNK, *edges(all_knobs()[name])][place]
        mapping = nested({"model": "gpt2", "method": method, name: value})
    else:
        mapping = any_job(rng)
    return Input(shown(mapping), _answer(lambda: job_from_dict(mapping)))


def any_job(rng: Random) -> dict[Any, Any]:
    """One to eight fields, legal or not; now and then what is no field, or no section."""
    names = list(all_knobs())
    given: dict[str, Any] = {"model": rng.choice(QUICK_MODELS), "method": rng.choice(METHODS)}
    for name in rng.sample(names, rng.randint(1, 8)):
        given[name] = any_value(rng, all_knobs()[name])
    mapping = nested(given)
    if rng.random() < 0.1:
        mapping[rng.choice((*sections(), "lr", "", "gpu", 5, None, "a" * 200))] = junk(rng)
    return mapping


def nested(given: Mapping[str, Any]) -> dict[Any, Any]:
    mapping: dict[Any, Any] = {}
    for name, value in given.items():
        section, _, leaf = name.rpartition(".")
        (mapping.setdefault(section, {}) if section else mapping)[leaf] = value
    return mapping


def legal_job(rng: Random, model: str) -> dict[Any, Any]:
    """As a user might have it: most of it by default, sizes small."""
    knobs = all_knobs()
    given: dict[str, Any] = {"model": model, "method": rng.choice(METHODS)}
    given["seq_len"] = rng.choice((1, 2, 17, 128, 512, 1000, 1024, 2048, 4096, 8192, 32768, 131072))
    given["micro_batch"] = rng.choice((1, 1, 2, 3, 4, 8, 16, 64))
    for name in rng.sample(list(knobs), rng.choice((0, 0, 1, 1, 2, 3, 6))):
        if name not in ("model", "task", "id", "hardware.country", "hardware.interconnect", "data.lengths"):
            given[name] = legal(rng, knobs[name]) if rng.random() < 0.9 else rng.choice(edges(knobs[name]))
    if rng.random() < 0.3:
        given["hardware.gpu"] = rng.choice(("rtx-4090", "t4", "h100-sxm-80gb", "a100-sxm-40gb", "mi300x", "l4"))
    if rng.random() < 0.3:
        given |= {
            "hardware.gpus": rng.choice((2, 4, 8)),
            "parallel.data": rng.choice(("ddp", "fsdp", "zero2", "zero3")),
        }
    return nested(given)


# files of jobs


def text_input(rng: Random, number: int) -> Input:
    kind = rng.choice((".yaml", ".yml", ".json", ".jsonl", ".jsonl", ".json"))
    of = any_job(rng) if rng.random() < 0.5 else legal_job(rng, rng.choice(QUICK_MODELS))
    job = json.dumps(plain(of), ensure_ascii=rng.random() < 0.5)[:2000]
    if kind == ".jsonl":
        text = "\n".join([job, '{"model": "gpt2"}', '{"model": "gpt2", "id": 5}'][: rng.randint(1, 3)])
    else:
        text = JOB if kind != ".json" and rng.random() < 0.5 else job
    content = spoiled(rng, text.encode("utf-8", "surrogatepass"))
    name = f"fuzz{kind}"

    def ask() -> Said:
        Path(name).write_bytes(content)
        codes = [found.exit_code if isinstance(found, JobError) else 0 for found in read_jobs(name)]
        return Said(max(codes, default=0))

    return Input(f"{name}: {shown(content)}", ask)


# config.json


def config_input(rng: Random, number: int) -> Input:
    config = plain(spoiled_config(rng, number))
    if rng.random() < 0.1:
        return Input(shown(config), _answer(lambda: resolve_model(config_folder(config))))
    return Input(shown(config), _answer(lambda: model_config("fuzz", config, "config.json")))


@cache
def _models() -> tuple[str, ...]:
    return tuple(sorted(bundled_names()))


def spoiled_config(rng: Random, number: int) -> Any:
    """A bundled one: one key of another type or value, or several; now and then not even a mapping."""
    config: Any = bundled_config(_models()[number % len(_models())])
    if rng.random() < 0.01:
        return junk(rng)
    for _ in range(1 if rng.random() < 0.5 else rng.randint(2, 5)):
        part = config
        inner = [key for key, value in config.items() if isinstance(value, dict) and value]
        if inner and rng.random() < 0.4:
            part = config[rng.choice(inner)]
        key = rng.choice([*part, *part, "rope_scaling", "model_type", "num_key_value_heads", "head_dim", "layer_types"])
        kind = rng.random()
        old = part.get(key)
        if kind < 0.15:
            part.pop(key, None)
        elif kind < 0.6 and isinstance(old, (int, float)) and abs(old) < 2**53:
            part[key] = rng.choice(
                (old + 1, old - 1, -old, old * 2, old // 2, 0, 1, 3, float(old), str(old), [old], old / 3)
            )
        elif kind < 0.6 and isinstance(old, list):
            part[key] = rng.choice((old[:1], old * 2, old[1:], [*old, None], dict.fromkeys(map(str, old))))
        else:
            part[key] = junk(rng)
    return config


def config_folder(config: Any, name: str = "fuzzed") -> str:
    """On the disk, without what JSON cannot hold."""
    folder = Path(name)
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(plain(config)))
    return f"./{name}"


# lengths, logs


def length_input(rng: Random, number: int) -> Input:
    kind = rng.random()
    if kind < 0.3:
        names = ("constant", "uniform", "lognormal", "percentiles", "normal", "")
        words = ("median", "p90", "mean", "sigma", "0", "50", "90", "100", "-1", "x", "")
        values = [str(rng.choice((*NUMBERS[:12], 0.5, 300, 1200, 1e9, "nan", "inf", "", "9" * 500))) for _ in range(4)]
        parts = [f"{rng.choice(words)}={value}" if rng.random() < 0.6 else value for value in values]
        given: Any = f"{rng.choice(names)}({', '.join(parts[: rng.randint(0, 4)])})"
        samples = rng.choice((None, 1, 2, 5000, 10**13))
        return Input(shown(given), _answer(lambda: sample_lengths(Data(lengths=given, samples=samples))))
    rows = [str(rng.randint(1, 4096)) for _ in range(rng.randint(1, 20))]
    text = f"[{', '.join(rows)}]" if kind < 0.6 else "\n".join(f"{row},{rng.randint(0, 9)}" for row in rows)
    content = spoiled(rng, text.encode(), (*MARKS, "5,600", "5,60000000", "0,0", "1e3", "-4", "7.0", "1,1,1"))

    def ask() -> Said:
        Path("fuzz.txt").write_bytes(content)
        sample_lengths(Data(lengths="fuzz.txt"))
        return Said(0)

    return Input(shown(content), ask)


OLDER_LOGS = (
    OOM_LOG,
    "RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 7.79 GiB total capacity; 6.10 GiB already "
    "allocated; 15.00 MiB free; 6.20 GiB reserved in total by PyTorch)\n",
    "Allocation on device 0 would exceed allowed memory. (out of memory)\nCurrently allocated     : 20.10 GiB\n"
    "Requested               : 2.00 GiB\nDevice limit            : 23.65 GiB\nFree (according to CUDA): 15.56 MiB\n"
    "PyTorch limit (set by user-supplied memory fraction)\n                        : 17179869184.00 GiB\n",
    "[rank3]: RuntimeError: CUDA error: out of memory\n",
    "HIP out of memory. Tried to allocate 1.00 KiB. GPU 1 has a total capacty of 64.00 GiB of which 0 bytes is free.\n",
)
LOG_MARKS = (
    *MARKS,
    "0 bytes",
    "99999999999999999999 TiB",
    "-1 GiB",
    "[rank0]: ",
    "\n> ",
    "1.5.5 GiB",
    " is free",
    "GPU 9999",
)


def log_input(rng: Random, number: int) -> Input:
    content = b"".join(spoiled(rng, rng.choice(OLDER_LOGS).encode(), LOG_MARKS) for _ in range(rng.randint(1, 3)))
    words = ["explain-oom"] + (["--json"] if rng.random() < 0.5 else [])
    return Input(shown(content), lambda: said_by_main(words, content))


# calibrations


def calibration_input(rng: Random, number: int) -> Input:
    found = _calibration()
    for _ in range(rng.randint(0, 3)):
        part: Any = found
        for _ in range(rng.randint(0, 2)):
            inner = [
                value
                for value in (part.values() if isinstance(part, dict) else part)
                if isinstance(value, (dict, list))
            ]
            part = rng.choice(inner) if inner else part
        if isinstance(part, dict):
            part[rng.choice([*part, "schema", "x"])] = junk(rng)
        elif part:
            part[rng.randrange(len(part))] = junk(rng)
    content = json.dumps(plain(found)).encode("utf-8", "replace")
    if rng.random() < 0.3:
        content = spoiled(rng, content)

    def ask() -> Said:
        path = path_of("rtx-4090")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        try:
            own_calibration("rtx-4090")
        finally:
            path.unlink()
        return Said(0)

    return Input(shown(content), ask)


def _calibration() -> dict[str, Any]:
    """Of one row each: the shipped one has so many that a change hardly meets what counts."""
    return {
        "schema": "tunecast.calibration/1", "device": reference().device, "torch": "2.13.0", "measured": "2026-11-15",
        "products": [{"dtype": "bfloat16", "m": 1000, "n": 1000, "k": 1000, "seconds": 1e-5}],
        "copies": [{"bytes": 10**9, "seconds": 5e-4}], "launches": [{"forward_s": 2e-5, "backward_s": 1e-5}],
        "all_reduces": [{"ranks": 8, "bytes": 8 * 10**8, "seconds": 3.5e-3}], "starts": [{"seconds": 14.0}],
        "plans": [{"compiled": False, "forward_s": 0.1, "backward_s": 0.1, "evaluation_s": 0.1}],
    }  # fmt: skip


# price lists, archives, own offers, headers of safetensors files

SKYPILOT_LIST = b"""InstanceType,vCPUs,MemoryGiB,AcceleratorName,AcceleratorCount,GpuInfo,Region,Price,SpotPrice
1B200.30V,30.0,184.0,B200,1.0,"{""Gpus"": [{""MemoryInfo"": {""SizeInMiB"": 184320}}]}",FIN-03,4.89,1.712
2H200.141S.88V,88.0,370.0,H200,2.0,"{""Gpus"": [{""MemoryInfo"": {""SizeInMiB"": 144384}}]}",FIN-02,6.78,2.373
1RTX6000ADA.10V,10.0,60.0,RTX-6000-Ada,1.0,"{}",FIN-03,0.8262,
scaleway_L4,8.0,48,L4,1.0,"{'Gpus': [{'MemoryInfo': {'SizeInMiB': 24}}]}",paris-france-5,0.95,
a3-highgpu-8g,208.0,1872.0,,,,europe-west4,9.93306,1.7888
,,,H100,8.0,,europe-west4,80.0,20.0
"""
GPUHUNT_LIST = b"""instance_name,location,price,cpu,memory,gpu_count,gpu_name,gpu_memory,spot,disk_size
Standard_ND96isr_H100_v5,westeurope,98.32,96,1900.0,8,H100,80.0,False,
Standard_ND96isr_H100_v5,westeurope,30.1,96,1900.0,8,H100,80.0,True,100
"""
CELLS = (
    "nan",
    "inf",
    "-1",
    "0",
    "1e308",
    "9" * 400,
    "H100",
    "A100",
    "",
    "True",
    "x" * 300,
    "\x1b[31m",
    "8.5",
    '"',
    '"{"',
    "é",
)


def spoiled_table(rng: Random, content: bytes) -> bytes:
    """Cells of other kinds; rows that come twice; and now and then the bytes themselves."""
    lines = content.decode().splitlines()
    for _ in range(rng.randint(0, 4)):
        here = rng.randrange(len(lines))
        cells = lines[here].split(",")
        cells[rng.randrange(len(cells))] = rng.choice((*CELLS, *TEXTS[:20]))
        lines[here] = ",".join(cells)
    if rng.random() < 0.1:
        lines += lines[1:] * rng.choice((1, 40))
    whole = ("\n".join(lines) + "\n").encode("utf-8", "replace")
    return spoiled(rng, whole) if rng.random() < 0.2 else whole


def zipped(rng: Random, content: bytes) -> bytes:
    out = io.BytesIO()
    kind = rng.choice((zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED, zipfile.ZIP_BZIP2))
    name = rng.choice(("azure.csv", "azure.csv", "oci.csv", "../azure.csv"))
    with zipfile.ZipFile(out, "w") as archive:  # with a date of its own it would be another one every time
        archive.writestr(zipfile.ZipInfo(name), content, kind)
    return spoiled(rng, out.getvalue()) if rng.random() < 0.5 else out.getvalue()


def feed_input(rng: Random, number: int) -> Input:
    kind = rng.randrange(6)
    if kind == 0:
        cloud, content = rng.choice(list(skypilot.CLOUDS)), spoiled_table(rng, SKYPILOT_LIST)
        return Input(
            f"{cloud} {shown(content)}", _answer(lambda: cleaned(skypilot.listings(content, cloud, TODAY), TODAY))
        )
    if kind == 1:
        content = zipped(rng, spoiled_table(rng, GPUHUNT_LIST))

        def ask() -> Said:
            cleaned(gpuhunt.listings(gpuhunt.member(content, "azure"), "azure", TODAY), TODAY)
            return Said(0)

        return Input(shown(content), ask)
    if kind == 2:
        content = spoiled(rng, rng.choice((b"20261114-231", b"20260230", b"2026-11-14")))
        return Input(shown(content), _answer(lambda: gpuhunt.version(content)))
    if kind == 3:
        content = spoiled_table(rng, _some_offers())
        return Input(shown(content), _answer(lambda: offers_from(content.decode("utf-8", "replace"), "own.csv")))
    if kind == 4:
        return _own_input(rng)
    header = {"w": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]}, "__metadata__": {"format": "pt"}}
    header[rng.choice(("w", "x", "__metadata__"))] = rng.choice((*JUNK[:30], {"dtype": junk(rng), "shape": junk(rng)}))
    text = json.dumps(plain(header)).encode("utf-8", "replace")
    content = spoiled(rng, len(text).to_bytes(8, "little") + text)
    if rng.random() < 0.3:
        return Input(shown(content), _answer(lambda: shards(content[8:], "index")))
    return Input(shown(content), _answer(lambda: header_counts(lambda n: content[:n], "model.safetensors")))


@cache
def _some_offers() -> bytes:
    from tunecast.market.table import text_from

    return text_from(store.bundled()[:3]).encode()


def _own_input(rng: Random) -> Input:
    if rng.random() < 0.3:
        content = spoiled_table(rng, ",".join(COLUMNS).encode() + b"\n" + _some_offers().split(b"\n", 1)[1])
        name = "fuzz.csv"
    else:
        lines = OWN_OFFER.splitlines()
        for _ in range(rng.randint(0, 3)):
            value = rng.choice((*JUNK, "0x" + "f" * 6000, "9" * 6000, "1e400", "nan", "2026-13-01", "2026-01-01"))
            toml = json.dumps(plain(value)) if rng.random() < 0.7 else str(plain(value))
            lines.append(f"{rng.choice((*OWN_FIELDS, 'x'))} = {toml}"[:20000])
        rng.shuffle(lines)
        text = "[[offer]]\n" + "\n".join(line for line in lines if line != "[[offer]]") + "\n"
        content = text.encode("utf-8", "replace")
        content = spoiled(rng, content) if rng.random() < 0.3 else content
        name = "fuzz.toml"

    def ask() -> Said:
        Path(name).write_bytes(content)
        own_offers(Path(name), TODAY, RATE)
        return Said(0)

    return Input(f"{name}: {shown(content)}", ask)


def is_refused(act: Callable[[], object]) -> bool:
    try:
        act()
    except TunecastError:
        return True
    return False
