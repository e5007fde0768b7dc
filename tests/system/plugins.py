"""Whether programs that call tunecast find and run it: pre-commit, `hf` and SkyPilot's `sky`, each as it is published.

./dev system plugins                  each in an environment of its own; a few minutes, most of it pip's
./dev system plugins --out FILE       also write the result, dated (committed: results/plugins.json)

pre-commit  the hook of a clone of this repository, installed by pre-commit, in a repository made here: a training
            file that fits is committed, one that does not stops its commit, and so it is between two revisions
hf          `hf extensions install`, with this repository's files in the place of GitHub's answers; then the
            untouched `hf tunecast`: its words, its exit codes
sky         has no commands but its own: what it loads of other packages is a module for Python (`sky.client_sdks`)
            and what its server runs
schemas     action.yml, the hook's manifest and the workflow of docs/editor.md against the published ones
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from datetime import date
from pathlib import Path

from committed import commit

ROOT = Path(__file__).parents[2]
VENVS = Path(os.environ["TUNECAST_VENVS"])
FITS = "model: pythia-70m\nmethod: lora\nseq_len: 512\n"
CONFIG = """\
repos:
  - repo: {}
    rev: {}
    hooks:
      - id: tunecast
        args: [--gpu, rtx-4090]
"""
INSTALL = """\
import sys
from pathlib import Path
import httpx2
from huggingface_hub.cli import extensions, hf
files, owner = Path(sys.argv.pop(1)), "tunecast-authors/hf-tunecast"

def answer(method, url, **_):
    request = httpx2.Request(method, url)
    name = files / url.rpartition("/HEAD/")[2]
    if url == f"https://github.com/{owner}":
        return httpx2.Response(200, request=request)
    if url.startswith(f"https://raw.githubusercontent.com/{owner}/HEAD/") and name.is_file():
        return httpx2.Response(200, request=request, content=name.read_bytes())
    httpx2.Response(404, request=request).raise_for_status()

extensions._github_request = answer
hf.main()
"""
SKY = """\
import importlib.metadata, pathlib, re, sky
from sky.client.cli import command
source = pathlib.Path(sky.__file__).parent
print(sorted({found for path in (source / "client").rglob("*.py")
              for found in re.findall("entry_points|plugin", path.read_text())}))
print(sky._CLIENT_SDK_ENTRY_POINT_GROUP)
print("tunecast" in command.cli.commands, type(command.cli).get_command.__module__)
"""


class Tried:
    def __init__(self, folder: Path) -> None:
        self.folder, self.failures, self.passed = folder, list[str](), list[str]()
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("GIT_", "PRE_COMMIT"))}
        self.environment = {
            **kept, "HOME": str(folder), "PRE_COMMIT_HOME": str(folder / "pre-commit"), "NO_COLOR": "1",
            "GIT_AUTHOR_NAME": "n", "GIT_AUTHOR_EMAIL": "n@example.org", "GIT_COMMITTER_NAME": "n",
            "GIT_COMMITTER_EMAIL": "n@example.org", "SKYPILOT_DISABLE_USAGE_COLLECTION": "1",
        }  # fmt: skip
        self.environment.pop("PYTHONPATH", None)

    def run(self, *words: object, cwd: Path | None = None, **more: str) -> tuple[int, str]:
        done = subprocess.run(
            [str(word) for word in words], cwd=cwd or self.folder, env={**self.environment, **more},
            capture_output=True, text=True,
        )  # fmt: skip
        return done.returncode, done.stdout + done.stderr

    def check(self, what: str, holds: bool, told: str = "") -> None:
        print(f"{'ok  ' if holds else 'FAIL'}  {what}", flush=True)
        (self.passed if holds else self.failures).append(what if holds else f"{what}: {told[-600:]}")


def try_pre_commit(tried: Tried) -> None:
    clone, repository = tried.folder / "clone", tried.folder / "repository"
    tried.run("git", "clone", "-q", "--no-local", ROOT, clone)
    head = tried.run("git", "rev-parse", "HEAD", cwd=clone)[1].strip()
    repository.mkdir()

    def git(*words: str) -> tuple[int, str]:
        return tried.run("git", *words, cwd=repository)

    git("init", "-q", "-b", "main")
    (repository / ".pre-commit-config.yaml").write_text(CONFIG.format(clone, head))
    program = VENVS / "plugins" / "bin" / "pre-commit"
    git("add", "-A")
    code, told = tried.run(program, "install", "--install-hooks", cwd=repository)
    tried.check("pre-commit installs the hook from a clone", code == 0, told)
    (repository / "job.yaml").write_text(FITS)
    git("add", "-A")
    code, told = git("commit", "-m", "fits")
    tried.check("a training file that fits is committed", code == 0 and "Passed" in told, told)
    (repository / "job.yaml").write_text(f"{FITS}micro_batch: 4096\n")
    git("add", "-A")
    code, told = git("commit", "-m", "does not fit")
    tried.check("one that does not fit stops its commit", code == 1 and "job.yaml: does not fit" in told, told)
    (repository / "README.md").write_text("# nothing\n")
    git("restore", "--staged", "--worktree", "job.yaml")
    git("add", "-A")
    code, told = git("commit", "-m", "words")
    tried.check("a commit without training files is not looked at", code == 0 and "Skipped" in told, told)
    (repository / "job.yaml").write_text(f"{FITS}micro_batch: 4096\n")
    git("commit", "-qam", "unseen", "--no-verify")
    between = ("--from-ref", "HEAD~1", "--to-ref", "HEAD")
    code, told = tried.run(program, "run", *between, cwd=repository)
    tried.check("between two revisions too", code == 1 and "from HEAD~1 to HEAD: 1 does not fit" in told, told)


def try_hf(tried: Tried) -> None:
    python, program = (VENVS / "plugins" / "bin" / name for name in ("python", "hf"))
    path = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT / "src")}
    code, told = tried.run(program, "tunecast", "--version", **path)
    tried.check("hf knows no tunecast before", code != 0, told)
    files = ROOT / "integrations" / "hf-tunecast"
    code, told = tried.run(
        python, "-c", INSTALL, files, "extensions", "install", "tunecast-authors/hf-tunecast", PYTHONPATH=""
    )
    tried.check("hf installs the extension", code == 0, told)
    description = json.loads((files / "manifest.json").read_text("utf-8"))["description"]
    code, told = tried.run(program, "extensions", "list", "--format", "json")
    tried.check("hf lists it with its description", code == 0 and description in told, told)
    code, told = tried.run(
        program, "tunecast", "predict", "pythia-70m", "--method", "lora", "--gpu", "l4", "--short", **path
    )
    tried.check("hf tunecast predict answers", code == 0 and "fits" in told, told)
    code, told = tried.run(program, "tunecast", "predict", "llama-3.1-70b", "--gpu", "l4", "--short", **path)
    tried.check("hf tunecast ends as tunecast does", code == 3 and "does not fit" in told, told)
    code, told = tried.run(program, "tunecast", "--version", PATH="/usr/bin:/bin", PYTHONPATH="")
    tried.check("without tunecast it says the remedy", code == 127 and "To fix: pip install" in told, told)


def try_sky(tried: Tried) -> None:
    python, program = (VENVS / "skypilot" / "bin" / name for name in ("python", "sky"))
    code, told = tried.run(program, "tunecast")
    tried.check("sky has no such command", code == 2 and "No such command 'tunecast'" in told, told)
    code, told = tried.run(python, "-c", SKY)
    says = [line for line in told.splitlines() if line.startswith(("[", "sky.", "False", "True"))]
    tried.check(
        "its command line loads none of other packages", says == ["[]", "sky.client_sdks", "False click.core"], told
    )


def try_schemas(tried: Tried) -> None:
    programs = VENVS / "plugins" / "bin"
    code, told = tried.run(programs / "pre-commit", "validate-manifest", ROOT / ".pre-commit-hooks.yaml")
    tried.check("the hook's manifest is valid", code == 0, told)
    schema = (programs / "check-jsonschema", "--builtin-schema")
    code, told = tried.run(*schema, "vendor.github-actions", ROOT / "action.yml")
    tried.check("action.yml is valid", code == 0, told)
    page = (ROOT / "docs" / "editor.md").read_text("utf-8")
    workflow = tried.folder / "workflow.yml"
    workflow.write_text(next(text for text in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL) if "\njobs:" in text))
    code, told = tried.run(*schema, "vendor.github-workflows", workflow)
    tried.check("the workflow of the page is valid", code == 0, told)


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev system plugins", description=__doc__)
    parser.add_argument("--out", metavar="FILE", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tunecast-plugins-") as folder:
        tried = Tried(Path(folder).resolve())
        for each in (try_schemas, try_hf, try_sky, try_pre_commit):
            each(tried)
    if arguments.out is not None:
        lines = (ROOT / "tests" / "environments" / "plugins.txt").read_text("utf-8").splitlines()
        lines += (ROOT / "tests" / "environments" / "skypilot.txt").read_text("utf-8").splitlines()
        packages = [line for line in lines if "==" in line]
        inputs = {"checks": len(tried.passed) + len(tried.failures), "packages": packages}
        result = {"date": date.today().isoformat(), "commit": commit(), "inputs": inputs}
        found = {**result, "passed": tried.passed, "failures": tried.failures}
        arguments.out.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    return 1 if tried.failures else 0


if __name__ == "__main__":
    sys.exit(main())
