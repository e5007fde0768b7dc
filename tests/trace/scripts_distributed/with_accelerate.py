"""A plain accelerate loop; how it is distributed is the launcher's business."""

import torch
from accelerate import Accelerator
from torch import nn


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(256, 256, bias=False)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return self.linear(values)


accelerator = Accelerator()
model = nn.Sequential(*(Layer() for _ in range(4)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
loader = torch.utils.data.DataLoader([torch.randn(256) for _ in range(200)], batch_size=2, shuffle=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for batch in loader:
    accelerator.backward(model(batch).square().mean())
    accelerator.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    assert len(accelerator.gather(batch)) == 16
