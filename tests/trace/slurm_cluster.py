"""A real Slurm of three pretended nodes on this machine, in a folder of its own, started and ended by whoever asks.

Needs root and Debian's packages: apt-get install --no-install-recommends munge slurm-wlm slurmctld slurmd slurm-client
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol")
NODES = ("node1", "node2", "node3")
NODE = "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={cpus} RealMemory=1000 Gres=gpu:4"
STOP_S = 5
"""A node that still ends a job waits for it."""
REQUEUE_S = 15
"""How long a job that is queued again waits at least: as long as a credential holds (slurm.conf(5), cred_expire)."""
CONFIG = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket,cred_expire={requeue_s}
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
ReturnToService=2
KillWait=5
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldPort={port}
StateSaveLocation={folder}/state
SlurmctldLogFile={folder}/slurmctld.log
SlurmdSpoolDir={folder}/spool/%n
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdLogFile={folder}/slurmd-%n.log
SchedulerType=sched/backfill
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
GresTypes=gpu
{nodes}
PartitionName=gpu Nodes=node[1-3] Default=YES MaxTime=1-0 DefaultTime=60 State=UP
"""


def missing() -> str | None:
    """Why no cluster can be started here."""
    if os.geteuid() != 0:
        return "needs root"
    absent = [name for name in PROGRAMS if shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin") is None]
    return f"needs {', '.join(absent)}" if absent else None


def free_ports(several: int) -> list[int]:
    """That nobody listens on now."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(several)]
    ports = [each.getsockname()[1] for each in held]
    for each in held:
        each.close()
    return ports


class SlurmCluster:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.config = folder / "slurm.conf"

    def start(self) -> None:
        """All of it, or nothing is left."""
        try:
            self._start_all()
        except BaseException:
            self.stop()
            raise

    def _start_all(self) -> None:
        for name in ("state", "munge", *(f"spool/{node}" for node in NODES)):
            (self.folder / name).mkdir(parents=True)
        host, (port, *others) = socket.gethostname().partition(".")[0], free_ports(1 + len(NODES))
        nodes = [
            NODE.format(name=name, host=host, port=each, cpus=os.cpu_count() or 1)
            for name, each in zip(NODES, others, strict=True)
        ]
        self.config.write_text(
            CONFIG.format(host=host, folder=self.folder, port=port, nodes="\n".join(nodes), requeue_s=REQUEUE_S)
        )
        (self.folder / "gres.conf").write_text(f"NodeName=node[1-3] Name=gpu Count=4 File={self._devices()}\n")
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n")
        self._start_munge()
        self.start_controller()
        for node in NODES:
            self._start(node, "slurmd", "-D", "-f", str(self.config), "-N", node)
        self._wait(self._is_idle)

    def _is_idle(self) -> bool:
        states = self.told("sinfo", "--noheader", "--Node", "--format=%t").split()
        if "inval" in states:
            raise RuntimeError(
                f"nodes are not as slurm.conf says: {(self.folder / 'slurmctld.log').read_text()[-500:]}"
            )
        return states == ["idle"] * len(NODES)

    def _devices(self) -> str:
        """Character devices, so that CUDA_VISIBLE_DEVICES is set."""
        for number in range(4):
            os.mknod(self.folder / f"gpu{number}", 0o20666, os.makedev(1, 3))
        return f"{self.folder}/gpu[0-3]"

    def _start_munge(self) -> None:
        place = self.folder / "munge"
        (place / "key").write_bytes(os.urandom(128))
        (place / "key").chmod(0o400)
        self._start(
            "munge", "munged", "--foreground", "--force", f"--socket={place}/socket", f"--key-file={place}/key",
            f"--pid-file={place}/pid", f"--seed-file={place}/seed", f"--log-file={place}/log",
        )  # fmt: skip
        self._wait((place / "socket").exists)

    def start_controller(self) -> None:
        self._start("controller", "slurmctld", "-D", "-f", str(self.config))

    def stop_controller(self) -> None:
        self._stop("controller")

    def _start(self, name: str, *command: str) -> None:
        path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
        with open(self.folder / f"{name}.out", "ab") as out:
            self.processes[name] = subprocess.Popen(
                command, env={**os.environ, "SLURM_CONF": str(self.config), "PATH": path}, stdout=out, stderr=out,
                stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip

    def _stop(self, name: str) -> None:
        process = self.processes.pop(name)
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:  # it waits for a job that does not end
            process.kill()
            process.wait()

    def stop(self) -> None:
        self.told("scancel", "--user=root")
        for name in reversed(list(self.processes)):
            self._stop(name)

    def told(self, *command: str) -> str:
        done = subprocess.run(
            command, env={**os.environ, "SLURM_CONF": str(self.config)}, capture_output=True, text=True, check=False
        )
        return done.stdout

    def _wait(self, holds: object) -> None:
        """As long as all that was started is alive."""
        assert callable(holds)
        while not holds():
            for name, process in self.processes.items():
                if process.poll() is not None:
                    raise RuntimeError(f"{name} ended: {(self.folder / f'{name}.out').read_text()[-500:]}")
            time.sleep(0.2)
