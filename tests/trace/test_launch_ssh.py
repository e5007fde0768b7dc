"""Jobs on a plain machine, by a real sshd on loopback: trained, cancelled, and with the connection lost in between."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from slurm_cluster import free_ports
from tiny_training import job_of, make

from tunecast.door.launch import launch
from tunecast.door.launched import Launched, cancel, jobs, log_command
from tunecast.errors import NotResolved

pytest.importorskip("trl")
if int(version("transformers").partition(".")[0]) < 5:
    pytest.skip("what is rendered is for TRL from 1.0 on", allow_module_level=True)
SSHD = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(SSHD is None or os.geteuid() != 0, reason="needs sshd, and root"),
]
HOME = Path.home()


class Server:
    """An sshd, and programs ssh and scp that find it."""

    def __init__(self, folder: Path) -> None:
        self.folder, (port,) = folder, free_ports(1)
        for name in ("host", "user"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
        (folder / "sshd.conf").write_text(
            f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder}/host\nAuthorizedKeysFile {folder}/user.pub\n"
            "StrictModes no\nPermitRootLogin yes\nPasswordAuthentication no\nUsePAM no\nPidFile none\n"
            "Subsystem sftp internal-sftp\n"
        )
        (folder / "ssh.conf").write_text(
            f"Host box\n HostName 127.0.0.1\n Port {port}\n IdentityFile {folder}/user\n StrictHostKeyChecking no\n"
            f" UserKnownHostsFile {folder}/known\n LogLevel ERROR\n"
        )
        for name in ("ssh", "scp"):
            program = folder / "bin" / name
            program.parent.mkdir(exist_ok=True)
            program.write_text(f'#!/bin/sh\nexec {shutil.which(name)} -F {folder}/ssh.conf "$@"\n')
            program.chmod(0o755)
        Path("/run/sshd").mkdir(exist_ok=True)

    def start(self) -> None:
        assert SSHD is not None
        self.process = subprocess.Popen([SSHD, "-D", "-f", self.folder / "sshd.conf"], stderr=subprocess.DEVNULL)
        while subprocess.run([self.folder / "bin" / "ssh", "box", "true"], capture_output=True, check=False).returncode:
            assert self.process.poll() is None, "sshd ended"
            time.sleep(0.2)

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    made = Server(tmp_path_factory.mktemp("ssh"))
    made.start()
    yield made
    made.stop()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("launch"))


@pytest.fixture(autouse=True)
def own_places(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("PATH", str(server.folder / "bin"), prepend=os.pathsep)


def started(
    made: Path, venv: Path = Path(sys.executable).parent.parent, *, preflight: bool = True, **fields: Any
) -> Launched:
    job = job_of(made, method="lora", id=f"test-{os.getpid()}-{time.monotonic_ns()}", **fields)
    found = launch(job, on="ssh:box", cpu=True, options={"venv": str(venv)}, preflight=preflight)
    assert isinstance(found, Launched)
    return found


def once(name: str, holds: Callable[[Launched], bool]) -> Launched:
    while not holds(found := next(each for each in jobs().jobs if each.id == name)):
        if found.state == "failed":
            raise AssertionError(subprocess.run(log_command(name), capture_output=True, text=True, check=False).stdout)
        time.sleep(0.5)
    return found


def test_it_trains_and_the_connection_may_be_lost(made: Path, server: Server) -> None:
    first = started(made, max_steps=5)
    there = HOME / "tunecast" / first.id
    try:
        assert first.state in ("running", "not started")
        server.stop()
        assert next(each for each in jobs().jobs if each.id == first.id).state == "unknown"
        with pytest.raises(NotResolved, match="ssh:box"):
            cancel(first.id)
        server.start()
        once(first.id, lambda each: each.state == "done")
        assert (there / "output" / "adapter_model.safetensors").is_file()
        assert (there / "data" / "train.jsonl").is_file(), "what it reads was taken along"
        log = subprocess.run(log_command(first.id), capture_output=True, text=True, check=True).stdout
        assert "Model saved to output" in log
    finally:
        shutil.rmtree(there, ignore_errors=True)


def test_one_that_is_cancelled(made: Path, tmp_path: Path) -> None:
    """What is trained does not matter: it sleeps."""
    stub = tmp_path / "venv" / "bin" / "torchrun"
    stub.parent.mkdir(parents=True)
    stub.write_text("#!/bin/sh\nexec sleep 1000\n")
    stub.chmod(0o755)
    first = started(made, stub.parent.parent, preflight=False, max_steps=1_000_000)
    try:
        once(first.id, lambda each: each.state == "running")
        cancel(first.id)
        once(first.id, lambda each: each.state == "cancelled")
    finally:
        shutil.rmtree(HOME / "tunecast" / first.id, ignore_errors=True)


OWN_FILE = """\
base_model: NousResearch/Llama-3.2-1B
datasets:
  - path: rows.jsonl
    ds_type: json
    type: completion
adapter: lora
lora_r: 8
lora_target_linear: true
sequence_len: 512
micro_batch_size: 1
max_steps: 2
bf16: true
optimizer: adamw_torch_fused
"""
STAND_IN = """\
#!/bin/bash
# In the place of accelerate, which this machine has no card for: what was copied, and where results go.
set -eu
mkdir -p ../output
sort helpers/*.txt rows.jsonl axolotl.yml >/dev/null
find . -type f | sort >../output/found
echo "$@" >../output/words
"""


def test_a_file_of_ones_own_goes_there_with_its_folder_and_without_keys(tmp_path: Path) -> None:
    folder, programs = tmp_path / "training", tmp_path / "venv" / "bin"
    for name, text in {
        "axolotl.yml": OWN_FILE, "rows.jsonl": '{"text": "a few words"}\n' * 4, "helpers/words.txt": "w\n",
        ".env": "HF_TOKEN=x\n", ".git/config": "x\n", "deploy.key": "x\n",
    }.items():  # fmt: skip
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    programs.mkdir(parents=True)
    (programs / "accelerate").write_text(STAND_IN)
    (programs / "accelerate").chmod(0o755)
    where = {"hardware.gpu": "h100", "hardware.gpus": 1}
    options = {"venv": str(programs.parent)}
    found = launch(folder / "axolotl.yml", where, on="ssh:box", options=options, preflight=False)
    assert isinstance(found, Launched)
    there = HOME / "tunecast" / found.id
    try:
        once(found.id, lambda each: each.state == "done")
        assert (there / "output" / "found").read_text().split() == [
            "./axolotl.yml",
            "./helpers/words.txt",
            "./rows.jsonl",
        ]
        assert "-m axolotl.cli.train axolotl.yml --output_dir=../output" in (there / "output" / "words").read_text()
        assert {each.name for each in (there / "own").iterdir()} == {"axolotl.yml", "helpers", "rows.jsonl"}
    finally:
        shutil.rmtree(there, ignore_errors=True)
