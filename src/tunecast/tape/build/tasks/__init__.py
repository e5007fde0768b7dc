"""What is trained for beyond the language model's own loss: one program per task, over the Trainer's loop.

distill.py         TRL's GKDTrainer on paper: a student beside a teacher
embeddings.py      Embeddings and rerankers on paper: sentence-transformers' SentenceTransformerTrainer with
                   MultipleNegativesRankingLoss, and its CrossEncoderTrainer with BinaryCrossEntropyLoss (sentence-
                   transformers 6.2.0)
generation.py      `generate()` on paper: prompts are read at once, then a token a row at a time, over keys and values
                   that are kept (transformers/generation/utils.py of 5.17.0, `GenerationMixin.generate`, `_sample`;
                   cache_utils.py, `DynamicLayer.update`)
heads.py           Trainers of heads in the vocabulary's place: TRL's RewardTrainer and transformers' Trainer with a
                   classifier
kto.py             TRL's KTOTrainer on paper: single answers that are good or bad, against a reference
ppo.py             TRL's PPOTrainer on paper (trl/experimental/ppo/ppo_trainer.py of 1.12.0, which later releases no
                   longer have)
ppo_losses.py      Losses of PPO on paper, from logits on, and advantages before them
                   (trl/experimental/ppo/ppo_trainer.py of 1.12.0, `PPOTrainer.train`)
ppo_models.py      Models of PPO (trl/experimental/ppo/ppo_trainer.py of 1.12.0, `PPOTrainer.__init__`,
                   `PolicyAndValueWrapper`, and trl/experimental/utils.py, `get_reward`): a reference, one that
                   rewards, and one that values and is trained
preference.py      TRL's DPOTrainer on paper, and what all trainers of preferences share
reference.py       Whom a loss of preferences asks beside the policy, and what its rows are labelled with: what DPO
                   and KTO share
reference_free.py  TRL's CPOTrainer and ORPOTrainer on paper: pairs without a reference
rollout_losses.py  Losses of GRPO and RLOO on paper, from log-probabilities on (trl/trainer/grpo_trainer.py and
                   rloo_trainer.py of 1.16.0, `_compute_loss`), and the metrics that their trainers read after each
rollout_models.py  Models of a rollout: who scores completions beside the model that writes them, and how that one is
                   called
rollouts.py        TRL's GRPOTrainer and RLOOTrainer on paper (trl/trainer/grpo_trainer.py and rloo_trainer.py of
                   1.16.0)
scores.py          Log-probabilities of completions from whole logits, as trainers of preferences take them
value_head.py      LLaMA-Factory's reward models on paper (llamafactory/train/rm/trainer.py of 0.9.5,
                   `PairwiseTrainer`): a value head beside the vocabulary's (trl/models/modeling_value_head.py of TRL
                   0.24, `AutoModelForCausalLMWithValueHead`), whose logits are made for nothing, and widened
whole_logits.py    DPO and KTO where all logits are made: TRL before 1.15 (trl/trainer/{dpo,kto}_trainer.py of 1.9.0),
                   and stacks with losses of their own

A task's module is a program as those of `tape/build/stacks` are: `model`, `setup`, `scheme`, `train`, `REFUSES`, and
`evaluate` where it evaluates with the Trainer. The stack that runs it is the job's: what TRL's trainers do is written
down, and what other stacks do otherwise is told there.
"""

from __future__ import annotations

from collections.abc import Mapping

PROGRAMS: Mapping[str, str] = {
    "dpo": "preference",
    "kto": "kto",
    **dict.fromkeys(("orpo", "cpo", "simpo"), "reference_free"),
    **dict.fromkeys(("reward", "prm", "classify"), "heads"),
    **dict.fromkeys(("embed", "rerank"), "embeddings"),
    **dict.fromkeys(("grpo", "rloo"), "rollouts"),
    "ppo": "ppo",
    "distill": "distill",
}
"""By task: the module."""
