"""Objects that `--on kubernetes` renders, against the published models of their API.

    ./dev system trainjobs [--out FILE]        kubeflow-trainer-api's and kubernetes' own models, by PyPI
    ./dev system trainjobs --crds REPOSITORY   also the schemas of a git directory of kubeflow/trainer, as an API server
                                               applies them: a field that it does not know is an error
    ./dev system trainjobs --crds REPOSITORY --server    also a real API server, that kubectl reaches (server.py)

Read by a model and written by it again, an object has to be the same: what a model does not know it leaves out.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml
from committed import commit

from trainjobs import server
from tunecast.door.launch import launch
from tunecast.launching.rendering import Rendering

CASES: Mapping[str, tuple[Mapping[str, Any], Mapping[str, str]]] = {
    "one card": ({"method": "lora"}, {"image": "registry.example/me/job:1"}),
    "machines, a queue, claims": (
        {"method": "full", "hardware.gpus": 8, "hardware.nodes": 2, "data.samples": 20000, "parallel.data": "fsdp"},
        {
            "image": "registry.example/me/job:1", "queue": "team-a", "namespace": "training", "claim": "checkpoints",
            "data_claim": "data", "node_selector": "nvidia.com/gpu.product=NVIDIA-H100-80GB-HBM3", "secret": "hub",
            "restarts": "5",
        },
    ),
    "the cluster's runtime": (
        {"method": "lora", "hardware.gpus": 4},
        {"image": "registry.example/me/job:1", "runtime": "torch-distributed", "claim": "checkpoints"},
    ),
}  # fmt: skip
STACKS = ("trl", "axolotl", "llama-factory", "torchtune")
CRDS = {"TrainJob": "trainjobs", "TrainingRuntime": "trainingruntimes"}


def objects_of(stack: str, fields: Mapping[str, Any], options: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    job = {"stack": stack, "hardware.gpu": "h100-sxm-80gb", "seq_len": 1024, "micro_batch": 1, **fields}
    found = launch("llama-3.2-1b", job, on="kubernetes", dry_run=True, options=options)
    assert isinstance(found, Rendering)
    for name in ("files.yaml", "trainjob.yaml"):
        yield from yaml.safe_load_all(found.files[name])
    config = next(yaml.safe_load_all(found.files["files.yaml"]))
    beside = {name: text for name, text in found.files.items() if name not in ("files.yaml", "trainjob.yaml")}
    assert config["data"] == beside, "the ConfigMap has the files as they are"


def problems(thing: dict[str, Any], schemas: Mapping[str, Any]) -> list[str]:
    found = [] if written_again(thing) == thing else [f"{thing['kind']}: the model leaves something out"]
    if thing["kind"] in schemas:
        import jsonschema

        checked = jsonschema.Draft202012Validator(schemas[thing["kind"]])
        found += [
            f"{thing['kind']}: {'.'.join(map(str, each.path))}: {each.message}" for each in checked.iter_errors(thing)
        ]
    return found


def written_again(thing: dict[str, Any]) -> Any:
    if thing["kind"] == "ConfigMap":
        from kubernetes.client import ApiClient

        client = ApiClient()

        class Response:
            data = json.dumps(thing)

        model = client._ApiClient__deserialize(json.loads(Response.data), "V1ConfigMap")
        return client.sanitize_for_serialization(model)
    import kubeflow_trainer_api.models as models

    model = getattr(models, f"TrainerV1alpha1{thing['kind']}").from_dict(thing)
    return plain(model.to_dict())


def plain(value: Any) -> Any:
    """Quantities are written by their models as what they hold."""
    if isinstance(value, Mapping):
        return {name: plain(each) for name, each in value.items() if each is not None}
    if isinstance(value, list):
        return [plain(each) for each in value]
    return value.to_dict() if hasattr(value, "to_dict") else value


def schemas_of(repository: Path | None) -> tuple[dict[str, Any], str]:
    if repository is None:
        return {}, ""
    git = ("git", "--git-dir", str(repository))
    commit = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    found = {}
    for kind, name in CRDS.items():
        path = f"HEAD:manifests/base/crds/trainer.kubeflow.org_{name}.yaml"
        text = subprocess.run([*git, "show", path], capture_output=True, text=True, check=True).stdout
        crd = yaml.safe_load(text)
        whole = next(each for each in crd["spec"]["versions"] if each["name"] == "v1alpha1")
        found[kind] = strict(whole["schema"]["openAPIV3Schema"])
    return found, commit


def strict(schema: Any) -> Any:
    """As an API server takes it: fields that are not named are unknown; a quantity is a number or text."""
    if isinstance(schema, list):
        return [strict(each) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    made = {name: strict(each) for name, each in schema.items() if not name.startswith("x-")}
    if schema.get("x-kubernetes-int-or-string"):
        made.pop("type", None)
    named = isinstance(schema.get("properties"), Mapping) and schema.get("type") == "object"
    if named and "additionalProperties" not in schema and not schema.get("x-kubernetes-preserve-unknown-fields"):
        made["additionalProperties"] = False
    return made


def definitions_of(repository: Path) -> list[Any]:
    git, kinds = ("git", "--git-dir", str(repository)), ("trainjobs", "trainingruntimes", "clustertrainingruntimes")
    paths = (f"HEAD:manifests/base/crds/trainer.kubeflow.org_{name}.yaml" for name in kinds)
    shown = (subprocess.run([*git, "show", path], capture_output=True, text=True, check=True) for path in paths)
    return [yaml.safe_load(each.stdout) for each in shown]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="./dev system trainjobs", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--crds", type=Path, metavar="REPOSITORY", help="a git directory of kubeflow/trainer")
    parser.add_argument("--out", type=Path, metavar="FILE", help="where the dated result goes")
    parser.add_argument("--server", action="store_true", help="the API server that kubectl reaches; with --crds")
    arguments = parser.parse_args(argv)
    if arguments.server:
        if arguments.crds is None:
            parser.error("--server wants --crds: the kinds it is to know")
        server.define(definitions_of(arguments.crds))
    schemas, published = schemas_of(arguments.crds)
    rows = []
    for stack in STACKS:
        for name, (fields, options) in CASES.items():
            things = list(objects_of(stack, fields, options))
            wrong = [each for thing in things for each in problems(thing, schemas)]
            wrong += server.problems(things) if arguments.server else ()
            print(f"{stack}, {name}: {', '.join(each['kind'] for each in things)}: {wrong or 'accepted'}", flush=True)
            rows.append({"stack": stack, "case": name, "kinds": [each["kind"] for each in things], "problems": wrong})
    if arguments.server:
        wrong = list(server.life())
        print(f"started, found, stopped and refused on {server.release()}: {wrong or 'as it should be'}", flush=True)
        rows.append({"stack": "trl", "case": "a job's life", "kinds": [], "problems": wrong})
    if arguments.out is not None:
        content = {
            "date": date.today().isoformat(),
            "commit": commit(),
            "inputs": [f"{row['stack']}, {row['case']}" for row in rows],
            "failures": [row for row in rows if row["problems"]],
            "models": {name: version(name) for name in ("kubeflow-trainer-api", "kubernetes")},
            "schemas": published,
            "server": server.release() if arguments.server else "",
            "objects": rows,
        }
        arguments.out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return int(any(row["problems"] for row in rows))


if __name__ == "__main__":
    raise SystemExit(main())
