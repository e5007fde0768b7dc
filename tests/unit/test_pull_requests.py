"""The pre-commit hook, the GitHub Action and the extension of `hf`: their files say what they should, and the Action's
scripts run as GitHub would run them, with a stand-in for `gh` that writes down what it is asked."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tunecast.cli import diff

pytestmark = pytest.mark.whole

ROOT = Path(__file__).parents[2]
PINNED = re.compile(r"[\w.-]+/[\w.-]+@[0-9a-f]{40}")
GH = """\
#!{python}
import json, os, sys
words = sys.argv[1:]
body = [word[6:] for word in words if word.startswith("body=@")]
with open(os.environ["GH_LOG"], "a") as log:
    log.write(json.dumps([words, open(body[0]).read() if body else None]) + "\\n")
if os.environ.get("GH_MAY_NOT"):
    sys.exit("gh: Resource not accessible by integration (HTTP 403)")
if "--paginate" in words:
    print(os.environ.get("GH_COMMENT", ""))
"""


def parsed(name: str) -> Any:
    return import_module("yaml").safe_load((ROOT / name).read_text("utf-8"))


def steps() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = parsed("action.yml")["runs"]["steps"]
    return found


def test_the_hook_finds_what_changed_by_itself() -> None:
    (hook,) = parsed(".pre-commit-hooks.yaml")
    words = hook["entry"].split()
    assert words[:2] == ["tunecast", "diff"] and hook["pass_filenames"] is False
    arguments = diff.parser().read([*words[2:], "--gpu", "rtx-4090"])
    assert (arguments.staged, arguments.quick, arguments.fail_on) == (True, True, "does-not-fit")
    assert all(re.search(hook["files"], name) for name in ("a.yml", "b/c.yaml", "ds.json", "train.py", "run.sbatch"))
    assert not re.search(hook["files"], "README.md")


def test_inputs_reach_scripts_by_the_environment_alone() -> None:
    for step in steps():
        assert "${{" not in step.get("run", ""), step["name"]
        assert "uses" in step or step["shell"] == "bash"


def test_other_actions_are_pinned() -> None:
    used = [step["uses"] for step in steps() if "uses" in step]
    assert used and all(PINNED.fullmatch(use) for use in used)


def test_every_input_is_used_and_every_variable_is_read() -> None:
    text = (ROOT / "action.yml").read_text("utf-8")
    for name in parsed("action.yml")["inputs"]:
        assert f"inputs.{name}" in text, name
    for step in steps():
        script = re.search(r"integrations/action/\w+\.sh", step.get("run", ""))
        read = (ROOT / script[0]).read_text("utf-8") if script else step.get("run", "")
        for name in step.get("env", {}):
            assert name in read or name in ("GH_TOKEN",) or name in step["run"], name
    failures = re.search(r"fail-on:\n    description: \"(.*)\"", text)
    assert failures is not None
    assert set(re.findall(r"[a-z-]+", failures[1].partition("(")[0])) - {"or"} == {diff.NEVER, *diff.FAILURES, diff.ANY}


class Runner:
    """A runner's files around the scripts of the Action's steps."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.repository, tools = folder, folder / "repository", folder / "tools"
        for each in (self.repository, tools):
            each.mkdir()
        for name, text in {
            "gh": GH.format(python=sys.executable),
            "tunecast": f'#!/bin/sh\nexec {sys.executable} -m tunecast "$@"\n',
        }.items():
            (tools / name).write_text(text)
            (tools / name).chmod(0o755)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("GIT_", "GITHUB_", "GH_"))}
        self.environment = {
            **kept, "PATH": f"{tools}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT / "src"), "HOME": str(folder),
            "RUNNER_TEMP": str(folder), "GITHUB_OUTPUT": str(folder / "output"), "GH_LOG": str(folder / "gh.log"),
            "GITHUB_STEP_SUMMARY": str(folder / "summary"), "GITHUB_REPOSITORY": "owner/name",
            "TUNECAST_ACTION": str(ROOT), "TUNECAST_COMMAND": str(tools / "tunecast"),
        }  # fmt: skip

    def git(self, *words: str) -> str:
        who = ("-c", "user.name=n", "-c", "user.email=n@example.org", "-c", "commit.gpgsign=false")
        return subprocess.run(
            ["git", *who, *words], cwd=self.repository, check=True, capture_output=True, text=True
        ).stdout.strip()

    def commit(self, **files: str) -> str:
        for name, text in files.items():
            (self.repository / name).write_text(text)
        self.git("add", "-A")
        self.git("commit", "-qm", "next")
        return self.git("rev-parse", "HEAD")

    def step(self, name: str, **environment: str) -> subprocess.CompletedProcess[str]:
        (step,) = (step for step in steps() if step.get("name") == name)
        return subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]], cwd=self.repository,
            env={**self.environment, **environment}, capture_output=True, text=True,
        )  # fmt: skip

    def outputs(self) -> dict[str, str]:
        return dict(line.split("=", 1) for line in (self.folder / "output").read_text().splitlines())

    def asked(self) -> list[Any]:
        log = self.folder / "gh.log"
        return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


COMPARE, COMMENT, FAIL = "Compare training files", "Comment on the pull request", "Fail where asked"
FILE = "model: pythia-70m\nmethod: lora\nseq_len: {}\n"


@pytest.fixture
def runner(tmp_path: Path) -> Runner:
    made = Runner(tmp_path)
    made.git("init", "-q", "-b", "main")
    return made


def test_a_pull_request_is_compared_commented_on_and_fails(runner: Runner) -> None:
    base = runner.commit(**{"job.yaml": FILE.format(512)})
    runner.git("checkout", "-qb", "work")
    runner.commit(**{"job.yaml": FILE.format(2048) + "micro_batch: 512\n"})
    told = runner.step(COMPARE, TUNECAST_BASE=base, TUNECAST_GPU="rtx-4090", TUNECAST_FAIL_ON="does-not-fit")
    assert (told.returncode, runner.outputs()["code"]) == (0, "3"), told.stderr
    assert "job.yaml: does not fit" in told.stdout
    summary = (runner.folder / "summary").read_text()
    assert summary.startswith("**1 training file changed") and "| `job.yaml`<br>" in summary

    markdown = runner.outputs()["markdown"]
    told = runner.step(COMMENT, TUNECAST_MARKDOWN=markdown, TUNECAST_PULL="7")
    assert told.returncode == 0, told.stderr
    (look, _), (post, body) = runner.asked()
    assert look[:2] == ["api", "--paginate"] and look[2].startswith("repos/owner/name/issues/7/comments?")
    assert post[:5] == ["api", "--silent", "--method", "POST", "repos/owner/name/issues/7/comments"]
    assert body == f"<!-- tunecast: training files -->\n{summary}"
    assert runner.step(FAIL, TUNECAST_CODE=runner.outputs()["code"]).returncode == 3


def commented(runner: Runner, text: str, **environment: str) -> tuple[int, str, list[Any]]:
    markdown = runner.folder / "diff.md"
    markdown.write_text(text)
    told = runner.step(COMMENT, TUNECAST_MARKDOWN=str(markdown), **{"TUNECAST_PULL": "7", **environment})
    return told.returncode, told.stdout, runner.asked()


def test_the_next_push_updates_the_same_comment(runner: Runner) -> None:
    _, _, asked = commented(runner, "**1 training file changed**\n", GH_COMMENT="41\n42")
    assert asked[1][0][:5] == ["api", "--silent", "--method", "PATCH", "repos/owner/name/issues/comments/41"]


def test_without_training_files_nobody_is_bothered(runner: Runner) -> None:
    text = "**No training file changed from a to b**\n"
    assert len(commented(runner, text)[2]) == 1
    # but one that is there already is no longer true
    assert commented(runner, text, GH_COMMENT="41")[2][-1][0][3] == "PATCH"


def test_a_fork_falls_back_to_the_summary(runner: Runner) -> None:
    code, out, asked = commented(runner, "**1 training file changed**\n", GH_MAY_NOT="1")
    assert (code, len(asked)) == (0, 1)
    assert out.startswith("::notice title=tunecast::no comment was written") and "summary of this run" in out


@pytest.mark.parametrize("pull", ["7/../../x", "$(touch ran)", ""])
def test_what_is_no_pull_request_is_not_asked_for(runner: Runner, pull: str) -> None:
    code, _, asked = commented(runner, "**1 training file changed**\n", TUNECAST_PULL=pull)
    assert (code, asked) == (2, [])


def test_hostile_inputs_run_nothing(runner: Runner) -> None:
    runner.commit(**{"a.txt": "a"})
    runner.commit(**{"job.yaml": FILE.format(512)})
    for base, gpu in (("$(touch ran)", "rtx-4090"), ("--upload-pack=touch ran", "$(touch ran)`touch ran`; touch ran")):
        told = runner.step(COMPARE, TUNECAST_BASE=base, TUNECAST_GPU=gpu, TUNECAST_GPUS="--plan")
        assert (told.returncode == 0 and runner.outputs()["code"] == "2") or "no commit of that name" in told.stderr
    assert not list(runner.folder.rglob("ran"))


def test_a_checkout_of_one_commit_fetches_its_base(runner: Runner, tmp_path: Path) -> None:
    """What `actions/checkout` leaves by itself."""
    base = runner.commit(**{"job.yaml": FILE.format(256)})
    runner.commit(**{"job.yaml": FILE.format(512)})
    runner.git("config", "uploadpack.allowAnySHA1InWant", "true")
    shallow = tmp_path / "shallow"
    subprocess.run(["git", "clone", "-q", "--depth=1", f"file://{runner.repository}", str(shallow)], check=True)
    runner.repository = shallow
    told = runner.step(COMPARE, TUNECAST_BASE=base, TUNECAST_GPU="rtx-4090")
    assert (told.returncode, runner.outputs()["code"]) == (0, "0"), told.stderr
    assert "seq_len (line 3): 256 → 512" in told.stdout


def test_hf_passes_its_words_on(tmp_path: Path) -> None:
    extension = ROOT / "integrations" / "hf-tunecast" / "hf-tunecast"
    assert extension.stat().st_mode & stat.S_IXUSR
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "tunecast").write_text('#!/bin/sh\nprintf "%s|" "$@"\nexit 3\n')
    (tools / "tunecast").chmod(0o755)
    told = subprocess.run([extension, "predict", "a b.yaml", "--gpu=l4"], env={"PATH": f"{tools}:/usr/bin:/bin"},
                          capture_output=True, text=True)  # fmt: skip
    assert (told.returncode, told.stdout) == (3, "predict|a b.yaml|--gpu=l4|")
    nothing = subprocess.run(
        ["/bin/sh", extension, "--version"], env={"PATH": str(tmp_path)}, capture_output=True, text=True
    )
    assert nothing.returncode == 127 and "To fix: pip install" in nothing.stderr
