#!/bin/bash
#SBATCH --nodes=2
#SBATCH --gres=gpu:8
export TOKENIZERS_PARALLELISM=false
STEPS=${1:-3}
cd "$(dirname "${BASH_SOURCE[0]}")"
srun torchrun --nnodes $SLURM_NNODES --nproc-per-node $SLURM_GPUS_ON_NODE trainer_full.py --steps $STEPS | tee train.log
