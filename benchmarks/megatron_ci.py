"""Predicted against measured memory of Megatron-LM's own tests, data/megatron_ci.jsonl: results/megatron_ci.json.

    python benchmarks/megatron_ci.py [--only WORDS]

What CI logs is torch.cuda's allocated memory of the last rank, between steps and at most; the tape asked is that of the
last stage of a pipeline, whichever stage is the fullest.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "src")]

from memory import commit  # noqa: E402
from timing import rows_of, step_of, write_result  # noqa: E402

from tunecast.errors import TunecastError  # noqa: E402
from tunecast.hardware import gpu as gpu_named  # noqa: E402
from tunecast.job import job_from_dict  # noqa: E402
from tunecast.prediction.modelled import card_of, require_modelled  # noqa: E402
from tunecast.tape.build.job_runs import fold_rank  # noqa: E402
from tunecast.tape.build.stacks import megatron  # noqa: E402
from tunecast.tape.program import FREE, Program  # noqa: E402
from tunecast.tape.shorten import with_few_micro_batches  # noqa: E402

Row = dict[str, Any]
MIB = 2**20
LARGER_WORKSPACES = {":4096:8": {"a100-sxm-80gb": 2 * (32 * MIB - (8 * MIB + 128 * 1024))}}
"""Most tests set CUBLAS_WORKSPACE_CONFIG for the sake of determinism: on cards whose workspaces are smaller by
themselves, torch's two (forward and backward) are so much larger than a job's."""


@contextmanager
def without_fused_sums() -> Iterator[None]:
    """All of the tests are run with --no-gradient-accumulation-fusion, which a job cannot say."""
    of_job = megatron.parts_of
    with patch.object(megatron, "parts_of", lambda job: of_job(job)._replace(fused_sums=False)):
        yield


def alive_bytes(rows: Program) -> tuple[int, int]:
    """At the end of a step, and the most in any; each block rounded as the allocator rounds it."""
    sizes: dict[int, int] = {}
    alive = most = after = 0
    ends = set(rows.bounds[2:])
    for number, (block, size) in enumerate(zip(rows.blocks, rows.sizes, strict=True)):
        if number in ends:
            after = alive
        if size >= 0:
            sizes[block] = -(-size // 512) * 512
            alive += sizes[block]
            most = max(most, alive)
        elif size == FREE:
            alive -= sizes.pop(block, 0)
    return after or alive, most


def compared(row: Row, folder: str) -> Row:
    path = Path(folder) / "config.json"
    path.write_text(json.dumps(row["config"]))
    told: Row = {"id": row["id"], "gpu": row["job"]["hardware"]["gpu"]}
    try:
        job = job_from_dict({**row["job"], "model": str(path)})
        require_modelled(job)
        card = card_of(gpu_named(job.hardware.gpu))
        with without_fused_sums():
            folded = fold_rank(with_few_micro_batches(job), row["config"], card, last=True)
        more = LARGER_WORKSPACES.get(row["cublas_workspace"], {}).get(job.hardware.gpu, 0)
        between, most = (alive + more for alive in alive_bytes(folded.program))
        step_s = step_of(job)["step_s"]
    except TunecastError as error:
        return told | {"refused": error.message}
    measured = row["measured"]
    said = {"allocated_bytes": between, "max_allocated_bytes": most, "step_s": step_s}
    return told | {"said": said, "error": {name: round(said[name] / measured[name] - 1, 4) for name in said}}


def figures(found: list[Row]) -> Row:
    made: Row = {"rows": len(found), "refused": sum("refused" in row for row in found)}
    for name in ("allocated_bytes", "max_allocated_bytes", "step_s"):
        errors = sorted(abs(row["error"][name]) for row in found if "error" in row)
        if errors:
            made[name] = {
                "median": statistics.median(errors),
                "p90": errors[int(0.9 * (len(errors) - 1))],
                "worst": errors[-1],
            }
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "megatron_ci.json")
    options = parser.parse_args()
    found = []
    with TemporaryDirectory() as folder:
        for row in rows_of("megatron_ci.jsonl"):
            if options.only not in row["id"]:
                continue
            found.append(compared(row, folder))
            shown = found[-1].get("refused") or " ".join(f"{v:+.1%}" for v in found[-1]["error"].values())
            print(row["id"], shown, flush=True)
    made = {"commit": commit(), **figures(found), "rows": found}
    print({name: value for name, value in figures(found).items()})
    if not options.only:
        write_result(options.out, made)


if __name__ == "__main__":
    main()
