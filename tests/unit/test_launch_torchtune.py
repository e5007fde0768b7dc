"""What is rendered for torchtune: its builders, files and recipes, of the Hub's models and of folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tunecast.door.launch import launch
from tunecast.door.read import read
from tunecast.errors import TunecastError, UsageError
from tunecast.job.registry import bundled_names
from tunecast.launching.programs.torchtune_models import PUBLISHED, model_name
from tunecast.launching.rendering import Rendering

pytestmark = pytest.mark.whole
yaml = pytest.importorskip("yaml")
SHAPE = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 256, "hidden_size": 64,
    "intermediate_size": 160, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 256, "rms_norm_eps": 1e-6, "tie_word_embeddings": False, "rope_theta": 10000.0,
    "hidden_act": "silu", "torch_dtype": "bfloat16",
}  # fmt: skip


def rendered(model: str = "llama-3.2-1b", on: str = "local", **fields: Any) -> Rendering:
    job = read(model, None, **{"stack": "torchtune", "gpu": "h100-sxm-80gb", "seq_len": 512, **fields})
    found = launch(job, on=on, dry_run=True)
    assert isinstance(found, Rendering)
    return found


def said(rendering: Rendering) -> Any:
    return yaml.safe_load(rendering.files["torchtune.yaml"])


def folder_of(path: Path, **other: Any) -> str:
    (path / "config.json").write_text(json.dumps({**SHAPE, **other}))
    (path / "model.safetensors").write_bytes(b"")
    (path / "tokenizer.model").write_bytes(b"")
    return str(path)


def test_adapters_and_files_of_a_model_of_the_hub() -> None:
    found = rendered(method="qlora", rank=8, micro_batch=2, grad_accum=4)
    values = said(found)
    assert values["model"] == {
        "_component_": "torchtune.models.llama3_2.lora_llama3_2_1b",
        "lora_attn_modules": ["q_proj", "v_proj", "output_proj"],
        "apply_lora_to_mlp": True,
        "lora_rank": 8,
        "lora_alpha": 32,
        "lora_dropout": 0.05,
        "quantize_base": True,
    }
    assert values["tokenizer"]["path"] == "model/original/tokenizer.model"
    assert (values["batch_size"], values["gradient_accumulation_steps"], values["dtype"]) == (2, 4, "bf16")
    assert "tune download meta-llama/Llama-3.2-1B --output-dir model" in found.files["train.sh"]
    assert found.files["train.sh"].endswith('exec tune run lora_finetune_single_device --config torchtune.yaml "$@"\n')
    assert {"torchtune==0.6.1", "torchao==0.11.0"} <= set(found.files["requirements.txt"].splitlines())


@pytest.mark.parametrize("name", ["${oc.env:HF_TOKEN}", "a ${output_dir}"])
def test_paths_that_it_would_fill_in_are_refused(name: str, tmp_path: Path) -> None:
    """OmegaConf, which reads its files, puts variables of the environment there, and a log shows them."""
    folder = tmp_path / name
    folder.mkdir()
    (folder / "train.jsonl").write_text('{"text": "a b c"}\n')
    with pytest.raises(UsageError, match=r"data\.path: .*fills in.*To fix"):
        rendered(data_path=str(folder / "train.jsonl"))
    with pytest.raises(UsageError, match=r"model: .*fills in.*To fix"):
        rendered(folder_of(folder))


def test_several_cards_shard_by_its_own_recipe() -> None:
    found = rendered("llama-3.1-8b", gpus=8, nodes=2, allocator="expandable_segments")
    assert "--nnodes 2 --node_rank" in found.files["train.sh"]
    assert "--nproc_per_node 8 full_finetune_distributed --config" in found.files["train.sh"]
    assert said(found)["custom_sharded_layers"] == ["tok_embeddings", "output"]
    assert said(found)["checkpointer"]["checkpoint_files"]["max_filename"] == "00004"


def test_a_folder_is_built_with_its_own_sizes(tmp_path: Path) -> None:
    values = said(rendered(folder_of(tmp_path), method="lora", seq_len=128))
    assert values["model"]["_component_"] == "torchtune.models.llama2.lora_llama2"
    assert {"num_layers": 2, "embed_dim": 64, "intermediate_dim": 160}.items() <= values["model"].items()
    assert values["checkpointer"]["checkpoint_files"] == ["model.safetensors"]
    (tmp_path / "original").mkdir()
    (tmp_path / "original" / "tokenizer.model").touch()
    theirs = said(rendered(folder_of(tmp_path, rope_theta=500000.0), method="full", seq_len=128))
    assert theirs["model"]["_component_"] == "torchtune.models.llama3.llama3"
    assert theirs["model"]["rope_base"] == 500000


@pytest.mark.parametrize(
    ("row", "component", "told"),
    [
        ({"text": "a b"}, "text_completion_dataset", {"column": "text"}),
        ({"messages": [{"role": "user", "content": "a"}]}, "chat_dataset", {"conversation_style": "openai"}),
        ({"conversations": [{"from": "human", "value": "a"}]}, "chat_dataset", {"conversation_style": "sharegpt"}),
        ({"prompt": "a", "completion": "b"}, "instruct_dataset", {}),
        ({"instruction": "a", "input": "b", "output": "c"}, "alpaca_dataset", {}),
    ],
)  # fmt: skip
def test_rows_by_their_columns(tmp_path: Path, row: dict[str, Any], component: str, told: dict[str, Any]) -> None:
    file = tmp_path / "train.jsonl"
    file.write_text(json.dumps(row) + "\n")
    values = said(rendered(method="lora", data_path=str(file)))
    assert values["dataset"]["_component_"] == f"torchtune.datasets.{component}"
    assert {"source": "json", "data_files": str(file), **told}.items() <= values["dataset"].items()
    assert values["tokenizer"]["max_seq_len"] == (513 if component.startswith("text") else 512), "text is cut shorter"


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"model": "code-llama-nowhere/x"}, "model"),
        ({"method": "lora", "lora": {"targets": ["q_proj", "gate_proj"]}}, "lora.targets"),
        ({"eval_strategy": "epoch"}, "eval_strategy"),
        ({"optimizer": "adafactor"}, "optimizer"),
        ({"task": "dpo"}, "task"),
    ],
)
def test_what_it_cannot_say_is_refused(fields: dict[str, Any], told: str) -> None:
    with pytest.raises(TunecastError, match=told):
        rendered(**fields)


def test_it_goes_on_from_the_state_of_its_run() -> None:
    text = rendered().files["resume.sh"]
    assert "-path '*/recipe_state/recipe_state.pt'" in text and "set -- resume_from_checkpoint=True" in text
    assert "recipe_state/recipe_state.pt' -newer attempt" in rendered(on="slurm").files["job.sbatch"]


def test_every_published_builder_is_a_model_that_is_known() -> None:
    names = {model_name(each.partition(".")[2]) for each in PUBLISHED}
    assert len(names) == len(PUBLISHED) and names <= set(bundled_names())
