"""A trainer each: what its keys say about a job, and the defaults of its release.

automodel.py           NVIDIA's NeMo Automodel: one YAML a training, whose `recipe` and `_target_` are names of
                       classes
axolotl.py             Axolotl's YAML
litgpt.py              litgpt's YAML, of its config_hub or one's own
llama_factory.py       LLaMA-Factory's YAML and JSON: `llamafactory-cli train x.yaml key=value`
megatron_bridge.py     NVIDIA's Megatron Bridge: YAML that overrides what a recipe's Python function has set, and
                       names no model by itself
ms_swift.py            ms-swift: `swift sft`, `swift pt` and `swift rlhf` with transformers' Trainer, `megatron sft`
                       with Megatron Core
ms_swift_megatron.py   `megatron sft` of ms-swift: Megatron Core's arguments, some under names of its own
script.py              Scripts and notebooks around transformers' Trainer and TRL's SFTTrainer, read without running
                       them
torchtitan.py          torchtitan's TOML, as it had until February 2026
torchtune.py           torchtune's YAML, of its recipes/configs or one's own
training_arguments.py  Arguments of transformers' Trainer in a file
trl.py                 TRL's YAML, as `trl sft`, alignment-handbook and open-r1 have it
unsloth.py             Unsloth's scripts and notebooks, read without running them; a notebook's outputs are no part of
                       it
"""
