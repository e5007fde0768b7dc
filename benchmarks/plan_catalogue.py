"""CPU time and memory of `tunecast plan` for every bundled architecture, method and stack: results/plan_catalogue.json.

    python benchmarks/plan_catalogue.py [--models NAME,...] [--methods NAME,...] [--stacks NAME,...] [--out FILE]

Each plan is a fresh process over all bundled offers, from nothing to its JSON. One model stands for an architecture:
of those bundled, the one nearest 8B parameters. Where PEFT has no usual targets all linear layers are adapted, without
dropout where it refuses that. What the closed form refuses is recorded with its reason. CPU seconds
(user and system) and the largest resident memory are of the whole process, so that other work on the machine matters
little. With a subset of names the rows found replace those in the file, and the rest of it stays.

`python compile_native.py` first: without it replays run in Python.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from math import log
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "src")]

from memory import commit  # noqa: E402
from plan_speed import KIB  # noqa: E402
from speed import installed, machine  # noqa: E402

from tunecast.job.names import METHODS  # noqa: E402
from tunecast.job.registry import bundled_config, bundled_models  # noqa: E402
from tunecast.job.stacks import STACKS  # noqa: E402

Figures = dict[str, Any]
RESULTS = HERE / "results" / "plan_catalogue.json"
WORDS = ("--seq-len", "2048", "--samples", "10000", "--no-spot")
TYPICAL_PARAMETERS = 8e9
LIMIT_S = 300


def models_of_architectures() -> dict[str, str]:
    """By `model_type`."""
    found: dict[str, str] = {}
    distance: dict[str, float] = {}
    for name, entry in bundled_models().items():
        architecture = str(bundled_config(name)["model_type"])
        off = abs(log(entry["parameters"] / TYPICAL_PARAMETERS))
        if architecture not in found or off < distance[architecture]:
            found[architecture], distance[architecture] = name, off
    return found


def plan_once(words: Sequence[str], script: Path, environment: Mapping[str, str], folder: Path) -> Figures:
    """Waited for with its own account, which holds no other child."""
    output, errors = folder / "plan.json", folder / "errors"
    command = ["timeout", str(LIMIT_S), sys.executable, str(script), "plan", *words, "--json", "--quiet"]
    with output.open("wb") as out, errors.open("wb") as err:
        child = subprocess.Popen(command, env=dict(environment), stdout=out, stderr=err)
        _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    found: Figures = {
        "cpu_s": round(used.ru_utime + used.ru_stime, 2),
        "rss_bytes": used.ru_maxrss * KIB,
        "exit": child.returncode,
    }
    try:
        searched = json.loads(output.read_text())["searched"]
    except ValueError:
        told = errors.read_text(errors="replace").strip().splitlines()
        return found | {"refused": told[-1][:200] if told else f"no answer in {LIMIT_S} s"}
    return found | {name: searched[name] for name in ("configurations", "predicted")}


def plan_adapted(words: Sequence[str], script: Path, environment: Mapping[str, str], folder: Path) -> Figures:
    """Asked again with what a refusal of the adapters says."""
    row = plan_once(words, script, environment, folder)
    for field, more in (("lora.targets", ("--targets", "all-linear")), ("lora.dropout", ("--dropout", "0"))):
        if f"error: {field}:" in row.get("refused", ""):
            words = (*words, *more)
            row = plan_once(words, script, environment, folder) | {"words": " ".join(words[3:])}
    return row


def names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    every = models_of_architectures()
    parser.add_argument("--models", type=names, default=list(every.values()), help="default: one of each architecture")
    parser.add_argument("--methods", type=names, default=list(METHODS))
    parser.add_argument("--stacks", type=names, default=list(STACKS))
    parser.add_argument("--words", type=str.split, default=list(WORDS), help="of the job and the offers")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    before: Figures = json.loads(options.out.read_text()) if options.out.exists() else {}
    rows: Figures = before.get("rows", {}) if before.get("words") == options.words else {}
    about = {"commit": commit(), "machine": machine()}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        script, environment = installed(folder)
        environment["XDG_DATA_HOME"] = str(folder / "data")
        for model in options.models:
            for stack in options.stacks:
                for method in options.methods:
                    words = (model, "--method", method, "--stack", stack, *options.words)
                    row = plan_adapted(words, script, environment, folder)
                    architecture = str(bundled_config(model)["model_type"])
                    rows[f"{model} {method} {stack}"] = {"architecture": architecture, **row}
                    print(f"{row['cpu_s']:7.2f} s {row['rss_bytes'] / 1e6:6.0f} MB  {model} {method} {stack}  "
                          f"{row.get('refused', '')}", flush=True)  # fmt: skip
                    result = {**about, "words": options.words, "rows": rows}
                    options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
