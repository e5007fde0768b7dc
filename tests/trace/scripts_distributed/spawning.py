"""Starts its ranks itself, one a card."""

import torch
import torch.distributed as dist
import torch.multiprocessing


def train(rank: int, world: int) -> None:
    dist.init_process_group("nccl", init_method="tcp://127.0.0.1:23456", rank=rank, world_size=world)
    assert dist.get_world_size() == 4
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64).to(rank), device_ids=[rank])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        model(torch.randn(2, 64, device=rank)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    cards = torch.cuda.device_count()
    torch.multiprocessing.spawn(train, args=(cards,), nprocs=cards)
