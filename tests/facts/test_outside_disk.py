"""Checkpoints that transformers and PEFT really write, against what they are said to weigh."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tunecast.prediction.outside.checkpoint import (
    SMALL_FILES_BYTES,
    Parameter,
    optimizer_file_bytes,
    optimizer_states,
    safetensors_bytes,
    saved_parameters,
)

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")


def tiny_llama() -> Any:
    config = transformers.LlamaConfig(
        vocab_size=500,
        hidden_size=64,
        intermediate_size=176,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
    )
    return transformers.LlamaForCausalLM(config).to(torch.bfloat16)


def tiny_lora() -> Any:
    peft = pytest.importorskip("peft")
    return peft.get_peft_model(tiny_llama(), peft.LoraConfig(r=8, target_modules=["q_proj", "up_proj"]))


def parameters_of(model: Any) -> list[Parameter]:
    return [
        Parameter(name, tuple(p.shape), str(p.dtype).removeprefix("torch."), p.requires_grad)
        for name, p in model.named_parameters()
    ]


def trained(model: Any, optimizer: str, folder: Path, steps: int = 1, **given: Any) -> Any:
    rows = [{"input_ids": torch.arange(8), "labels": torch.arange(8)}] * 4
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        max_steps=steps,
        per_device_train_batch_size=1,
        optim=optimizer,
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        **given,
    )
    trainer = transformers.Trainer(model=model, args=arguments, train_dataset=rows)
    trainer.train()
    return trainer


@pytest.mark.parametrize(
    ("build", "weights"), [(tiny_llama, "model.safetensors"), (tiny_lora, "adapter_model.safetensors")]
)
@pytest.mark.parametrize("optimizer", ["adamw_torch", "adafactor", "sgd", "adamw_8bit", "lion_8bit"])
def test_weight_of_a_checkpoint(build: Any, weights: str, optimizer: str, tmp_path: Path) -> None:
    if optimizer.endswith("8bit"):
        pytest.importorskip("bitsandbytes")
    model = build()
    parameters = parameters_of(model)
    trained(model, optimizer, tmp_path)
    sizes = {path.name: path.stat().st_size for path in (tmp_path / "checkpoint-1").iterdir()}
    assert sizes.pop(weights) == safetensors_bytes(saved_parameters(parameters))
    states = optimizer_states(optimizer, parameters)
    # Around the tensors lie a zip's records: counted to a fifth, at these sizes.
    around = sizes.pop("optimizer.pt") - sum(state.nbytes for state in states)
    said = optimizer_file_bytes(states) - sum(state.nbytes for state in states)
    assert around == pytest.approx(said, rel=0.25, abs=5000)
    assert sum(sizes.values()) == pytest.approx(SMALL_FILES_BYTES, rel=0.35)


def test_a_limit_of_one_has_two_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rotate = getattr(transformers.trainer, "rotate_checkpoints", None)
    if rotate is None:
        pytest.skip("transformers 4 rotates in a method of the Trainer")
    seen = []

    def counted(*given: Any, **named: Any) -> None:
        seen.append(len(list(tmp_path.glob("checkpoint-*"))))
        rotate(*given, **named)

    monkeypatch.setattr(transformers.trainer, "rotate_checkpoints", counted)
    trained(tiny_lora(), "sgd", tmp_path, steps=3, save_steps=1, save_total_limit=1)
    assert seen == [1, 2, 2]
    assert len(list(tmp_path.glob("checkpoint-*"))) == 1
