"""The manifest of upstream functions is that of what our source cites, and changes of code are told from changes of
comments."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from citations import ROOT, Citation, Upstream, citations, meant, resolved
from follow import MANIFEST, followed_files, manifest
from functions import changes, functions_of

from tunecast.job.releases import RELEASES
from tunecast.job.stacks import STACKS

FUNCTION = """
def rotate(x: int) -> int:
    {comment}
    return x {sign} 1
"""


def test_only_what_a_function_does_counts(tmp_path: Path) -> None:
    kinds = {"docs": ('"""Docs."""', "+"), "note": ("# a note", "+"), "other": ("", "-")}
    found = {}
    for name, (comment, sign) in kinds.items():
        path = tmp_path / f"{name}.py"
        path.write_text(FUNCTION.format(comment=comment, sign=sign).replace("    \n", ""))
        found[name] = functions_of(path)
    assert changes(found["docs"], found["note"]) == {}
    assert changes(found["docs"], found["other"]) == {"rotate": "changed"}
    assert changes(found["docs"], {}) == {"rotate": "gone"}


def test_methods_and_classes_are_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "some.py"
    path.write_text("class A(B):\n    width = 1\n    def forward(self):\n        return 2\n")
    assert sorted(functions_of(path)) == ["A", "A.forward"]


def test_a_file_that_does_not_parse_has_no_functions(tmp_path: Path) -> None:
    path = tmp_path / "some.py"
    path.write_text("print 'a'")
    assert functions_of(path) == {}


FILES = {
    Upstream("peft", "peft/tuners/lora/layer.py"): {"Linear": "1", "Linear.forward": "2", "Embedding.forward": "3"},
    Upstream("torch", "torch/nn/modules/linear.py"): {"Linear.forward": "4"},
    Upstream("torch", "torch/utils/data.py"): {"collate": "5"},
    Upstream("trl", "trl/utils/data.py"): {"collate": "6"},
}


@pytest.mark.parametrize(
    ("cited", "names", "before", "package"),
    [
        ("layer.py", (), "", "peft"),
        ("modules/linear.py", (), "", "torch"),
        ("utils/data.py", (), "torch does this, trl that (", "trl"),
        ("utils/data.py", (), "", None),
        ("layer.py", ("Linear.forward",), "", "peft"),
        ("own.py", (), "", None),
    ],
)
def test_a_citation_is_of_one_package_or_of_none(cited: str, names: tuple[str, ...], before: str, package: str) -> None:
    found = resolved(Citation("src/a.py", cited, names, before), FILES, {"own.py"})
    assert (found and found.package) == package


def test_a_class_cited_means_its_methods() -> None:
    functions = FILES[Upstream("peft", "peft/tuners/lora/layer.py")]
    assert sorted(meant(("Linear",), functions)) == ["Linear", "Linear.forward"]
    assert sorted(meant(("Linear.forward",), functions)) == ["Linear.forward"]
    assert meant((), functions) == functions


def test_the_manifest_is_of_the_releases_that_are_followed() -> None:
    releases = {row.upstream.package: row.release.split("+")[0] for row in manifest()}
    assert releases == {package: followed.newest for package, followed in RELEASES.items()}


def test_the_manifest_names_files_that_cite() -> None:
    """Made anew where a citation came, went or moved: ./dev follow --record."""
    cited = {(citation.ours, citation.cited.rsplit("/", 1)[-1]) for citation in citations()}
    gone = [
        (ours, row.upstream.file)
        for row in manifest()
        for ours in row.cited_by
        if (ours, Path(row.upstream.file).name) not in cited
    ]
    assert not gone, "./dev follow --record"


def test_every_family_cites_what_it_follows() -> None:
    families = {path.name for path in (ROOT / "src/tunecast/tape/build/families").glob("[a-z]*.py")}
    ours = {Path(name).name for row in manifest() for name in row.cited_by if "/families/" in name}
    assert families - ours <= {"named.py", "unknown.py"}


def test_no_code_is_kept() -> None:
    assert MANIFEST.stat().st_size < 1 << 20
    assert all(len(code) == 12 for row in manifest() for code in row.functions.values())


def test_rows_are_one_per_file() -> None:
    rows = manifest()
    assert len({row.upstream for row in rows}) == len(rows)
    assert followed_files({}, {}) == []


def test_stacks_follow_what_the_table_says() -> None:
    """But for those that are of a day long past."""
    for stack in STACKS.values():
        newest = {package: release for package, release in stack.follows.items() if package in RELEASES}
        if stack.name not in ("fsdp_qlora", "llm-foundry"):
            assert not [name for name, release in newest.items() if release not in RELEASES[name].compared], stack.name
