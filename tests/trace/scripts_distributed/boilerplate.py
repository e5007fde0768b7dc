"""What training scripts ask of torch.distributed before they train; every answer is checked here."""

import datetime
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

rank, local_rank, world = (int(os.environ[name]) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"))
assert (rank, local_rank, world, os.environ["LOCAL_WORLD_SIZE"]) == (0, 0, 8, "4")
torch.cuda.set_device(local_rank)
card = torch.device("cuda", local_rank)
assert dist.is_nccl_available() and dist.is_torchelastic_launched()
dist.init_process_group("nccl", timeout=datetime.timedelta(minutes=30), device_id=card)
assert (dist.get_rank(), dist.get_world_size(), dist.get_backend()) == (0, 8, "nccl")

host_group = dist.new_group(backend="gloo")
assert dist.get_backend(host_group) == "gloo"
assert dist.get_world_size(dist.new_group([0, 1])) == 2
dist.monitored_barrier(host_group)
dist.barrier(device_ids=[local_rank])

gathered = [None] * world
dist.all_gather_object(gathered, {"rank": rank})
assert gathered == [{"rank": 0}] * world
shared = ["from rank 0"]
dist.broadcast_object_list(shared, src=0)
assert shared == ["from rank 0"]

count = torch.tensor([5], device=card)
dist.all_reduce(count)
assert count.item() == 40
dist.all_reduce(count, op=dist.ReduceOp.MAX)
assert count.item() == 40
lengths = torch.zeros(world, dtype=torch.long, device=card)
dist.all_gather_into_tensor(lengths, torch.tensor([7], device=card))
assert lengths.tolist() == [7] * world
dist.all_reduce(torch.ones(4, device=card), async_op=True).wait()

model = DistributedDataParallel(torch.nn.Linear(64, 64).to(card), device_ids=[local_rank])
data = TensorDataset(torch.randn(256, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for (batch,) in DataLoader(data, batch_size=8, sampler=DistributedSampler(data)):
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    dist.all_reduce(loss.detach())
dist.destroy_process_group()
