"""litgpt's fine-tuning, cut down to what decides memory: `main` and `fit` of litgpt/finetune/lora.py (or full.py).

    program.py '{"method": "lora", "config": {...}, "batch": 2, "lengths": [256, 256], "accum": 2, ...}'

Left out: tokenizer, data, validation, logging. `loss` is rebound to a number at the end of an iteration, as the log of
every iteration (`train.log_interval` 1, the default) does. With "library" another release of litgpt is imported.
"""

import gc
import json
import subprocess
import sys
from types import ModuleType, SimpleNamespace

given = json.loads(sys.argv[1])
sys.path[:0] = given.get("library", [])


def with_silent_library():
    """bitsandbytes before 0.43 finds no C library here; its Python allocates what it does without one."""

    class Silent:
        def __getattr__(self, name):
            return self

        def __call__(self, *arguments):
            return 0

    module = sys.modules["bitsandbytes.cextension"] = ModuleType("bitsandbytes.cextension")
    module.lib, module.COMPILED_WITH_CUDA = Silent(), True


if given.get("silent_library"):
    with_silent_library()
subprocess.run = lambda *arguments, **options: SimpleNamespace(stdout="")  # bitsandbytes asks pip for other hardware

import lightning as L  # noqa: E402
import torch  # noqa: E402
from litgpt.utils import chunked_cross_entropy  # noqa: E402

PRECISIONS = {("bfloat16", None): "bf16-true", ("float32", "bfloat16"): "bf16-mixed", ("float32", None): "32-true"}
method, lora = given["method"], given.get("lora", {})
if method == "full":
    from litgpt.config import Config
    from litgpt.model import GPT
else:
    from litgpt.lora import GPT, Config, mark_only_lora_as_trainable

precision, plugins = PRECISIONS[given["weights_dtype"], given["autocast"]], None
if method == "qlora":
    from lightning.fabric.plugins import BitsandbytesPrecision

    precision, plugins = None, BitsandbytesPrecision(given["quantize"], torch.bfloat16)
fabric = L.Fabric(devices=1, accelerator="cuda", precision=precision, plugins=plugins)
fabric.launch()


def main():
    config = Config(**given["config"], **lora)
    with fabric.init_module(empty_init=False):
        model = GPT(config)
    if method != "full":
        mark_only_lora_as_trainable(model)
    model = fabric.setup_module(model)
    trained = [p for p in model.parameters() if p.requires_grad]
    if method == "qlora":
        import bitsandbytes as bnb

        optimizer = bnb.optim.PagedAdamW(trained)
        if given.get("stable_embedding"):  # from litgpt 0.5 on
            old_embedding = model.transformer.wte
            model.transformer.wte = bnb.nn.StableEmbedding(old_embedding.num_embeddings, old_embedding.embedding_dim)
            with torch.no_grad():
                model.transformer.wte.weight.copy_(old_embedding.weight)
            model.transformer.wte = model.transformer.wte.to(
                device=old_embedding.weight.device, dtype=old_embedding.weight.dtype
            )
    else:
        optimizer = torch.optim.AdamW(trained)
    optimizer = fabric.setup_optimizers(optimizer)
    gc.collect()  # what loading left in cycles would go at a moment of Python's choosing
    fit(model, optimizer)


def fit(model, optimizer):
    model.max_seq_length = max(given["lengths"])
    model.train()
    accum = given["accum"]
    for length in given["lengths"]:
        for _ in range(accum):
            input_ids = torch.randint(0, 100, (given["batch"], length), device="cuda")
            targets = torch.ones_like(input_ids)
            if method == "full":
                logits = model(input_ids)
                loss = chunked_cross_entropy(logits[..., :-1, :], targets[..., 1:])
            else:
                logits = model(input_ids, lm_head_chunk_size=128)
                logits[-1] = logits[-1][..., :-1, :]
                loss = chunked_cross_entropy(logits, targets[..., 1:])
            fabric.backward(loss / accum)
            loss = None
        optimizer.step()
        optimizer.zero_grad()


main()
