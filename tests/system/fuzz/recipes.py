"""Files of trainers: what no trainer would write, under every key a reader knows, and files that are hard to read.

Known keys are taken from the readers themselves: every text in their source that could be a key, or a value of one.
"""

from __future__ import annotations

import ast
import json
import os
from collections.abc import Iterator, Mapping
from copy import deepcopy
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from tunecast.errors import TunecastError
from tunecast.job import job_from_dict, recipes
from tunecast.job.mapping import with_overrides
from tunecast.job.readers import JobError, read_jobs
from tunecast.job.recipes import cards
from tunecast.job.recipes.document import Document, mapping_of, read_document
from tunecast.job.recipes.recipe import Recipe
from tunecast.job.recipes.request import Launch, ReadRequest
from tunecast.job.recipes.words import Word
from tunecast.report.lists.recipe import recipe_text

from .junk import JUNK, MARKS, TEXTS, junk, plain, shown, spoiled
from .outcomes import Input, Said, said_by_main

READERS = (*(f"frameworks.{name}" for name in recipes.FRAMEWORKS), *(f"parts.{name}" for name in recipes.PARTS))
SHARED = ("huggingface", "parts.fsdp", "launch.launchers", "launch.schedulers")
"""Whose keys stand in files of several trainers."""
NAMES = (
    *("job.yaml", "pipe.yaml", "loop.yaml", "link.json", "folder.yaml", "ds.json", "accelerate.yaml", "bomb.yaml"),
    *("small", "small/config.json", ".", "..", "/dev/zero", "/proc/self/environ", "no.json", "ds_z3_config.json"),
)
"""What a file may name that stands beside it."""
LIKELY: tuple[Any, ...] = (
    *(0, 1, 2, 4, 8, 16, 64, 512, 2048, 0.0, 0.1, 1.0, -1, True, False, None, "auto", "none", "no", "steps", "epoch"),
    *(
        "lora",
        "qlora",
        "full",
        "bf16",
        "float32",
        "torch.bfloat16",
        "4",
        "1e-5",
        "true",
        "adamw_torch",
        "sdpa",
        "*_proj",
    ),
    *(
        "all-linear",
        "flash_attention_2",
        "meta-llama/Llama-3.2-1B",
        "gpt2",
        "zero3",
        "fsdp",
        "full_shard auto_wrap",
        [],
        {},
    ),
    *(["q_proj", "v_proj"], ["*"], [2, 2], "${model}", "${a.b}", "$X", "${oc.env:HOME}", "train[:1000]", "H100:8"),
)
SEEDS: Mapping[str, dict[str, Any]] = {
    "frameworks.llama_factory": {
        "model_name_or_path": "meta-llama/Llama-3.1-8B",
        "stage": "sft",
        "finetuning_type": "lora",
        "cutoff_len": 2048,
    },
    "frameworks.axolotl": {
        "base_model": "meta-llama/Llama-3.2-1B",
        "sequence_len": 2048,
        "micro_batch_size": 2,
        "adapter": "lora",
        "lora_r": 16,
        "datasets": [{"path": "a/b", "type": "alpaca"}],
        "sample_packing": True,
    },
    "frameworks.torchtune": {
        "model": {"_component_": "torchtune.models.llama3_2.lora_llama3_2_1b", "lora_rank": 8},
        "tokenizer": {"_component_": "torchtune.models.llama3.llama3_tokenizer", "max_seq_len": None},
        "batch_size": 2,
        "gradient_accumulation_steps": 8,
        "dtype": "bf16",
        "compile": False,
        "optimizer": {"_component_": "torch.optim.AdamW", "fused": True},
    },
    "frameworks.automodel": {
        "recipe": "TrainFinetuneRecipeForNextTokenPrediction",
        "step_scheduler": {"global_batch_size": 64, "local_batch_size": 8, "max_steps": 10},
        "model": {
            "_target_": "nemo_automodel.NeMoAutoModelForCausalLM.from_pretrained",
            "pretrained_model_name_or_path": "meta-llama/Llama-3.2-1B",
            "backend": {"attn": "te"},
        },
        "distributed": {"strategy": "fsdp2", "tp_size": 1, "ep_size": 1, "pipeline": {"pp_schedule": "1f1b"}},
        "peft": {"dim": 8, "target_modules": "*_proj"},
        "dataset": {"seq_length": 512, "split": "train[:100]"},
        "optimizer": {"_target_": "torch.optim.Adam", "weight_decay": 0},
        "packed_sequence": {"packed_sequence_size": 0},
    },
    "frameworks.megatron_bridge": {
        "recipe": "llama3_8b_sft_config",
        "model": {"tensor_model_parallel_size": 2, "seq_length": 4096},
        "train": {"train_iters": 10, "global_batch_size": 8, "micro_batch_size": 1},
        "ddp": {},
        "peft": None,
        "mixed_precision": "bf16_mixed",
    },
    "frameworks.training_arguments": {
        "model_name_or_path": "meta-llama/Llama-3.2-1B",
        "output_dir": "out",
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 4,
        "bf16": True,
        "deepspeed": "ds.json",
        "fsdp": "",
        "num_train_epochs": 1.0,
    },
    "frameworks.torchtitan": {
        "model": {"name": "llama3", "flavor": "8B"},
        "training": {"seq_len": 8192, "local_batch_size": 1, "steps": 10},
        "parallelism": {"tensor_parallel_degree": 1, "data_parallel_shard_degree": -1},
        "activation_checkpoint": {"mode": "selective", "selective_ac_option": "op"},
        "optimizer": {"name": "AdamW"},
    },
    "parts.accelerate": {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "FSDP",
        "num_processes": 8,
        "num_machines": 1,
        "mixed_precision": "bf16",
        "fsdp_config": {"fsdp_version": 2, "fsdp_offload_params": False},
    },
    "parts.deepspeed": {
        "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}, "overlap_comm": True},
        "train_micro_batch_size_per_gpu": "auto",
        "bf16": {"enabled": "auto"},
        "gradient_clipping": 1.0,
    },
    "parts.peft": {
        "peft_type": "LORA",
        "r": 8,
        "lora_alpha": 16,
        "target_modules": ["q_proj"],
        "base_model_name_or_path": None,
        "task_type": "CAUSAL_LM",
        "modules_to_save": None,
        "rank_pattern": {},
    },
}
"""A file of each; one that has none is looked for."""
PYTHON: Mapping[str, tuple[str, ...]] = {
    "frameworks.unsloth": (
        "from unsloth import FastLanguageModel",
        "from trl import SFTTrainer, SFTConfig",
        "longest = 2048",
        'model, tokenizer = FastLanguageModel.from_pretrained("unsloth/Llama-3.2-1B", max_seq_length=longest)',
        "model = FastLanguageModel.get_peft_model(model, r=16, target_modules=['q_proj'])",
        "trainer = SFTTrainer(model=model, args=SFTConfig(per_device_train_batch_size=2, max_length=longest))",
        "trainer.train()",
    ),
    "frameworks.script": (
        "import argparse",
        "from transformers import AutoModelForCausalLM, Trainer, TrainingArguments",
        "parser = argparse.ArgumentParser()",
        "parser.add_argument('--batch', type=int, default=4)",
        "args = parser.parse_args()",
        "model = AutoModelForCausalLM.from_pretrained('gpt2')",
        "arguments = TrainingArguments('out', per_device_train_batch_size=args.batch, **{'bf16': True})",
        "Trainer(model=model, args=arguments, train_dataset=data).train()",
    ),
}
"""Scripts, a statement each."""
PYTHON_TRAPS = (
    "import os; os.system('touch ran')", "__import__('os').mkdir('ran')", "x = " + "(" * 200, "x = 9 ** 9 ** 9",
    "x = 'a' * 10 ** 12", "x = [0] * 10 ** 12", "x = 1 << 10 ** 9", "while True: pass", "def f(): return f()", "f()",
    "x = [x for x in range(10 ** 12)]", "from . import own", "from file import *", "class A(A): pass", "x: int = x",
    "lambda: (yield)", "x = f'{x!r:{x}}'", "x = " + "-" * 5000 + "1", "if x:\n    y = 1\nelse:\n    y = 2", "\tx = 1",
    "a = b = c = a", "del model", "globals()['model'] = 1", "%pip install x", "!rm -rf /", "async def g(): await g()",
)  # fmt: skip
COMMANDS = (
    "accelerate launch --config_file accelerate.yaml --num_processes 8 train.py --model_name_or_path gpt2 --bf16",
    "torchrun --nproc_per_node 8 --nnodes 2 finetune.py --config job.yaml --a.b 3",
    "deepspeed --num_gpus 4 train.py --deepspeed ds.json --output_dir out --per_device_train_batch_size 2",
    "automodel finetune llm -c file.yaml --step_scheduler.local_batch_size 4",
    "axolotl train file.yaml --micro-batch-size 4",
    "llamafactory-cli train file.yaml lora_rank=8",
    "tune run --nproc_per_node 2 lora_finetune_distributed --config file.yaml batch_size=2",
    "trl sft --model_name_or_path gpt2 --dataset_name a/b --use_peft",
    "swift sft --model Qwen/Qwen2.5-7B --tuner_type lora --deepspeed zero2",
    "litgpt finetune_lora gpt2 --config file.yaml --train.micro_batch_size 1",
    "python -m torch.distributed.run --nproc-per-node=gpu -m nemo_automodel.cli.app file.yaml",
    "srun --gpus-per-node=8 -N 2 bash -c 'CUDA_VISIBLE_DEVICES=0,1 python run_recipe.py --recipe llama3_8b_sft_config'",
    "#SBATCH --nodes=2 --gpus-per-node=8",
    "export A=${B:-$C}",
    "for i in 1 2; do",
    "done",
    "cat <<EOF",
    "EOF",
    "fi",
)
YAML_TRAPS = (
    "a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b]\n"
    "d: &d [*c,*c,*c,*c,*c,*c]\ne: [*d,*d,*d,*d,*d,*d,*d,*d]\n",
    "a: &a\n  <<: *a\n",
    "a: &a [*a]\n",
    "x: !!python/object/apply:os.system ['id']\n",
    "x: !!python/name:os.system\n",
    "x: !<tag:yaml.org,2002:python/module:os> ''\n",
    "x: !include /etc/passwd\n",
    "x: !!set {a, b}\n",
    "x: !!omap [a: 1]\n",
    "x: !!timestamp 2026-02-31\n",
    "x: " + "9" * 5000 + "\n",
    "x: 0x" + "f" * 4000 + "\n",
    "x: " + "[" * 900 + "\n",
    "".join(" " * n + "a:\n" for n in range(60)),
    "? [a, b]\n: 1\n",
    "1: 2\n",
    "null: 1\n",
    "true: {1: 2}\n",
    "~: ~\n",
    "base: &base {model: gpt2}\n<<: *base\n",
    "<<: [1, 2]\n",
    "<<: {output_dir: x}\n",
    "%YAML 1.1\n---\na: 1\n",
    "---\n---\n",
    "x: .inf\ny: .nan\nz: -.inf\n",
    "x: 190:20:30\n",
    "x: 1_0_0\n",
    "x: 0o17\n",
    "x: |\n  " + "a" * 3000 + "\n",
    "\t- a\n",
)


@cache
def words_of(reader: str) -> tuple[str, ...]:
    """Texts in its source that could be keys, or values of some."""
    spec = find_spec(f"{recipes.__name__}.{reader}")
    if spec is None or spec.origin is None:
        return ()
    tree = ast.parse(Path(spec.origin).read_text("utf-8"))
    found = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    parts = {part for text in found for part in (text, *text.split()) if part and len(part) < 80 and " " not in part}
    return tuple(sorted(parts))


@cache
def keys_of(reader: str) -> tuple[str, ...]:
    """Those that could be keys; a key inside of another too, by its dotted name."""
    names = {
        word for word in words_of(reader) if all(part.isidentifier() for part in word.split(".")) and word.isascii()
    }
    outer = {name for name, value in SEEDS.get(reader, {}).items() if isinstance(value, dict)}
    return tuple(sorted(names | {f"{section}.{name}" for section in outer for name in names if "." not in name}))


@cache
def seed_of(reader: str) -> dict[str, Any]:
    if reader in SEEDS:
        return SEEDS[reader]
    rng, framework = Random(reader), import_module(f"{recipes.__name__}.{reader}")
    for _ in range(5000):
        tree: dict[str, Any] = {}
        for _ in range(rng.randint(1, 6)):
            put(tree, rng.choice(keys_of(reader)), rng.choice((*LIKELY, *words_of(reader))))
        if framework.recognises(Document("seed.yaml", tree, {})):
            return tree
    return {}


def put(tree: dict[str, Any], name: str, value: Any) -> None:
    """By dotted name; what stands in the way is replaced."""
    *outer, leaf = name.split(".")
    for part in outer:
        if not isinstance(tree.get(part), dict):
            tree[part] = {}
        tree = tree[part]
    tree[leaf] = value


def changed_tree(rng: Random, number: int) -> tuple[str, dict[str, Any]]:
    """A file of some trainer with up to eight changes: mostly under keys that its reader knows."""
    reader = READERS[number % len(READERS)]
    tree = deepcopy(seed_of(reader))
    for _ in range(rng.choice((0, 1, 1, 1, 2, 2, 3, 5, 8))):
        source = reader if rng.random() < 0.75 else rng.choice((*READERS, *SHARED))
        name = rng.choice(keys_of(source) or ("x",))
        kind = rng.random()
        if kind < 0.05 and tree:
            tree.pop(rng.choice(list(tree)))
        elif kind < 0.1 and tree:
            inside = rng.choice(list(tree))
            tree[inside] = rng.choice(
                ([tree[inside]], {"x": tree[inside]}, [tree[inside]] * 3, str(plain(tree[inside])))
            )
        else:
            put(tree, name, any_value(rng, source))
    return reader, tree


def any_value(rng: Random, reader: str) -> Any:
    kind = rng.random()
    if kind < 0.35:
        return junk(rng)
    if kind < 0.6:
        return deepcopy(rng.choice(LIKELY))
    if kind < 0.85:
        return rng.choice(words_of(reader) or ("x",))
    if kind < 0.95:
        return rng.choice(NAMES)
    return {rng.choice(keys_of(reader) or ("x",)).rpartition(".")[2]: junk(rng) for _ in range(3)}


def key_input(rng: Random, number: int) -> Input:
    """In memory, without a file: the reader, the job it makes, and both ways to print it."""
    if rng.random() < 0.15:
        return command_input(rng)
    _, tree = changed_tree(rng, number)
    gpus = rng.choice((None, None, 1, 8))
    overrides: dict[str, object] = {} if gpus is None else {"hardware.gpu": "h100-sxm-80gb", "hardware.gpus": gpus}

    def ask() -> Said:
        document = Document("file.yaml", mapping_of(tree, "file.yaml"), {}, json.dumps(plain(tree), default=str))
        found = recipes.recipe_of(ReadRequest(document, Path(), Launch(gpus=gpus)))
        if found is None:
            return Said(2)
        use(found, overrides)
        return Said(0, recipe_text(found, "file.yaml"))

    return Input(shown(tree), ask)


def use(found: Recipe, overrides: Mapping[str, object]) -> None:
    """What `read --json` and `predict` do with it; a refusal is an answer."""
    json.dumps(found.to_dict())
    try:
        content = with_overrides(found.job, overrides)
        recipes.require_modelled(found, content, "file.yaml")
        content = cards.in_its_dtype(content, found.assumed, overrides)
        cards.unsaid(content, found.global_batch)
        job_from_dict(cards.on_its_cards(content, found.global_batch))
    except TunecastError as error:
        recipes.at_its_place(error, found, "file.yaml")


def command_input(rng: Random) -> Input:
    words = rng.choice(COMMANDS).split()
    for _ in range(rng.choice((0, 1, 2, 4))):
        reader = rng.choice(READERS)
        flag = rng.choice(("--", "-", "", "+", "~")) + rng.choice(keys_of(reader) or ("x",))
        value = str(plain(rng.choice((*LIKELY, *JUNK[:30], *TEXTS))))[:200]
        words[rng.randint(0, len(words)) : 0] = rng.choice(([flag, value], [f"{flag}={value}"], [flag]))
    rng.random() < 0.3 and rng.shuffle(words)  # type: ignore[func-returns-value]

    def ask() -> Said:
        told = [Word(word, place) for place, word in enumerate(words)]
        for name in recipes.FRAMEWORKS:
            framework = recipes.load_framework(name)
            if hasattr(framework, "invocation"):
                framework.invocation(told)
        return Said(0)

    return Input(shown(words), ask)


# files


def file_input(rng: Random, number: int) -> Input:
    kind = rng.random()
    if kind < 0.2:
        ending, content = rng.choice(recipes.SCRIPTS), script(rng)
    elif kind < 0.45:
        ending = rng.choice((".py", ".py", ".ipynb"))
        content = python(rng, ending)
    else:
        ending = rng.choice((".yaml", ".yaml", ".yml", ".json"))
        content = structured(rng, number, ending)
    if rng.random() < 0.5:
        content = spoiled(rng, content, (*MARKS, *YAML_TRAPS))
    key, value = rng.choice(keys_of(rng.choice(READERS)) or ("x",)), rng.choice((*TEXTS, "4", "true", "[1]"))
    by_command = rng.random() < 0.1
    named = rng.random() < 0.3
    special = rng.choice(("pipe.yaml", "loop.yaml", "folder.yaml", "link.json")) if rng.random() < 0.01 else ""

    def ask() -> Said:
        furnish()
        path = Path(special or f"file{ending}")
        if not special:
            path.write_bytes(content)
        if by_command:
            words = ["read", str(path), *([f"{key}={value}"] if named else []), "--json"]
            return said_by_main([word.replace("\x00", "").replace("\ud800", "\udcff") for word in words])
        answers = list(read_jobs(str(path), {"hardware.gpu": "h100-sxm-80gb", "hardware.gpus": 8}))
        return Said(2 if any(isinstance(answer, JobError) for answer in answers) else 0)

    return Input(f"{special or ending}: {shown(content)}", ask)


def structured(rng: Random, number: int, ending: str) -> bytes:
    _, tree = changed_tree(rng, number)
    text = json.dumps(plain(tree), ensure_ascii=rng.random() < 0.5)[:20000]
    if ending != ".json" and rng.random() < 0.5:
        text = "".join(f"{key}: {json.dumps(plain(value))[:4000]}\n" for key, value in tree.items())
        if rng.random() < 0.3:
            lines = [*text.splitlines(keepends=True), rng.choice(YAML_TRAPS)]
            rng.shuffle(lines)
            text = "".join(lines)
    return text.encode("utf-8", "surrogatepass")


def script(rng: Random) -> bytes:
    lines = ["#!/bin/bash", *rng.choices(COMMANDS, k=rng.randint(1, 4))]
    for _ in range(rng.randint(0, 4)):
        flag = rng.choice(keys_of(rng.choice(READERS)) or ("x",))
        lines.append(f"  --{flag} {str(plain(rng.choice((*LIKELY, *JUNK))))[:300]} \\")
    if rng.random() < 0.3:
        rng.shuffle(lines)
    return rng.choice(("\n", " \\\n", "\r\n", "; ", " && ")).join(lines).encode("utf-8", "surrogatepass")


def python(rng: Random, ending: str) -> bytes:
    lines = list(rng.choice(list(PYTHON.values())))
    for _ in range(rng.choice((0, 1, 1, 2, 4))):
        kind = rng.random()
        if kind < 0.4:
            lines.insert(rng.randint(0, len(lines)), rng.choice(PYTHON_TRAPS))
        elif kind < 0.8:
            name = rng.choice(keys_of(rng.choice((*PYTHON, *SHARED))) or ("x",)).rpartition(".")[2]
            place = rng.randrange(len(lines))
            value = ascii(plain(rng.choice((*LIKELY, *JUNK))))[:200]
            lines[place] = lines[place].replace("(", f"({name}={value}, ", 1)
        else:
            lines.pop(rng.randrange(len(lines)))
    rng.random() < 0.15 and rng.shuffle(lines)  # type: ignore[func-returns-value]
    text = "\n".join(lines)
    if ending == ".ipynb":
        cells = [{"cell_type": "code", "source": [f"{line}\n" for line in lines], "outputs": []}]
        text = json.dumps({"cells": rng.choice((cells, cells * 3, {}, [1])), "nbformat": 4})
    return text.encode("utf-8", "surrogatepass")


def furnish() -> None:
    """What files may name: made once a room."""
    if Path("ds.json").exists():
        return
    Path("ds.json").write_text('{"zero_optimization": {"stage": 2}, "train_batch_size": "auto"}')
    Path("accelerate.yaml").write_text("distributed_type: MULTI_GPU\nnum_processes: 4\n")
    Path("bomb.yaml").write_text(YAML_TRAPS[0])
    Path("folder.yaml").mkdir()
    os.symlink("loop.yaml", "loop.yaml")
    os.symlink("/dev/zero", "link.json")


def readers_without_a_file() -> Iterator[str]:
    """For a test: readers that no input here reaches."""
    for reader in READERS:
        framework = import_module(f"{recipes.__name__}.{reader}")
        if reader in PYTHON:
            with TemporaryDirectory() as folder:
                path = Path(folder) / "seed.py"
                path.write_text("\n".join(PYTHON[reader]))
                document = read_document(path)
        else:
            document = Document("seed.yaml", seed_of(reader), {})
        if not framework.recognises(document):
            yield reader
