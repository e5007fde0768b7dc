"""Doors that answer: command lines of every command, predictions, plans, fits, the environment, replies of servers."""

from __future__ import annotations

import argparse
import json
import os
from functools import cache
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any

from tunecast.cli.main import COMMANDS
from tunecast.job.fetch import NoReply, Reply
from tunecast.job.flags import job_flags
from tunecast.job.job import all_knobs
from tunecast.job.registry import bundled_names

from .junk import TEXTS, any_value, junk, legal, plain, shown, spoiled
from .outcomes import Input, Said, said_by_main
from .readings import (
    GPUHUNT_LIST,
    SKYPILOT_LIST,
    any_job,
    config_folder,
    legal_job,
    nested,
    spoiled_config,
    spoiled_table,
    zipped,
)
from .rooms import OOM_LOG, SMALL_CONFIG, _unreachable, set_network

PREDICT = ("predict", "--engine", "analytic")
"""Without tracing, which takes seconds where an architecture is unknown."""
QUICK = ("predict", "models", "gpus", "nodes", "offers", "explain-oom", "compare", "trace", "calibrate", "")
SEARCHING = ("plan", "fit", "largest")
SMALL_MODELS = (
    "gpt2",
    "pythia-70m",
    "smollm2-135m",
    "qwen3-0.6b",
    "llama-3.2-1b",
    "gemma-3-270m",
    "opt-125m",
    "bloom-560m",
)
SOURCES = (
    *SMALL_MODELS, "job.yaml", "job.json", "jobs.jsonl", "./small", "small/config.json", "pipe.yaml", "train.log",
    ".", "nobody",
    "meta-llama/Llama-3.2-1B",
)  # fmt: skip
UNNAMED = tuple(name for name in COMMANDS if name != "calibrate")
"""Commands that may stand alone: one would look for a GPU."""
NEVER = frozenset(("-h", "--help"))
"""Long texts, each the same every time; asked for rarely."""


@cache
def _flags(command: str) -> tuple[tuple[str, bool], ...]:
    """Of a command, each with whether it takes a value."""
    parser: argparse.ArgumentParser = import_module(COMMANDS[command].module).parser()
    return tuple(
        (flag, action.nargs != 0)
        for flag, action in parser._option_string_actions.items()
        if flag not in NEVER and flag not in ("--available", "--time-limit")
    )


@cache
def _fields() -> dict[str, str]:
    return {flag.flag: flag.field for flag in job_flags()}


def flag_input(rng: Random, number: int) -> Input:
    command = rng.choice(SEARCHING) if rng.random() < 0.02 else rng.choice(QUICK)
    words = [command or rng.choice((*TEXTS[:30], *UNNAMED, "-h", "--version"))]
    if command:
        words += _words(rng, command)
    words = [_of_the_system(word) for word in words]
    if rng.random() < 0.05:
        words.append(rng.choice(("--help", "-h", "--", "--json", "-x")))
    stdin = rng.choice((b"", OOM_LOG.encode(), b"\xff\x00")) if command == "explain-oom" else b""
    return Input(shown(words), lambda: said_by_main(words, stdin))


def _of_the_system(word: str) -> str:
    """As a command line or an environment can hold it: no NUL, and of half characters only bytes that are no UTF-8."""
    return word.replace("\x00", "").replace("\ud800", "\udcff")


def _words(rng: Random, command: str) -> list[str]:
    words: list[str] = []
    if command in ("predict", "plan", "fit", "largest", "compare", "explain-oom"):
        words += rng.choices(SOURCES, k=rng.choice((1, 1, 1, 2, 0))) + (
            rng.choices(SOURCES) if command == "compare" else []
        )
    elif command == "offers":
        words += rng.choice(
            ([], ["h100"], ["add", "own.toml"], ["add", rng.choice(TEXTS)], ["remove", "lab"], ["update"])
        )
    elif command in ("models", "gpus", "nodes"):
        words += rng.choices((*TEXTS[:20], "h100", "8b", "aws"), k=rng.randint(0, 2))
    elif command == "trace":
        words += rng.choice(
            ([], ["--", "nothing.py"], ["nothing.py"], ["--", "torchrun", "--nproc_per_node", "x", "no.py"])
        )
    flags = dict(_flags(command))
    for flag in rng.sample(list(flags), min(len(flags), rng.choice((0, 1, 1, 2, 3, 5)))):
        words += [flag, _value(rng, flag)] if flags[flag] else [flag]
    if command == "calibrate" or "traced" in words:
        words += ["--python", "./no-such-python"]
    return words


def _value(rng: Random, flag: str) -> str:
    field = _fields().get(flag)
    if flag == "--engine":
        return rng.choice(("analytic", "magic"))
    if flag in ("--html", "--snapshot", "--md"):
        return rng.choice(("out.html", "no/where.html", ".", "/dev/full", "a" * 300, ""))
    if field is not None and rng.random() < 0.85:
        knob = all_knobs()[field]
        value = legal(rng, knob) if rng.random() < 0.7 else any_value(rng, knob)
        return ",".join(map(str, value)) if isinstance(value, list) else str(plain(value))[:5000]
    return rng.choice((*TEXTS, "6h", "50", "DE", "h100-sxm-80gb", "8", "lora.rank=8", "seq_len=64"))


# real answers


def prediction_input(rng: Random, number: int) -> Input:
    as_text = rng.random() < 0.05
    models = SMALL_MODELS if as_text or rng.random() < 0.8 else sorted(bundled_names())
    job = any_job(rng) | {"model": "./small"} if rng.random() < 0.2 else legal_job(rng, rng.choice(models))
    return _with_file(job, [*PREDICT, "fuzz.json", "--details" if as_text else "--json"])


def _with_file(job: Any, words: list[str], stdin: bytes = b"") -> Input:
    text = json.dumps(plain(job))

    def ask() -> Said:
        Path("fuzz.json").write_text(text)
        return said_by_main(words, stdin)

    return Input(f"{' '.join(words)}, with fuzz.json: {text[:2500]}", ask)


def config_prediction_input(rng: Random, number: int) -> Input:
    config = spoiled_config(rng, number)
    if isinstance(config, dict) and rng.random() < 0.2:
        config = SMALL_CONFIG | {rng.choice(list(SMALL_CONFIG)): junk(rng)}
    job = nested({
        "model": "./fuzzed", "method": rng.choice(("full", "lora", "qlora")), "seq_len": rng.choice((1, 7, 128, 1024)),
        "micro_batch": rng.choice((1, 2, 5)), "gradient_checkpointing": rng.random() < 0.5,
        "attention": rng.choice(("sdpa", "sdpa", "eager", "flash_attention_2")),
    })  # fmt: skip
    if job["method"] != "full":
        job["lora"] = {"targets": "all-linear"}
    if rng.random() < 0.15:
        job["stack"] = rng.choice(all_knobs()["stack"].choices)
    asked = _with_file(job, [*PREDICT, "fuzz.json", "--json"])

    def ask() -> Said:
        config_folder(config)
        return asked.ask()

    return Input(f"{asked.shown}; fuzzed/config.json: {shown(plain(config))}", ask)


def search_input(rng: Random, number: int) -> Input:
    """Plans, fits, the largest that fits, comparisons, explained logs, advice: each makes many predictions."""
    command = rng.choice(("plan", "plan", "fit", "fit", "largest", "compare", "explain-oom", "predict"))
    job = legal_job(rng, rng.choice(sorted(bundled_names()) if command == "predict" else SMALL_MODELS))
    if command == "plan":
        more = rng.choice(
            ([], ["--within", "6h"], ["--max-usd", "5"], ["--eu"], ["--spot"], ["--gpu", "l40s"], ["--runs", "3"])
        )
        job.pop("hardware", None)
        job.pop("parallel", None)
        return _with_file(
            job | {"data": {"tokens": rng.choice((10**5, 10**8))}}, ["plan", "fuzz.json", "--json", *more]
        )
    if command == "compare":
        return _with_file(job, ["compare", "fuzz.json", "--to", f"seq_len={rng.randint(1, 5000)}", "--json"])
    if command == "predict":
        return _with_file(job, [*PREDICT, "fuzz.json"], OOM_LOG.encode())
    words = [command, "fuzz.json", *(["--json"] if rng.random() < 0.7 else [])]
    return _with_file(job, words, OOM_LOG.encode())


# environment and servers

VARIABLES = (
    "HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME", "LOCALAPPDATA", "HF_HOME", "HF_HUB_CACHE", "HF_ENDPOINT", "HF_TOKEN",
    "HF_HUB_OFFLINE",
    "HF_HUB_DOWNLOAD_TIMEOUT", "TUNECAST_SKYPILOT_CATALOG", "TUNECAST_GPUHUNT_CATALOG", "TUNECAST_VAST_API",
    "TUNECAST_RUNPOD_API",
    "NO_COLOR", "TERM", "COLUMNS", "LINES", "TZ", "LANG", "LC_ALL", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF",
)  # fmt: skip
ASKED_OF_ENVIRONMENT = (
    ["predict", "pythia-70m", "--json"], ["predict", "meta-llama/Llama-3.2-1B", "--json"], ["models", "gpt2"],
    ["gpus"], ["nodes"],
    ["offers", "h100", "--available"], ["offers", "update"], ["offers", "add", "own.toml"], ["offers", "remove", "lab"],
    ["trace", "--", "nothing.py"], ["predict", "org/name"],
)  # fmt: skip


def environment_input(rng: Random, number: int) -> Input:
    values = (
        *TEXTS,
        "/dev/full",
        "/proc",
        "a" * 4000,
        "expandable_segments:True",
        "max_split_size_mb:-1,x",
        "https://[::1",
        "0.0",
    )
    told = {name: _of_the_system(rng.choice(values)) for name in rng.sample(VARIABLES, rng.randint(1, 3))}
    words = list(rng.choice(ASKED_OF_ENVIRONMENT))

    def ask() -> Said:
        before = dict(os.environ)
        try:
            os.environ.update(told)
            return said_by_main(words)
        finally:
            os.environ.clear()
            os.environ.update(before)

    return Input(f"{shown(told)} {words}", ask)


def reply_input(rng: Random, number: int) -> Input:
    """What the Hub or a price list answers: the right thing, spoiled, nothing, or something else."""
    small = json.dumps(SMALL_CONFIG).encode()
    pages = (
        small,
        SKYPILOT_LIST,
        GPUHUNT_LIST,
        b"20261114-231",
        b"{}",
        b"",
        b"<html>",
        b'{"weight_map": {"a": "b.safetensors"}}',
    )
    contents: dict[str, bytes | int | None] = {}
    for ending in ("config.json", "index.json", ".safetensors", "vms.csv", "version", "catalog.zip", ""):
        kind = rng.random()
        right: bytes | int | None = {
            "config.json": json.dumps(plain(spoiled_config(rng, number))).encode("utf-8",
            "replace") if kind < 0.5 else small,
            "vms.csv": spoiled_table(rng, SKYPILOT_LIST), "version": b"20261114-231",
            "catalog.zip": zipped(rng, spoiled_table(rng, GPUHUNT_LIST)),
        }.get(ending, 404)  # fmt: skip
        if kind > 0.8:
            right = rng.choice((404, 401, 500, None, spoiled(rng, rng.choice(pages))))
        contents[ending] = right
    words = list(rng.choice((["predict", "org/name", "--json"], ["predict", "org/name@main", "--method", "lora"],
    ["offers", "update"],
                             ["offers", "update", "--json"], ["offers", "runpod", "h100", "--available"])))  # fmt: skip

    def answer(url: str) -> Reply:
        found = next(content for ending, content in contents.items() if url.endswith(ending))
        if found is None:
            raise NoReply("no answer in time")
        return Reply(found, b"") if isinstance(found, int) else Reply(200, found)

    def ask() -> Said:
        os.environ.pop("HF_HUB_OFFLINE", None)
        set_network(answer)
        try:
            return said_by_main(words)
        finally:
            set_network(_unreachable)
            os.environ["HF_HUB_OFFLINE"] = "1"

    return Input(f"{words} {shown(contents)}", ask)
