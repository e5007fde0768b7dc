"""What stands around a training: who starts it, and who orders machines for it.

launchers.py   What starts a training and is none itself: torchrun, accelerate launch, srun
schedulers.py  Files that order machines for a training: Slurm's batch scripts and SkyPilot's tasks
servers.py     Servers that generate for a training of the same script: `trl vllm-serve`, `swift rollout`, `vllm
               serve`
"""
