"""torchtune: `tune run lora_finetune_single_device --config torchtune.yaml`.

Keys      what its recipes ask for: recipes/{full,lora}_finetune_{single_device,distributed}.py of 0.6.1
Data      torchtune/datasets/_chat.py, `chat_dataset`; _instruct.py, `instruct_dataset`; _alpaca.py, `alpaca_dataset`;
          _text_completion.py, `text_completion_dataset`
Rates     recipes have no defaults for them: those of its own configurations (recipes/configs/llama3_2/1B_*.yaml)
Resuming  torchtune/training/checkpointing/_checkpointer.py, `save_checkpoint`: after each epoch, the state of the run
          last
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from tunecast.errors import Unsupported, UsageError
from tunecast.job.job import Job
from tunecast.job.recipes.frameworks.torchtune import ATTENTION, DTYPES, MLP, OPTIMIZERS, RELEASE
from tunecast.job.releases import minor
from tunecast.launching.pins import releases_of, unpinned_of
from tunecast.launching.programs.columns import BUILDERS, columns_of
from tunecast.launching.programs.settings import Machines, Places, environment_of, torchrun_words, whole
from tunecast.launching.programs.torchtune_models import ModelWords, model_words
from tunecast.launching.rendering import FIRST_STEPS, OUTPUT, Command, TrainingProgram
from tunecast.launching.texts import yaml_text

NAME = "torchtune"
TRAINING = "torchtune.yaml"
RECIPES = {"sft": "finetune", "dpo": "dpo"}
INSTALLABLE = {"torch_version": "2.13.0"}
"""The newest torch that torchtune 0.6.1 was run with (./dev system trainers); its wheel names none."""
TORCHAO = "0.11.0"
"""The last torchao with a module that torchtune 0.6.1 imports (torchao/dtypes/nf4tensor.py, before it moved); its wheel
names none."""
REPOSITORY = "torchtune @ git+https://github.com/meta-pytorch/torchtune"
RATES = {"full": 2e-5, "lora": 3e-4}
WARMUP_STEPS = 100
TEXT = "torchtune.datasets.text_completion_dataset"
STATE = "recipe_state/recipe_state.pt"
TWO_STEPS = ("epochs=1", "max_steps_per_epoch=2", f"output_dir={FIRST_STEPS}")
COMPONENTS = {name: component for component, name in reversed(OPTIMIZERS.items())}
LOSS_COMPONENTS = {"chunked": "torchtune.modules.loss.CEWithChunkedOutputLoss", "full": "torch.nn.CrossEntropyLoss"}


def defaults(job: Job) -> dict[str, Any]:
    """The releases it was run with; the loss and, of several cards, the shards that its own configurations have."""
    ends = {"parallel.shard_ends": job.method == "full"} if job.hardware.cards > 1 else {}
    return {**INSTALLABLE, "loss": "chunked", **ends}


def program(job: Job, machines: Machines, places: Places, extra: Mapping[str, object]) -> TrainingProgram:
    if job.task != "sft":
        raise Unsupported.at("task", f"got {job.task}; rendered for torchtune is sft: no other task of it is predicted")
    if machines.cpu and machines.processes > 1:
        raise Unsupported(
            "torchtune's recipes for several cards end without any: `Logging memory stats is not supported on CPU"
            " devices`. To fix: a rehearsal with --gpus 1",
            field="cpu",
        )
    for field, path in (("model", places.model), ("data.path", places.data_or_placeholder)):
        if "${" in path:
            raise UsageError.at(field, f"got {path}, in which torchtune fills in ${{…}} itself. To fix: another name")
    model = model_words(job, places)
    values = settings(job, machines, places, model)
    for name, value in extra.items():
        put(values, name, value)
    return TrainingProgram(
        NAME,
        (*tune_words(job, machines), "--config", TRAINING),
        {TRAINING: yaml_text(values)},
        {} if machines.cpu else environment_of(job),
        releases(job),
        unpinned(job),
        places.placeholders,
        places.carried,
        resumes=("resume_from_checkpoint=True",),
        checkpoint_end=STATE,
        before=(model.download,) if model.download else (),
        first_steps=TWO_STEPS,
    )


def releases(job: Job) -> dict[str, str]:
    """Of what it is installed from."""
    found = {**releases_of(job, RELEASE), "torchao": TORCHAO}
    return {package: release for package, release in found.items() if package != NAME or not is_unreleased(job)}


def unpinned(job: Job) -> tuple[str, ...]:
    """Also torchtune itself, where its file names what no release of it has."""
    return (*unpinned_of(job), *((REPOSITORY,) if is_unreleased(job) else ()))


def is_unreleased(job: Job) -> bool:
    return minor(job.stack_version or RELEASE) > minor(RELEASE)


def tune_words(job: Job, machines: Machines) -> Command:
    """Its files name no recipe: method, task and cards do (torchtune/_recipe_registry.py)."""
    if job.task not in RECIPES:
        raise Unsupported.at("task", f"got {job.task}; of torchtune's recipes {' and '.join(RECIPES)} are started")
    kind = "full" if job.method == "full" else "lora"
    several = machines.processes > 1
    recipe = f"{kind}_{RECIPES[job.task]}_{'distributed' if several else 'single_device'}"
    return ("tune", "run", *(torchrun_words(machines) if several else ()), recipe)


def put(values: dict[str, Any], name: str, value: object) -> None:
    """`optimizer.lr` goes into its section."""
    section, _, rest = name.partition(".")
    if rest:
        inner = values.setdefault(section, {})
        if not isinstance(inner, dict):
            raise UsageError(f"--with {name}: {section} is no section of torchtune's", field="extra")
        put(inner, rest, value)
    else:
        values[section] = value


def settings(job: Job, machines: Machines, places: Places, model: ModelWords) -> dict[str, Any]:
    data = data_set(job, places)
    return {
        "output_dir": OUTPUT,
        "model": {**builder(job, model), **model.arguments},
        "tokenizer": {**model.tokenizer, "max_seq_len": job.seq_len + shorter(data)},
        "checkpointer": {
            "_component_": "torchtune.training.FullModelHFCheckpointer",
            **model.checkpointer,
            "recipe_checkpoint": None,
            "output_dir": OUTPUT,
        },
        "resume_from_checkpoint": False,
        "dataset": data,
        "seed": job.data.seed,
        "shuffle": True,
        "batch_size": job.micro_batch,
        **steps(job),
        **activations(job),
        **cards(job, machines),
        "device": "cpu" if machines.cpu else "cuda",
        "dtype": dtype(job),
        "metric_logger": {
            "_component_": "torchtune.training.metric_logging.DiskLogger",
            "log_dir": f"{OUTPUT}/logs",
        },
        "log_every_n_steps": 1,
        "log_peak_memory_stats": not machines.cpu,
    }


def builder(job: Job, model: ModelWords) -> dict[str, Any]:
    package, _, name = model.builder.partition(".")
    if job.method == "full":
        return {"_component_": f"torchtune.models.{package}.{name}"}
    lora = job.lora
    targets = set(lora.targets) if not isinstance(lora.targets, str) and lora.targets else set()
    if isinstance(lora.targets, str):
        raise Unsupported.at("lora.targets", f"got {lora.targets}; torchtune wants names such as q_proj, v_proj")
    if lora.rslora:
        raise Unsupported.at("lora.rslora", "got true; torchtune has no rank-stabilised adapters")
    values: dict[str, Any] = {
        "_component_": f"torchtune.models.{package}.lora_{name}",
        "lora_attn_modules": [theirs for theirs, ours in ATTENTION.items() if ours in targets],
        "apply_lora_to_mlp": bool(targets & set(MLP)),
        "lora_rank": lora.rank,
        "lora_alpha": whole(lora.alpha),
        "lora_dropout": lora.dropout_fraction,
    }
    if "lm_head" in targets:
        values["apply_lora_to_output"] = True
    if lora.dora:
        values["use_dora"] = True
    if job.quantization.format is not None:
        values["quantize_base"] = True
    return values


def dtype(job: Job) -> str:
    found = next((name for name, value in DTYPES.items() if value == job.weights_dtype), None)
    if found is None:
        raise Unsupported.at("weights_dtype", f"got {job.weights_dtype}; torchtune has {', '.join(DTYPES.values())}")
    return found


def steps(job: Job) -> dict[str, Any]:
    """An epoch ends after so many steps, and with its data: of `run.max_steps` one epoch is made."""
    if job.optimizer not in COMPONENTS and job.optimizer != "adamw_torch_fused":
        raise Unsupported.at("optimizer", f"got {job.optimizer}; rendered for torchtune are {', '.join(COMPONENTS)}")
    if job.run.eval_strategy != "no":
        raise Unsupported.at("run.eval_strategy", f"got {job.run.eval_strategy}; torchtune 0.6.1 evaluates nothing: no")
    fused = {"fused": True} if job.optimizer == "adamw_torch_fused" else {}
    values: dict[str, Any] = {
        "epochs": 1 if job.run.max_steps else whole(job.data.epochs),
        "max_steps_per_epoch": job.run.max_steps,
        "gradient_accumulation_steps": job.grad_accum,
        "optimizer": {
            "_component_": COMPONENTS["adamw_torch" if fused else job.optimizer],
            **fused,
            "lr": RATES["full" if job.method == "full" else "lora"],
        },
        "lr_scheduler": {
            "_component_": "torchtune.training.lr_schedulers.get_cosine_schedule_with_warmup",
            "num_warmup_steps": WARMUP_STEPS,
        },
        "loss": {"_component_": loss(job)},
    }
    if job.method == "full":
        values.pop("lr_scheduler")  # its configurations have none there
        values["optimizer_in_bwd"] = job.optimizer_in_backward
    if job.max_grad_norm:
        values["clip_grad_norm"] = whole(job.max_grad_norm)
    return values


def loss(job: Job) -> str:
    if job.loss not in LOSS_COMPONENTS:
        raise Unsupported.at("loss", f"got {job.loss}; torchtune has {', '.join(LOSS_COMPONENTS)}")
    return LOSS_COMPONENTS[job.loss]


def activations(job: Job) -> dict[str, Any]:
    return {
        "compile": job.compile,
        "enable_activation_checkpointing": job.gradient_checkpointing,
        "enable_activation_offloading": job.offload_activations,
    }


def cards(job: Job, machines: Machines) -> dict[str, Any]:
    """Of FSDP 2, which the distributed recipes shard with."""
    if machines.processes == 1:
        return {}
    parallel = job.parallel
    return {
        "fsdp_cpu_offload": parallel.offload == "parameters",
        "fsdp_reshard_after_forward": parallel.reshard_after_forward,
        **({"custom_sharded_layers": ["tok_embeddings", "output"]} if parallel.shard_ends else {}),
    }


def shorter(data: Mapping[str, Any]) -> int:
    """By how much rows of text are cut shorter than `max_seq_len` (torchtune/datasets/_text_completion.py)."""
    return int(data["_component_"] == TEXT and not data["packed"])


def data_set(job: Job, places: Places) -> dict[str, Any]:
    path, columns = places.data_or_placeholder, columns_of(job.data.path)
    ending = PurePath(path).suffix.lower()
    source: dict[str, Any] = {"source": path}
    if places.data is not None and ending:
        if ending not in BUILDERS:
            raise UsageError.at(
                "data.path", f"got a file {ending}; allowed with torchtune: {', '.join(BUILDERS)}, or a folder"
            )
        source = {"source": BUILDERS[ending], "data_files": path}
    values = {**source, "split": "train", "packed": job.data.packing}
    if columns.format == "messages":
        style = {"from": "sharegpt", "role": "openai"}[columns.speaker]
        chat = {"conversation_column": columns.names["messages"], "conversation_style": style}
        return {"_component_": "torchtune.datasets.chat_dataset", **values, **chat}
    if columns.format == "text":
        column = {"column": columns.names["text"]}
        return {"_component_": TEXT, **values, **column}
    if columns.format == "preference":
        raise UsageError.at(
            "data.path", "got pairs of answers; allowed with torchtune: chats, prompts with answers, text"
        )
    names = columns.names
    if "query" in names:
        mapped = {"instruction": names["prompt"], "input": names["query"], "output": names["response"]}
        return {"_component_": "torchtune.datasets.alpaca_dataset", **values, "column_map": mapped}
    mapped = {"input": names["prompt"], "output": names["response"]}
    return {"_component_": "torchtune.datasets.instruct_dataset", **values, "column_map": mapped}
