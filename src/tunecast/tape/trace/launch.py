"""What a launcher tells the processes it starts, as far as rank 0 of any job can be told by its size alone."""

from __future__ import annotations

MASTER_PORT = 29500
"""torchrun's, accelerate's and DeepSpeed's default; nobody listens."""


def rank_zero(nproc_per_node: int, nnodes: int = 1) -> dict[str, str]:
    """The environment torchrun gives the first process of the first machine. accelerate launches through torchrun.

    Source   torch/distributed/elastic/agent/server/local_elastic_agent.py, `_start_workers`.
    """
    world = str(nproc_per_node * nnodes)
    return {
        "LOCAL_RANK": "0", "RANK": "0", "GROUP_RANK": "0", "ROLE_RANK": "0", "ROLE_NAME": "default",
        "LOCAL_WORLD_SIZE": str(nproc_per_node), "WORLD_SIZE": world, "GROUP_WORLD_SIZE": str(nnodes),
        "ROLE_WORLD_SIZE": world, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(MASTER_PORT),
        "TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_MAX_RESTARTS": "0", "TORCHELASTIC_RUN_ID": "none",
        "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    }  # fmt: skip


def deepspeed_rank_zero(nproc_per_node: int, nnodes: int = 1) -> dict[str, str]:
    """Source   deepspeed/launcher/launch.py, `main`."""
    return {
        "LOCAL_RANK": "0", "RANK": "0", "WORLD_SIZE": str(nproc_per_node * nnodes), "LOCAL_SIZE": str(nproc_per_node),
        "CROSS_RANK": "0", "CROSS_SIZE": str(nnodes), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(MASTER_PORT),
        "CUDA_VISIBLE_DEVICES": ",".join(map(str, range(nproc_per_node))),
    }  # fmt: skip


def slurm_rank_zero(ntasks_per_node: int, nnodes: int = 1) -> dict[str, str]:
    """Source   srun(1), "output environment variables"."""
    tasks = str(ntasks_per_node * nnodes)
    return {
        "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0", "SLURM_NTASKS": tasks, "SLURM_NPROCS": tasks,
        "SLURM_NNODES": str(nnodes), "SLURM_JOB_NUM_NODES": str(nnodes), "SLURM_NTASKS_PER_NODE": str(ntasks_per_node),
        "SLURM_STEP_NUM_TASKS": tasks, "SLURM_STEP_NUM_NODES": str(nnodes), "SLURM_JOB_ID": "0",
        "SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1", "SLURM_NODELIST": "localhost", "SLURM_JOB_NODELIST": "localhost",
    }  # fmt: skip


def mpi_rank_zero(nproc_per_node: int, nnodes: int = 1) -> dict[str, str]:
    """Source   Open MPI's documentation, "Environment variables set by mpirun"."""
    return {
        "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_LOCAL_RANK": "0", "OMPI_COMM_WORLD_NODE_RANK": "0",
        "OMPI_COMM_WORLD_SIZE": str(nproc_per_node * nnodes), "OMPI_COMM_WORLD_LOCAL_SIZE": str(nproc_per_node),
    }  # fmt: skip
