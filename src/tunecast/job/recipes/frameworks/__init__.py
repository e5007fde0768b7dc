"""A trainer each: what its keys say about a job, and the defaults of its release.

automodel.py             NVIDIA's NeMo Automodel: one YAML a training, whose `recipe` and `_target_` are names of
                         classes
automodel_images.py      NeMo Automodel's trainings with images: `FinetuneRecipeForVLM`, `processor`, `freeze_config`
automodel_inline.py      Models that Automodel's files name by no repository: a configuration class whose defaults are
                         a model's, or GPT-2 by its sizes
automodel_parallel.py    How NeMo Automodel's YAML spreads a model over cards, and whose kernels run there:
                         `distributed`, `model.backend`, `loss_fn`
automodel_tasks.py       What Automodel trains for: recipes by their classes, teachers, encoders of texts, and what is
                         refused by name
axolotl.py               Axolotl's YAML
axolotl_cards.py         How Axolotl shares a job among cards, and which kernels it puts in
axolotl_keys.py          What Axolotl's keys are: their defaults, those that move nothing, those that no field tells,
                         and words in them
axolotl_method.py        What Axolotl trains: all weights or adapters, on which layers, over weights of how many bits
axolotl_run.py           How long Axolotl trains, how often it saves and evaluates
axolotl_tasks.py         What Axolotl trains for: `rl` with the blocks `trl` and `vllm`, reward models, classifiers,
                         images
litgpt.py                litgpt's YAML, of its config_hub or one's own
llama_factory.py         LLaMA-Factory's YAML and JSON: `llamafactory-cli train x.yaml key=value`
llama_factory_frozen.py  LLaMA-Factory's trainings of some layers: `freeze`, LLaMA Pro, BAdam
llama_factory_tasks.py   What LLaMA-Factory trains for: its stages beyond SFT, images and videos
llama_factory_v1.py      LLaMA-Factory's v1 schema (USE_V1=1): a training loop of its own, whose parts are plugins
                         chosen by `name`
megatron_bridge.py       NVIDIA's Megatron Bridge: YAML that overrides what a recipe's Python function has set, and
                         names no model by itself
ms_swift.py              ms-swift: `swift sft`, `swift pt` and `swift rlhf` with transformers' Trainer, `megatron sft`
                         with Megatron Core
ms_swift_megatron.py     `megatron sft` of ms-swift: Megatron Core's arguments, some under names of its own
ms_swift_tasks.py        What ms-swift trains for: `swift rlhf`, heads of `task_type`, images and videos
ms_swift_tuners.py       What ms-swift's `swift sft` trains: all weights, LoRA, or adapters that are as good as LoRA
script.py                Scripts and notebooks around transformers' Trainer and TRL's SFTTrainer, read without running
                         them
torchtitan.py            torchtitan's TOML, as it had until February 2026
torchtitan_registry.py   torchtitan's configurations as it has them since February 2026: functions of
                         torchtitan/models/*/config_registry.py, followed without running them, and told in the words
                         of the TOML files before
torchtune.py             torchtune's YAML, of its recipes/configs or one's own
torchtune_tasks.py       What torchtune trains for beyond SFT on text: preferences, distillation, images
training_arguments.py    Arguments of transformers' Trainer in a file
trl.py                   TRL's YAML, as `trl sft`, alignment-handbook and open-r1 have it
unsloth.py               Unsloth's scripts and notebooks, read without running them; a notebook's outputs are no part
                         of it
"""
