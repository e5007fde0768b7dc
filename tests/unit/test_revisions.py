"""Two states of a git repository, written side by side and read as nothing but text."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tunecast.door.revisions import INDEX, WORKING, ChangedPath, changed_paths, is_safe, states_of, write_states
from tunecast.errors import NotResolved, UsageError

Repository = Callable[..., str]


@pytest.fixture
def git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    """A repository with `a.yaml` and a file beside it; the current folder is in it."""
    folder = tmp_path / "repository"
    folder.mkdir()
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(folder)

    def run(*words: str) -> str:
        who = ("-c", "user.name=n", "-c", "user.email=n@example.org", "-c", "commit.gpgsign=false")
        return subprocess.run(["git", *who, *words], check=True, capture_output=True, text=True).stdout.strip()

    run("init", "-q", "-b", "main")
    (folder / "configs").mkdir()
    (folder / "configs" / "a.yaml").write_text("rank: 8\n")
    (folder / "ds.json").write_text("{}")
    run("add", "-A")
    run("commit", "-qm", "first")
    return run


def written(asked: str | None, folder: Path, *, staged: bool = False) -> tuple[dict[str, str], dict[str, str]]:
    states = states_of(asked, staged=staged)
    write_states(states, ["configs/a.yaml"], folder / "before", folder / "after")
    return tuple(  # type: ignore[return-value]
        {
            path.relative_to(folder / state).as_posix(): path.read_text()
            for path in (folder / state).rglob("*")
            if path.is_file()
        }
        for state in ("before", "after")
    )


def test_edits_are_compared_with_the_last_commit(git: Repository, tmp_path: Path) -> None:
    Path("configs/a.yaml").write_text("rank: 64\n")
    Path("new.yaml").write_text("rank: 1\n")
    found = changed_paths(states_of(None))
    assert found == [ChangedPath("configs/a.yaml", "configs/a.yaml"), ChangedPath(None, "new.yaml")]
    before, after = written(None, tmp_path)
    assert before == {"configs/a.yaml": "rank: 8\n", "ds.json": "{}"}
    assert after == {"configs/a.yaml": "rank: 64\n", "ds.json": "{}", "new.yaml": "rank: 1\n"}


def test_what_is_staged_is_not_what_lies_there(git: Repository, tmp_path: Path) -> None:
    Path("configs/a.yaml").write_text("rank: 16\n")
    git("add", "-A")
    Path("configs/a.yaml").write_text("rank: 64\n")
    assert states_of(None, staged=True).head == INDEX
    assert written(None, tmp_path, staged=True)[1]["configs/a.yaml"] == "rank: 16\n"
    assert written(None, tmp_path)[1]["configs/a.yaml"] == "rank: 64\n"


def test_a_branch_is_compared_with_where_it_left_its_base(git: Repository, tmp_path: Path) -> None:
    git("checkout", "-qb", "work")
    Path("configs/a.yaml").write_text("rank: 32\n")
    git("commit", "-qam", "work")
    git("checkout", "-q", "main")
    Path("ds.json").write_text('{"other": 1}')
    git("commit", "-qam", "main went on")
    git("checkout", "-q", "work")
    assert states_of("main").head == WORKING
    assert changed_paths(states_of("main")) == changed_paths(states_of("main...work"))
    assert [each.new for each in changed_paths(states_of("main"))] == ["configs/a.yaml"]
    assert [each.new for each in changed_paths(states_of("main..work"))] == ["configs/a.yaml", "ds.json"]


def test_a_renamed_file_is_one_and_a_deleted_one_is_gone(git: Repository) -> None:
    git("mv", "configs/a.yaml", "b.yaml")
    git("rm", "-q", "ds.json")
    assert changed_paths(states_of(None)) == [ChangedPath("configs/a.yaml", "b.yaml"), ChangedPath("ds.json", None)]


def test_paths_are_those_of_the_current_folder(git: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("configs/a.yaml").write_text("rank: 64\n")
    Path("ds.json").write_text("[]")
    monkeypatch.chdir("configs")
    assert [each.new for each in changed_paths(states_of(None), ["a.yaml"])] == ["configs/a.yaml"]
    assert [each.new for each in changed_paths(states_of(None), ["*.yaml"])] == []  # a name, no pattern
    with pytest.raises(UsageError, match="not in the repository"):
        changed_paths(states_of(None), ["../../elsewhere"])


def test_before_the_first_commit_everything_is_new(git: Repository, tmp_path: Path) -> None:
    git("checkout", "-q", "--orphan", "fresh")
    assert {each.old for each in changed_paths(states_of(None, staged=True))} == {None}
    assert written(None, tmp_path, staged=True)[0] == {}


def test_links_and_what_is_large_are_left_out(git: Repository, tmp_path: Path) -> None:
    os.symlink("/etc/hostname", "link.yaml")
    Path("data.json").write_text(" " * (4 * 2**20 + 1))
    git("add", "-A")
    git("commit", "-qm", "second")
    assert set(written("HEAD~1..HEAD", tmp_path)[1]) == {"configs/a.yaml", "ds.json"}
    assert set(written("HEAD", tmp_path)[1]) == {"configs/a.yaml", "ds.json"}


@pytest.mark.parametrize("name", ["../x.yaml", "a/../../x.yaml", "/etc/x.yaml", ".git/config.yaml", ""])
def test_names_that_lead_outside_are_refused(name: str) -> None:
    assert not is_safe(name)


def test_a_tree_whose_names_lead_outside_writes_nothing_there(git: Repository, tmp_path: Path) -> None:
    blob = git("hash-object", "-w", "ds.json")
    made = subprocess.run(
        ["git", "hash-object", "-t", "tree", "-w", "--stdin", "--literally"], capture_output=True, check=True,
        input=b"40000 ..\0" + bytes.fromhex(
            subprocess.run(["git", "mktree"], input=f"100644 blob {blob}\tx.json\n", text=True, capture_output=True,
                           check=True).stdout.strip()
        ),
    ).stdout.decode().strip()  # fmt: skip
    commit = git("commit-tree", made, "-m", "hostile")
    (tmp_path / "deep").mkdir()
    written(f"main..{commit}", tmp_path / "deep")
    assert not list(tmp_path.glob("**/x.json"))


def test_a_repository_cannot_have_git_run_something(git: Repository, tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    trap.write_text(f"#!/bin/sh\ntouch {tmp_path}/sprung\ncat\n")
    trap.chmod(0o755)
    for name in ("core.fsmonitor", "diff.external", "diff.trap.textconv", "diff.trap.command", "core.pager"):
        git("config", name, str(trap))
    Path(".gitattributes").write_text("*.yaml diff=trap\n")
    Path("configs/a.yaml").write_text("rank: 64\n")
    changed_paths(states_of(None))
    written(None, tmp_path)
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize(
    ("asked", "error", "words"),
    [
        ("nothing", NotResolved, "git fetch"),
        ("--upload-pack=x", UsageError, "allowed: a branch, tag or commit"),
        ("x" * 300, UsageError, "allowed: a branch, tag or commit"),
    ],
)
def test_a_revision_that_is_none(git: Repository, asked: str, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        states_of(asked)


def test_outside_of_a_repository(tmp_path: Path) -> None:
    with pytest.raises(NotResolved, match=r"git rev-parse: .*not a git repository"):
        states_of(None, folder=tmp_path)
