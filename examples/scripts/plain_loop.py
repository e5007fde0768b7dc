"""A small transformer in plain PyTorch, with the arguments such scripts have: every weight is trained, in a loop.

python plain_loop.py --batch-size 16                          train, and print the memory it took
tunecast trace --gpu rtx-4090 -- plain_loop.py                memory and time before it runs, without a GPU
tunecast plan -- plain_loop.py                                what to rent for it
tunecast fit --gpu rtx-4090 -- plain_loop.py                  which of its arguments to change so that it fits
"""

import argparse

import torch
from common_data import print_memory
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=32, help="rows that go through the model at once")
parser.add_argument("--accumulation-steps", type=int, default=1, help="batches per optimizer step")
parser.add_argument("--gradient-checkpointing", action="store_true")
parser.add_argument("--seq-len", type=int, default=1024)
parser.add_argument("--layers", type=int, default=8)
parser.add_argument("--width", type=int, default=2048)
parser.add_argument("--rows", type=int, default=20_000)
parser.add_argument("--epochs", type=int, default=1)
args = parser.parse_args()
VOCABULARY, HEADS = 32_000, 16


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix, self.out = nn.Linear(args.width, 3 * args.width), nn.Linear(args.width, args.width)
        self.up, self.down = nn.Linear(args.width, 4 * args.width), nn.Linear(4 * args.width, args.width)
        self.before, self.between = nn.LayerNorm(args.width), nn.LayerNorm(args.width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = (
            part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.mix(self.before(x)).chunk(3, dim=-1)
        )
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(functional.gelu(self.up(self.between(x))))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, args.width)
        self.blocks = nn.ModuleList(Block() for _ in range(args.layers))
        self.head = nn.Linear(args.width, VOCABULARY)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if args.gradient_checkpointing else block(x)
        return self.head(x)


model = Model().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
rows = TensorDataset(torch.randint(0, VOCABULARY, (args.rows, args.seq_len), dtype=torch.int32))
loader = DataLoader(rows, batch_size=args.batch_size, shuffle=True, drop_last=True)
for _ in range(args.epochs):
    for number, (batch,) in enumerate(loader, start=1):
        ids = batch.cuda().long()
        with torch.autocast("cuda", torch.bfloat16):
            logits = model(ids)
        loss = functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())
        (loss / args.accumulation_steps).backward()
        if number % args.accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
print_memory()
