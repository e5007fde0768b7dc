"""Predicted against published time of a step: timed rows of data/public_runs.jsonl; writes `results/time_public.json`.

    python benchmarks/time_public.py --peers ENV/bin/python        ENV holds llm-analysis (`time_peers.py`)

A row that is refused stays in the result with the reason. A few of tunecast's rates were read off such rows
(`SUSTAINED` and `LOW_PRECISION` of prediction/price/rates.py); `time_left_out.py` tells them left out by card and by
model. What is fitted in the peers' favour is called so, and told left out by card as well.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "src")]

from memory import commit  # noqa: E402
from rows import LAYERS  # noqa: E402
from time_peers import analysis_answers, at_peak_seconds, fitted_share, rule_answers, version  # noqa: E402
from timing import (  # noqa: E402
    Asked,
    compared,
    grouped,
    is_of_something_else,
    job_of,
    parameters,
    refusals,
    rows_of,
    step_of,
    worst_first,
    write_result,
)

from tunecast.hardware import known_gpu  # noqa: E402
from tunecast.job.model import resolve_model  # noqa: E402
from tunecast.prediction.time.ranges import has_own_range  # noqa: E402

Row = dict[str, Any]

TRANSFORMERS_LIKE = ("trl, fms-acceleration", "fsdp_qlora", "trl", "MLPerf, HF")
"""Software that runs transformers' models."""


def peers(rows: list[Row], python: str | None) -> list[Row]:
    """Every peer's answer to each row, in order."""
    ideals = [at_peak(row) for row in rows]
    measured = [row["measured"]["step_s"] for row in rows]
    told = rule_answers(ideals, measured, [row["job"]["hardware"]["gpu"] for row in rows])
    if python is None:
        return told
    asked = [{"job": row["job"], "model": sizes(row), "gpu": card(row)} for row in rows]
    return [one | other for one, other in zip(told, analysis_answers(asked, measured, python), strict=True)]


def fitted_mfu(rows: list[Row]) -> float | None:
    return fitted_share((ideal, row["measured"]["step_s"]) for row in rows if (ideal := at_peak(row)) is not None)


def at_peak(row: Row) -> float | None:
    job = row["job"]
    return at_peak_seconds(job, parameters(job["model"]), known_gpu(job["hardware"]["gpu"]).dense_flop_per_s)


def sizes(row: Row) -> Row:
    """A model as llm-analysis takes it."""
    name = row["job"]["model"]
    config = resolve_model(job_of(row)["model"])
    experts = {}
    raw = config.raw
    if (count := raw.get("n_routed_experts") or raw.get("num_local_experts")) is not None:
        experts = {"moe_num_experts": count, "moe_top_k": raw.get("num_experts_per_tok", 1)}
    return {
        "name": name,
        "num_layers": config.layers,
        "n_head": config.heads,
        "hidden_dim": config.hidden_size,
        "vocab_size": config.vocab_size,
        "max_seq_len": row["job"]["seq_len"],
        "num_key_value_heads": config.kv_heads,
        "ffn_embed_dim": config.intermediate_size,
        "expansion_ratio": config.intermediate_size / config.hidden_size,
        "model_type": config.model_type,
        **experts,
    }


def card(row: Row) -> Row:
    """A card as llm-analysis takes it."""
    known = known_gpu(row["job"]["hardware"]["gpu"])
    rates = known.dense_flop_per_s
    return {
        "name": known.name,
        "mem_per_GPU_in_GB": known.memory_bytes / 2**30,
        "hbm_bandwidth_in_GB_per_sec": (known.memory_bytes_per_s or 0) / 1e9,
        "intra_node_bandwidth_in_GB_per_sec": (known.link_bytes_per_s or 32e9) / 1e9,
        "intra_node_min_message_latency": 8e-06,
        "peak_fp16_TFLOPS": rates["bf16"] / 1e12,
        "peak_i8_TFLOPS": rates.get("fp8", 2 * rates["bf16"]) / 1e12,
        "peak_i4_TFLOPS": rates.get("fp4", 4 * rates["bf16"]) / 1e12,
        "inter_node_bandwidth_in_GB_per_sec": 200,
    }


def result(rows: list[Row], python: str | None) -> Row:
    """All of a results file; prints a line a row."""
    others = peers(rows, python)
    ask, found = Asked(step_of), []
    for row, told in zip(rows, others, strict=True):
        done = compared(row, {"tunecast": answered(row, ask), **told})
        found.append(done)
        error = done["error"].get("tunecast")
        shown = done["said"]["tunecast"].get("refused", "").splitlines()[0][:90] if error is None else f"{error:+.1%}"
        print(done["id"], done["stack"], done["about"], f"{done['measured_s']:.3f} s", shown, flush=True)
    return {
        "commit": commit(),
        "peers": {"llm-analysis": version(python)} if python else {},
        "mfu_fitted": fitted_mfu(rows),
        "groups": grouped(found, groups_of),
        "refused": refusals(found),
        "rows": found,
    }


def answered(row: Row, ask: Asked) -> Row:
    """What tunecast says. A job recomputes all of its layers or none: where some were, the step lies between the two by
    their share, since layers are alike."""
    every = ask(row)
    part = LAYERS.fullmatch(row.get("beyond", {}).get("checkpointing", ""))
    if part is None or "refused" in every:
        return every
    none = ask({**row, "job": {**row["job"], "gradient_checkpointing": False}})
    told: Row = between(none, every, int(part[1]) / resolve_model(job_of(row)["model"]).layers)
    return told


def between(first: Any, second: Any, share: float) -> Any:
    """Numbers, mapped or not, so far from one to the other; of anything else the first."""
    if isinstance(second, dict):
        return {name: between(first.get(name, 0.0), value, share) for name, value in second.items()}
    return first + share * (second - first) if isinstance(second, float) else first


def groups_of(row: Row) -> list[str]:
    timed = "gpu timed" if has_own_range(row["gpu"]) else "gpu not timed"
    by_card = [timed, f"gpu: {row['gpu']}", f"precision: {row['precision']}, {row['gpu']}"]
    if is_of_something_else(row):
        return ["all", *by_card, f"stack: {row['stack']}, of something else"]
    kind = "transformers-like" if row["stack"] in TRANSFORMERS_LIKE else "other stacks"
    return ["all", *by_card, kind, f"stack: {row['stack']}"]


def show(made: Row) -> None:
    """The figures, for a terminal."""
    for group in made["groups"]:
        for tool, figures in group["tools"].items():
            if figures["answered"]:
                numbers = f"median {figures['median']:.1%} ({figures['median_signed']:+.1%}), p90 {figures['p90']:.1%}"
                print(f"{group['group']:40} {tool:20} {figures['answered']:4} of {group['rows']:4}  {numbers}")
    for row in worst_first(made["rows"])[:10]:
        print(f"worst: {row['id']} {row['about']} {row['error']['tunecast']:+.1%}")
    for reason in made["refused"][:20]:
        print(f"refused: {reason['rows']} of {reason['stack']}: {reason['reason']}")


def run(name: str, rows: list[Row], more: Callable[[list[Row]], Row] = lambda found: {}) -> None:
    """Asks about `rows` and writes the result; `more` of it is made of the compared rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", help="interpreter with llm-analysis; without it only the rule of thumb is asked")
    parser.add_argument("--only", default="", help="rows whose id contains this; prints, writes nothing")
    parser.add_argument("--out", type=Path, default=HERE / "results" / name)
    options = parser.parse_args()
    made = result([row for row in rows if options.only in row["id"]], options.peers)
    made = {**more(made["rows"]), **made}
    show(made)
    if not options.only:
        write_result(options.out, made)


def main() -> None:
    run("time_public.json", [row for row in rows_of("public_runs.jsonl") if "step_s" in row["measured"]])


if __name__ == "__main__":
    main()
