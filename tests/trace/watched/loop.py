"""A loop of somebody's own, with tunecast.watching."""

import torch

import tunecast

model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = torch.utils.data.DataLoader([{"input_ids": torch.ones(8)} for _ in range(40)], batch_size=4)
with tunecast.watching(steps=10) as watch:
    for batch in watch.batches(loader):
        loss = model(batch["input_ids"]).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        watch.step(loss=loss)
    with watch.phase("evaluation"):
        model(torch.ones(1, 8))
