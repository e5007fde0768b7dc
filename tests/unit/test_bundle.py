"""The page's bundle is committed: a fresh machine has no Node. It is the one its sources make, small, and whole.

That a build gives the same bytes is asked where Node and its packages are there, and by `./dev system page`.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WEB = ROOT / "web"
STATIC = ROOT / "src" / "tunecast" / "web" / "static"
MOST_GZIP_BYTES = 300_000


def test_it_is_made_of_the_sources_that_are_there() -> None:
    recorded = dict(reversed(line.split("  ", 1)) for line in (STATIC / "sources.sha256").read_text().splitlines())
    single = ("index.html", "package.json", "package-lock.json", "svelte.config.js", "tsconfig.json", "vite.config.ts")
    below = [path for name in ("public", "src") for path in (WEB / name).rglob("*") if path.is_file()]
    there = {path.relative_to(WEB).as_posix(): path for path in [*(WEB / name for name in single), *below]}
    found = {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in there.items()}
    assert found == recorded, "To fix: cd web && npm ci && npm run build"


def test_it_is_small() -> None:
    packed = {path.name: len(gzip.compress(path.read_bytes(), 9, mtime=0)) for path in STATIC.iterdir()}
    assert sum(packed.values()) < MOST_GZIP_BYTES, packed


def test_the_page_names_only_its_own_files() -> None:
    page = (STATIC / "index.html").read_text("utf-8")
    named = re.findall(r'(?:src|href)="([^"]+)"', page)
    assert named and all((STATIC / name.removeprefix("./")).is_file() for name in named)
    style = (STATIC / "page.css").read_text("utf-8")
    assert "@import" not in style and not re.findall(r"url\((?!data:)", style)


def test_no_package_is_recorded_with_the_place_it_was_fetched_from() -> None:
    packages = json.loads((WEB / "package-lock.json").read_text("utf-8"))["packages"]
    assert packages and not [name for name, each in packages.items() if "resolved" in each]
    assert all("integrity" in each for name, each in packages.items() if name)


def test_packages_of_every_platform_are_recorded() -> None:
    """`npm ci` of npm 11 refuses a lock without them, and other platforms could not build at all."""
    packages = json.loads((WEB / "package-lock.json").read_text("utf-8"))["packages"]
    named = {f"node_modules/{name}" for each in packages.values() for name in each.get("optionalDependencies", {})}
    assert named and named <= packages.keys()


@pytest.mark.whole
@pytest.mark.skipif(
    shutil.which("npx") is None or not (WEB / "node_modules").exists(), reason="needs Node, and npm ci in web/"
)
def test_a_build_gives_the_same_bytes(tmp_path: Path) -> None:
    words = ["npx", "vite", "build", "--outDir", str(tmp_path), "--emptyOutDir", "--logLevel", "warn"]
    subprocess.run(words, cwd=WEB, check=True)
    made = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert made == {path.name: path.read_bytes() for path in STATIC.iterdir()}
