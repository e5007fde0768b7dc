"""Files that go with several trainers.

accelerate.py  accelerate's YAML: how many processes, and how they share the model
deepspeed.py   DeepSpeed's JSON: ZeRO, its offload and its buckets
fsdp.py        The keys of FSDP, which accelerate, the Trainer and Axolotl share
megatron.py    Megatron Core's arguments, by the names that ms-swift and LLaMA-Factory share with Megatron-LM
peft.py        PEFT's adapter_config.json, beside another file or alone: what kind of adapters, and on which layers
"""
