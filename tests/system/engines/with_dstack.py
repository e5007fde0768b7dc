"""Run by dstack's Python: python with_dstack.py CASES. Answers on its last line, in JSON, what went wrong."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import yaml
from dstack._internal.core.models.configurations import TaskConfiguration, parse_apply_configuration
from dstack._internal.core.services import validate_dstack_resource_name


def checked(case: dict[str, Any]) -> dict[str, Any]:
    folder = Path(case["folder"])
    task = parse_apply_configuration(yaml.safe_load((folder / "task.dstack.yml").read_text("utf-8")))
    wrong = []
    if not isinstance(task, TaskConfiguration):
        return {"wrong": [f"a {type(task).__name__}"]}
    validate_dstack_resource_name(task.name)
    if task.nodes_num != case["nodes"]:
        wrong.append(f"{task.nodes_num} nodes")
    lost = [each.local_path for each in task.files if not (folder / each.local_path).exists()]
    if lost or case["data"] not in [each.local_path for each in task.files]:
        wrong.append(f"files: {lost or 'without the data'}")
    if not re.fullmatch("[a-z0-9-]+", task.name):
        wrong.append("its name")
    return {
        "gpu": task.resources.gpu.model_dump(mode="json"),
        "spot_policy": task.spot_policy and task.spot_policy.value,
        "backends": task.backends and [each.value for each in task.backends],
        "max_price": task.max_price,
        "max_duration": task.max_duration,
        "wrong": wrong,
    }


def main() -> None:
    answers = []
    for case in json.loads(Path(sys.argv[1]).read_text("utf-8"))["cases"]:
        try:
            answers.append({**checked(case), "case": case["case"]})
        except Exception as error:  # whatever dstack raises is what it does not accept
            answers.append({"case": case["case"], "wrong": [f"{type(error).__name__}: {error}"[:600]]})
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
