"""Whether the store of runs loses what it acknowledged, or shows what was half-written.

    ./dev system losses [--kills 500] [--at-once 32] [--seed N]      needs root, and Debian's postgresql
    ./dev system losses --out FILE                  also write the result, dated (committed: results/losses.json)

On SQLite and on a PostgreSQL of its own, writers that add runs are killed by SIGKILL at random moments, and others take
their place; all the while some of what is stored is read, at the end all of it, and compared with what was written.
Then: a disk that is full (a small file system), a server that crashes and comes back, and a server whose disk is full.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from datetime import date
from pathlib import Path

from committed import commit

from losses.scenes import Found, full_disk, full_server, killed, lost_server
from losses.server import Server, why_not

FULL, CRASHES = 20, 10


def measure(kills: int, at_once: int, seed: int) -> dict[str, object]:
    scenes: dict[str, Found] = {}

    def play(name: str, scene: Callable[[], Found]) -> None:
        scenes[name] = scene()
        print(name, json.dumps(scenes[name])[:400], flush=True)

    with tempfile.TemporaryDirectory() as folder:
        place = {"TUNECAST_STORE": f"{folder}/runs.db", "XDG_DATA_HOME": folder}
        play("sqlite, killed", lambda: killed(place, Path(folder), kills, at_once, seed))
    play("sqlite, disk full", lambda: full_disk(FULL))
    server = Server().start()
    try:
        with tempfile.TemporaryDirectory() as folder:
            place = {"TUNECAST_STORE": server.url, "XDG_DATA_HOME": folder}
            play("postgresql, killed", lambda: killed(place, Path(folder), kills, at_once, seed))
    finally:
        server.remove()
    server = Server().start()
    try:
        with tempfile.TemporaryDirectory() as folder:
            play("postgresql, lost", lambda: lost_server(server, Path(folder), CRASHES, 8, seed))
    finally:
        server.remove()
    play("postgresql, disk full", lambda: full_server(3))
    told = [f"{name}: {each}" for name, found in scenes.items() for each in found.pop("failures")]
    return {
        "date": date.today().isoformat(),
        "commit": commit(),
        "inputs": {"kills": kills, "at_once": at_once, "seed": seed},
        "scenes": scenes,
        "failures": told[:50],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--at-once", type=int, default=32)
    parser.add_argument("--seed", type=int, default=20)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    if reason := why_not():
        raise SystemExit(reason)
    result = measure(arguments.kills, arguments.at_once, arguments.seed)
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(result, indent=1) + "\n")
    if result["failures"]:
        raise SystemExit("\n".join(map(str, result["failures"])))


if __name__ == "__main__":
    main()
