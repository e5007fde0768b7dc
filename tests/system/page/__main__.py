"""Whether the page does what it is for, in a real browser.

Also that its bundle is the one its sources make, and that it says figures as the commands do.

    ./dev system page                    needs Node 20 and Chromium (apt-get install nodejs npm chromium)
    ./dev system page --pictures DIR     also keep pictures: light and dark, desktop and phone
    ./dev system page --out FILE         also write the result, dated (committed: results/page.json)
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Any

from committed import commit

ROOT = Path(__file__).parents[3]
WEB = ROOT / "web"
STATIC = ROOT / "src" / "tunecast" / "web" / "static"
HERE = Path(__file__).parent
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
VALUES = 400
"""Drawn for each kind of figure."""


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="./dev system page", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--pictures", type=Path)
    arguments = parser.parse_args(argv)
    browser = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if browser is None or shutil.which("npm") is None:
        print("Node and Chromium are needed. To fix: apt-get install nodejs npm chromium", file=sys.stderr)
        return 5
    if not (WEB / "node_modules").exists():
        subprocess.run(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"], cwd=WEB, check=True)
    failures = [*rebuilt(), *spoken()]
    load = os.getloadavg()[0] / (os.cpu_count() or 1)
    with server() as url:
        walked = journeys(url, browser, arguments.pictures)
    failures += walked["failures"]
    result = {
        "date": date.today().isoformat(),
        "commit": commit(),
        "inputs": {
            "journeys": len(walked["passed"]) + len(walked["failures"]),
            "figures": VALUES * len(KINDS),
            "browser": subprocess.run([browser, "--version"], capture_output=True, text=True).stdout.strip(),
            "sources": hashlib.sha256((STATIC / "sources.sha256").read_bytes()).hexdigest(),
        },
        "passed": walked["passed"],
        "measured": {
            **walked["measured"],
            "look_cpu_ms": look_cpu_ms(every_card=False),
            "look_with_cards_cpu_ms": look_cpu_ms(every_card=True),
            "load_per_core": round(load, 1),
        },
        "failures": failures,
    }
    print(json.dumps(result, indent=1, ensure_ascii=False))
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", "utf-8")
    return 1 if failures else 0


def rebuilt() -> list[str]:
    """Files of the committed bundle that a build of its sources makes otherwise."""
    with tempfile.TemporaryDirectory() as folder:
        words = ["npx", "vite", "build", "--outDir", folder, "--emptyOutDir", "--logLevel", "warn"]
        subprocess.run(words, cwd=WEB, check=True)
        made = {path.name: path.read_bytes() for path in Path(folder).iterdir()}
    there = {path.name: path.read_bytes() for path in STATIC.iterdir() if path.is_file()}
    wrong = sorted(name for name in made.keys() | there.keys() if made.get(name) != there.get(name))
    return [f"static/{name} is not what web/ makes. To fix: cd web && npm run build" for name in wrong]


KINDS = ("gib", "duration", "span", "usd", "between", "cardName", "timeWords")


def spoken() -> list[str]:
    """Figures that the page says otherwise than the commands do."""
    from tunecast.hardware.catalog import gpus
    from tunecast.hardware.spec import card_name
    from tunecast.planning.choice import DOLLARS
    from tunecast.report.lists.fit import time_words
    from tunecast.report.plan.words import amount
    from tunecast.report.run.time import duration, span
    from tunecast.report.run.verdict import between
    from tunecast.units import gib

    drawn = random.Random(15)
    asked: list[tuple[str, list[Any], str]] = [("cardName", [name], card_name(name)) for name in gpus()]
    for _ in range(VALUES):
        nbytes = int(2 ** drawn.uniform(0, 42))
        low, high = int(nbytes * drawn.uniform(0.9, 1)), int(nbytes * drawn.uniform(1, 1.1))
        seconds = 10 ** drawn.uniform(-4, 7)
        longer = seconds * drawn.uniform(1, 1.5)
        dollars = 10 ** drawn.uniform(-3, 6)
        more = drawn.uniform(-0.9, 3)
        asked += [
            ("gib", [nbytes], gib(nbytes)),
            ("between", [low, high, nbytes], between(low, high, nbytes)),
            ("duration", [seconds], duration(seconds)),
            ("span", [seconds, longer], span(seconds, longer)),
            ("usd", [dollars], amount(dollars, DOLLARS)),
            ("timeWords", [more], time_words(more)),
        ]
    program = """
import { readFileSync } from 'node:fs'
const format = await import(process.argv[1])
const asked = JSON.parse(readFileSync(0, 'utf8'))
console.log(JSON.stringify(asked.map(([name, given]) => format[name](...given))))
"""
    with tempfile.TemporaryDirectory() as folder:
        built = Path(folder) / "format.mjs"
        subprocess.run(
            ["npx", "esbuild", "src/lib/format.ts", f"--outfile={built}", "--log-level=warning"], cwd=WEB, check=True
        )
        words = ["node", "--input-type=module", "-e", program, str(built)]
        said = subprocess.run(words, input=json.dumps(asked), capture_output=True, text=True, check=True).stdout
    wrong = [
        f"{name}({', '.join(map(str, given))}): the page says {page!r}, the command {command!r}"
        for (name, given, command), page in zip(asked, json.loads(said), strict=True)
        if page != command
    ]
    return wrong[:20]


def look_cpu_ms(*, every_card: bool) -> float:
    """CPU time of what a slider's move asks first, or of all it asks, the median of many: what it takes where nothing
    else runs."""
    from tunecast.job.mapping import job_from_dict
    from tunecast.web.asking.look import look

    times = []
    for micro_batch in range(1, 33):
        job = {"model": "qwen2.5-7b", "method": "lora", "micro_batch": micro_batch, "hardware": {"gpu": "rtx-4090"}}
        began_s = time.process_time()
        look(job_from_dict(job), every_card=every_card)
        times.append(1000 * (time.process_time() - began_s))
    return round(statistics.median(times), 1)


@contextmanager
def server() -> Iterator[str]:
    words = [sys.executable, "-m", "tunecast", "serve", "--port", "0", "--no-browser"]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            url = process.stdout.readline().strip()
            if not url:
                raise SystemExit("tunecast serve does not start")
            yield url
        finally:
            process.terminate()


def journeys(url: str, browser: str, pictures: Path | None) -> dict[str, Any]:
    if pictures is not None:
        pictures.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        for file in (
            *(HERE / "files").iterdir(),
            ROOT / "examples" / "axolotl-qlora.yml",
            ROOT / "examples" / "chats.jsonl",
        ):
            shutil.copy(file, folder)
        words = ["node", str(HERE / "journeys.mjs"), url, browser, str(pictures.resolve()) if pictures else "", folder]
        said = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True).stdout
    answer: dict[str, Any] = json.loads(said.splitlines()[-1])
    return answer


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
