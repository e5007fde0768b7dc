"""What `--on kubernetes` renders and does, on a real API server that kubectl reaches.

Any cluster with Kubeflow Trainer's CustomResourceDefinitions will do; nothing is trained, and what is made is deleted.
Without one: Debian's source package `kubernetes` (1.20.2, with all it is built from) has cmd/kube-apiserver. Built with
golang-1.19 it wants vendor/github.com/modern-go/reflect2 of golang-github-modern-go-reflect2-dev (its own fails from Go
1.18 on) and zz_generated.openapi.go, which its vendored openapi-gen writes; etcd-server keeps its objects. That release
knows no rules (x-kubernetes-validations) and takes empty text for null: `for_old_server` leaves both out.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tunecast.door.launch import Launched, cancel, jobs, launch
from tunecast.errors import NotResolved

NEWER_WORDS = ("x-kubernetes-validations", "x-kubernetes-list-map-keys", "x-kubernetes-list-type")
NOWHERE = "no-such-namespace"


def kubectl(*words: str, given: object = None) -> str:
    text = None if given is None else json.dumps(given)
    done = subprocess.run(["kubectl", *words], input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(" ".join(done.stderr.split())[:600])
    return done.stdout


def release() -> str:
    return str(json.loads(kubectl("version", "-o", "json"))["serverVersion"]["gitVersion"])


def for_old_server(schema: Any) -> Any:
    if isinstance(schema, list):
        return [for_old_server(each) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    return {
        name: for_old_server(each)
        for name, each in schema.items()
        if name not in NEWER_WORDS and not (name == "default" and each == "")
    }


def define(definitions: Sequence[Any]) -> None:
    """Trainer's kinds, where the server does not have them."""
    there = kubectl("get", "customresourcedefinitions", "-o", "name")
    for each in definitions:
        if each["metadata"]["name"] not in there:
            kubectl("create", "--validate=false", "-f", "-", given=for_old_server(each))
            kubectl("wait", "--for=condition=established", f"crd/{each['metadata']['name']}")
    if "namespace/training" not in kubectl("get", "namespaces", "-o", "name"):
        kubectl("create", "namespace", "training")


def problems(things: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Each object made, read back and deleted: a field that the server does not know is gone. And the pods that a
    runtime and its job make, as the server takes pods."""
    by_kind = {each["kind"]: each for each in things}
    for thing in things:
        try:
            found = json.loads(kubectl("create", "-f", "-", "-o", "json", given=thing))
            yield from (f"{thing['kind']}: {each} is left out" for each in left_out(thing, found))
            kubectl("delete", "-f", "-", given=thing)
        except RuntimeError as error:
            yield f"{thing['kind']}: {error}"
    if "TrainingRuntime" in by_kind:
        try:
            kubectl(
                "create", "--dry-run=server", "-f", "-", given=pod_of(by_kind["TrainingRuntime"], by_kind["TrainJob"])
            )
        except RuntimeError as error:
            yield f"Pod: {error}"


def pod_of(runtime: Mapping[str, Any], job: Mapping[str, Any]) -> dict[str, Any]:
    """As JobSet makes it of the template, with what the job says of its trainer."""
    (of_nodes,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    spec, trainer = of_nodes["template"]["spec"]["template"]["spec"], job["spec"]["trainer"]
    told = {
        "image": trainer["image"], "command": trainer["command"], "resources": trainer["resourcesPerNode"],
        "env": trainer.get("env", []),
    }  # fmt: skip
    containers = [{**each, **told} for each in spec["containers"]]
    place = {name: job["metadata"][name] for name in ("name", "namespace") if name in job["metadata"]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": place, "spec": {**spec, "containers": containers}}


def left_out(wanted: Any, found: Any, path: str = "") -> Iterator[str]:
    if isinstance(wanted, Mapping) and isinstance(found, Mapping):
        for name, each in wanted.items():
            yield from left_out(each, found[name], f"{path}.{name}") if name in found else (f"{path}.{name}",)
    elif isinstance(wanted, list) and isinstance(found, list) and len(wanted) == len(found):
        for n, (mine, theirs) in enumerate(zip(wanted, found, strict=True)):
            yield from left_out(mine, theirs, f"{path}[{n}]")
    elif wanted != found:
        yield path


def life() -> Iterator[str]:
    """One that is started, found in each of its states and stopped; and one that the server refuses half-way."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_DATA_HOME"] = folder
        data = Path(folder) / "train.jsonl"
        data.write_text('{"text": "a b c"}\n')
        job = {
            "model": "llama-3.2-1b", "method": "lora", "stack": "trl", "seq_len": 1024, "micro_batch": 1,
            "hardware": {"gpu": "h100-sxm-80gb"}, "data": {"path": str(data)},
        }  # fmt: skip
        options = {"image": "registry.example/me/job:1", "data_claim": "data", "claim": "checkpoints"}
        started = launch(job, on="kubernetes", options=options)
        assert isinstance(started, Launched)
        if started.state != "queued":
            yield f"started: {started.state}"
        active = {"name": "node", "ready": 0, "succeeded": 0, "failed": 0, "active": 1, "suspended": 0}
        for status, state in (
            ({"jobsStatus": [active]}, "running"),
            ({"conditions": [condition("Complete")]}, "done"),
            ({"conditions": [condition("Failed")]}, "failed"),
            ({"conditions": []}, "running"),
        ):
            patch = json.dumps({"status": status})
            kubectl("patch", "trainjob", started.id, "--subresource=status", "--type=merge", "-p", patch)
            if (found := jobs().jobs[0].state) != state:
                yield f"{state}: {found}"
        cancel(started.id)
        yield from (f"cancelled: {each} stayed" for each in left_of(started.id))
        if (found := jobs().jobs[0].state) != "cancelled":
            yield f"cancelled: {found}"
        try:
            launch({**job, "id": "refused"}, on="kubernetes", options={**options, "namespace": NOWHERE})
            yield "refused: it was started"
        except NotResolved:
            yield from (f"refused: {each.id} stayed" for each in jobs().jobs if each.id == "refused")
            yield from (f"refused: {each} stayed" for each in left_of("refused"))


def condition(kind: str) -> dict[str, str]:
    when = "2026-11-18T00:00:00Z"
    return {"type": kind, "status": "True", "reason": "Test", "message": "of a test", "lastTransitionTime": when}


def left_of(name: str) -> list[str]:
    """Without those that a server makes by itself."""
    kinds = "trainjobs,trainingruntimes,configmaps"
    return [
        each for each in kubectl("get", kinds, "--all-namespaces", "-o", "name").split() if each.endswith(f"/{name}")
    ]
