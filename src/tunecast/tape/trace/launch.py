"""What a launcher tells the processes it starts, as far as rank 0 of any job can be told by its size alone."""

from __future__ import annotations

MASTER_PORT = 29500
"""torchrun's and accelerate's default; nobody listens."""


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
