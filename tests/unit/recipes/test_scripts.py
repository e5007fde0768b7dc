"""Scripts that are read without running them: what lies beside them, who calls them, what they train on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tunecast.errors import Unsupported, UsageError
from tunecast.hardware.catalog import gpus
from tunecast.job.lengths import data_set_of
from tunecast.job.model import resolve_model
from tunecast.job.readers import read_job
from tunecast.job.recipes import cards, find_recipe
from tunecast.job.recipes.recipe import Recipe
from tunecast.tape.build.fill_in import fill_in_of

HELPERS = """\
import torch
from transformers import AutoModelForCausalLM, BitsAndBytesConfig
from peft import LoraConfig

def build(args):
    packed = None
    if args.four_bits:
        kind = getattr(torch, args.storage)
        packed = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_quant_storage=kind)
    dtype = kind if packed is not None and kind.is_floating_point else torch.float32
    options = {"dtype": dtype}
    if torch.xpu.is_available():
        options["attn_implementation"] = "eager"
    if packed is not None:
        options["quantization_config"] = packed
    model = AutoModelForCausalLM.from_pretrained(args.model_name, **options)
    return model, LoraConfig(r=args.rank, target_modules=args.targets.split(","))
"""
TRAIN = """\
from dataclasses import dataclass, field
from transformers import HfArgumentParser
from trl import SFTConfig, SFTTrainer
from helpers import build

@dataclass
class Own:
    model_name: str = field(metadata={"help": "which"})
    four_bits: bool = False
    storage: str = "uint8"
    rank: int = 64
    targets: str = "q_proj,v_proj"

own, training = HfArgumentParser((Own, SFTConfig)).parse_args_into_dataclasses()
model, adapters = build(own)
trainer = SFTTrainer(model=model, args=training, peft_config=adapters)
trainer.train()
"""
UNSLOTH = """\
from unsloth import FastLanguageModel
from datasets import load_dataset
from trl import SFTConfig, SFTTrainer
model, tokenizer = FastLanguageModel.from_pretrained(model_name="llama-3.1-8b", max_seq_length=2048, load_in_4bit=True)
model = FastLanguageModel.get_peft_model(model, r=16, use_gradient_checkpointing="unsloth")
rows = load_dataset("{data}", split="{split}")
trainer = SFTTrainer(model=model, train_dataset=rows, args=SFTConfig(packing={packing}, max_steps=60))
"""


def understood(folder: Path, name: str, text: str) -> Recipe:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    found = find_recipe(path)
    assert found is not None
    return found


@pytest.fixture
def called(tmp_path: Path) -> Recipe:
    (tmp_path / "helpers.py").write_text(HELPERS, encoding="utf-8")
    (tmp_path / "train.py").write_text(TRAIN, encoding="utf-8")
    command = (
        "python train.py --model_name llama-2-70b --four_bits True --storage bfloat16 \\\n --rank 8 --max_length 512"
    )
    return understood(tmp_path, "run.sh", f"{command} --packing True\n")


def test_functions_of_a_module_beside_the_script_are_followed(called: Recipe, tmp_path: Path) -> None:
    assert called.job["model"] == "llama-2-70b"
    assert called.job["method"] == "qlora"
    assert called.job["lora"]["rank"] == 8
    assert called.job["lora"]["targets"] == ["q_proj", "v_proj"]
    assert called.job["weights_dtype"] == "bfloat16"  # as it is stored: a floating-point type
    assert called.places["lora.rank"].file == str(tmp_path / "helpers.py")
    assert "attention" not in called.job  # no card of Intel's


def test_arguments_go_to_the_class_that_has_them(called: Recipe, tmp_path: Path) -> None:
    """And SFTConfig gets what the script's own class does not have: nothing of a rank is left over."""
    assert called.job["seq_len"] == 512
    assert called.job["data"]["packing"] is True
    assert called.places["seq_len"] == (str(tmp_path / "run.sh"), 2, "max_length")
    assert called.not_understood == ()


def test_without_four_bits_the_weights_are_float32(tmp_path: Path) -> None:
    (tmp_path / "helpers.py").write_text(HELPERS, encoding="utf-8")
    (tmp_path / "train.py").write_text(TRAIN, encoding="utf-8")
    found = understood(tmp_path, "run.sh", "python train.py --model_name llama-2-7b\n")
    assert (found.job["method"], found.job["weights_dtype"], found.job["lora"]["rank"]) == ("lora", "float32", 64)


def test_modules_that_import_each_other_end(tmp_path: Path) -> None:
    (tmp_path / "helpers.py").write_text(f"import train\n{HELPERS}", encoding="utf-8")
    (tmp_path / "train.py").write_text(TRAIN, encoding="utf-8")
    assert understood(tmp_path, "run.sh", "python train.py --model_name llama-2-7b\n").job["model"] == "llama-2-7b"


def test_a_script_of_trl_that_is_given_a_file_reads_all_from_that(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text("model_name_or_path: llama-3.1-8b\nuse_peft: true\nmax_length: 64\n")
    found = understood(tmp_path, "run.sh", "accelerate launch scripts/sft.py --config x.yaml --lora_r 4\n")
    assert (found.job["seq_len"], found.job["lora"]["rank"]) == (64, 4)


def test_a_script_that_only_answers_is_told_as_such(tmp_path: Path) -> None:
    path = tmp_path / "chat.py"
    path.write_text("from transformers import AutoModelForCausalLM as A\nmodel = A.from_pretrained('gpt2')\n")
    with pytest.raises(UsageError, match=r"chat\.py:2 .*nothing in the script trains it") as caught:
        read_job(str(path))
    assert caught.value.field == "task"


def test_unsloth_checkpoints_without_offloading_as_trl_does(tmp_path: Path) -> None:
    text = UNSLOTH.format(data="my/own", split="train", packing=False)
    kept = text.replace('use_gradient_checkpointing="unsloth"', "use_gradient_checkpointing=True")
    others = {each.key for each in understood(tmp_path, "a.py", kept).not_understood}
    assert others == {"use_gradient_checkpointing"}
    moe = kept.replace("llama-3.1-8b", "qwen3-30b-a3b")  # of which TRL's stack is taken
    assert {each.key for each in understood(tmp_path, "b.py", moe).not_understood} == {"model_name"}


def test_unsloth_with_an_encoder_of_sound_is_refused(tmp_path: Path) -> None:
    text = UNSLOTH.format(data="my/own", split="train", packing=False)
    heard = text.replace("r=16,", "r=16, finetune_audio_layers=True,")
    assert str(understood(tmp_path, "a.py", heard).refused).startswith("audio")
    assert understood(tmp_path, "b.py", text).refused is None


def test_a_script_without_a_training_is_told_as_such(tmp_path: Path) -> None:
    file = tmp_path / "start.py"
    file.write_text("from studio import start\nstart()\n")
    with pytest.raises(UsageError, match="no training: its text makes no trainer") as raised:
        find_recipe(file)
    assert raised.value.field == "task"


def test_a_task_that_is_not_modelled_is_told_before_a_missing_model(tmp_path: Path) -> None:
    path = tmp_path / "xpo.py"
    path.write_text("import sys\nfrom trl import XPOTrainer\nXPOTrainer(model=sys.argv[1], reward_funcs=[])\n")
    with pytest.raises(Unsupported, match="xpo: nothing of this kind") as caught:
        read_job(str(path))
    assert caught.value.field == "task"


@pytest.mark.parametrize(
    ("data", "split", "packing", "expected"),
    [
        ("yahma/alpaca-cleaned", "train", False, ("alpaca-cleaned", None, 820)),
        ("openai/gsm8k", "train[:3000]", False, ("gsm8k", 3000, 460)),
        ("yahma/alpaca-cleaned", "train", True, ("alpaca-cleaned", None, 2048)),
        ("my/own", "train", False, (None, None, 2048)),
    ],
)
def test_a_well_known_data_set_says_how_long_rows_are(
    tmp_path: Path, data: str, split: str, packing: bool, expected: tuple[object, ...]
) -> None:
    text = UNSLOTH.format(data=data, split=split, packing=packing)
    found = understood(tmp_path, "train.py", text)
    said = found.job["data"]
    assert (said.get("lengths"), said.get("samples"), found.job["seq_len"]) == expected


def test_of_two_data_sets_the_one_that_the_trainer_is_given_counts(tmp_path: Path) -> None:
    text = UNSLOTH.format(data="openai/gsm8k", split="train", packing=False)
    found = understood(tmp_path, "train.py", f"{text}others = load_dataset('tatsu-lab/alpaca')\n")
    assert found.job["data"]["lengths"] == "gsm8k"


TRAINER = """\
from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainingArguments
tokenizer = AutoTokenizer.from_pretrained("llama-3.2-1b")
model = AutoModelForCausalLM.from_pretrained("llama-3.2-1b")
rows = load_dataset("json", data_files={files}){split}
rows = rows.map({how}, batched=True)
Trainer(model, TrainingArguments("out"), train_dataset=rows{part}).train()
def tokenize(batch):
    return tokenizer(batch["text"], truncation=True, max_length=LONGEST)
LONGEST = 384
"""


@pytest.mark.parametrize("files", ["'own.jsonl'", "{'train': 'own.jsonl', 'test': 'other.jsonl'}", "['own.jsonl']"])
@pytest.mark.parametrize("how", ["tokenize", "lambda rows: tokenizer(rows['text'], truncation=True, max_length=384)"])
def test_files_that_a_script_loads_and_where_its_tokenizer_cuts_them(tmp_path: Path, files: str, how: str) -> None:
    (tmp_path / "own.jsonl").write_text('{"text": "Why? Because."}\n' * 20)
    text = TRAINER.format(files=files, how=how, split="['train']", part="")
    found = understood(tmp_path, "train.py", text)
    assert found.job["seq_len"] == 384
    assert found.job["data"]["path"] == str(tmp_path / "own.jsonl")
    assert "held_back" not in found.job["data"]


def test_what_a_script_holds_back(tmp_path: Path) -> None:
    (tmp_path / "own.jsonl").write_text('{"text": "Why? Because."}\n' * 30)
    text = TRAINER.format(
        files="'own.jsonl'", how="tokenize", split=".train_test_split(test_size=0.1)", part="['train']"
    )
    assert understood(tmp_path, "train.py", text).job["data"]["held_back"] == 0.1
    job = fill_in_of(read_job(tmp_path / "train.py", {"hardware.gpu": "l4"}), resolve_model("llama-3.2-1b"))
    assert (job.data.samples, job.data.eval_samples, job.data.held_back) == (27, 3, None)


def test_how_a_model_that_trl_loads_is_loaded(tmp_path: Path) -> None:
    text = """\
from trl import SFTConfig, SFTTrainer
args = SFTConfig("out", model_init_kwargs={"dtype": "bfloat16", "attn_implementation": "eager", "device_map": "auto"})
SFTTrainer(model="llama-3.2-1b", args=args).train()
"""
    found = understood(tmp_path, "train.py", text)
    assert found.job["weights_dtype"] == "bfloat16" and found.job["attention"] == "eager"
    assert not found.not_understood


def test_names_of_the_hub_are_found_in_any_case() -> None:
    assert data_set_of("Vicgalle/Alpaca-GPT4") == "alpaca-gpt4"
    assert data_set_of("alpaca") is None  # an id has an owner


@pytest.mark.parametrize(("card", "dtype"), [("t4", "float16"), ("l4", "bfloat16")])
def test_unsloth_computes_in_what_its_card_does(tmp_path: Path, card: str, dtype: str) -> None:
    path = tmp_path / "train.py"
    path.write_text(UNSLOTH.format(data="my/own", split="train", packing=False))
    job = read_job(str(path), {"hardware.gpu": card})
    assert (job.autocast, job.weights_dtype) == (dtype, dtype)
    said = read_job(str(path), {"hardware.gpu": card, "autocast": "bfloat16", "weights_dtype": "bfloat16"})
    assert (said.autocast, said.weights_dtype) == ("bfloat16", "bfloat16")


def test_cards_without_bfloat16_are_those_without_a_rate_for_it() -> None:
    for name, gpu in gpus().items():
        assert name.startswith(cards.WITHOUT_BFLOAT16) == ("bf16" not in gpu.dense_flop_per_s), name


def test_unsloth_trains_gpt_oss_with_flex_attention(tmp_path: Path) -> None:
    """Not with scores of every pair of tokens, which of half a million take terabytes."""
    text = UNSLOTH.format(data="my/own", split="train", packing=False).replace("llama-3.1-8b", "gpt-oss-20b")
    assert understood(tmp_path, "train.py", text).job["attention"] == "flex_attention"
