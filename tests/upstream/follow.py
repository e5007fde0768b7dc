"""Which upstream functions that we follow another release changes, and which of our files cite them.

    ./dev follow transformers==5.22.2       compare that release with the one that is followed
    ./dev follow                            every package with its newest release, as one table
    ./dev follow --record                   write manifest.jsonl anew from the releases that are followed

manifest.jsonl has a line per upstream file: its package and release, which of our files cite it, and a hash for each
function cited (functions.py). The code itself is not kept. A package is downloaded with pip, unpacked and read; none of
it is imported.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parent))

from citations import ROOT, Upstream, citations, meant, our_own_names, resolved
from functions import changes, functions_of

sys.path.insert(0, str(ROOT / "src"))

from tunecast.job.releases import RELEASES

MANIFEST = Path(__file__).with_name("manifest.jsonl")
MOST_BYTES = 1 << 30
"""Of a package's source; torch has a twentieth of that."""
VERSION = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)(==(?P<release>[A-Za-z0-9.+!_-]+))?$")


class Followed(NamedTuple):
    """One upstream file, as the manifest keeps it."""

    upstream: Upstream
    release: str
    cited_by: tuple[str, ...]
    functions: Mapping[str, str]

    def line(self) -> str:
        fields = {**self.upstream._asdict(), "release": self.release, "cited_by": self.cited_by}
        return json.dumps({**fields, "functions": dict(sorted(self.functions.items()))})


def manifest() -> list[Followed]:
    rows = (json.loads(line) for line in MANIFEST.read_text("utf-8").splitlines())
    return [
        Followed(Upstream(row["package"], row["file"]), row["release"], tuple(row["cited_by"]), row["functions"])
        for row in rows
    ]


# --- upstream --------------------------------------------------------------------------------------------------------


def fetch(package: str, release: str | None, folder: Path) -> tuple[str, Path]:
    """A package's Python source, without what it needs: the release that came, and where it lies."""
    wanted = package if release is None else f"{package}=={release}"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-build-isolation", "--dest"]
    done = subprocess.run([*command, str(folder), wanted], capture_output=True, text=True)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["pip failed"])[-1]
        raise SystemExit(f"./dev follow: {wanted} did not come: {last}")
    archive = max(folder.iterdir(), key=lambda path: path.stat().st_mtime)
    release = archive.name.removesuffix(".tar.gz").split("-")[1]
    unpacked = folder / "unpacked"
    unpacked.mkdir()
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            sources = [each for each in wheel.infolist() if each.filename.endswith(".py")]
            _require_size(sum(each.file_size for each in sources), archive)
            wheel.extractall(unpacked, members=sources)
    else:
        with tarfile.open(archive) as packed:
            members = [each for each in packed.getmembers() if each.isfile() and each.name.endswith(".py")]
            _require_size(sum(each.size for each in members), archive)
            packed.extractall(unpacked, members=members, filter="data")
        unpacked = next(unpacked.iterdir())  # the folder all of it is in
    archive.unlink()
    return release, unpacked


def _require_size(size_bytes: int, archive: Path) -> None:
    if size_bytes > MOST_BYTES:
        raise SystemExit(f"./dev follow: {archive.name} has {size_bytes} bytes of source, more than {MOST_BYTES}")


def source_files(package: str, folder: Path) -> Iterator[tuple[Upstream, Path]]:
    for path in sorted(folder.rglob("*.py")):
        yield Upstream(package, str(path.relative_to(folder))), path


# --- the manifest ----------------------------------------------------------------------------------------------------


def record() -> None:
    """All citations, resolved in the releases that are followed."""
    with tempfile.TemporaryDirectory() as scratch:
        found: dict[Upstream, Path] = {}
        release_of: dict[str, str] = {}
        for package, followed in RELEASES.items():
            folder = Path(scratch) / package
            folder.mkdir()
            release_of[package], unpacked = fetch(package, followed.newest, folder)
            found.update(source_files(package, unpacked))
            print(f"{package} {release_of[package]}", file=sys.stderr)
        wanted = {citation.cited.rsplit("/", 1)[-1] for citation in citations()}
        files = {each: functions_of(path) for each, path in found.items() if path.name in wanted}
        rows = followed_files(files, release_of)
    MANIFEST.write_text("".join(f"{row.line()}\n" for row in rows), "utf-8")
    functions = sum(len(row.functions) for row in rows)
    print(f"{functions} functions of {len(rows)} files in {len({row.upstream.package for row in rows})} packages")


def followed_files(files: Mapping[Upstream, Mapping[str, str]], release_of: Mapping[str, str]) -> list[Followed]:
    ours = our_own_names()
    by_file: dict[Upstream, dict[str, str]] = defaultdict(dict)
    cited_by: dict[Upstream, set[str]] = defaultdict(set)
    for citation in citations():
        upstream = resolved(citation, files, ours)
        if upstream is not None:
            by_file[upstream].update(meant(citation.names, files[upstream]))
            cited_by[upstream].add(citation.ours)
    return [
        Followed(each, release_of[each.package], tuple(sorted(cited_by[each])), by_file[each])
        for each in sorted(by_file)
    ]


# --- another release -------------------------------------------------------------------------------------------------


class Change(NamedTuple):
    followed: Followed
    functions: Mapping[str, str]
    """Those that are changed or gone."""


def compare(package: str, release: str | None) -> tuple[str, list[Change]]:
    rows = [row for row in manifest() if row.upstream.package == package]
    with tempfile.TemporaryDirectory() as scratch:
        came, unpacked = fetch(package, release, Path(scratch))
        found = [Change(row, changes(row.functions, _functions(unpacked / row.upstream.file))) for row in rows]
    return came, [change for change in found if change.functions]


def _functions(path: Path) -> dict[str, str]:
    return functions_of(path) if path.exists() else {}


def show(package: str, release: str | None) -> int:
    rows = [row for row in manifest() if row.upstream.package == package]
    if not rows:
        raise SystemExit(f"./dev follow: nothing of {package} is followed; there are: {', '.join(RELEASES)}")
    came, changed = compare(package, release)
    touched, all_of_them = (sum(len(each.functions) for each in part) for part in (changed, rows))
    print(f"{package} {rows[0].release} -> {came}: {touched} of {all_of_them} followed functions changed or gone")
    for change in changed:
        print(f"\n{change.followed.upstream.file}")
        for name, kind in change.functions.items():
            print(f"  {kind:8} {name}")
        print(f"  cited by {', '.join(change.followed.cited_by)}")
    return 1 if changed else 0


def table() -> int:
    print("| package | followed | newest | functions followed | changed or gone |\n|---|---|---|---|---|")
    counts = Counter({package: 0 for package in RELEASES})
    for row in manifest():
        counts[row.upstream.package] += len(row.functions)
    for package, followed in RELEASES.items():
        came, changed = compare(package, None)
        touched = sum(len(change.functions) for change in changed)
        print(f"| {package} | {followed.newest} | {came} | {counts[package]} | {touched} |", flush=True)
    return 0


def main(arguments: Any = None) -> int:
    assert __doc__
    parser = argparse.ArgumentParser("./dev follow", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("package", nargs="?", help="a package, or package==release; none: all that are followed")
    parser.add_argument("--record", action="store_true", help="write the manifest anew")
    given = parser.parse_args(arguments)
    if given.record:
        record()
        return 0
    if given.package is None:
        return table()
    asked = VERSION.match(given.package)
    if asked is None:
        parser.error(f"got {given.package!r}; wanted: PACKAGE or PACKAGE==RELEASE")
    return show(asked["name"], asked["release"])


if __name__ == "__main__":
    raise SystemExit(main())
