"""TRL's trainers of students, as a script calls them."""

from __future__ import annotations

from typing import Any

import torch
from common import adapters, model_of, settings, tokenizer
from datasets import Dataset
from trl import DistillationConfig, DistillationTrainer
from trl.experimental.gkd import GKDConfig, GKDTrainer

PROMPT = 1
"""Of the first token no loss is taken: so every label counts."""


def train(case: dict[str, Any]) -> None:
    if case["chunked"]:
        train_on_given(case)
        return
    length = case["length"]
    samples = [
        {
            "prompt": "w3",
            "input_ids": [3 + (i * 13 + place * 7) % 900 for place in range(length)],
            "completion_mask": [0] * PROMPT + [1] * (length - PROMPT),
        }
        for i in range(16)
    ]
    GKDTrainer(
        *student_and_teacher(case),
        GKDConfig(max_length=length, lmbda=0.0, **settings(case)),
        train_dataset=Dataset.from_list(samples),
        processing_class=tokenizer(),
        peft_config=adapters(case),
    ).train()


def student_and_teacher(case: dict[str, Any]) -> tuple[Any, Any]:
    student = dict(case["config"])
    teacher = student.pop("further_models")["teacher"]
    return model_of({**case, "config": student}), model_of({**case, "config": teacher, "method": "full"})


class Given(DistillationTrainer):
    """Completions are there: what follows writing them. How many tokens there are in all is left out, a number whose
    minimum is taken before the model is called."""

    def _prepare_inputs(self, batch: Any) -> dict[str, torch.Tensor]:
        rows, prompt, completion = len(batch), PROMPT, self.max_completion_length
        of_prompt, of_completion = ("prompt_ids", "prompt_mask"), ("completion_ids", "completion_mask")
        shapes = {**dict.fromkeys(of_prompt, prompt), **dict.fromkeys(of_completion, completion)}
        given = {name: torch.ones(rows, length, dtype=torch.int64).cuda() for name, length in shapes.items()}
        self._buffered_inputs = given
        return given


def train_on_given(case: dict[str, Any]) -> None:
    student, teacher = student_and_teacher(case)
    Given(
        student,
        teacher,
        DistillationConfig(max_completion_length=case["length"] - PROMPT, **settings(case)),
        train_dataset=Dataset.from_list([{"prompt": f"w{number}"} for number in range(16)]),
        processing_class=tokenizer(),
        peft_config=adapters(case),
    ).train()
