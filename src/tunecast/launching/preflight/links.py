"""An all-reduce over all cards, by torchrun: rank 0 prints its bus bandwidth.

torchrun --nproc-per-node 8 preflight_links.py nccl 268435456
"""

from __future__ import annotations

import datetime
import os
import sys
import time


def all_reduce(backend: str, nbytes: int) -> None:
    """Rank 0 prints the bus bandwidth: 2 (n - 1) / n of the bytes a second (NCCL tests, PERFORMANCE.md)."""
    import torch
    import torch.distributed as group

    local = int(os.environ["LOCAL_RANK"])
    if backend == "nccl":
        torch.cuda.set_device(local)
    group.init_process_group(backend, timeout=datetime.timedelta(seconds=60))
    place = f"cuda:{local}" if backend == "nccl" else "cpu"
    tensor = torch.zeros(nbytes // 4, dtype=torch.float32, device=place)
    took = []
    for _ in range(15):
        group.barrier()
        began = time.perf_counter()
        group.all_reduce(tensor)
        if backend == "nccl":
            torch.cuda.synchronize()
        took.append(time.perf_counter() - began)
    many = group.get_world_size()
    if group.get_rank() == 0:
        middle = sorted(took[5:])[5]
        print(f"bus_bytes_per_s {2 * (many - 1) / many * nbytes / middle:.6e}", flush=True)
    group.destroy_process_group()


if __name__ == "__main__":
    all_reduce(sys.argv[1], int(sys.argv[2]))
