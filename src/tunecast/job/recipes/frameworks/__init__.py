"""A trainer each: what its keys say about a job, and the defaults of its release.

automodel.py           NVIDIA's NeMo Automodel: one YAML a training, whose `recipe` and `_target_` are names of classes
axolotl.py             Axolotl's YAML
training_arguments.py  Arguments of transformers' Trainer in a file
trl.py                 TRL's YAML, as `trl sft`, alignment-handbook and open-r1 have it
"""
