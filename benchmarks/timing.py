"""Published runs asked of tunecast and its peers, and how far each is off: what `time_public.py`, `time_vendor.py` and
`sharded_memory.py` share."""

from __future__ import annotations

import dataclasses
import json
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "src")]

from public_figures import off  # noqa: E402

from tunecast.errors import TunecastError  # noqa: E402
from tunecast.hardware import gpu as gpu_named  # noqa: E402
from tunecast.job import Job, job_from_dict  # noqa: E402
from tunecast.job.model import bundled_models, resolve_model  # noqa: E402
from tunecast.prediction.modelled import require_modelled  # noqa: E402
from tunecast.prediction.time import timing as predict_timing  # noqa: E402

Row = dict[str, Any]

BEYOND: Mapping[str, tuple[str, Mapping[Any, Any] | None]] = {
    "between_gbit_per_s": ("hardware.inter_node_gbps", None),
    "checkpointing": (
        "recompute",
        {
            "operations": "selective",
            "operations, abs saved too": "selective",
            "operations, chosen on the graph": "selective",
            "layers": "all",
        },
    ),
    "virtual_stages": ("parallel.virtual_stages", None),
    "reduce_dtype": ("parallel.reduce_dtype", None),
    "reshard": ("parallel.reshard_after_forward", {"never": False, "always": True}),
    "fsdp": ("parallel.fsdp_version", None),
}
"""What is known of a run beyond the contract's first fields: the field that takes it, and in which words."""
OF_SOMETHING_ELSE = ("power was limited", "kernels of a prototype", "the time of the whole run")
"""Doubts that say a row is not of the card as it is sold, of the code that is predicted, or of a step: it counts among
all rows and in a group of its own, not among its stack's, and no range is made of it."""
FLAT_BY_ITSELF = ("litgpt", "llm-foundry", "fsdp_qlora")
"""Stacks that have flat parameters (FSDP 1) anyway."""


def is_of_something_else(row: Row) -> bool:
    return any(told in doubt for doubt in row.get("doubts", ()) for told in OF_SOMETHING_ELSE)


def rows_of(name: str) -> list[Row]:
    return [json.loads(line) for line in (HERE / "data" / name).read_text().splitlines()]


@cache
def run_models() -> Mapping[str, Row]:
    """Models of published runs that are not bundled."""
    found: Mapping[str, Row] = json.loads((HERE / "data" / "run_models.json").read_text())
    return found


def parameters(model: str) -> int:
    """That a token passes: of a mixture of experts, the active ones."""
    known = run_models().get(model) or bundled_models()[model]
    return int(known.get("active_parameters") or known["parameters"])


def job_of(row: Row) -> Row:
    """The row's job, with a file for its model where it is not bundled and with what is known beyond the contract."""
    job = dict(row["job"], model=_model(row["job"]))
    for name, value in row.get("beyond", {}).items():
        if name not in BEYOND:
            continue
        field, words = BEYOND[name]
        taken = value if words is None else words.get(value)
        if taken is None or not _applies(name, job):
            continue
        section, _, leaf = field.rpartition(".")
        if section:
            job[section] = {**job.get(section, {}), leaf: taken}
        else:
            job[leaf] = taken
    return job


def _applies(name: str, job: Row) -> bool:
    if name == "checkpointing":
        return bool(job["gradient_checkpointing"])
    if name == "fsdp":
        return job["parallel"]["data"] in ("fsdp", "hsdp") and job["stack"] not in FLAT_BY_ITSELF
    return True


def _model(job: Row) -> str:
    known = run_models().get(job["model"])
    return job["model"] if known is None else _config_file(job["model"], job["seq_len"])


@cache
def _config_file(model: str, seq_len: int) -> str:
    config = dict(run_models()[model]["config"])
    if "max_seq_len" in config:
        config["max_seq_len"] = seq_len  # llm-foundry learns a vector for each place of a row
    path = Path(mkdtemp(prefix="tunecast-")) / "config.json"
    path.write_text(json.dumps(config))
    return str(path)


class Asked:
    """Asks tunecast about each distinct job once.

    A refusal is an answer too, with its reason. Anything else that is raised is a fault of ours, and told as one.
    """

    def __init__(self, ask: Callable[[Job], Row]) -> None:
        self._ask = ask
        self._known: dict[Job, Row] = {}

    def __call__(self, row: Row) -> Row:
        try:
            job = job_from_dict(job_of(row))
        except TunecastError as error:
            return {"refused": error.message}
        key = dataclasses.replace(job, id=None)
        if key not in self._known:
            self._known[key] = self._said(job)
        return self._known[key]

    def _said(self, job: Job) -> Row:
        start = time.perf_counter()
        try:
            told = self._ask(job)
        except TunecastError as error:
            return {"refused": error.message}
        except Exception as error:
            return {"refused": f"fault: {type(error).__name__}: {error}"}
        return told | {"seconds": round(time.perf_counter() - start, 3)}


def step_of(job: Job) -> Row:
    """What a prediction says of time (prediction/time/timing.py), without its memory, which takes longer."""
    require_modelled(job)
    gpu, model = gpu_named(job.hardware.gpu), resolve_model(job.model)
    told = predict_timing.timing(job, model, gpu).time
    assert told is not None
    kept = {name: getattr(told, name) for name in ("step_s", "low_s", "high_s", "bound_by", "breakdown_s")}
    return {name: rounded(value) for name, value in kept.items()}


def rounded(value: Any) -> Any:
    """To six digits: what is written down need not tell more than anybody measures."""
    if isinstance(value, Mapping):
        return {name: rounded(inner) for name, inner in value.items()}
    return float(f"{value:.6g}") if isinstance(value, float) else value


def compared(row: Row, said: Mapping[str, Row]) -> Row:
    """One row of a result: signed errors of a step's time by tool."""
    measured = row["measured"]["step_s"]
    return {
        "id": row["id"],
        "stack": row["stack"],
        "gpu": row["job"]["hardware"]["gpu"],
        "precision": row["job"].get("matmul_dtype") or "16 bits",
        "about": described(row),
        "measured_s": measured,
        "said": rounded({tool: answer for tool, answer in said.items() if tool == "tunecast" or "refused" in answer}),
        "error": {
            tool: rounded(answer["step_s"] / measured - 1) for tool, answer in said.items() if "step_s" in answer
        },
        **({"doubts": row["doubts"]} if "doubts" in row else {}),
    }


def described(row: Row) -> str:
    job = row["job"]
    hardware, parallel = job["hardware"], job.get("parallel", {})
    nodes = hardware.get("nodes", 1)
    words = [job["model"], job["method"], f"b{job['micro_batch']}x{job['grad_accum']}", f"s{job['seq_len']}"]
    words += [job["quantization"]["format"]] if job.get("quantization") else []
    words += [job["matmul_dtype"]] if job.get("matmul_dtype") else []
    words += ["recomputed"] if job["gradient_checkpointing"] else []
    words += ["compiled"] if job.get("compile") else []
    words += job.get("kernels", [])
    words += [f"{nodes}x{hardware.get('gpus', 1)}" if nodes > 1 else str(hardware.get("gpus", 1)), hardware["gpu"]]
    words += [str(parallel["data"])] if parallel else []
    words += [f"{name}{n}" for name, n in parallel.items() if isinstance(n, int)]
    return " ".join(words)


def grouped(found: Iterable[Row], keys: Callable[[Row], Iterable[str]]) -> list[Row]:
    """How each tool does by group, a row in as many groups as `keys` names; and how ranges hold."""
    members: dict[str, list[Row]] = {}
    for row in found:
        for key in keys(row):
            members.setdefault(key, []).append(row)
    rows_told = [row for rows in members.values() for row in rows]
    tools = list(dict.fromkeys(tool for row in rows_told for tool in ("tunecast", *row["error"], *row["said"])))
    return [
        {
            "group": key,
            "rows": len(rows),
            "tools": {
                tool: off([row["error"][tool] for row in rows if tool in row["error"]], len(rows)) for tool in tools
            },
            **ranges_held(rows),
        }
        for key, rows in sorted(members.items())
    ]


def ranges_held(rows: list[Row]) -> Row:
    """Of tunecast's 80 % ranges: the share that holds the measured step, and half their width by the step's size."""
    with_range = [row for row in rows if "low_s" in row["said"].get("tunecast", {})]
    if not with_range:
        return {}
    told = [(row["said"]["tunecast"], row["measured_s"]) for row in with_range]
    inside = sum(said["low_s"] <= measured <= said["high_s"] for said, measured in told)
    half = statistics.median((said["high_s"] - said["low_s"]) / 2 / said["step_s"] for said, _ in told)
    return {"range_holds": inside / len(told), "range_half_width": half}


NUMBER = re.compile(r"\b\d+\b")


def refusals(found: Iterable[Row]) -> list[Row]:
    """Why rows were not answered, by stack and reason with its numbers left out, the most frequent first."""
    count: dict[tuple[str, str], int] = {}
    for row in found:
        reason = row["said"]["tunecast"].get("refused")
        if reason is not None:
            key = (row["stack"], NUMBER.sub("N", reason.splitlines()[0])[:200])
            count[key] = count.get(key, 0) + 1
    return [
        {"stack": stack, "reason": reason, "rows": n}
        for (stack, reason), n in sorted(count.items(), key=lambda item: (-item[1], item[0]))
    ]


def write_result(path: Path, made: Row) -> None:
    """JSON, with a line a row."""
    rest = json.dumps({name: value for name, value in made.items() if name != "rows"}, indent=1)
    rows = ",\n".join("  " + json.dumps(row) for row in made["rows"])
    path.write_text(f'{rest[:-2]},\n "rows": [\n{rows}\n ]\n}}\n')


def worst_first(found: Iterable[Row], tool: str = "tunecast") -> list[Row]:
    return sorted((row for row in found if tool in row["error"]), key=lambda row: -abs(row["error"][tool]))
