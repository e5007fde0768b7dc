"""A plain loop on a linear layer, and how it can end: `loop.py [forever|mistake|exit|save|eval|swallow]`."""

from __future__ import annotations

import sys

import torch

how = sys.argv[1]
large = torch.ones(1 << 18, device="cuda")  # a mebibyte: its line is told
assert __name__ == "__main__" and sys.argv[0].endswith("loop.py")
model = torch.nn.Linear(8, 4).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def step():
    loss = model(torch.randn(2, 8).cuda()).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


step()
if how == "mistake":
    raise ValueError("my own mistake")
if how == "exit":
    sys.exit(3)
step()
if how == "save":
    torch.save(model.state_dict(), "model.pt")
    raise AssertionError("saving comes after the steps asked for")
if how == "eval":
    with torch.no_grad():
        model(torch.ones(2, 8).cuda())
    raise AssertionError("evaluation comes after the steps asked for")
while how == "forever":
    step()
while how == "swallow":
    try:  # noqa: SIM105
        step()
    except:  # noqa: E722  the kind of loop this is about
        pass
