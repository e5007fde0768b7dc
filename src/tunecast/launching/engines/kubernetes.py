"""Kubernetes: a TrainJob of Kubeflow Trainer with its runtime, queued by Kueue where a queue is named, started by
`kubectl apply`.

Objects   trainer.kubeflow.org/v1alpha1 (kubeflow/trainer, pkg/apis/trainer/v1alpha1/trainjob_types.go); the runtime's
          template is a JobSet's (jobset.x-k8s.io/v1alpha2); Kueue's label: pkg/controller/jobs/trainjob of kueue
Files     a ConfigMap brings them into /job, where the training runs; claims hold what it reads and writes
Machines  Trainer says which a pod is by PET_ variables (pkg/runtime/framework/plugins/torch); train.sh reads others

Which cluster, which account is kubectl's own configuration; no credential is read. A Secret is only ever named.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from math import ceil
from typing import Any

from tunecast.errors import NotResolved, UsageError
from tunecast.job.readers.json import parsed
from tunecast.launching.engines.commands import output_of, submit_or_find
from tunecast.launching.engines.options import whole_number
from tunecast.launching.engines.start import INSTALLATION_S, letter_first
from tunecast.launching.ledger import LedgerEntry, NotKnown
from tunecast.launching.programs import files_of
from tunecast.launching.programs.own_folder import OWN
from tunecast.launching.rendering import OUTPUT, RESUME, Command, Order
from tunecast.launching.texts import scalar, yaml_text
from tunecast.units import MIB

ELSEWHERE = True
INSTALLS = True
OPTIONS = (
    *("image", "queue", "namespace", "runtime", "claim", "data_claim", "model_claim", "own_claim"),
    *("secret", "node_selector", "restarts"),
)
"""image          that Containerfile builds
queue          Kueue's LocalQueue
runtime        a ClusterTrainingRuntime of the cluster, in the place of the one rendered here
claim          the PersistentVolumeClaim that checkpoints go to: a folder of its own for each launch
data_claim, model_claim    those with the data and with a model that is no Hub id
own_claim      that with the folder of a training file of your own
secret         the Secret whose HF_TOKEN a download needs
node_selector  LABEL=VALUE
restarts       after a failure, from the last checkpoint on"""
JOB, AROUND = "trainjob.yaml", "files.yaml"
GROUP = "trainer.kubeflow.org"
FOLDER, CONFIG = "/job", "/config"
IN_CLAIM = "tunecast"
"""The folder of a claim that has one for each launch: two that share a claim do not go on from each other's
checkpoints."""
NO_IMAGE = "PLACEHOLDER_image"
RESTARTS = 3
"""Where a claim keeps checkpoints; without one nothing is left to go on from."""
NODE = "node"
"""What the runtimes of Kubeflow call the container and the job that trains."""
START = f"""cp -L {CONFIG}/* . \
&& export NODE_RANK="${{PET_NODE_RANK:-0}}" MASTER_ADDR="${{PET_MASTER_ADDR:-localhost}}" \
MASTER_PORT="${{PET_MASTER_PORT:-29500}}" && unset "${{!PET_@}}" && exec bash {RESUME}"""


def render(
    order: Order, options: Mapping[str, str], host: str
) -> tuple[Mapping[str, str], tuple[Command, ...], tuple[str, ...]]:
    name, told = letter_first(order.name), tuple(notes(order, options))
    options = {**{f"{folder}_claim": f"PLACEHOLDER_{folder}_claim" for folder in carried_by_folder(order)}, **options}
    around = [config_map_text(name, files_of(order.program, order.job), options)]
    if "runtime" not in options:
        around.append(yaml_text(runtime(name, order, options)))
    files = {AROUND: "---\n".join(around), JOB: yaml_text(train_job(name, order, options))}
    commands: tuple[Command, ...] = (("kubectl", "apply", "-f", AROUND), ("kubectl", "apply", "-f", JOB))
    return files, commands, told


def require_options(order: Order, options: Mapping[str, str]) -> None:
    for missing in missing_claims(order, options):
        raise UsageError(f"--on kubernetes: {missing}", field="option")


def missing_claims(order: Order, options: Mapping[str, str]) -> Iterator[str]:
    """A cluster does not see the files of this machine."""
    for folder, files in carried_by_folder(order).items():
        here = next(iter(files.values())) if folder != OWN else "the folder of your file"
        if f"{folder}_claim" not in options:
            yield (
                f"{here} is not in the cluster. To fix: copy it into a PersistentVolumeClaim, and name that: "
                f"--option {folder}_claim=NAME"
            )


def carried_by_folder(order: Order) -> dict[str, dict[str, str]]:
    """What lies here, by its name in `own`, `data` or `model`."""
    found: dict[str, dict[str, str]] = {}
    for path, here in order.program.carried.items():
        folder, _, file = path.partition("/")
        found.setdefault(folder, {})[file] = here
    return found


def notes(order: Order, options: Mapping[str, str]) -> Iterator[str]:
    if "image" not in options:
        yield "no image: build Containerfile, push it to your registry, and name it: --option image=NAME"
    if "claim" not in options:
        yield f"checkpoints are lost with the pod. To fix: --option claim=NAME, a claim that {FOLDER}/{OUTPUT} goes to"
    if "node_selector" not in options:
        yield "any card: a cluster has its own names for cards. To fix: --option node_selector=LABEL=VALUE"
    if order.limit_s is None:
        yield "no time limit: how long it takes is not predicted"
    elif "runtime" in options and "queue" not in options:
        yield "its time limit counts from now on, also while it waits for cards. To fix: --option queue=NAME"
    yield from missing_claims(order, options)
    for folder, files in carried_by_folder(order).items():
        if f"{folder}_claim" not in options:
            continue
        what = "the folder of your file" if folder == OWN else ", ".join(files)
        yield f"{what} is looked for in the claim {options[f'{folder}_claim']}"
    if "runtime" in options and whole_number(options, "restarts", 0):
        yield "restarts are the runtime's own: the one that was named says how often"


def metadata(name: str, options: Mapping[str, str], labels: Mapping[str, str] | None = None) -> dict[str, Any]:
    place = {"namespace": options["namespace"]} if "namespace" in options else {}
    return {"name": name, **place, "labels": {"app.kubernetes.io/managed-by": "tunecast", **(labels or {})}}


def config_map_text(name: str, files: Mapping[str, str], options: Mapping[str, str]) -> str:
    head = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata(name, options)}
    return yaml_text(head) + "data:\n" + "".join(f"  {scalar(key)}: {block(text)}\n" for key, text in files.items())


def block(text: str) -> str:
    """Lines as they are, where YAML reads them back so; else quoted."""
    lines = text.split("\n")
    as_it_is = lines[-1] == "" and len(lines) > 1 and lines[-2] and lines[0][:1] not in ("", " ")
    if not as_it_is or not all(line.isprintable() for line in lines):
        return scalar(text)
    return "|\n" + "\n".join(f"    {line}" if line else "" for line in lines[:-1])


def volumes(name: str, options: Mapping[str, str]) -> list[tuple[str, str, dict[str, Any]]]:
    """Each by its name, its place in the container and what it is."""
    found: list[tuple[str, str, dict[str, Any]]] = [
        ("files", CONFIG, {"configMap": {"name": name}}),
        ("shared-memory", "/dev/shm", {"emptyDir": {"medium": "Memory"}}),
        ("job", FOLDER, claim_of(options["claim"]) if "claim" in options else {"emptyDir": {}}),
    ]
    for kind in ("data", "model", OWN):
        if f"{kind}_claim" in options:
            found.append((kind, f"{FOLDER}/{kind}", claim_of(options[f"{kind}_claim"])))
    return found


def claim_of(name: str) -> dict[str, Any]:
    return {"persistentVolumeClaim": {"claimName": name}}


def pod_parts(name: str, options: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Of the pod and of its container, as a runtime has them and a TrainJob may patch them."""
    all_of = volumes(name, options)
    pod: dict[str, Any] = {"volumes": [{"name": volume, **what} for volume, _, what in all_of]}
    if "node_selector" in options:
        label, equals, value = options["node_selector"].partition("=")
        if not (label and equals):
            raise UsageError(
                f"--option node_selector: got {options['node_selector'][:80]!r}; allowed: LABEL=VALUE, such as "
                "nvidia.com/gpu.product=NVIDIA-H100-80GB-HBM3",
                field="option",
            )
        pod["nodeSelector"] = {label: value}
    own_folder = {"subPath": f"{IN_CLAIM}/{name}"} if "claim" in options else {}
    mounts = [
        {
            "name": volume, "mountPath": place, **({"readOnly": True} if volume in ("files", "data", "model") else {}),
            **(own_folder if volume == "job" else {}),
        }
        for volume, place, _ in all_of
    ]  # fmt: skip
    return pod, {"name": NODE, "volumeMounts": mounts}


def deadline(order: Order) -> dict[str, Any]:
    """With the time in which the image is pulled, of which torch and CUDA's libraries are most."""
    return {} if order.limit_s is None else {"activeDeadlineSeconds": ceil(order.limit_s + INSTALLATION_S)}


def runtime(name: str, order: Order, options: Mapping[str, str]) -> dict[str, Any]:
    """A TrainingRuntime for this one job. All of its pods begin again together, as torch wants it.

    The time limit is a pod's, which counts from where it has a node (PodSpec): a TrainJob's own counts from where it is
    made or was let go by a queue, and would end one that only waits for cards.
    """
    pod, container = pod_parts(name, options)
    pod = {**deadline(order), **pod}
    restarts = whole_number(options, "restarts", RESTARTS if "claim" in options else 0)
    step = {f"{GROUP}/trainjob-ancestor-step": "trainer"}
    template = {"spec": {"restartPolicy": "Never", **pod, "containers": [{**container, "image": image_of(options)}]}}
    job = {"metadata": {"labels": step}, "spec": {"backoffLimit": 0, "template": template}}
    return {
        "apiVersion": f"{GROUP}/v1alpha1",
        "kind": "TrainingRuntime",
        "metadata": metadata(name, options, {f"{GROUP}/framework": "torch"}),
        "spec": {
            "mlPolicy": {"numNodes": order.job.hardware.nodes, "torch": {}},
            "template": {
                "spec": {
                    "failurePolicy": {"maxRestarts": restarts},
                    "replicatedJobs": [{"name": NODE, "template": job}],
                }
            },
        },
    }


def image_of(options: Mapping[str, str]) -> str:
    return options.get("image", NO_IMAGE)


def train_job(name: str, order: Order, options: Mapping[str, str]) -> dict[str, Any]:
    hardware = order.job.hardware
    shared = "runtime" in options
    ref = {"apiGroup": GROUP, "kind": "ClusterTrainingRuntime" if shared else "TrainingRuntime"}
    spec: dict[str, Any] = {
        "runtimeRef": {**ref, "name": options.get("runtime", name)},
        "trainer": {
            "image": image_of(options),
            "command": ["bash", "-c", f"cd {FOLDER} && {START}"],
            "numNodes": hardware.nodes,
            "numProcPerNode": hardware.gpus,
            "resourcesPerNode": {"requests": resources(order), "limits": {"nvidia.com/gpu": hardware.gpus}},
            **({"env": [token_of(options["secret"])]} if "secret" in options else {}),
        },
    }
    if shared:
        spec |= deadline(order)  # of a runtime's pods a TrainJob cannot set it (PodSpecPatch)
        pod, container = pod_parts(name, options)
        job = {"name": NODE, "template": {"spec": {"template": {"spec": {**pod, "containers": [container]}}}}}
        patched = {"template": {"spec": {"replicatedJobs": [job]}}}
        spec["runtimePatches"] = [{"manager": "tunecast.dev/launch", "trainingRuntimeSpec": patched}]
    queue = {"kueue.x-k8s.io/queue-name": options["queue"]} if "queue" in options else {}
    return {
        "apiVersion": f"{GROUP}/v1alpha1",
        "kind": "TrainJob",
        "metadata": metadata(name, options, queue),
        "spec": spec,
    }


def resources(order: Order) -> dict[str, Any]:
    memory = {} if order.ram_bytes is None else {"memory": f"{ceil(order.ram_bytes / MIB)}Mi"}
    return {"cpu": str(order.cpu_cores), **memory, "nvidia.com/gpu": order.job.hardware.gpus}


def token_of(secret: str) -> dict[str, Any]:
    return {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": secret, "key": "HF_TOKEN"}}}


def submit(entry: LedgerEntry, commands: tuple[Command, ...], environment: Mapping[str, str]) -> str:
    """The cluster and the job: what kubectl calls the first now may be another one later."""
    if NO_IMAGE in (entry.folder / JOB).read_text(encoding="utf-8"):
        raise UsageError("--on kubernetes: no image to run. To fix: --option image=NAME", field="option")
    context = _run(("kubectl", "config", "current-context"), entry, environment).strip()

    def apply() -> None:
        for command in commands:
            _run((command[0], "--context", context, *command[1:]), entry, environment)

    try:
        submit_or_find(apply, lambda: state(entry), "kubectl")
    except NotKnown:
        raise
    except NotResolved:  # what was made before it was refused is taken away again
        for name in (JOB, AROUND):  # each by itself: of a kind that the cluster does not know nothing can be deleted
            with suppress(NotResolved):
                _run(("kubectl", "--context", context, *DELETE, "-f", name), entry, environment)
        raise
    return f"{context}/{letter_first(entry.id)}"


DELETE = ("delete", "--ignore-not-found", "--wait=false")


def _run(command: Command, entry: LedgerEntry, environment: Mapping[str, str] | None = None) -> str:
    absent = ": no cluster is reached without"
    return output_of(command, entry.folder, environment, named="kubectl", absent=absent, lock=entry.lock)


def _kubectl(entry: LedgerEntry) -> Command:
    context = entry.number.rpartition("/")[0]
    return ("kubectl", *(("--context", context) if context else ()))


def state(entry: LedgerEntry) -> str:
    told = _run((*_kubectl(entry), "get", "--ignore-not-found", "-o", "json", "-f", JOB), entry)
    if not told.strip():
        return "ended" if entry.number else "not started"
    return state_in(parsed(told, "kubectl get"))


def state_in(job: Any) -> str:
    """By a TrainJob's conditions and the pods that are active."""
    status = job.get("status") if isinstance(job, Mapping) else None
    if not isinstance(status, Mapping):
        return "queued"
    conditions = {
        str(each.get("type")) for each in status.get("conditions") or () if isinstance(each, Mapping)
        and each.get("status") == "True"
    }  # fmt: skip
    for name, word in (("Complete", "done"), ("Failed", "failed"), ("Suspended", "queued")):
        if name in conditions:
            return word
    jobs = [each for each in status.get("jobsStatus") or () if isinstance(each, Mapping)]
    return "running" if any(each.get("active") or each.get("ready") for each in jobs) else "queued"


def log_command(entry: LedgerEntry, *, follow: bool) -> Command:
    try:
        text = (entry.folder / JOB).read_text(encoding="utf-8")
    except OSError as error:
        raise NotResolved(f"{entry.id}: {JOB} is gone ({error.strerror})", field="id") from None
    found = re.search(r"^  namespace: (\S+)$", text, re.MULTILINE)
    return (
        *_kubectl(entry),
        *(("--namespace", json.loads(found[1]) if found[1].startswith('"') else found[1]) if found else ()),
        *("logs", f"--selector=jobset.sigs.k8s.io/jobset-name={letter_first(entry.id)}", "--all-containers"),
        *("--prefix", "--tail=-1", "--max-log-requests=1000"),
        *(("--follow",) if follow else ()),
    )


def cancel(entry: LedgerEntry) -> None:
    """With what was made for it."""
    _run((*_kubectl(entry), *DELETE, "-f", JOB, "-f", AROUND), entry)
