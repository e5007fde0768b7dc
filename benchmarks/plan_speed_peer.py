"""Runs in llm-analysis' environment: {"job", "model", "gpu"} a line in, seconds of each call a line out.

A call is what `time_peers.analysis_says` does: its analysis made for one configuration, and its training time asked
for. The first line is asked once beforehand, so that importing the package is in nobody's time.
"""

from __future__ import annotations

import json
import sys
import time

from time_peers import Row, analysis_says


def timed(given: Row) -> Row:
    start, cpu_start = time.perf_counter(), time.process_time()
    try:
        analysis_says(given["job"], given["model"], given["gpu"])
    except (ValueError, KeyError, AssertionError, ZeroDivisionError) as error:
        return {"refused": str(error)[:200] or type(error).__name__}
    return {"wall_s": time.perf_counter() - start, "cpu_s": time.process_time() - cpu_start}


if __name__ == "__main__":
    lines = [json.loads(line) for line in sys.stdin]
    timed(lines[0])
    for line in lines:
        print(json.dumps(timed(line)))
