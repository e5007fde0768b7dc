"""Files of weights as torchtune's own configurations name them, against the table that is rendered from."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

from tunecast.launching.programs.torchtune_models import PUBLISHED


def differences() -> list[str]:
    found = files_named()
    wanted = {
        builder: sorted(form.format(f"{number:05}", f"{count:05}") for number in range(1, count + 1))
        for builder, (form, count) in PUBLISHED.items()
    }
    return [
        f"{builder}: {names} in the table, {found.get(builder)} in torchtune's configurations"
        for builder, names in wanted.items()
        if names not in found.get(builder, [])
    ]


def files_named() -> dict[str, list[list[str]]]:
    """By builder without `lora_`: each list that a configuration has."""
    spec = find_spec("recipes")
    assert spec is not None and spec.origin is not None
    found: dict[str, list[list[str]]] = {}
    for path in sorted((Path(spec.origin).parent / "configs").glob("*/*.yaml")):
        content: Any = yaml.safe_load(path.read_text("utf-8"))
        model, files = content.get("model"), (content.get("checkpointer") or {}).get("checkpoint_files")
        if not isinstance(model, dict) or files is None:
            continue
        builder = re.sub(r"\.q?lora_", ".", str(model.get("_component_")).removeprefix("torchtune.models."))
        found.setdefault(builder, []).append(sorted(names_of(files)))
    return found


def names_of(files: Any) -> list[str]:
    if isinstance(files, list):
        return [str(each) for each in files]
    last = str(files["max_filename"])
    return [files["filename_format"].format(f"{each:0{len(last)}}", last) for each in range(1, int(last) + 1)]
