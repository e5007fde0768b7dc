"""Trace `from_pretrained` of many small models in one process: python trace_loads.py CASES.json OUT.json

As trace_all.py does jobs; CASES has the same form. A checkpoint is the header of its file: weights change no request.
"""

from __future__ import annotations

import gc
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

from installed import as_installed
from trace_all import list_others, told

from tunecast.job import Job
from tunecast.tape.build.fill_in import fill_in
from tunecast.tape.card import Card
from tunecast.tape.trace.ending import run_and_leave


def load(job: Job, config: dict[str, Any], folder: Path) -> Any:
    import torch
    from transformers import (
        AutoConfig,
        AutoModelForCausalLM,
        AutoModelForImageTextToText,
        BitsAndBytesConfig,
        FineGrainedFP8Config,
        Mxfp4Config,
    )

    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    job = fill_in(job, config)
    dtype, packed = getattr(torch, job.weights_dtype), job.quantization
    how: dict[str, Any] = {}
    stored = config.get("quantization_config", {}).get("quant_method")
    if stored is not None and packed.format is None:
        how["quantization_config"] = {"mxfp4": Mxfp4Config, "fp8": FineGrainedFP8Config}[stored](dequantize=True)
    elif stored is not None:
        pass  # the checkpoint's own
    elif packed.format == "int8":
        how["quantization_config"] = BitsAndBytesConfig(load_in_8bit=True)
    elif packed.format is not None:
        how["quantization_config"] = BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type=packed.format,
            bnb_4bit_use_double_quant=packed.double_quant,
            bnb_4bit_compute_dtype=dtype,
        )
    auto: Any = AutoModelForCausalLM
    if "vision_config" in config and type(AutoConfig.from_pretrained(folder)) not in auto._model_mapping:
        auto = AutoModelForImageTextToText
    return auto.from_pretrained(folder, dtype=dtype, device_map="cuda", **how)


def main() -> None:
    import torch

    from tunecast.tape.trace.packages import after_import, transformers
    from tunecast.tape.trace.session import tracing
    from tunecast.tape.trace.tensor_files import SafeOpen

    cases = json.loads(Path(sys.argv[1]).read_text())
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as place, tracing(Card()) as recorder:
        after_import("safetensors", lambda module: setattr(module, "safe_open", SafeOpen))
        transformers.offer({}, Path(place) / "headers")
        list_others()
        for number, (name, job, config, _) in enumerate(cases):
            gc.collect()
            if "bitsandbytes.functional" in sys.modules:  # the table of 8-bit values, which a process makes once
                sys.modules["bitsandbytes.functional"].name2qmap.clear()
            recorder.forget_all()
            try:
                torch.zeros(1, device="cuda")
                model = load(as_installed(job), config, Path(place) / str(number))
                found[name] = told(recorder.tape({}).events)
                del model
            except Exception as error:
                found[name] = f"{type(error).__name__}: {error}"
        Path(sys.argv[2]).write_text(json.dumps(found))


if __name__ == "__main__":
    run_and_leave(main)
