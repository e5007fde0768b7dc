"""Run by SkyPilot's Python: python with_skypilot.py CASES. Answers on its last line, in JSON, what went wrong.

Replaced, as there are no accounts here: which clouds are enabled (all that have a list), and the check of a bucket. The
schema, `Task.from_yaml`, `Resources` and `Optimizer` are SkyPilot's own.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
from pathlib import Path
from typing import Any

import sky
from sky import check, clouds
from sky.data import storage
from sky.optimizer import Optimizer
from sky.utils import registry

PROGRAM = "estimate.py"


def replace_accounts(names: list[str]) -> None:
    enabled = [registry.CLOUD_REGISTRY.from_str(name) for name in names]
    check.get_cached_enabled_clouds_or_refresh = lambda *_, **__: enabled
    clouds.Cloud.check_quota_available = classmethod(lambda cls, resources: True)
    storage.Storage._validate_source = lambda self, *_, **__: (self.source, False)
    storage.Storage.construct = lambda self: None


def task_of(folder: Path) -> tuple[str, sky.Task]:
    file = next(name for name in ("cluster.yaml", "managed.yaml") if (folder / name).exists())
    os.chdir(folder)
    return file, sky.Task.from_yaml(file)


def checked(case: dict[str, Any], names: list[str]) -> dict[str, Any]:
    file, task = task_of(Path(case["folder"]))
    task.expand_and_validate_file_mounts()
    task.expand_and_validate_workdir()
    listed = isinstance(task.resources, list)
    machines = list(task.resources)
    spot = any(each.use_spot for each in machines)
    wrong = []
    if task.num_nodes != case["nodes"]:
        wrong.append(f"{task.num_nodes} nodes")
    if case["data"] not in (task.file_mounts or {}).values():
        wrong.append("the data is not taken along")
    if spot != (file == "managed.yaml"):
        wrong.append("spot machines are for managed jobs")
    wrong += [f"{each.cloud} cannot do it" for each in machines if each.cloud is not None and not can(each, task)]
    answer: dict[str, Any] = {"file": file, "machines": len(machines), "ordered": listed, "spot": spot, "wrong": wrong}
    answer["chosen"] = machine(chosen(task, None))
    if not can(task.best_resources, task):
        wrong.append(f"{task.best_resources} cannot do it")
    if listed and not same(task.best_resources, machines[0]):
        wrong.append(f"SkyPilot begins with {task.best_resources}, and not with {machines[0]}")
    if (Path(case["folder"]) / PROGRAM).exists():
        answer |= ranking(Path(case["folder"]))
        wrong += answer.pop("ranking_wrong")
    return answer


def can(resources: Any, task: sky.Task) -> bool:
    """Whether SkyPilot can do there what the task needs."""
    features = clouds.CloudImplementationFeatures
    needed = {features.STORAGE_MOUNTING} if task.storage_mounts else set()
    needed |= {features.MULTI_NODE} if task.num_nodes > 1 else set()
    needed |= {features.SPOT_INSTANCE} if resources.use_spot else set()
    try:
        resources.cloud.check_features_are_supported(resources, needed)
    except sky.exceptions.NotSupportedError:
        return False
    return True


def chosen(task: sky.Task, seconds: Any) -> Any:
    with sky.Dag() as dag:
        dag.add(task)
    if seconds is not None:
        task.set_resources(set(task.resources))
        task.set_time_estimator(seconds)
    Optimizer.optimize(dag, quiet=True)
    return task.best_resources


def same(launchable: Any, asked: Any) -> bool:
    """Whether a machine is one of those that were asked for."""
    there = asked.cloud is None or launchable.cloud.is_same_cloud(asked.cloud)
    return there and launchable.accelerators == (asked.accelerators or launchable.accelerators)


def ranking(folder: Path) -> dict[str, Any]:
    """What SkyPilot's optimizer takes: by the rendered program, which says how long each takes, and by the hour."""
    program = runpy.run_path(str(folder / PROGRAM))
    _, plain = task_of(folder)
    plain.set_resources(set(plain.resources))
    by_hour = chosen(plain, None)
    by_time = program["task"].best_resources
    costs = {}
    for each in program["task"].resources:
        _, one = task_of(folder)
        one.set_resources(each)
        try:
            costs[str(each)] = round(costs_of(chosen(one, None), program), 4)
        except sky.exceptions.ResourcesUnavailableError:
            continue  # such as one at any cloud for which nobody asks so little
    found = {"by_time": machine(by_time), "by_hour": machine(by_hour), "usd": costs}
    cheapest = min(costs.values())
    wrong = [] if costs_of(by_time, program) <= cheapest + 0.01 else [f"{by_time} is not the cheapest run: {costs}"]
    return {**found, "ranking_wrong": wrong}


def costs_of(resources: Any, program: dict[str, Any]) -> float:
    return float(resources.get_cost(program["seconds"](resources)))


def machine(resources: Any) -> str:
    cards = ", ".join(f"{count:g} x {name}" for name, count in resources.accelerators.items())
    return f"{cards} at {resources.cloud} ({resources.instance_type})"


def main() -> None:
    content = json.loads(Path(sys.argv[1]).read_text("utf-8"))
    replace_accounts(content["clouds"])
    answers = []
    for case in content["cases"]:
        try:
            answers.append({**checked(case, content["clouds"]), "case": case["case"]})
        except Exception as error:  # whatever SkyPilot raises is what it does not accept
            answers.append({"case": case["case"], "wrong": [f"{type(error).__name__}: {error}"[:600]]})
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
