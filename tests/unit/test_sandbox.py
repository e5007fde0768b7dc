"""Where a traced script's files are, and which programs it may start: no torch, and nothing of this process changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tunecast.tape.trace.overlay import Overlay, _remove, _rmdir, real_path
from tunecast.tape.trace.programs import named_programs, only_reads, program_path
from tunecast.tape.trace.request import Answer
from tunecast.tape.trace.secrets import without_secrets, without_values


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    (tmp_path / "disk/folder").mkdir(parents=True)
    (tmp_path / "disk/a.txt").write_text("a")
    return tmp_path / "disk"


@pytest.fixture
def overlay(tmp_path: Path) -> Overlay:
    return Overlay(tmp_path / "run")


def test_a_new_file_has_its_twin_in_the_folder(disk: Path, overlay: Overlay) -> None:
    place = overlay.to_write(f"{disk}/new.txt", keep=False)
    assert place == f"{overlay.root}{disk}/new.txt"
    Path(place).write_text("new")
    assert overlay.to_read(f"{disk}/new.txt") == place
    assert sorted(overlay.names_in(str(disk))) == ["a.txt", "folder", "new.txt"]
    assert not (disk / "new.txt").exists()


def test_a_changed_file_is_copied_first_and_a_replaced_one_is_not(disk: Path, overlay: Overlay) -> None:
    assert Path(overlay.to_write(f"{disk}/a.txt", keep=True)).read_text() == "a"
    assert not Path(overlay.to_write(f"{disk}/b.txt", keep=True)).exists()


def test_untouched_files_are_read_where_they_are(disk: Path, overlay: Overlay) -> None:
    assert overlay.to_read(f"{disk}/a.txt") == f"{disk}/a.txt"


def test_paths_that_stay_nowhere_are_left_alone(overlay: Overlay) -> None:
    for path in ("/dev/null", f"{overlay.home}/temporary", "/proc/self/status"):
        assert overlay.to_write(path, keep=False) == path
    assert not overlay.is_free("/device")


def test_a_deleted_file_is_gone_for_the_script_alone(disk: Path, overlay: Overlay) -> None:
    overlay.delete(f"{disk}/a.txt", _remove)
    assert not overlay.exists(f"{disk}/a.txt") and overlay.names_in(str(disk)) == ["folder"]
    assert (disk / "a.txt").read_text() == "a"
    with pytest.raises(FileNotFoundError):
        overlay.delete(f"{disk}/a.txt", _remove)
    Path(overlay.to_write(f"{disk}/a.txt", keep=True)).write_text("anew")
    assert overlay.exists(f"{disk}/a.txt")


def test_a_folder_is_deleted_only_when_empty(disk: Path, overlay: Overlay) -> None:
    with pytest.raises(OSError, match="not empty"):
        overlay.delete(str(disk), _rmdir)
    overlay.delete(f"{disk}/folder", _rmdir)
    assert (disk / "folder").is_dir() and not overlay.exists(f"{disk}/folder")


def test_a_moved_file_leaves_the_disk_as_it_is(disk: Path, overlay: Overlay) -> None:
    overlay.move(f"{disk}/a.txt", f"{disk}/folder/b.txt")
    assert Path(overlay.to_read(f"{disk}/folder/b.txt")).read_text() == "a"
    assert not overlay.exists(f"{disk}/a.txt") and (disk / "a.txt").exists() and not (disk / "folder/b.txt").exists()


def test_folders_are_made_once_and_under_existing_ones(disk: Path, overlay: Overlay) -> None:
    overlay.make_folder(f"{disk}/out", 0o777)
    with pytest.raises(FileExistsError):
        overlay.make_folder(f"{disk}/out", 0o777)
    with pytest.raises(FileNotFoundError):
        overlay.make_folder(f"{disk}/no/such", 0o777)


@pytest.mark.parametrize(
    ("command", "allowed"),
    [
        ("git rev-parse HEAD", True), ("git -C /somewhere status --short", True), ("git config --get user.name", True),
        ("/usr/bin/nvidia-smi -L", True), ("git branch --show-current", True),
        ("hostname -f", True), ("ldconfig -p", True), ("hostname", True), ("nvcc --version", True),
        ("hostname new", False), ("ldconfig", False), ("nvcc -o x y.cu", False), ("git diff --output=x", False),
        ("git -c core.fsmonitor=x status", False), ("git log --ext-diff", False),
        ("git branch new", False), ("git commit -m x", False), ("git config user.name x", False),
        ("git", False), ("rm -r /", False), ("", False),
    ],
)  # fmt: skip
def test_only_programs_that_read_are_started(command: str, allowed: bool) -> None:
    assert only_reads(command.split()) is allowed


def test_a_program_is_known_by_its_real_path(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (disk / "sh").write_text("")
    (disk / "sh").chmod(0o755)
    assert program_path("sh") == named_programs()["sh"]
    monkeypatch.setenv("PATH", f"{disk}:/usr/bin:/bin")
    assert program_path("sh") == str(disk / "sh") != named_programs()["sh"]
    assert program_path("sh", environment={"PATH": "/bin"}) == named_programs()["sh"]
    assert program_path("./sh", str(disk)) == str(disk / "sh")


def test_a_link_is_followed_to_where_it_leads(disk: Path, overlay: Overlay) -> None:
    (disk / "a").symlink_to("b")
    (disk / "b").symlink_to(disk / "folder" / ".." / "a.txt")
    (disk / "round").symlink_to("round")
    assert real_path(f"{disk}/a") == f"{disk}/a.txt"
    assert real_path(f"{disk}/no/such") == f"{disk}/no/such"
    assert real_path(f"{disk}/round") == f"{disk}/round"
    assert real_path("/") == "/"
    assert not overlay.is_inside(real_path(f"{disk}/a")) and overlay.is_inside(overlay.root)


def test_secrets_are_hidden_in_words_and_texts() -> None:
    assert without_secrets(["curl", "HF_TOKEN=hf_abc", "--wandb-key", "x"]) == [
        "curl",
        "HF_TOKEN=***",
        "--wandb-key",
        "***",
    ]
    environment = {"HF_TOKEN": "hf_abcdefgh", "WANDB_API_KEY": "0123456789", "HOME": "/home/somebody", "MY_TOKEN": "no"}
    assert without_values("401 for hf_abcdefgh, 0123456789 of /home/somebody: no", environment) == (
        "401 for ***, *** of /home/somebody: no"
    )


def test_an_answer_tells_no_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_0123456789")
    path = tmp_path / "answer.json"
    Answer(error="401 for hf_0123456789", detail="hf_0123456789", untraced=("curl hf_0123456789",)).write(path)
    assert "0123456789" not in path.read_text()
    assert Answer.read(path) == Answer(error="401 for ***", detail="***", untraced=("curl ***",))
