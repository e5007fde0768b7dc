"""Images where nobody traced them: with NeMo Automodel's recipe, Megatron Core, and beside preferences and rollouts.

What must hold whatever the bytes are.
"""

from __future__ import annotations

from typing import Any

import pytest

from tunecast.door.predict import predict
from tunecast.errors import UsageError
from tunecast.job import job_from_dict
from tunecast.tape.build.fill_in import fill_in
from tunecast.tape.build.job_runs import build, fold_job, fold_rank
from tunecast.tape.card import Card
from tunecast.tape.op import Alloc

pytestmark = pytest.mark.whole
SMALL: dict[str, Any] = {
    "model_type": "qwen2_5_vl", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 300, "max_position_embeddings": 512,
    "tie_word_embeddings": False, "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]},
    "image_token_id": 290, "video_token_id": 291,
    "vision_config": {
        "depth": 4, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "out_hidden_size": 64,
        "window_size": 56, "fullatt_block_indexes": [1],
    },
}  # fmt: skip
CARDS = {"hardware": {"gpus": 8}, "parallel": {"data": "fsdp"}}
IMAGE = {"images": 1, "pixels": 168 * 168}


def job_of(**values: Any) -> Any:
    given = {"model": "small", "method": "full", "seq_len": 128, "micro_batch": 2, "weights_dtype": "bfloat16"}
    return job_from_dict({**given, "vision": IMAGE, **values})


def filled(**values: Any) -> Any:
    return fill_in(job_of(**values), SMALL)


def held(**values: Any) -> int:
    return fold_job(filled(**values), SMALL, Card()).program.most_alive_bytes


class TestAutomodel:
    @pytest.mark.parametrize("cards", [{}, CARDS])
    @pytest.mark.parametrize("method", ["full", "lora"])
    def test_a_tower_and_its_activations_are_held(self, cards: Any, method: str) -> None:
        given = {"stack": "automodel", "method": method, **cards}
        assert held(**given) > held(**given, vision={})

    def test_nobody_traced_it(self) -> None:
        tape = build(filled(stack="automodel"), SMALL, [128], Card())
        assert any("training with images" in guess for guess in tape.guesses)

    def test_a_frozen_tower_keeps_nothing(self) -> None:
        """Its merger is frozen with it, which Automodel finds by its name; the outermost unit holds both."""
        given = {"stack": "automodel", "weights_dtype": "float32", **CARDS}
        assert held(**given, vision={**IMAGE, "trained": ["projector", "language"]}) == held(
            **given, vision={**IMAGE, "trained": ["language"]}
        )
        assert held(**given, vision={**IMAGE, "trained": ["language"]}) < held(**given)

    def test_a_trained_tower_is_recomputed_too(self) -> None:
        def of_tower(checkpointing: bool) -> int:
            job = filled(stack="automodel", gradient_checkpointing=checkpointing)
            events = build(job, SMALL, [128], Card()).events
            return sum(isinstance(event, Alloc) and ".visual.blocks." in event.module for event in events)

        assert of_tower(checkpointing=True) > 1.2 * of_tower(checkpointing=False)

    def test_a_pipelines_first_stage_has_the_tower(self) -> None:
        given = {"stack": "automodel", "hardware": {"gpus": 4}, "parallel": {"data": "fsdp", "pipeline": 2}}

        def held_by(last: bool, **values: Any) -> tuple[int, bool]:
            run = fold_rank(filled(**given, grad_accum=2, **values), SMALL, Card(), last=last)
            events = run.make_tape().events
            sees = any(isinstance(event, Alloc) and ".visual." in event.module for event in events)
            return run.program.most_alive_bytes, sees

        assert held_by(last=False)[1] and not held_by(last=True)[1]
        assert held_by(last=False)[0] > held_by(last=False, vision={})[0]

    def test_rows_that_cards_share(self) -> None:
        given = {"stack": "automodel", "hardware": {"gpus": 4}, "parallel": {"data": "fsdp", "context": 2}}
        tape = build(filled(**given), SMALL, [128], Card())
        assert any("see all images" in guess for guess in tape.guesses)


class TestMegatron:
    @pytest.mark.parametrize("task", ["sft", "dpo", "kto", "reward"])
    def test_a_tower_is_held(self, task: str) -> None:
        given = {"stack": "megatron", "task": task, "autocast": "bfloat16"}
        assert held(**given) > held(**given, vision={})


class TestPreferences:
    @pytest.mark.parametrize(
        "given",
        [
            {"stack": "trl", "method": "lora"},
            {"stack": "trl"},
            {"stack": "llama-factory", "method": "lora"},
            {"stack": "trl", "preference": {"reference": "precomputed"}},
        ],
    )
    def test_both_answers_have_the_images_of_their_prompt(self, given: dict[str, Any]) -> None:
        """168 x 168 pixels are 144 patches of 3 x 2 x 14 x 14 numbers in float32, of two rows and two answers each."""
        job = filled(**given, task="dpo")
        tape = build(job, SMALL, [128], Card())
        pixels = 2 * 2 * 144 * 3 * 2 * 14 * 14 * 4
        assert any(isinstance(event, Alloc) and event.nbytes == pixels for event in tape.events)
        assert any("images beside preferences" in guess for guess in tape.guesses)
        assert held(**given, task="dpo") > held(**given, task="dpo", vision={})

    @pytest.mark.parametrize(
        ("stack", "task"), [("trl", "kto"), ("ms-swift", "kto"), ("ms-swift", "orpo"), ("ms-swift", "cpo")]
    )
    def test_a_tower_is_held_with_other_losses(self, stack: str, task: str) -> None:
        given = {"stack": stack, "method": "lora", "task": task}
        assert held(**given) > held(**given, vision={})

    def test_rollouts_have_the_images_of_their_prompt(self) -> None:
        given = {"stack": "trl", "task": "grpo", "micro_batch": 8, "seq_len": 192, "rl": {"completion_length": 64}}
        tape = build(filled(**given), SMALL, [192], Card())
        assert any("images beside rollouts" in guess for guess in tape.guesses)
        assert held(**given) > held(**given, vision={})

    @pytest.mark.parametrize("task", ["orpo", "cpo", "reward"])
    def test_other_tasks_are_refused(self, task: str) -> None:
        with pytest.raises(UsageError) as found:
            job_of(stack="trl", task=task, micro_batch=8)
        assert found.value.field == "vision.images"


def test_a_tower_beside_experts_gives_embeddings_to_megatron() -> None:
    """Models with experts return more than hidden states."""
    found = predict(
        {
            "model": "internvl3.5-30b-a3b", "stack": "megatron", "method": "lora", "vision": {"images": 1},
            "seq_len": 1024, "hardware": {"gpu": "h100-sxm-80gb", "gpus": 2}, "parallel": {"expert": 2},
        }
    )  # fmt: skip
    assert found.exactness == "estimate"
