"""Training programs that TRL's release carries, traced as they are: a few of those of `./dev system programs`."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest

from tunecast.door.trace import ScriptTrace, trace

sys.path.insert(0, str(Path(__file__).parents[1] / "system"))

from programs.stand_ins import Words, train_tokenizer, write_data_set

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 4096, "hidden_size": 64,
    "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 512, "dtype": "bfloat16",
}  # fmt: skip
LAYER = 2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 128 + 2 * 64
BACKBONE = 4096 * 64 + 2 * LAYER + 64
PARAMETERS = BACKBONE + 4096 * 64
"""Embeddings, two layers, a norm; and a head."""
LORA = 2 * 8 * ((64 + 64) + (64 + 32))
"""Rank 8 beside the projections of queries and values."""
ARGUMENTS = ("--output_dir", "out", "--report_to", "none", "--max_steps", "3", "--per_device_train_batch_size", "2")
ROUNDING = 64 * 512
"""Each tensor takes a multiple of 512 bytes."""

pytestmark = [pytest.mark.slow, pytest.mark.newer]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, its tokenizer and data sets under the names the programs are given."""
    made = tmp_path_factory.mktemp("programs")
    words = Words()
    (made / "tiny" / "llama").mkdir(parents=True)
    train_tokenizer([words.text() for _ in range(100)], made / "tiny" / "llama")
    (made / "tiny" / "llama" / "config.json").write_text(json.dumps(CONFIG))
    part = {"splits": ["train"], "rows": 16}
    write_data_set(made / "tiny" / "chats", [{**part, "columns": {"messages": "chat"}}], words)
    columns = {"prompt": "user", "chosen": "assistant", "rejected": "assistant"}
    write_data_set(made / "tiny" / "preferences", [{**part, "columns": columns}], words)
    return made


def traced(script: str, data: str, *arguments: str) -> ScriptTrace:
    package = importlib.util.find_spec("trl")
    assert package is not None and package.submodule_search_locations
    path = Path(next(iter(package.submodule_search_locations))) / "scripts" / script
    command = [str(path), "--model_name_or_path", "tiny/llama", "--dataset_name", data, *ARGUMENTS, *arguments]
    return trace(command, steps=2, gpu="h100-sxm-80gb")


def most(found: ScriptTrace, part: str) -> int:
    """Of a part, at the peak of the phase that has most of it: states come with the first optimizer step."""
    return max(phase.breakdown_bytes[part] for phase in found.trace.phases)


def between(low: int, value: int, high: int) -> bool:
    return low <= value <= high


def test_sft_holds_weights_gradients_and_two_states_in_float32(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    found = traced("sft.py", "tiny/chats")
    assert (found.trace.steps, found.trace.error) == (2, None)
    assert between(4 * PARAMETERS, most(found, "weights"), 4 * PARAMETERS + ROUNDING)
    assert between(8 * PARAMETERS, most(found, "optimizer"), 8 * PARAMETERS + 2 * ROUNDING)


def test_dpo_with_lora_trains_the_adapters_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    found = traced("dpo.py", "tiny/preferences", "--use_peft", "--lora_r", "8")
    assert (found.trace.steps, found.trace.error) == (2, None)
    assert between(4 * PARAMETERS, most(found, "weights"), 4 * PARAMETERS + ROUNDING)
    assert between(4 * LORA, most(found, "adapters"), 4 * LORA + ROUNDING)
    assert between(8 * LORA, most(found, "optimizer"), 8 * LORA + 2 * ROUNDING)


def test_a_reward_model_has_one_output_in_the_place_of_the_vocabulary(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    found = traced("reward.py", "tiny/preferences")
    assert (found.trace.steps, found.trace.error) == (2, None)
    assert between(4 * (BACKBONE + 64), most(found, "weights"), 4 * (BACKBONE + 64) + ROUNDING)
    assert between(8 * (BACKBONE + 64), most(found, "optimizer"), 8 * (BACKBONE + 64) + 2 * ROUNDING)
